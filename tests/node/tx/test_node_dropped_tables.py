"""What a primary does once its table was dropped: it ends what has begun, and begins nothing."""

from __future__ import annotations

import asyncio

import pytest
from primary_scene import EPOCH, KEY, OLD, YOUNG, Scene, commit, lock, prepare, token_of

from clusters.providers.sim.loop import simulate
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.durable_outcomes import Outcome
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    NO_TOKEN,
    Ack,
    CommitTx,
    Execute,
    Failed,
    Finish,
    PeerAnswer,
    PeerBody,
    PrepareReply,
    PrimaryBody,
    ReadAt,
    Resolve,
    ResolveReply,
    Validate,
)


@pytest.mark.parametrize(
    "body",
    [
        lock(OLD, exclusive=True),
        Execute(0, OLD, ((KEY, b"x"),), 60_000),
        commit(OLD, NO_TOKEN),
        prepare(OLD, NO_TOKEN, settled=True),
        Validate(0, OLD, NO_TOKEN, 1),
        ReadAt(0, KEY, 1, 0, 60_000),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_request_by_a_stale_route_is_refused_and_leaves_nothing(body: PrimaryBody) -> None:
    async def scenario() -> None:
        scene = Scene(dropped=True)
        fast, answer = scene.primary.try_fast_path(body), await scene.primary.serve(body)
        for refused in (fast, answer):
            assert isinstance(refused, Failed)
            assert refused.code == codes.NO_TABLE
        assert scene.proposed == []
        assert scene.primary.drained

    simulate(scenario())


def test_a_prepared_transaction_is_finished_before_its_partition_is_drained() -> None:
    async def scenario() -> None:
        scene = Scene()
        token = await token_of(scene, OLD)
        assert isinstance(
            await scene.primary.serve(prepare(OLD, token, settled=True)), PrepareReply
        )
        assert not scene.primary.drained  # its table is there
        scene.dropped = True
        assert not scene.primary.drained
        assert await scene.primary.serve(Finish(0, OLD, 7 << 16)) == Ack()
        assert scene.primary.drained
        assert scene.partition.versions.newest(KEY).value == b"x"

    simulate(scenario())


def test_an_outcome_is_told_until_every_participant_has_it() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.outcomes.send = lambda txn: None
        token = await token_of(scene, OLD)
        await scene.primary.serve(CommitTx(0, OLD, token, 0, ((KEY, b"x"),), (1,), 60_000, (0,)))
        scene.dropped = True
        assert not scene.primary.drained
        told = await scene.primary.serve(Resolve(0, OLD))
        assert isinstance(told, ResolveReply)
        assert told.ts > 0
        # One that asks for what never committed is told so, and that keeps nothing back.
        assert await scene.primary.serve(Resolve(0, YOUNG)) == ResolveReply(0)
        await scene.primary.propose(commands.Forget(EPOCH, (OLD,), 0), 1.0)
        assert list(scene.partition.outcomes.rows.values()) == [Outcome(0)]
        assert scene.primary.drained

    simulate(scenario())


def test_open_transactions_end_with_their_table() -> None:
    async def scenario() -> None:
        scene = Scene()
        await token_of(scene, OLD)
        waiting = asyncio.ensure_future(scene.primary.serve(lock(YOUNG, exclusive=True, key=b"k")))
        await waiting
        scene.dropped = True
        assert not scene.primary.drained
        scene.finisher(asyncio.ensure_future).turn()
        assert scene.primary.drained

    simulate(scenario())


def test_a_partition_that_is_gone_with_its_table_is_answered_for() -> None:
    async def unasked(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        raise AssertionError(body)

    async def scenario() -> None:
        client = PrimaryClient(
            route=lambda number: "n2",
            ask=unasked,
            notify=lambda node, body: None,
            removed=lambda number: number == 3,
        )
        assert await client.ask(3, Finish(3, OLD, 7), 1.0) == Ack()
        assert await client.ask(3, Resolve(3, OLD), 1.0) == ResolveReply(0)
        with pytest.raises(AssertionError):
            await client.ask(4, Resolve(4, OLD), 1.0)

    simulate(scenario())
