"""The promise of a participant's answer to ``Finish``: its part of the outcome is durable."""

from __future__ import annotations

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
from harness.protocols.claims import Acknowledgement, Command, LogUpdate

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
