"""The promise of a participant's answer to ``Finish``: its part of the outcome is durable."""

from __future__ import annotations

from oracles.toy_store import Bench, broken, details

from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.claims.durable_facts import entry_mark
from clusters.reference.node.declarations import PrimaryAnswer
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.storage.log_records import (
    Update,
    encode_record,
    segment_header,
)
from clusters.reference.node.tx import commands
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Ack, Failed, Finish, TxnId
from harness.protocols.claims import Acknowledgement, Command, LogUpdate, OutcomeDrop

HEADER = segment_header(1)

TXN, OTHER = TxnId(7, "n1~a", 1), TxnId(8, "n1~a", 2)


def entries(*logged: commands.Command) -> tuple[Entry, ...]:
    return tuple(Entry(1, index, commands.encode(each)) for index, each in enumerate(logged, 1))


def reading(*logged: commands.Command) -> tuple[ReferenceClaims, list[LogUpdate]]:
    """A reader that has seen ``logged`` on a disk, and what the disk said."""
    reader, header = ReferenceClaims(), segment_header(1)
    update = Update("p0", None, entries(*logged))
    data = header + encode_record((update,), 1, len(header))
    _, facts = reader.disk().read("log-00000001", 0, data)
    return reader, [fact for fact in facts if isinstance(fact, LogUpdate)]


def promised(reader: ReferenceClaims, txn: TxnId, answer: Ack | Failed) -> list[Acknowledgement]:
    declared = reader.declared("n1", PrimaryAnswer(Finish(0, txn, 9), answer))
    return [fact for _, fact in declared if isinstance(fact, Acknowledgement)]


def test_a_participant_that_says_it_has_finished_has_the_finish_in_its_log() -> None:
    logged = (
        commands.Takeover(1, 0),
        commands.Prepare(1, TXN, 5, (), ((b"k", b"v"),), 1),
        commands.Finish(1, TXN, 9),
    )
    reader, (update,) = reading(*logged)
    assert Command(f"finish of {TXN}") in update.entries[2].says

    # As long as the prepare is not known to be committed, there may be nothing to finish.
    assert promised(reader, TXN, Ack()) == []
    for entry in entries(*logged)[:2]:
        list(reader.committed("p0", entry.index, entry_mark(entry)))
    (fact,) = promised(reader, TXN, Ack())
    assert fact.commands == (("p0", f"finish of {TXN}"),)
    assert promised(reader, OTHER, Ack()) == []
    assert promised(reader, TXN, Failed(codes.NOT_PRIMARY)) == []

    # Once the finish is committed, another answer needs no other one.
    finish = entries(*logged)[2]
    list(reader.committed("p0", finish.index, entry_mark(finish)))
    assert promised(reader, TXN, Ack()) == []


def test_a_dropped_outcome_names_the_ends_that_are_not_known_yet() -> None:
    prepared = (
        commands.Takeover(1, 0),
        commands.Prepare(1, TXN, 5, (), ((b"k", b"v"),), 1),
    )
    finished = (*prepared, commands.Finish(1, TXN, 9))

    def dropped(*committed: commands.Command) -> tuple[tuple[str, str], ...]:
        forgets = (*finished, commands.Forget(1, (TXN,), 0))
        reader, _ = reading(*finished)
        for entry in entries(*committed):
            list(reader.committed("p0", entry.index, entry_mark(entry)))
        data = encode_record((Update("p1", None, entries(*forgets)[3:]),), 1, len(HEADER))
        _, facts = reader.disk().read("log-00000001", 0, HEADER + data)
        (update,) = [fact for fact in facts if isinstance(fact, LogUpdate)]
        (drop,) = [fact for fact in update.entries[0].says if isinstance(fact, OutcomeDrop)]
        return drop.ends

    assert dropped() == ()
    assert dropped(*prepared) == (("p0", f"finish of {TXN}"),)
    assert dropped(*finished) == ()


def test_an_outcome_is_dropped_once_its_ends_are_certain() -> None:
    async def ended_on(bench: Bench, *nodes: str) -> None:
        for node in nodes:
            await bench.write(node, "p 1 1 end")
        bench.declare("n3", OutcomeDrop("T", (("p", "end"),)))

    async def on_a_majority(bench: Bench) -> None:
        await ended_on(bench, "n1", "n2")

    async def on_one_disk(bench: Bench) -> None:
        await ended_on(bench, "n1")

    assert broken(on_a_majority) == []
    (found,) = details(on_one_disk)
    assert found.detail == (
        "the outcome of T is dropped, and of the end in p the synced disks of 1 of 3 voters hold it"
    )
