"""What a transaction may hold: its commit has to fit into a frame, and into one log entry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node import node_report as reports
from clusters.reference.node.groups.group import ChunkQueue
from clusters.reference.node.groups.host import MAX_ENTRY_BYTES, RaftHost
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.runtime.concurrency import Failure
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.tx import limits
from clusters.reference.node.tx.coordinator import ReadOnlyTransaction, Transaction, one_shot
from clusters.reference.node.tx.limits import Step, TxError
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import FixedRoutes
from clusters.reference.node.wire.messages import (
    Ack,
    CommitTx,
    Execute,
    Failed,
    Finish,
    Lock,
    LockReply,
    LockToken,
    PeerAnswer,
    PeerBody,
    Prepare,
    ReadAt,
    TxnId,
    Version,
)

VALUE = b"v" * 30


async def answer(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
    if isinstance(body, ReadAt):
        return Version(VALUE, 1)
    if isinstance(body, CommitTx | Prepare | Execute):
        raise AssertionError(f"nothing may be proposed: {body}")
    return LockReply(LockToken(1, 1), VALUE) if isinstance(body, Lock) else Ack()


def primaries() -> PrimaryClient:
    return PrimaryClient(route=lambda _: "n1", ask=answer, notify=lambda node, body: None)


def clock() -> Hlc:
    return Hlc(wall_ns=lambda: 0, monotonic_s=lambda: 0.0)


def run(steps: Callable[[Transaction], Awaitable[object]]) -> None:
    """Take ``steps`` in a transaction of at most 100 bytes."""

    async def scenario() -> None:
        await steps(
            Transaction(
                txn=TxnId(1, "n1~1", 1),
                limit_s=5.0,
                routes=FixedRoutes(1),
                primaries=primaries(),
                clock=clock(),
            )
        )

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TX_BYTES", 100)
    monkeypatch.setattr(limits, "MAX_VALUE_BYTES", 60)
    monkeypatch.setattr(limits, "MAX_READ_BYTES", 300)


def test_a_value_over_its_limit_is_refused() -> None:
    run(lambda tx: tx.put(b"k", b"x" * 60))
    with pytest.raises(TxError, match="TX-TOO-LARGE: at most 60 bytes a value"):
        run(lambda tx: tx.put(b"k", b"x" * 61))


def test_writes_count_together_and_a_key_written_again_only_with_its_last_value() -> None:
    async def often(tx: Transaction) -> None:
        for _ in range(50):
            await tx.put(b"k", b"x" * 60)
        await tx.put(b"l", b"x" * 38)

    async def much(tx: Transaction) -> None:
        await often(tx)
        await tx.put(b"m", b"")

    run(often)
    with pytest.raises(TxError, match="TX-TOO-LARGE: at most 100 bytes a transaction"):
        run(much)


def test_keys_that_were_read_count_too_each_once() -> None:
    async def reads(tx: Transaction, count: int) -> None:
        for n in [*range(count), *range(count)]:
            await tx.get(b"%010d" % n)
        await tx.commit()

    run(lambda tx: reads(tx, 10))
    with pytest.raises(TxError, match="TX-TOO-LARGE: at most 100 bytes a transaction"):
        run(lambda tx: reads(tx, 11))


TOO_MUCH_READ = "TX-TOO-LARGE: at most 300 bytes read by a transaction"


def test_what_was_read_counts_too_since_it_is_kept() -> None:
    async def reads(tx: Transaction | ReadOnlyTransaction, count: int) -> None:
        for n in [*range(count), *range(count)]:
            await tx.get(b"%d" % n)

    async def snapshot(count: int) -> None:
        txn = TxnId(1, "n1~1", 1)
        await reads(
            ReadOnlyTransaction(txn=txn, limit_s=5.0, routes=FixedRoutes(1), primaries=primaries()),
            count,
        )

    run(lambda tx: reads(tx, 10))
    asyncio.run(snapshot(10))
    with pytest.raises(TxError, match=TOO_MUCH_READ):
        run(lambda tx: reads(tx, 11))
    with pytest.raises(TxError, match=TOO_MUCH_READ):
        asyncio.run(snapshot(11))


def shoot(*steps: Step, partitions: int) -> None:
    asyncio.run(_shoot(steps, partitions))


async def _shoot(steps: tuple[Step, ...], partitions: int) -> None:
    await one_shot(
        txn=TxnId(1, "n1~1", 1),
        limit_s=5.0,
        steps=steps,
        routes=FixedRoutes(partitions),
        primaries=primaries(),
        clock=clock(),
    )


def test_the_answer_of_a_one_shot_is_bounded_before_anything_is_proposed() -> None:
    gets: tuple[Step, ...] = ((b"k", None),) * 11  # the same key, and its value as often
    with pytest.raises(TxError, match=TOO_MUCH_READ):
        shoot(*gets, (b"k", b"x"), (b"l", b"x"), (b"m", b"x"), partitions=8)


def test_a_one_shot_counts_what_is_written_over_and_over_for_it_has_to_travel() -> None:
    puts: tuple[Step, ...] = ((b"k", b"x" * 60),) * 2
    with pytest.raises(TxError, match=r"at most 100 bytes a transaction \(got 122\)"):
        shoot(*puts, partitions=1)


class Granted:
    """Lease, grant, raft group and clock of a primary that nobody threatens."""

    serving, epoch, ceiling = True, 1, 10

    def mine(self, partition: int) -> Granted:
        return self

    def holds(self) -> bool:
        return True

    def now(self) -> int:
        return 7

    def observe(self, ts: int) -> None:
        """It stands still."""

    async def propose(self, command: object, limit_s: float) -> object:
        raise AssertionError(f"nothing may be proposed: {command}")


def test_a_primary_refuses_a_one_shot_whose_answer_is_too_large_and_holds_nothing() -> None:
    async def scenario() -> tuple[list[PeerAnswer], int]:
        always: Any = Granted()
        partition = Partition()
        partition.versions.install(b"k", VALUE, 1)
        primary = Primary(
            number=0,
            partition=partition,
            replication=always,
            outcomes=always,
            clock=always,
            leases=always,
        )
        primary.transactions.epoch = 1
        answers = [
            await primary.serve(Execute(0, TxnId(age, "n1~1", 1), steps, 5000))
            for age, steps in (
                (1, ((b"k", None),) * 11),
                (2, ((b"k", None),) * 11 + ((b"l", b"x"),)),
                (3, ((b"k", None),) * 10),
            )
        ]
        assert await primary.serve(Finish(0, TxnId(3, "n1~1", 1), 0)) == Ack()
        return answers, primary.locks.count

    (reads, writes, fits), locks = asyncio.run(scenario())

    for refused in (reads, writes):
        assert isinstance(refused, Failed)
        assert (refused.code, "got 330" in refused.message) == ("TX-TOO-LARGE", True)
    assert not isinstance(fits, Failed)
    assert locks == 0


def test_a_report_of_a_key_shows_the_newest_versions_that_fit_into_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "MAX_VALUES_BYTES", 70)
    versions = tuple(Version(VALUE, ts) for ts in (9, 8, 7))

    assert reports.shown_versions(versions) == ((9, VALUE), (8, VALUE))
    assert reports.shown_versions(versions[:2]) == ((9, VALUE), (8, VALUE))


def test_an_entry_that_fits_into_no_frame_is_not_proposed() -> None:
    async def scenario() -> tuple[list[object], int]:
        host = RaftHost(
            member="n1@1",
            log=SharedLog(SimDisk(Platter(random.Random(1)))),
            event_log=events.EventLog(boot="boot", wall_ns=lambda: 7),
            rng=random.Random(1),
            tick_s=0.1,
            election_ticks=4,
            send=lambda member, messages: None,
            batch=nullcontext(),
            chunks=ChunkQueue(),
            failure=Failure(),
        )
        group = host.open(
            "g", partition=0, founders=("n1@1",), machine=Metastorage(), restoring=None
        )
        answers = list[object]()
        host.propose(group, bytes(MAX_ENTRY_BYTES + 1), 5.0, answers.append)
        return answers, group.raft.last_index

    (refused,), last = simulate(scenario())

    assert isinstance(refused, Failed)
    assert (refused.code, last) == ("TX-TOO-LARGE", 0)
