"""A primary whose coordinators ask again for what they did not hear of."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    Failed,
    Finish,
    Lock,
    LockReply,
    LockToken,
    TxnId,
)

KEY = b"key"
FIRST = LockToken(0, 0)
EPOCH = 1


@attrs.frozen
class Granted:
    epoch: int = EPOCH


class Forever:
    """The leases, and the raft group, of a primary that nobody threatens."""

    serving = True

    def mine(self, partition: int) -> Granted:
        return Granted()

    def holds(self) -> bool:
        return True

    async def propose(self, command: object, limit_s: float) -> object:
        raise AssertionError(f"locks alone write nothing: {command}")


def primary() -> Primary:
    always: Any = Forever()
    made = Primary(
        number=0,
        partition=Partition(),
        replication=always,
        outcomes=always,
        clock=always,
        leases=always,
    )
    made.transactions.epoch = EPOCH
    return made


def txn(age: int) -> TxnId:
    """The greater ``age``, the younger."""
    return TxnId(age, "n1~1", 1)


OLD, YOUNG = txn(1), txn(2)


def lock(whose: TxnId, *, exclusive: bool = False) -> Lock:
    return Lock(0, whose, FIRST, KEY, exclusive, not exclusive, 10_000)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_asks_again_for_what_he_waits_for_waits_once() -> None:
    async def scene() -> tuple[object, object, Primary]:
        here = primary()
        await here.serve(lock(YOUNG, exclusive=True))
        unheard = asyncio.ensure_future(here.serve(lock(OLD)))
        await settle()
        again = asyncio.ensure_future(here.serve(lock(OLD)))
        await settle()
        assert await here.serve(Finish(0, YOUNG, 0)) == Ack()
        return await unheard, await again, here

    unheard, again, here = asyncio.run(scene())

    assert isinstance(unheard, Failed)
    assert isinstance(again, LockReply)
    assert here.locks.held(OLD) == (KEY,)
    assert here.locks.broken() is None


def test_who_asks_again_differently_waits_for_the_last_that_he_asked() -> None:
    async def scene() -> tuple[object, object, Primary]:
        here = primary()
        await here.serve(lock(YOUNG, exclusive=True))
        unheard = asyncio.ensure_future(here.serve(lock(OLD)))
        await settle()
        again = asyncio.ensure_future(here.serve(lock(OLD, exclusive=True)))
        await settle()
        await here.serve(Finish(0, YOUNG, 0))
        return await unheard, await again, here

    unheard, again, here = asyncio.run(scene())

    assert isinstance(unheard, Failed)
    assert isinstance(again, LockReply)
    assert here.locks.writer(KEY) == OLD
    assert here.locks.broken() is None


def test_a_node_that_hands_over_lets_what_is_open_go_on_in_all_of_its_partitions() -> None:
    async def scene() -> list[object]:
        here, beside = primary(), primary()
        await here.serve(lock(OLD))
        here.drained_with = beside.drained_with = (here, beside)
        return [
            type(await beside.serve(lock(OLD))),
            await beside.serve(lock(YOUNG)),
            await here.serve(lock(YOUNG)),
        ]

    began, *refused = asyncio.run(scene())
    assert began is LockReply
    assert [answer.code for answer in refused] == [codes.NOT_PRIMARY] * 2
