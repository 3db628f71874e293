"""Who waits for whom between coordinators, primaries and homes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
from primary_scene import (
    KEY,
    OLD,
    YOUNG,
    LeaseTable,
    Scene,
    commit,
    lock,
    now_s,
    prepare,
    token_of,
)

from clusters.providers.sim.loop import simulate
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.rpc import request_router
from clusters.reference.node.rpc.request_router import RequestRouter
from clusters.reference.node.runtime.concurrency import Failure, Tasks
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.tx.coordinator import one_shot
from clusters.reference.node.tx.limits import (
    LOCK_TIMEOUT_S,
    OUTCOME_TIMEOUT_S,
    ROUTING_TIMEOUT_S,
    TxError,
)
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import FixedRoutes
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    CommitReply,
    CommitTx,
    Execute,
    ExecuteReply,
    Failed,
    Finish,
    Lock,
    LockReply,
    LogReply,
    MetaInvoke,
    PeerAnswer,
    PeerBody,
    PrepareReply,
    ReadAt,
    Renew,
    Resolve,
    ResolveReply,
    TxnId,
    Version,
)


def test_who_waits_for_a_lock_at_another_node_hears_that_it_was_not_free_in_time() -> None:
    async def scenario() -> tuple[PeerAnswer, float, int]:
        scene = Scene()
        await scene.primary.serve(lock(YOUNG, exclusive=True))
        before_s = now_s()
        answer = await scene.primaries().ask(0, lock(OLD, exclusive=False), ROUTING_TIMEOUT_S)
        return answer, now_s() - before_s, len(scene.asked)

    answer, took_s, asked = simulate(scenario())

    assert isinstance(answer, Failed)
    assert answer.code == codes.LOCK_TIMEOUT
    assert took_s == pytest.approx(LOCK_TIMEOUT_S, abs=0.1)
    assert asked == 1


def test_a_snapshot_at_another_node_hears_that_an_outcome_is_in_doubt() -> None:
    async def scenario() -> tuple[PeerAnswer, float]:
        scene = Scene()
        held = await scene.primary.serve(lock(YOUNG, exclusive=True))
        assert isinstance(held, LockReply)
        await scene.primary.serve(prepare(YOUNG, held.token, settled=True))
        before_s = now_s()
        read = ReadAt(0, KEY, scene.clock.now(), 0, 60_000)
        return await scene.primaries().ask(0, read, ROUTING_TIMEOUT_S), now_s() - before_s

    answer, took_s = simulate(scenario())

    assert isinstance(answer, Failed)
    assert answer.code == codes.SNAPSHOT_BUSY
    assert took_s == pytest.approx(OUTCOME_TIMEOUT_S, abs=0.1)


def test_a_one_shot_that_lost_a_peer_before_its_commit_certainly_did_not_happen() -> None:
    async def scenario() -> None:
        async def lost(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
            assert isinstance(body, Lock)
            return Failed(codes.PEER_LOST, "n2: silent")

        await one_shot(
            txn=OLD,
            limit_s=1.0,
            steps=tuple((key, b"x") for key in (b"a", b"b", b"c", b"d")),
            routes=FixedRoutes(8),
            primaries=PrimaryClient(route=lambda _: "n2", ask=lost, notify=lambda node, body: None),
            clock=Hlc(wall_ns=lambda: 10**9, monotonic_s=now_s),
        )

    assert len({partition_of(key, 8) for key in (b"a", b"b", b"c", b"d")}) > 1
    with pytest.raises(TxError, match=r"TX-ABORTED: .*PEER-LOST: n2: silent"):
        simulate(scenario())


def test_a_transaction_that_was_open_for_long_is_not_taken_for_silent_when_it_prepares() -> None:
    async def scenario() -> tuple[int, int]:
        scene, work = Scene(), list[asyncio.Task[None]]()

        def spawn(step: Coroutine[None, None, None]) -> None:
            work.append(asyncio.ensure_future(step))

        finisher = scene.finisher(spawn)
        held = await scene.primary.serve(lock(YOUNG, exclusive=True))
        assert isinstance(held, LockReply)
        await asyncio.sleep(5.0)
        done = await scene.primary.serve(prepare(YOUNG, held.token, settled=True))
        assert isinstance(done, PrepareReply)
        await asyncio.sleep(0.5)
        finisher.turn()
        healthy = len(work)
        await asyncio.sleep(1.0)
        finisher.turn()
        for task in work:
            await task
        assert scene.partition.prepared == {}
        return healthy, sum(isinstance(body, Resolve) for body in scene.asked)

    assert simulate(scenario()) == (0, 1)


@pytest.mark.parametrize(("settled", "asked"), [(True, [0, 1, 1]), (False, [0, 0, 1])])
def test_who_may_have_waited_for_a_lock_elsewhere_is_given_that_time_before_home_is_asked(
    settled: bool, asked: list[int]
) -> None:
    async def scenario() -> list[int]:
        scene, work = Scene(), list[asyncio.Task[None]]()
        finisher = scene.finisher(lambda step: work.append(asyncio.ensure_future(step)))
        await scene.primary.serve(prepare(OLD, await token_of(scene, OLD), settled=settled))
        found = list[int]()
        for wait_s in (0.9, 0.9, 0.4):  # RECOVER_AFTER_S, and LOCK_TIMEOUT_S behind it
            await asyncio.sleep(wait_s)
            finisher.turn()
            await asyncio.sleep(0.1)
            found.append(sum(isinstance(body, Resolve) for body in scene.asked))
        for task in work:
            await task
        return found

    assert simulate(scenario()) == asked


async def commit_behind_another(scene: Scene) -> asyncio.Task[PeerAnswer]:
    """A commit of the old one, which waits for a lock that the young one shares."""
    old = await token_of(scene, OLD)
    await token_of(scene, YOUNG)
    asked = CommitTx(0, OLD, old, 0, ((KEY, b"x"),), (1,), 60_000, (0,))
    committing = asyncio.ensure_future(scene.primary.serve(asked))
    await asyncio.sleep(0.1)
    return committing


def test_home_does_not_call_a_transaction_silent_whose_commit_waits_there_for_a_lock() -> None:
    async def scenario() -> tuple[PeerAnswer, PeerAnswer]:
        scene = Scene()
        committing = await commit_behind_another(scene)
        asking = asyncio.ensure_future(scene.primary.serve(Resolve(0, OLD)))
        await asyncio.sleep(0.7)
        await scene.primary.serve(Finish(0, YOUNG, 0))
        return await committing, await asking

    committed, told = simulate(scenario())

    assert isinstance(committed, CommitReply)
    assert told == ResolveReply(committed.ts)


def test_home_aborts_what_waited_for_a_lock_in_vain() -> None:
    async def scenario() -> tuple[PeerAnswer, PeerAnswer, float]:
        scene = Scene()
        committing = await commit_behind_another(scene)
        told = await scene.primary.serve(Resolve(0, OLD))
        return told, await committing, now_s()

    told, refused, took_s = simulate(scenario())

    assert told == ResolveReply(0)
    assert isinstance(refused, Failed)
    assert refused.code == codes.LOCK_TIMEOUT
    assert took_s == pytest.approx(LOCK_TIMEOUT_S, abs=0.1)


def test_home_lets_the_locks_of_a_silent_transaction_go_when_it_aborts_it() -> None:
    async def scenario() -> tuple[PeerAnswer, int, PeerAnswer]:
        scene = Scene()
        token = await token_of(scene, OLD)
        told = await scene.primary.serve(Resolve(0, OLD))
        return told, scene.primary.locks.count, await scene.primary.serve(commit(OLD, token))

    told, locked, late = simulate(scenario())

    assert (told, locked) == (ResolveReply(0), 0)
    assert isinstance(late, Failed)
    assert late.code == codes.LOST


def test_the_time_of_a_one_shot_that_only_read_is_promised_like_that_of_a_snapshot() -> None:
    async def scenario() -> tuple[object, object]:
        scene = Scene()
        scene.leases.ceiling = scene.clock.now() + span(1.0)
        near = await scene.primary.serve(Execute(0, OLD, ((KEY, None),), 60_000))
        scene.clock.observe(scene.clock.now() + span(4.0))
        far = await scene.primary.serve(Execute(0, YOUNG, ((KEY, None),), 60_000))
        assert scene.primary.locks.count == 0
        return near, far

    near, far = simulate(scenario())

    assert isinstance(near, ExecuteReply)
    assert isinstance(far, Failed)
    assert far.code == codes.LOST


@pytest.mark.parametrize(("prepared_s", "sees"), [(0.5, Version), (2.0, Failed)])
def test_a_snapshot_is_refused_what_was_in_doubt_for_longer_than_it_may_be_old(
    prepared_s: float, sees: type[object]
) -> None:
    async def scenario() -> PeerAnswer:
        scene = Scene()
        held = await scene.primary.serve(lock(YOUNG, exclusive=True))
        assert isinstance(held, LockReply)
        await scene.primary.serve(prepare(YOUNG, held.token, settled=True))
        await asyncio.sleep(prepared_s)
        at = scene.clock.now()
        reading = asyncio.ensure_future(scene.primary.serve(ReadAt(0, KEY, at, 0, 60_000)))
        await asyncio.sleep(0.1)
        # Home's clock is ahead: it may have acknowledged this as soon as it was prepared.
        await scene.primary.serve(Finish(0, YOUNG, at + span(1.0)))
        return await reading

    answer = simulate(scenario())

    assert isinstance(answer, sees)
    assert answer == Version(None, 0) or codes.SNAPSHOT_TOO_OLD in str(answer)


def test_a_free_lock_is_answered_at_once_and_one_that_is_not_takes_its_time() -> None:
    async def scenario() -> None:
        scene = Scene()
        asked = lock(YOUNG, exclusive=True)
        assert isinstance(scene.primary.try_fast_path(asked), LockReply)
        younger = TxnId(3, "n1~1", 1)
        refused = scene.primary.try_fast_path(lock(younger, exclusive=False))
        assert isinstance(refused, Failed)
        assert refused.code == codes.CONFLICT
        waits = lock(OLD, exclusive=False)
        assert scene.primary.try_fast_path(waits) is None
        assert scene.primary.try_fast_path(Execute(0, OLD, ((KEY, None),), 60_000)) is None
        waiting = asyncio.ensure_future(scene.primary.serve(waits))
        await asyncio.sleep(0.1)
        assert scene.primary.locks.waiting == 1
        await scene.primary.serve(Finish(0, YOUNG, 0))
        assert isinstance(await waiting, LockReply)

    simulate(scenario())


def test_a_coordinator_that_has_just_started_is_not_taken_for_gone() -> None:
    async def scenario() -> list[int]:
        scene = Scene(leases=LeaseTable(gone=True))
        finisher = scene.finisher(lambda step: step.close())
        await scene.primary.serve(lock(YOUNG, exclusive=True))
        held = list[int]()
        for _ in range(3):
            await asyncio.sleep(0.5)
            finisher.turn()
            held.append(scene.primary.locks.count)
        return held

    assert simulate(scenario()) == [1, 1, 0]


class NotLeading:
    """Metastorage, which is led elsewhere."""

    async def serve(self, body: MetaInvoke | Renew) -> PeerAnswer:
        return Failed(codes.NOT_LEADER, "not here")


def test_a_node_takes_only_so_many_requests_that_wait_but_renewals_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_router, "MAX_IN_FLIGHT", 2)

    async def scenario() -> list[PeerAnswer]:
        scene, failure = Scene(), Failure()
        tasks = Tasks(failure)
        await scene.primary.serve(lock(YOUNG, exclusive=True))
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
        answers = list[PeerAnswer]()
        for number in range(4):
            older = TxnId(1, "n1~1", number)
            router.request(lock(older, exclusive=True), answers.append)
        router.request(Renew("n2", b""), answers.append)
        while len(tasks) > 2:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.01)
        tasks.cancel()
        assert not failure.reported
        return answers

    refused, again, renewal = simulate(scenario())

    for answer in (refused, again):
        assert isinstance(answer, Failed)
        assert answer.code == codes.OVERLOADED
    assert isinstance(renewal, Failed)
    assert renewal.code == codes.NOT_LEADER
