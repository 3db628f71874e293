"""What a coordinator asks of whom at a commit, and when it stops, in virtual time."""

from __future__ import annotations

import asyncio

import attrs
import pytest
from primary_scene import OLD, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.client import CONNECT_FAILED, ERRORS
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.tx.coordinator import Transaction
from clusters.reference.node.tx.limits import TxError
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import FixedRoutes
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    CommitReply,
    Failed,
    Finish,
    Lock,
    LockReply,
    LockToken,
    PeerAnswer,
    PeerBody,
    Prepare,
    PrepareReply,
    Validate,
)
from harness.protocols.fail_or_info import Certainty

PARTITIONS = 4
KEYS = [
    next(k for n in range(99) if partition_of(k := b"%d" % n, PARTITIONS) == p)
    for p in range(PARTITIONS)
]
SLOW_S = 1.0
DONE = CommitReply(2)
# Definite, and nothing that a primary, or the way to it, says of a commit.
NEVER_OF_HOME = {
    codes.NO_TRANSACTION,
    codes.KIND,
    codes.READ_ONLY,
    codes.SNAPSHOT_TOO_OLD,
    codes.SNAPSHOT_BUSY,
    CONNECT_FAILED,
}


@attrs.define
class Primaries:
    """All of a cluster: they grant every lock, and prepare at once unless they are told to wait
    (``slow``) or to refuse; what they were asked for, and told.
    """

    slow: tuple[int, ...] = ()
    refusing: tuple[int, ...] = ()
    home_says: PeerAnswer = DONE
    asked: list[PeerBody] = attrs.field(factory=list)
    told: list[PeerBody] = attrs.field(factory=list)

    async def ask(self, node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        self.asked.append(body)
        if isinstance(body, Lock):
            return LockReply(LockToken(1, 1), None)
        if isinstance(body, Prepare | Validate):
            await asyncio.sleep(SLOW_S if body.partition in self.slow else 0.01)
            if body.partition in self.refusing:
                return Failed(codes.CONFLICT, f"partition {body.partition} refuses")
        if isinstance(body, Prepare):
            return PrepareReply(1)
        return Ack() if isinstance(body, Validate) else self.home_says

    def transaction(self) -> Transaction:
        return Transaction(
            txn=OLD,
            limit_s=10.0,
            routes=FixedRoutes(PARTITIONS),
            primaries=PrimaryClient(
                route=lambda _: "n2", ask=self.ask, notify=lambda _, body: self.told.append(body)
            ),
            clock=Hlc(wall_ns=lambda: 10**9, monotonic_s=now_s),
        )


def settled(read: list[int], for_update: list[int], written: list[int]) -> dict[int, bool]:
    """Of which participants a commit says that every other lock is held, by partition."""

    async def scenario() -> dict[int, bool]:
        there = Primaries()
        tx = there.transaction()
        for p in (*read, *for_update):
            await tx.get(KEYS[p], for_update=p in for_update)
        for p in written:
            await tx.put(KEYS[p], b"x")
        await tx.commit()
        return {b.partition: b.settled for b in there.asked if isinstance(b, Prepare)}

    return simulate(scenario())


def test_a_participant_hears_whether_its_transaction_may_still_wait_elsewhere() -> None:
    # What was only read has to be locked exclusively with the commit: by whom it is written waits.
    assert settled([0, 1, 2], [], [0, 1]) == {1: False, 2: False}
    # Home alone lacks a lock: it has not got it yet when the others are prepared.
    assert settled([0, 1, 2], [], [0]) == {1: False, 2: False}
    # One participant alone lacks one: where it is prepared, it has it.
    assert settled([1, 2], [0], [0, 1]) == {1: True, 2: False}
    # Blind writes, reads that said so, and reads alone lack none.
    assert settled([], [0, 1], [0, 1]) == {1: True}
    assert settled([3], [0], [0, 1, 2]) == {1: True, 2: True, 3: True}


@pytest.mark.parametrize("writes", [True, False])
def test_the_first_refusal_ends_a_commit_and_whoever_still_waits_is_given_up(writes: bool) -> None:
    async def scenario() -> tuple[str, float, list[PeerBody]]:
        there = Primaries(slow=(1, 3), refusing=(2,))
        tx = there.transaction()
        for key in KEYS:
            await tx.get(key)
            if writes:
                await tx.put(key, b"x")
        begun_s = now_s()
        with pytest.raises(TxError) as caught:
            await tx.commit()
        took_s = now_s() - begun_s
        tx.rollback()
        return caught.value.failed.code, took_s, there.told

    code, took_s, told = simulate(scenario())

    assert code == codes.CONFLICT
    assert took_s == pytest.approx(0.01)
    assert told == [Finish(p, OLD, 0) for p in range(PARTITIONS)]


def given_up(home_says: Failed) -> list[PeerBody]:
    """What the primaries are told where home answers a commit with that."""

    async def scenario() -> list[PeerBody]:
        there = Primaries(home_says=home_says)
        tx = there.transaction()
        for key in KEYS:
            await tx.put(key, b"x")
        with pytest.raises(TxError, match=home_says.code):
            await tx.commit()
        tx.rollback()
        return there.told

    return simulate(scenario())


@pytest.mark.parametrize("code", sorted(ERRORS.keys() - NEVER_OF_HOME))
def test_what_home_certainly_did_not_commit_is_given_up_and_what_it_may_have_is_left(
    code: str,
) -> None:
    definite = ERRORS[code].at_commit is Certainty.DEFINITE

    told = given_up(Failed(code))

    assert told == ([Finish(p, OLD, 0) for p in range(PARTITIONS)] if definite else [])


def test_a_commit_waits_for_every_participant_that_does_not_refuse() -> None:
    async def scenario() -> float:
        there = Primaries(slow=(2,))
        tx = there.transaction()
        for key in KEYS:
            await tx.put(key, b"x")
        begun_s = now_s()
        assert await tx.commit() == 2
        return now_s() - begun_s

    assert simulate(scenario()) == pytest.approx(SLOW_S)
