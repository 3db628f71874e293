"""A node does not go on with a state that should never be, whichever way a request found it."""

from __future__ import annotations

import asyncio

import pytest
from primary_scene import KEY, OLD, Scene, lock

from clusters.providers.sim.loop import simulate
from clusters.reference.node.rpc.request_router import RequestRouter
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.wire.messages import Execute, PeerAnswer, PrimaryBody, TxnId

GET = lock(OLD, exclusive=False)
ONE_SHOT = Execute(0, OLD, ((KEY, b"x"),), 60_000)


class Broken(LockTable):
    """One whose invariant does not hold."""

    def acquire(self, txn: TxnId, key: bytes, *, exclusive: bool) -> Answer:
        """Never answers."""
        raise KeyError(key)


@pytest.mark.parametrize("body", [GET, ONE_SHOT])
@pytest.mark.parametrize("remote", [True, False])
def test_a_lock_table_that_raises_ends_the_node(body: PrimaryBody, remote: bool) -> None:
    async def scenario() -> tuple[list[str], list[PeerAnswer]]:
        scene, failures = Scene(), list[str]()
        answers, work = list[PeerAnswer](), list[asyncio.Task[None]]()
        scene.primary.locks = Broken()
        board = RequestRouter(
            node="n1",
            primaries=lambda number: scene.primary,
            spawn=lambda step: work.append(asyncio.ensure_future(step)),
            under_way=lambda: len(work),
            fail=lambda error: failures.append(repr(error)),
        )

        async def ask() -> None:
            if remote:
                board.request(body, answers.append)
                await work[0]
            else:
                await board.ask("n1", body, 1.0)

        with pytest.raises(KeyError):
            await ask()
        return failures, answers

    assert simulate(scenario()) == ([repr(KeyError(KEY))], [])
