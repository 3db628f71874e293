"""A node does not go on with a state that should never be, whichever way a request found it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from primary_scene import KEY, OLD, Scene, lock

from clusters.providers.sim.loop import simulate
from clusters.reference.node.rpc.request_router import RequestRouter
from clusters.reference.node.runtime.concurrency import Failure, Tasks
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Execute,
    Failed,
    LogReply,
    MetaInvoke,
    PeerAnswer,
    PrimaryBody,
    Renew,
    TxnId,
)

GET = lock(OLD, exclusive=False)
ONE_SHOT = Execute(0, OLD, ((KEY, b"x"),), 60_000)


class Broken(LockTable):
    """One whose invariant does not hold."""

    def acquire(self, txn: TxnId, key: bytes, *, exclusive: bool) -> Answer:
        """Never answers."""
        raise KeyError(key)


class NotLeading:
    """Metastorage, which is led elsewhere."""

    async def serve(self, body: MetaInvoke | Renew) -> PeerAnswer:
        return Failed(codes.NOT_LEADER, "not here")


@pytest.mark.parametrize("body", [GET, ONE_SHOT])
@pytest.mark.parametrize("remote", [True, False])
def test_a_lock_table_that_raises_ends_the_node(body: PrimaryBody, remote: bool) -> None:
    async def scenario() -> tuple[KeyError, list[PeerAnswer]]:
        scene, failure = Scene(), Failure()
        answers, tasks = list[PeerAnswer](), Tasks(failure)
        scene.primary.transactions.locks = Broken()
        router = RequestRouter(
            node="n1",
            links={},
            replicas={0: scene},
            metastorage=NotLeading(),
            revision=lambda: 0,
            log_of=lambda _: LogReply(0, 0, 0),
            tasks=tasks,
            failure=failure,
        )
        with suppress(KeyError):
            if remote:
                router.request(body, answers.append)
            else:
                await router.ask("n1", body, 1.0)
        async with asyncio.timeout(1.0):
            with pytest.raises(KeyError) as raised:
                await failure.future
        return raised.value, answers

    error, answers = simulate(scenario())
    assert (error.args, answers) == ((KEY,), [])
