"""Procedures: their nodes take turns, every step is proven and recorded, nothing stays down."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import attrs
import msgspec
import pytest
from nemesis_world import NODES, Stage, World, cancelled, in_virtual_time

from harness.errors import PlanError
from harness.history.records import EventKind, FaultState, StoreEvent
from harness.protocols.cluster import Cluster, Roles
from harness.protocols.fault_kinds import ROLLING_RESTART
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.faults import Fault, PlannedFault, configured
from harness.protocols.procedures import NodeStep, StepEvents
from nemesis.procedures import full_restart, rolling_restart, successive_loss

FAULTS: dict[str, Fault] = {
    fault.kind.name: fault for fault in (full_restart(), rolling_restart(), successive_loss())
}
STAGES = ["step-begun", "step-down", "step-up", "step-over"]


class TellingWorld(World):
    """A world whose store tells what it lacks: ``behind`` looks find a node that has not caught
    up.
    """

    behind = 0

    async def lacking(self, cluster: Cluster, limit_s: float) -> list[str]:
        self.calls.append(("lacking", str([n for n in NODES if not self.running[n]])))
        self.behind -= 1
        return ["partition 0 on n1 has not caught up"] if self.behind >= 0 else []


def planned(kind: str, target: str = "all", hold_s: float = 60.0, **options: Any) -> PlannedFault:
    return PlannedFault(at_s=1.0, kind=kind, target=target, hold_s=hold_s, options=options)


def stage_of(
    kind: str, target: str = "all", hold_s: float = 60.0, world: World | None = None, **options: Any
) -> Stage:
    world = world or TellingWorld()
    return Stage(planned(kind, target, hold_s, **options), world=world, faults=FAULTS)


def events(stage: Stage) -> list[StoreEvent]:
    return [record for record in stage.records if isinstance(record, StoreEvent)]


def turns(stage: Stage) -> list[str]:
    return [event.node for event in events(stage) if event.kind is EventKind.STEP_BEGUN]


def verbs(stage: Stage, *of: str) -> list[tuple[str, str]]:
    return [call for call in stage.world.calls if call[0] in of]


def test_a_rolling_restart_takes_each_node_once_and_the_next_when_all_is_whole() -> None:
    async def scenario() -> None:
        stage = stage_of("rolling-restart", order="by-name")

        await stage.run()

        assert [(e.node, e.kind.value) for e in events(stage)] == [
            (node, kind) for node in NODES for kind in STAGES
        ]
        assert verbs(stage, "stop", "start", "lacking") == [
            call for node in NODES for call in (("stop", node), ("start", node), ("lacking", "[]"))
        ]
        assert stage.states()[1:] == ["injecting", "injected", "effective", "healing", "healed"]
        assert stage.nemesis.trouble == ()
        assert all(stage.world.boots[node] == 2 for node in NODES)

    in_virtual_time(scenario)


def test_it_is_over_with_its_last_step_and_not_with_hold_s() -> None:
    async def scenario() -> None:
        stage = stage_of("rolling-restart", hold_s=600.0)

        await stage.run()

        healed = stage.last(0, FaultState.HEALED)
        assert healed.at_ns / 1e9 < 10

    in_virtual_time(scenario)


def test_the_next_node_waits_until_the_cluster_is_whole() -> None:
    async def scenario() -> None:
        world = TellingWorld()
        world.behind = 20
        stage = stage_of("rolling-restart", "n1,n2", world=world, order="by-name")

        await stage.run()

        over = [e.at_ns / 1e9 for e in events(stage) if e.kind is EventKind.STEP_OVER]
        up = [e.at_ns / 1e9 for e in events(stage) if e.kind is EventKind.STEP_UP]
        assert over[0] - up[0] >= 4.0  # twenty looks, one each fifth of a second
        assert over[1] - up[1] < 1.0

    in_virtual_time(scenario)


def test_a_restart_that_waits_for_a_time_asks_for_nothing_and_pauses_between_nodes() -> None:
    async def scenario() -> None:
        stage = stage_of("rolling-restart", wait="time", pause_s=3.0, down_s=2.0, by="kill")

        await stage.run()

        assert verbs(stage, "lacking", "stop") == []
        begun = [e.at_ns / 1e9 for e in events(stage) if e.kind is EventKind.STEP_BEGUN]
        assert all(after - before >= 5.0 for before, after in pairwise(begun))
        assert sorted(turns(stage)) == list(NODES)

    in_virtual_time(scenario)


def test_the_node_that_leads_is_last_and_metastorage_counts_most() -> None:
    async def scenario() -> None:
        world = TellingWorld(Roles(leaders={0: "n2", 1: "n4", 2: "n4"}, metastorage_leader="n1"))
        stage = stage_of("rolling-restart", world=world, order="leader-last")

        await stage.run()

        assert set(turns(stage)[:2]) == {"n3", "n5"}
        assert turns(stage)[2:] == ["n2", "n4", "n1"]

    in_virtual_time(scenario)


def test_a_drawn_order_follows_from_the_seed() -> None:
    orders = set()

    async def scenario() -> None:
        for seed in (1, 1, 2, 3):
            stage = Stage(
                planned("rolling-restart"), world=TellingWorld(), faults=FAULTS, seed=seed
            )
            await stage.run()
            orders.add((seed, tuple(turns(stage))))

    in_virtual_time(scenario)
    assert len(orders) == 3
    assert len({order for _, order in orders}) == 3


def test_given_names_are_the_order_of_a_loss_one_by_one_and_all_are_back_after_it() -> None:
    async def scenario() -> None:
        order = ["n4", "n1", "n2"]
        stage = stage_of("successive-loss", "n1,n2,n4", 20.0, order=order, by="kill", pause_s=2.0)

        await stage.run()

        assert turns(stage) == order
        assert verbs(stage, "kill") == [("kill", node) for node in order]
        at_s = {t.state.value: t.at_ns / 1e9 for t in stage.transitions(0)}
        assert at_s["healing"] == pytest.approx(21.0, abs=0.1)
        assert all(stage.world.running.values())

    in_virtual_time(scenario)


def test_a_full_restart_starts_nothing_before_all_are_down() -> None:
    async def scenario() -> None:
        stage = stage_of("full-restart", order=["n5", "n3", "n1", "n2", "n4"], down_s=2.0)

        await stage.run()

        acts = verbs(stage, "stop", "start")
        assert {verb for verb, _ in acts[:5]} == {"stop"}
        assert acts[5:] == [("start", node) for node in ("n5", "n3", "n1", "n2", "n4")]
        assert {e.kind.value for e in events(stage)} == set(STAGES)
        assert stage.states()[-1] == "healed"

    in_virtual_time(scenario)


def test_a_procedure_that_is_not_over_in_time_makes_the_run_inconclusive_and_is_healed() -> None:
    async def scenario() -> None:
        world = TellingWorld()
        world.behind = 10**6
        stage = stage_of("rolling-restart", hold_s=5.0, world=world)

        await stage.run()

        assert stage.states()[-3:] == ["unproven", "healing", "healed"]
        assert "not over within hold_s, 5 s" in stage.nemesis.trouble[0]
        assert all(world.running.values())

    in_virtual_time(scenario)


def test_a_node_that_does_not_end_fails_its_step_and_the_others_are_left_alone() -> None:
    async def scenario() -> None:
        world = TellingWorld()
        world.deaf = ["stop"]
        stage = stage_of("rolling-restart", world=world, order="by-name")

        await stage.run()

        assert turns(stage) == ["n1"]
        assert "a step failed: n1 still runs" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("hold_s", "patience_s", "why"),
    [(60.0, 8.0, "a step failed: stop of n1 failed"), (5.0, math.inf, "not over within hold_s")],
    ids=["the provider's deadline", "the end of the hold"],
)
def test_a_step_that_was_cut_off_is_healed_again_at_the_end(
    hold_s: float, patience_s: float, why: str
) -> None:
    async def scenario() -> None:
        world = TellingWorld()
        world.late, world.late_s, world.patience_s = ["stop"], 80.0, patience_s
        stage = stage_of("rolling-restart", hold_s=hold_s, world=world, order="by-name")

        await stage.run()
        assert stage.nemesis.active() != ()
        await stage.until(lambda: not world.running["n1"])
        await stage.heal_all()

        assert all(world.running.values())
        assert stage.states()[-1] == "healed"
        assert why in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


def test_a_procedure_that_is_cut_short_leaves_nothing_down() -> None:
    async def scenario() -> None:
        stage = stage_of("full-restart", down_s=500.0, hold_s=600.0)
        task = stage.run()
        await cancelled_when(stage, lambda: not any(stage.world.running.values()), task)

        await stage.heal_all()

        assert all(stage.world.running.values())
        assert stage.states()[-1] == "healed"

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_steps_that_the_end_of_the_drive_meets_end_before_they_are_healed(kind: str) -> None:
    async def scenario() -> None:
        stage = stage_of(kind, order="by-name")
        stage.world.late, stage.world.late_s = ["stop"], 5.0
        await cancelled_when(stage, lambda: ("stop", "n1") in stage.world.calls, stage.run())

        await stage.heal_all()
        await asyncio.sleep(60)

        assert all(stage.world.running.values())
        assert stage.states()[-1] == "healed"

    in_virtual_time(scenario)


async def cancelled_when(stage: Stage, what: Any, work: Any) -> None:
    task = asyncio.ensure_future(work)
    await stage.until(what)
    await cancelled(task)


@pytest.mark.parametrize(
    ("target", "options", "at", "says"),
    [
        ("all", {"order": ["n1", "n2"]}, "options.order", "expected the nodes of the target"),
        ("n1,n2", {"order": ["n1", "n1"]}, "options.order", "each name once"),
        ("majority", {"order": ["n1"]}, "options.order", "named nodes or of all"),
        ("all", {"order": "backwards"}, "options.order", "'backwards'"),
        ("the boss", {}, "target", "target must be one of"),
        ("all", {"by": "wish"}, "options.by", "wish"),
    ],
)
def test_what_is_refused(target: str, options: dict[str, Any], at: str, says: str) -> None:
    def check() -> None:
        row = planned("rolling-restart", target, **options)
        fault = configured(rolling_restart(), row, 8, "row.options")
        fault.check(target, NODES, 8, "row.target")

    with pytest.raises(PlanError) as refusal:
        check()

    assert refusal.value.path == f"row.{at}"
    assert says in refusal.value.problem


def test_a_store_that_does_not_tell_when_it_is_whole_is_refused_unless_a_time_is_waited() -> None:
    world: Any = World()
    fault = rolling_restart().with_options({}, 8, "row.options")
    with pytest.raises(PlanError, match="waits for pause_s alone"):
        fault.check_system(world, "row.options")  # type: ignore[attr-defined]

    rolling_restart().with_options({"wait": "time"}, 8, "").check_system(world, "")  # type: ignore[attr-defined]


def test_steps_are_told_by_the_events_of_their_nodes() -> None:
    rows = [
        msgspec.structs.asdict(
            StoreEvent(kind=kind, node=node, at_ns=at, wall_ns=0, boot="", uncertainty_ns=0)
        )
        for at, node, kind in (
            (5, "n2", EventKind.STEP_BEGUN),
            (6, "n2", EventKind.STEP_DOWN),
            (7, "n9", EventKind.STEP_BEGUN),
            (8, "n2", EventKind.STEP_UP),
            (8, "n1", EventKind.LEADER_ELECTED),
            (9, "n2", EventKind.STEP_OVER),
            (10, "n1", EventKind.STEP_BEGUN),
            (50, "n1", EventKind.STEP_DOWN),
        )
    ]

    steps = StepEvents.of(rows)
    found = steps.by_procedure([procedure(3, 1, 20, "n1", "n2")], last_ns=100)
    assert found == {
        3: (
            NodeStep(node="n2", begun_ns=5, down_ns=6, up_ns=8, over_ns=9),
            NodeStep(node="n1", begun_ns=10),
        )
    }
    unhealed = steps.by_procedure([procedure(0, 10, None, "n1")], last_ns=100)
    assert unhealed == {0: (NodeStep(node="n1", begun_ns=10, down_ns=50),)}


def test_a_step_belongs_to_the_procedure_that_took_its_node_last_and_to_no_other_fault() -> None:
    rows = [
        {"kind": EventKind.STEP_BEGUN, "node": node, "at_ns": at}
        for at, node in ((5, "n1"), (12, "n2"), (15, "n1"), (40, "n1"))
    ]
    cut = attrs.evolve(procedure(2, 1, 100, "n1", "n2"), kind="partition")
    spans = [cut, procedure(0, 2, 30, "n1", "n2"), procedure(1, 10, 20, "n1")]

    assert StepEvents.of(rows).by_procedure(spans, last_ns=100) == {
        0: (NodeStep(node="n1", begun_ns=5), NodeStep(node="n2", begun_ns=12)),
        1: (NodeStep(node="n1", begun_ns=15),),
    }


def procedure(fault: int, begin_ns: int, healed_ns: int | None, *nodes: str) -> FaultSpan:
    return FaultSpan(
        fault=fault,
        kind=ROLLING_RESTART.name,
        target="all",
        nodes=nodes,
        roles=(),
        state="healed" if healed_ns else "injected",
        begin_ns=begin_ns,
        effective_ns=begin_ns,
        healing_ns=healed_ns,
        healed_ns=healed_ns,
    )
