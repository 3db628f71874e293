"""What a commit locks, who waits for it meanwhile, and what goes along with it, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from primary_scene import KEY, OLD, YOUNG, LeaseTable, Scene, commit, lock, now_s, prepare, token_of

from clusters.providers.sim.loop import simulate
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.tx.lazy_proposals import MAX_DELAY_S
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    CommitReply,
    CommitTx,
    Failed,
    Finish,
    LockReply,
    PeerAnswer,
    PrepareReply,
)


def test_a_commit_makes_its_locks_exclusive_and_waits_for_younger_readers_only() -> None:
    async def scenario() -> tuple[bool, PeerAnswer, PeerAnswer]:
        scene = Scene()
        old, young = await token_of(scene, OLD), await token_of(scene, YOUNG)
        waiting = asyncio.ensure_future(scene.primary.serve(commit(OLD, old)))
        await asyncio.sleep(0.1)
        waits = not waiting.done() and scene.proposed == []
        died = await scene.primary.serve(commit(YOUNG, young))
        return waits, died, await waiting

    waits, died, committed = simulate(scenario())

    assert waits
    assert isinstance(died, Failed)
    assert died.code == codes.CONFLICT
    assert isinstance(committed, CommitReply)


def test_a_commit_that_did_not_get_its_locks_comes_to_nothing_whoever_asks_again() -> None:
    async def scenario() -> list[PeerAnswer]:
        scene = Scene()
        old, young = await token_of(scene, OLD), await token_of(scene, YOUNG)
        answers = [await scene.primary.serve(commit(YOUNG, young))]
        await scene.primary.serve(Finish(0, OLD, 0))
        answers += [await scene.primary.serve(commit(YOUNG, young))]
        answers += [await scene.primary.serve(commit(OLD, old))]
        assert (scene.proposed, scene.primary.locks.count) == ([], 0)
        return answers

    found = [answer.code for answer in simulate(scenario()) if isinstance(answer, Failed)]

    assert found == [codes.CONFLICT, codes.LOST, codes.LOST]


def test_a_commit_that_waits_for_a_lock_is_refused_before_who_asked_gives_up() -> None:
    async def scenario(limit_s: float) -> tuple[PeerAnswer, float]:
        scene = Scene()
        token = await token_of(scene, OLD)
        await token_of(scene, YOUNG)
        begun_s = now_s()
        asked = CommitTx(0, OLD, token, 0, ((KEY, b"x"),), (), int(limit_s * 1000))
        return await scene.ask("n2", asked, limit_s), round(now_s() - begun_s, 2)

    for limit_s, refused_s in ((10.0, 1.01), (0.6, 0.21), (0.3, 0.01)):
        answer, after_s = simulate(scenario(limit_s))
        assert isinstance(answer, Failed)
        assert (answer.code, after_s) == (codes.LOCK_TIMEOUT, refused_s)


def test_a_commit_over_its_deadline_keeps_no_lock() -> None:
    async def scenario() -> tuple[PeerAnswer, int]:
        scene = Scene()
        token = await token_of(scene, OLD)
        await asyncio.sleep(61.0)
        return await scene.primary.serve(commit(OLD, token)), scene.primary.locks.count

    refused, locked = simulate(scenario())

    assert isinstance(refused, Failed)
    assert (refused.code, locked) == (codes.EXPIRED, 0)


def test_who_is_prepared_and_may_wait_elsewhere_is_waited_for_by_its_elders_only() -> None:
    async def scenario(settled: bool) -> PeerAnswer | None:
        scene = Scene()
        token = await token_of(scene, OLD)
        done = await scene.primary.serve(prepare(OLD, token, settled=settled))
        assert isinstance(done, PrepareReply)
        return scene.primary.try_fast_path(lock(YOUNG, exclusive=False))

    died, waits = simulate(scenario(False)), simulate(scenario(True))

    assert isinstance(died, Failed)
    assert died.code == codes.CONFLICT
    assert waits is None


def test_who_was_decided_on_is_waited_for_by_anybody() -> None:
    async def scenario() -> PeerAnswer:
        scene = Scene()
        await scene.primary.serve(prepare(OLD, await token_of(scene, OLD), settled=False))
        finishing = asyncio.ensure_future(scene.primary.serve(Finish(0, OLD, span(1.0))))
        await asyncio.sleep(0)
        before_s = now_s()
        answer = await scene.primary.serve(lock(YOUNG, exclusive=False))
        assert now_s() == before_s  # it does not wait for company while somebody waits for it
        assert isinstance(await finishing, Ack)
        return answer

    answer = simulate(scenario())

    assert isinstance(answer, LockReply)
    assert answer.value == b"x"


def test_what_is_given_up_on_its_way_to_the_log_is_ended_there() -> None:
    async def scenario() -> tuple[PeerAnswer, Scene]:
        scene = Scene(log_s=0.05)
        asked = prepare(OLD, await token_of(scene, OLD), settled=False)
        preparing = asyncio.ensure_future(scene.primary.serve(asked))
        await asyncio.sleep(0.01)
        preparing.cancel()  # its coordinator has heard a refusal elsewhere
        given_up = await scene.primary.serve(Finish(0, OLD, 0))
        return given_up, scene

    given_up, scene = simulate(scenario())

    assert [what for _, what in scene.proposed] == ["Prepare", "Finish"]
    assert given_up == Ack()
    assert (scene.partition.prepared, scene.primary.locks.count) == ({}, 0)


def test_a_finish_goes_along_with_the_next_proposal_and_soon_without_one() -> None:
    async def scenario(other_s: float) -> list[tuple[float, str]]:
        scene = Scene()
        await scene.primary.serve(prepare(OLD, await token_of(scene, OLD), settled=True))
        token, begun_s = await token_of(scene, YOUNG, b"other"), now_s()
        finishing = asyncio.ensure_future(scene.primary.serve(Finish(0, OLD, span(1.0))))
        await asyncio.sleep(other_s)
        await scene.primary.serve(prepare(YOUNG, token, b"other", settled=True))
        await finishing
        return sorted((round(at_s - begun_s, 6), what) for at_s, what in scene.proposed[1:])

    half_s = MAX_DELAY_S / 2
    assert simulate(scenario(half_s)) == [(half_s, "Finish"), (half_s, "Prepare")]
    assert simulate(scenario(1.0)) == [(MAX_DELAY_S, "Finish"), (1.0, "Prepare")]


def test_a_commit_names_the_generation_of_every_participant() -> None:
    async def scenario() -> None:
        scene = Scene()
        token = await token_of(scene, OLD)
        asked = CommitTx(0, OLD, token, 0, ((KEY, b"x"),), (1, 2), 60_000, (0,))
        with pytest.raises(ValueError, match="shorter"):
            await scene.primary.serve(asked)

    simulate(scenario())


@pytest.mark.parametrize("resettable", [False, True])
def test_what_a_reset_of_home_may_cut_off_is_acknowledged_once_every_participant_has_it(
    resettable: bool,
) -> None:
    async def scenario(silent: bool) -> tuple[PeerAnswer, float]:
        scene = Scene(resettable=resettable, silent=silent)
        token, began_s = await token_of(scene, OLD), now_s()
        body = CommitTx(0, OLD, token, 0, ((KEY, b"x"),), (1,), 2_000, (0,))
        answer = await scene.primary.serve(body)
        assert scene.partition.versions.newest(KEY).value == b"x"
        return answer, now_s() - began_s

    answer, took_s = simulate(scenario(silent=False))
    assert isinstance(answer, CommitReply)
    assert took_s == pytest.approx(0.01 if resettable else 0.0)
    answer, took_s = simulate(scenario(silent=True))
    if resettable:
        assert isinstance(answer, Failed)
        assert answer.code == codes.COMMIT_TIMEOUT
        assert took_s < 60.0
    else:
        assert isinstance(answer, CommitReply)


@pytest.mark.parametrize("zoned", [False, True])
@pytest.mark.parametrize("resettable", [False, True])
def test_what_was_prepared_is_worth_no_more_than_the_lease_under_which_it_was(
    zoned: bool, resettable: bool
) -> None:
    """In any mode: an operator may reset a participant, and what it has prepared is gone then."""

    async def scenario(granted_s: float) -> PeerAnswer:
        leases = LeaseTable(granted_s=granted_s)
        scene = Scene(zoned=zoned, resettable=resettable, leases=leases, log_s=0.2)
        token = await token_of(scene, OLD)
        body = CommitTx(0, OLD, token, 0, ((KEY, b"x"),), (1,), 2_000, (0,))
        answer = await scene.primary.serve(body)
        # Refused before it is logged, or acknowledged to nobody behind it.
        assert (scene.index > 0) == (granted_s > 0.0 or not zoned)
        return answer

    over, ends, holds = (simulate(scenario(granted_s)) for granted_s in (0.0, 0.1, 0.5))
    assert isinstance(holds, CommitReply)
    if not zoned:
        assert isinstance(over, CommitReply)
        assert isinstance(ends, CommitReply)
        return
    assert isinstance(over, Failed)
    assert isinstance(ends, Failed)
    assert (over.code, ends.code) == (codes.LOST, codes.LEASE_LOST)
