"""What a leader does next, what it answers, which raft nodes run, and what is retried."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.metastorage.metastorage import Condition
from clusters.reference.node.rebalance.decisions import (
    Act,
    CancelChange,
    ChangePeers,
    Do,
    Group,
    Stage,
    Topology,
    kept,
    next_act,
    wanted,
)
from clusters.reference.node.rebalance.failover import (
    GIVEN_UP_DELAY_S,
    MAX_DELAY_S,
    Next,
    ReconfigurationError,
    Retries,
    failed,
    resumed,
)
from clusters.reference.node.rebalance.keys import (
    Assignments,
    Lock,
    PartitionId,
    PartitionState,
    Position,
    assignments,
)
from clusters.reference.node.rebalance.partition_driver import Led
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.topology.logical import LOGICAL

PENDING_REVISION, PLANNED_REVISION = 20, 30


def state(text: str, lock: Lock | None = None) -> PartitionState:
    """Stable, pending and planned as ``abc abd -``."""
    sets = [None if nodes == "-" else assignments(nodes) for nodes in text.split()]
    return PartitionState(
        partition=PartitionId(1, 0),
        stable=sets[0],
        pending=sets[1],
        planned=sets[2],
        lock=lock,
        pending_revision=PENDING_REVISION if sets[1] else 0,
        planned_revision=PLANNED_REVISION if sets[2] else 0,
        lock_revision=40 if lock else 0,
    )


def group(
    voters: str,
    stage: Stage = Stage.NONE,
    target: str = "",
    revision: int = PENDING_REVISION,
    refused: int = 0,
) -> Group:
    return Group(
        term=4,
        voters=tuple(voters),
        position=Position(0, 7),
        stage=stage,
        target=tuple(target),
        revision=revision,
        refused=refused,
    )


def drawn(act: Act | None) -> str:
    match act:
        case None:
            return "-"
        case ChangePeers(nodes=nodes):
            return f"change {''.join(nodes)}"
        case CancelChange(then=then):
            return f"cancel, then {'-' if then is None else '/'.join(then.outcomes)}"
        case Do(transition=transition):
            return "/".join(dict.fromkeys(transition.outcomes))


def topology(nodes: str = "abcdef") -> Topology:
    return Topology(frozenset(nodes), Condition(LOGICAL, "revision", revision=50))


SWITCH = "completed/changed/superseded"
MOVE = "cancel, then moved/changed"
OLD, OWN, LATER = (Lock(tuple("abd"), term) for term in (3, 4, 5))
BASE, LOCK, CANCEL = Variant


@pytest.mark.parametrize(
    ("variants", "keys", "lock", "raft", "act"),
    [
        # onLeaderElected, and nothing goes on
        ((BASE, LOCK, CANCEL), "abc - -", None, group("abc"), "-"),
        ((BASE, LOCK, CANCEL), "abc abd -", None, group("abc"), "change abd"),
        ((BASE, LOCK, CANCEL), "abc abd -", None, group("abd"), SWITCH),
        ((BASE, LOCK, CANCEL), "abd abd -", None, group("abd"), SWITCH),
        ((BASE, LOCK, CANCEL), "abc abe -", None, group("abd"), SWITCH),
        ((BASE, LOCK, CANCEL), "abc - -", None, group("abd"), SWITCH),
        ((BASE,), "abc abd abe", None, group("abc"), "change abd"),
        ((LOCK,), "abc abd abe", None, group("abc"), "change abd"),
        ((CANCEL,), "abc abd abe", None, group("abc"), MOVE),
        # the table was dropped
        ((BASE, LOCK, CANCEL), "- - -", None, group("abc"), "-"),
        # a lock whose change is over
        ((LOCK,), "abc abd -", OLD, group("abc"), "unlocked/changed"),
        ((LOCK,), "abc abd abe", OWN, group("abc"), "unlocked/moved/changed"),
        ((LOCK,), "abc abd -", LATER, group("abc"), "change abd"),
        ((LOCK,), "abc abd -", OWN, group("abd"), SWITCH),
        # A key of the lock is nothing to the others.
        ((BASE, CANCEL), "abc abd -", OWN, group("abc"), "change abd"),
        ((BASE, CANCEL), "abc abd -", OLD, group("abc", Stage.JOINT, "abd"), "-"),
        # catching up
        ((BASE, LOCK, CANCEL), "abc abd -", None, group("abc", Stage.CATCHING_UP, "abd"), "-"),
        ((BASE,), "abc abd abe", None, group("abc", Stage.CATCHING_UP, "abd"), "-"),
        ((CANCEL,), "abc abd abe", None, group("abc", Stage.CATCHING_UP, "abd"), MOVE),
        ((LOCK,), "abc abe -", None, group("abc", Stage.CATCHING_UP, "abd", 19), "change abe"),
        # pending was another set meanwhile, and d may have erased what this change leads to
        ((LOCK,), "abc abd -", None, group("abc", Stage.CATCHING_UP, "abd", 19), "change abd"),
        # The others end the change that goes on before they begin another.
        ((BASE, CANCEL), "abc abe -", None, group("abc", Stage.CATCHING_UP, "abd", 19), "-"),
        ((LOCK,), "abc abd -", OLD, group("abc", Stage.CATCHING_UP, "abd"), "unlocked/changed"),
        ((LOCK,), "abc abd -", OWN, group("abc", Stage.CATCHING_UP, "abd"), "-"),
        (
            (LOCK, CANCEL),
            "abc - -",
            None,
            group("abc", Stage.CATCHING_UP, "abd"),
            "cancel, then -",
        ),
        ((BASE,), "abc - -", None, group("abc", Stage.CATCHING_UP, "abd"), "-"),
        # the table was dropped meanwhile
        ((BASE,), "- - -", None, group("abc", Stage.CATCHING_UP, "abd"), "-"),
        ((LOCK, CANCEL), "- - -", None, group("abc", Stage.CATCHING_UP, "abd"), "cancel, then -"),
        # a later life of a voter is taken in, or a learner let go
        ((BASE, LOCK, CANCEL), "abc - -", None, group("abc", Stage.CATCHING_UP, "abc", 9), "-"),
        # the joint configuration is completed by whoever leads; its lock stays, in its name
        ((BASE,), "abc abd abe", None, group("abc", Stage.JOINT, "abd"), "-"),
        ((LOCK,), "abc abd abe", OWN, group("abc", Stage.JOINT, "abd"), "-"),
        ((LOCK,), "abc abd abe", OLD, group("abc", Stage.JOINT, "abd"), "locked/refused"),
        ((BASE,), "abc abd abe", None, group("abc", Stage.STABLE, "abd"), "-"),
        # A leader elected since has not asked for it, and is told once that the group is busy.
        ((BASE, CANCEL), "abc abd -", None, group("abc", Stage.JOINT), "change abd"),
        ((BASE,), "abc abd abe", None, group("abc", Stage.JOINT), "change abd"),
        ((LOCK,), "abc abd -", OWN, group("abc", Stage.JOINT), "change abd"),
        ((LOCK,), "abc abd -", OLD, group("abc", Stage.JOINT), "locked/refused"),
        (
            (BASE, LOCK, CANCEL),
            "abc abd -",
            None,
            group("abc", Stage.JOINT, refused=PENDING_REVISION),
            "-",
        ),
        # A cancel comes too late, and is asked for once a planned set.
        ((CANCEL,), "abc abd abe", None, group("abc", Stage.JOINT, "abd"), MOVE),
        ((CANCEL,), "abc abd abe", None, group("abc", Stage.STABLE), MOVE),
        ((CANCEL,), "abc abd -", None, group("abc", Stage.JOINT, "abd"), "-"),
        (
            (CANCEL,),
            "abc abd abe",
            None,
            group("abc", Stage.JOINT, refused=PLANNED_REVISION),
            "-",
        ),
    ],
)
def test_the_next_act(
    variants: tuple[Variant, ...], keys: str, lock: Lock | None, raft: Group, act: str
) -> None:
    for variant in variants:
        found = next_act(variant, state(keys, lock), raft, topology())
        assert drawn(found) == act, variant


@pytest.mark.parametrize(
    ("raft", "there", "act"),
    [
        (group("abc"), "abcef", MOVE),
        (group("abc", Stage.CATCHING_UP, "abd"), "abcef", MOVE),
        # The group goes on by itself, and comes to an end.
        (group("abc", Stage.JOINT, "abd"), "abcef", "-"),
        (group("abc", Stage.STABLE, "abd"), "abcef", "-"),
        # A copy that is stable already holds up nothing.
        (group("abc"), "abdef", "change abd"),
        (group("abc", Stage.CATCHING_UP, "abd"), "abdef", "-"),
        (group("abc"), "bcdef", "change abd"),
        # It is there, alone.
        (group("abc"), "d", "change abd"),
    ],
)
def test_planned_overtakes_a_change_that_waits_for_a_node_that_has_left(
    raft: Group, there: str, act: str
) -> None:
    found = next_act(BASE, state("abc abd abe"), raft, topology(there))

    assert drawn(found) == act
    if isinstance(found, CancelChange):
        assert found.then is not None
        assert topology().unchanged in found.then.invoke.conditions


def test_a_change_that_waits_for_a_node_that_has_left_goes_on_while_nothing_is_planned() -> None:
    assert drawn(next_act(BASE, state("abc abd -"), group("abc"), topology("abc"))) == "change abd"


@pytest.mark.parametrize(("generation", "act"), [(0, SWITCH), (1, "-")])
def test_a_leader_does_nothing_once_a_forced_reset_has_taken_its_group(
    generation: int, act: str
) -> None:
    reset = msgspec.structs.replace(state("abc b -"), generation=generation)

    for variant in Variant:
        assert drawn(next_act(variant, reset, group("abd"), topology())) == act, variant


def test_a_change_of_peers_carries_term_and_revision() -> None:
    act = next_act(BASE, state("abc abd -"), group("abc"), topology())

    assert act == ChangePeers(tuple("abd"), 4, 20)


def test_raft_nodes_run_in_stable_and_pending_and_where_pending_is_forced_there_alone() -> None:
    assert wanted(state("abc - def")) == set("abc")
    assert wanted(state("abc ade -")) == set("abcde")
    forced = PartitionState(
        partition=PartitionId(1, 0),
        stable=assignments("abc"),
        pending=Assignments(("a",), force=True),
    )
    assert wanted(forced) == {"a"}
    # What a reset has left out keeps what it has: a later one may choose it.
    assert kept(forced) == set("abc")


@pytest.mark.parametrize(
    ("keys", "nodes"), [("- - -", ""), ("abc - -", "abc"), ("abc ad -", "abcd"), ("a d e", "ade")]
)
def test_a_copy_is_kept_by_every_node_that_any_set_asks_for(keys: str, nodes: str) -> None:
    assert kept(state(keys)) == set(nodes)


# -- failover

ERROR = ReconfigurationError


@pytest.mark.parametrize(
    "error",
    [
        ERROR.HIGHER_TERM,
        ERROR.REPLICATOR_STOPPED,
        ERROR.STEPPED_DOWN,
        ERROR.STALE_TERM,
        ERROR.STALE_REVISION,
    ],
)
def test_what_another_leader_does_is_not_retried(error: ReconfigurationError) -> None:
    assert failed(Retries(20, 5), error, 20).act is Next.STOP


@pytest.mark.parametrize(
    "error",
    [
        ERROR.TIMED_OUT,
        ERROR.BUSY,
        ERROR.UNREACHABLE,
        ERROR.NOT_STARTED,
    ],
)
def test_everything_else_is_retried_until_the_failure_handler_is_told_once(
    error: ReconfigurationError,
) -> None:
    retries, delays = Retries(), []
    while (decision := failed(retries, error, 20, limit=8)).act is Next.RETRY:
        retries = decision.retries
        delays.append(decision.delay_s)
        assert len(delays) < 8

    assert delays == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert max(delays) <= MAX_DELAY_S
    assert decision.act is Next.FAILURE_HANDLER
    assert failed(decision.retries, error, 20, limit=8).act is Next.STOP
    assert failed(resumed(decision.retries), error, 20, limit=8).act is Next.RETRY


def test_another_pending_set_has_failures_of_its_own() -> None:
    decision = failed(Retries(20, 7), ERROR.TIMED_OUT, 21, limit=8)

    assert decision.act is Next.RETRY
    assert decision.retries == Retries(21, 1)


def test_a_target_that_changes_does_not_wait_for_the_retries_of_the_one_before() -> None:
    async def scenario() -> None:
        led = Led(4, Retries(20))
        decision = failed(led.retries, ERROR.UNREACHABLE, 20)
        led.retries = decision.retries
        led.wait_until_s = asyncio.get_running_loop().time() + decision.delay_s
        assert (led.may_try(20), led.may_try(21)) == (False, True)
        await asyncio.sleep(decision.delay_s)
        assert led.may_try(20)

    simulate(scenario())


def test_what_was_given_up_is_tried_again_though_nothing_is_heard_of_a_heal() -> None:
    """A link between two nodes that data is to go over is no change of topology."""

    async def scenario() -> None:
        led = Led(4, Retries())
        led.retries = Retries(20, 1)
        for act in (Next.FAILURE_HANDLER, Next.STOP, Next.STOP):
            decision = failed(led.retries, ERROR.UNREACHABLE, 20, limit=2)
            led.retries = decision.retries
            led.wait_until_s = asyncio.get_running_loop().time() + decision.delay_s
            assert decision.act is act
            assert not led.may_try(20)
            await asyncio.sleep(GIVEN_UP_DELAY_S)
            assert led.may_try(20)

    simulate(scenario())


def test_every_error_has_an_answer() -> None:
    assert {failed(Retries(), error, 1).act for error in ERROR} == {Next.RETRY, Next.STOP}
