"""The nemesis: what it records, what it refuses to believe, and that it leaves nothing broken."""

from __future__ import annotations

import asyncio
import math

import attrs
import pytest
from msgspec.structs import replace
from nemesis_world import NODES, Stage, World, cancelled, in_virtual_time

from harness.clock import NS_PER_S
from harness.errors import HarnessError, MissingCapability
from harness.history.records import FaultState, Note, Record
from harness.protocols.cluster import Capability, Cluster, NodeStatus, Provider, Roles
from harness.protocols.fault_kinds import KILL
from harness.protocols.faults import PlannedFault
from harness.run.lifecycle import HEAL_LIMIT_S
from nemesis import grudges
from nemesis.node_faults import Kill
from nemesis.node_faults import kill as kill_fault
from nemesis.runner import refuse_missing
from nemesis.waits import Limits

WHOLE_LIFE = ["planned", "injecting", "injected", "effective", "healing", "healed"]


def kill(target: str, at_s: float = 1.0, hold_s: float = 5.0) -> PlannedFault:
    return PlannedFault(at_s=at_s, kind="kill", target=target, hold_s=hold_s)


def pause(target: str, hold_s: float = 5.0) -> PlannedFault:
    return PlannedFault(at_s=1.0, kind="pause", target=target, hold_s=hold_s)


def partition(target: str, at_s: float = 1.0, hold_s: float = 5.0) -> PlannedFault:
    return PlannedFault(at_s=at_s, kind="partition", target=target, hold_s=hold_s)


def test_a_killed_leader_is_proven_dead_and_proven_back() -> None:
    async def scenario() -> None:
        stage = Stage(kill("leader of partition 3"))

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        effective = stage.last(0, FaultState.EFFECTIVE)
        assert (effective.nodes, effective.roles) == (("n4",), ("leader of partition 3",))
        assert effective.text == "n4 does not run"
        assert "boot-2" in stage.last(0, FaultState.HEALED).text
        assert stage.world.running["n4"]
        assert (stage.nemesis.trouble, stage.nemesis.active()) == ((), ())

    in_virtual_time(scenario)


def test_a_fault_begins_at_its_time_and_holds_as_long_as_planned() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", at_s=2.5, hold_s=4.0))

        await stage.run()

        at_s = {t.state.value: t.at_ns / 1e9 for t in stage.transitions(0)}
        assert at_s["planned"] == 0
        assert at_s["injecting"] == pytest.approx(2.5, abs=0.1)
        assert at_s["healing"] - at_s["injecting"] == pytest.approx(4.0, abs=0.1)

    in_virtual_time(scenario)


def test_a_partition_cuts_both_directions_and_heals() -> None:
    async def scenario() -> None:
        stage = Stage(partition("n1"))

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        assert stage.world.cut_calls == [grudges.isolate("n1", NODES), ()]

    in_virtual_time(scenario)


def test_everything_is_planned_before_anything_is_injected() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", at_s=0), kill("n2", at_s=9))

        await stage.run()

        assert [r.state.value for r in stage.records[:3]] == ["planned", "planned", "injecting"]

    in_virtual_time(scenario)


def test_overlapping_partitions_are_in_force_together_and_heal_apart() -> None:
    async def scenario() -> None:
        stage = Stage(partition("n1", at_s=1, hold_s=4), partition("n2", at_s=2, hold_s=9))

        await stage.run()

        alone = grudges.isolate("n1", NODES), grudges.isolate("n2", NODES)
        assert stage.world.cut_calls == [alone[0], grudges.union(alone), alone[1], ()]
        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        assert stage.nemesis.trouble == ()
        # The first is proven healed although the second still cuts links of its.
        healed = stage.last(0, FaultState.HEALED).at_ns
        assert healed < stage.last(1, FaultState.HEALING).at_ns

    in_virtual_time(scenario)


def test_a_kill_under_a_partition_of_others_goes_ahead() -> None:
    async def scenario() -> None:
        stage = Stage(partition("n1,n2", hold_s=10), kill("n3", at_s=2))

        await stage.run()

        assert stage.states(0) == stage.states(1) == WHOLE_LIFE

    in_virtual_time(scenario)


def test_a_fault_waits_for_a_busy_node_and_then_goes_ahead() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=4), kill("n1", at_s=2))

        await stage.run()

        assert stage.states(1) == WHOLE_LIFE
        healed = stage.last(0, FaultState.HEALED).at_ns
        assert stage.last(1, FaultState.INJECTING).at_ns >= healed

    in_virtual_time(scenario)


def test_a_fault_whose_node_stays_busy_is_skipped_with_the_reason() -> None:
    async def scenario() -> None:
        stage = Stage(pause("n1,n2", hold_s=30), kill("n2", at_s=2))

        await stage.run()

        assert stage.states(1) == ["planned", "skipped"]
        assert stage.last(1, FaultState.SKIPPED).text == "n2 is under pause n1,n2 for 5 s"
        assert ("kill", "n2") not in stage.world.calls

    in_virtual_time(scenario)


COMPOSE = [("kill", "partition"), ("kill", "majorities-ring"), ("kill", "loss"),
           ("restart", "one-way"), ("pause", "partition"), ("pause", "loss")]  # fmt: skip
ONE_MECHANISM = [("kill", "pause"), ("kill", "restart"), ("partition", "loss"),
                 ("one-way", "partition"), ("freeze", "partition"), ("host-loss", "delay"),
                 ("freeze", "kill")]  # fmt: skip


def both(first: str, second: str, holds_s: tuple[float, float]) -> Stage:
    """Two kinds on n2, the second two seconds after the first."""
    return Stage(
        *(
            PlannedFault(
                at_s=1.0 + 2 * number,
                kind=kind,
                target="all" if kind == "majorities-ring" else "n2",
                hold_s=holds_s[number],
            )
            for number, kind in enumerate((first, second))
        )
    )


@pytest.mark.parametrize("holds_s", [(9.0, 3.0), (4.0, 9.0)], ids=["inside", "crossing"])
@pytest.mark.parametrize("kinds", [*COMPOSE, *((b, a) for a, b in COMPOSE)], ids="+".join)
def test_faults_of_two_mechanisms_meet_on_one_node_and_each_is_proven_by_itself(
    kinds: tuple[str, str], holds_s: tuple[float, float]
) -> None:
    async def scenario() -> None:
        stage = both(*kinds, holds_s)

        await stage.run()

        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        assert stage.nemesis.trouble == ()
        effective = [stage.last(number, FaultState.EFFECTIVE).at_ns for number in (0, 1)]
        healing = [stage.last(number, FaultState.HEALING).at_ns for number in (0, 1)]
        assert max(effective) < min(healing)
        healed = [stage.last(number, FaultState.HEALED).at_ns for number in (0, 1)]
        inner = 0 if healing[0] < healing[1] else 1  # the other one still holds the node
        assert healed[inner] < healing[1 - inner]

    in_virtual_time(scenario)


@pytest.mark.parametrize("kinds", [*ONE_MECHANISM, *((b, a) for a, b in ONE_MECHANISM)],
                         ids="+".join)  # fmt: skip
def test_faults_of_one_mechanism_take_turns_on_a_node(kinds: tuple[str, str]) -> None:
    async def scenario() -> None:
        stage = both(*kinds, (4.0, 3.0))

        await stage.run()

        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        healed = stage.last(0, FaultState.HEALED).at_ns
        assert stage.last(1, FaultState.INJECTING).at_ns >= healed

    in_virtual_time(scenario)


def test_a_started_node_that_is_still_cut_off_need_not_answer_to_be_healed_of_its_kill() -> None:
    async def scenario() -> None:
        stage = Stage(partition("n2", hold_s=20), kill("n2", at_s=2, hold_s=3))
        stage.world.silent.append("n2")  # as a node that joins nobody

        await stage.run()

        told = stage.last(1, FaultState.HEALED)
        assert told.text == "n2 runs (boot boot-2) and is under another fault"
        assert told.at_ns < stage.last(0, FaultState.HEALING).at_ns

    in_virtual_time(scenario)


def test_a_node_that_was_not_started_is_not_healed_of_its_kill_by_a_cut() -> None:
    async def scenario() -> None:
        stage = Stage(partition("n2", hold_s=30), kill("n2", at_s=2, hold_s=3))
        stage.world.deaf.append("start")

        await stage.run()
        assert stage.states(1) == WHOLE_LIFE[:-1]
        await stage.nemesis.heal_all(stage.scene)

        assert stage.states(0) == WHOLE_LIFE
        assert "n2 does not run" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


class Stubborn(World):
    """A store that throws a paused node out, and takes it back only as another process."""

    async def readmit(
        self, cluster: Cluster, provider: Provider, nodes: tuple[str, ...]
    ) -> tuple[str, ...]:
        out = tuple(node for node in nodes if node in self.silent)
        for node in out:
            await provider.kill(node)
            await provider.start(node)
            self.silent.remove(node)
        return out


def test_a_node_that_was_thrown_out_is_taken_back_before_its_heal_is_proven() -> None:
    async def scenario() -> None:
        stage = Stage(pause("n2"), world=Stubborn())
        stage.world.silent.append("n2")

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        assert "boot-2" in stage.last(0, FaultState.HEALED).text
        notes = [(note.fault, note.text) for note in stage.records if isinstance(note, Note)]
        assert notes == [(0, "n2 had been thrown out, restarted")]

    in_virtual_time(scenario)


def test_a_readmission_that_takes_its_time_leaves_the_proof_all_of_its_own() -> None:
    class Slow(World):
        async def readmit(
            self, cluster: Cluster, provider: Provider, nodes: tuple[str, ...]
        ) -> tuple[str, ...]:
            await asyncio.sleep(Limits().readmit_s - 0.5)
            self.silent.remove("n2")
            return nodes

    async def scenario() -> None:
        stage = Stage(pause("n2"), world=Slow())
        stage.world.silent.append("n2")
        stage.world.pace_s = 3.0

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        healing_ns = stage.last(0, FaultState.HEALING).at_ns
        assert stage.last(0, FaultState.HEALED).at_ns - healing_ns < 60e9, "at the first try"

    in_virtual_time(scenario)


@pytest.mark.parametrize("how", [TimeoutError("the store's own limit"), OSError("no route")])
def test_a_look_that_fails_says_so_in_the_words_of_who_looked(how: Exception) -> None:
    class Blind(World):
        async def probe(self, node: str) -> NodeStatus:
            raise how

    async def scenario() -> None:
        stage = Stage(pause("n2"), world=Blind())

        await stage.run()

        text = stage.last(0, FaultState.UNPROVEN).text
        assert f"a look failed: {type(how).__name__}: {how}" in text

    in_virtual_time(scenario)


def test_a_node_that_was_not_thrown_out_stays_the_process_that_it_is() -> None:
    async def scenario() -> None:
        stage = Stage(pause("n2"), world=Stubborn())

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        assert "boot-1" in stage.last(0, FaultState.HEALED).text

    in_virtual_time(scenario)


def test_a_leader_that_nobody_knows_is_waited_for() -> None:
    async def scenario() -> None:
        stage = Stage(kill("leader of partition 9"))
        run = asyncio.ensure_future(stage.run())
        await stage.until(lambda: stage.scene.clock.now_ns() > 3e9)
        stage.world.told = Roles(leaders={9: "n5"})

        await run

        assert stage.states() == WHOLE_LIFE
        assert stage.last(0, FaultState.INJECTED).nodes == ("n5",)

    in_virtual_time(scenario)


def test_a_leader_that_nobody_ever_knows_is_skipped() -> None:
    async def scenario() -> None:
        stage = Stage(kill("leader of partition 9"))

        await stage.run()

        assert stage.states() == ["planned", "skipped"]
        assert "'leader of partition 9' is nobody" in stage.last(0, FaultState.SKIPPED).text

    in_virtual_time(scenario)


@pytest.mark.parametrize("how", ["broken", "hung"])
def test_counting_targets_need_no_answer_of_the_store(how: str) -> None:
    async def scenario() -> None:
        stage = Stage(partition("minority"))
        getattr(stage.world, how).append("roles")

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        assert len(stage.last(0, FaultState.HEALED).nodes) == 2

    in_virtual_time(scenario)


@pytest.mark.parametrize(("fault", "verb"), [(kill("n1"), "kill"), (partition("n1"), "cut")])
def test_a_fault_without_effect_is_unproven_and_trouble(fault: PlannedFault, verb: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault)
        stage.world.deaf.append(verb)

        await stage.run()

        assert stage.states() == [*WHOLE_LIFE[:3], "unproven", *WHOLE_LIFE[4:]]
        assert len(stage.nemesis.trouble) == 1
        assert f"fault 0 ({fault.kind} n1): no effect:" in stage.nemesis.trouble[0]
        assert "after 20 s" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", ["kill", "restart", "host-loss"])
def test_what_ends_programs_has_no_effect_on_one_that_had_ended_before(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(PlannedFault(at_s=1, kind=kind, target="n1,n2", hold_s=1))
        stage.world.running["n1"] = False

        await stage.run()

        assert stage.states() == ["planned", "injecting", "unproven", "healing", "healed"]
        assert stage.nemesis.trouble == (
            f"fault 0 ({kind} n1,n2): not injected: inject failed: n1 was dead before",
        )
        assert stage.world.running["n1"], "mended all the same"

    in_virtual_time(scenario)


@pytest.mark.parametrize("verb", ["kill", "probe"])
def test_a_verb_that_never_answers_ends_at_its_limit(verb: str) -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"), partition("n3", at_s=2))
        stage.world.hung.append(verb)

        await stage.run()

        assert "unproven" in stage.states(0)
        assert stage.states(1) == WHOLE_LIFE
        assert stage.nemesis.trouble
        assert stage.scene.clock.now_ns() < 150e9

    in_virtual_time(scenario)


def test_a_failing_verb_is_trouble_with_the_providers_words() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"))
        stage.world.broken.append("kill")

        await stage.run()

        assert stage.states() == ["planned", "injecting", "unproven", "healing", "healed"]
        assert stage.nemesis.trouble == (
            "fault 0 (kill n1): not injected: inject failed: kill of n1 is broken",
        )

    in_virtual_time(scenario)


def test_a_heal_that_fails_at_first_is_tried_again_at_the_end() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"), kill("n2", at_s=2))
        stage.world.broken.append("start")

        await stage.run()

        assert stage.nemesis.active() == ("kill n1", "kill n2")
        assert [r for r in stage.records if isinstance(r, Note) and "not healed yet" in r.text]

        stage.world.broken.clear()
        await stage.heal_all()

        assert stage.states()[-2:] == ["healing", "healed"]
        assert (stage.nemesis.active(), stage.nemesis.trouble) == ((), ())
        assert all(stage.world.running.values())

    in_virtual_time(scenario)


def test_a_heal_that_is_proven_late_frees_its_node_for_the_faults_to_come() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=2), kill("n1", at_s=20, hold_s=2))
        stage.world.broken.append("start")
        asyncio.get_running_loop().call_later(10, stage.world.broken.clear)

        await stage.run()

        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


def test_a_heal_that_fails_for_good_is_trouble_once_and_may_be_tried_again() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"))
        stage.world.broken.append("start")

        await stage.run()
        await stage.heal_all()
        await stage.heal_all()

        assert stage.states()[-1] == "unproven"
        assert stage.nemesis.trouble == (
            "fault 0 (kill n1): not healed: heal failed: start of n1 is broken",
        )

        stage.world.broken.clear()
        await stage.heal_all()
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


def test_a_node_that_starts_and_dies_again_is_not_healed() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"))
        stage.world.deaf.append("start")

        await stage.run()
        await stage.heal_all()

        assert stage.states()[-1] == "unproven"
        assert "n1 does not run" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


def test_a_node_that_runs_and_tells_nothing_is_not_healed() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"))
        stage.world.silent.append("n1")

        await stage.run()
        assert stage.states()[-1] == "healing"

        stage.world.silent.clear()
        await stage.heal_all()
        assert stage.states()[-1] == "healed"

    in_virtual_time(scenario)


def test_who_never_serves_again_is_told_from_a_fault_that_never_went() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=2), kill("n2", hold_s=2))
        stage.world.silent.append("n1")
        starts = asyncio.get_running_loop().time()

        real = stage.world.start

        async def start_no_n2(node: str) -> NodeStatus:
            return await (stage.world.probe(node) if node == "n2" else real(node))

        stage.world.start = start_no_n2  # type: ignore[method-assign]
        await stage.run()
        await stage.heal_all()

        assert stage.states(0)[-2:] == ["healed", "unproven"]
        assert stage.states(1)[-2:] == ["healing", "unproven"]
        healing, healed = (stage.last(0, s) for s in (FaultState.HEALING, FaultState.HEALED))
        assert "runs but tells no roles" in healed.text
        assert healed.at_ns < starts + 10 * NS_PER_S < healing.at_ns  # when it went, not now
        assert len(stage.nemesis.trouble) == 2

    in_virtual_time(scenario)


def test_a_fault_is_recorded_as_injecting_before_it_is_injected() -> None:
    async def scenario() -> None:
        stage = Stage(partition("n1"))
        at_the_cut: list[str] = []
        real_cut = stage.world.cut

        async def cut(grudge: grudges.Grudge) -> None:
            at_the_cut.append(stage.states()[-1])
            await real_cut(grudge)

        stage.world.cut = cut  # type: ignore[method-assign]
        await stage.run()

        assert at_the_cut == ["injecting", "healing"]

    in_virtual_time(scenario)


@pytest.mark.parametrize("step", range(60))
def test_cancelled_at_any_moment_heal_all_leaves_nothing_broken(step: int) -> None:
    async def scenario() -> None:
        stage = Stage(
            kill("n1", at_s=0.1, hold_s=0.2),
            partition("n2", at_s=0.1, hold_s=0.3),
            kill("n3", at_s=0.2, hold_s=0.1),
        )
        run = asyncio.ensure_future(stage.run())
        await asyncio.sleep(0.011 * step)
        await cancelled(run)

        await stage.heal_all()
        await stage.heal_all()

        assert all(stage.world.running.values())
        assert stage.world.cuts == ()
        assert (stage.nemesis.active(), stage.nemesis.trouble) == ((), ())
        for fault in range(3):
            assert stage.states(fault)[-1] in {"planned", "healed"}

    in_virtual_time(scenario)


@pytest.mark.parametrize("step", range(8))
def test_a_verb_that_the_end_of_the_run_meets_is_carried_out_and_then_healed(step: int) -> None:
    async def scenario() -> None:
        stage = Stage(
            kill("n1", at_s=0.1, hold_s=0.01), partition("n2", at_s=0.1), kill("n3", at_s=50)
        )
        stage.world.late = ["kill", "cut"]
        run = asyncio.ensure_future(stage.run())
        await asyncio.sleep(0.13 + 0.13 * step)
        await cancelled(run)

        await stage.heal_all()
        await asyncio.sleep(60)

        assert all(stage.world.running.values())
        assert stage.world.cuts == ()
        assert (stage.nemesis.active(), stage.nemesis.trouble) == ((), ())
        for fault in (0, 1):
            assert stage.states(fault)[2] == "injected", stage.states(fault)
            assert stage.states(fault)[-1] == "healed", stage.states(fault)
        assert stage.states(2) == ["planned"]

    in_virtual_time(scenario)


def test_a_verb_that_never_answers_keeps_no_run_from_its_end() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", at_s=0.1))
        stage.world.hung = ["kill"]
        run = asyncio.ensure_future(stage.run())
        await asyncio.sleep(1)
        await cancelled(run)

        await stage.heal_all()

        assert asyncio.get_running_loop().time() <= 0.2 + Limits().inject_s + 0.1
        unproven = ["planned", "injecting", "unproven", "healing", "healed"]
        assert [*dict.fromkeys(stage.states())] == unproven
        (told,) = stage.nemesis.trouble
        assert told == "fault 0 (kill n1): not injected: inject did not answer within 30 s"

    in_virtual_time(scenario)


def test_a_heal_waits_for_a_slow_injection_to_end() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=2))
        stage.world.late, stage.world.late_s = ["kill"], 20.0

        await stage.run()
        await asyncio.sleep(60)

        assert stage.states() == WHOLE_LIFE
        assert stage.world.running["n1"]

    in_virtual_time(scenario)


@pytest.mark.parametrize("patience_s", [8.0, math.inf], ids=["the provider's", "the nemesis'"])
def test_an_injection_that_was_cut_off_is_healed_again_at_the_end(patience_s: float) -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=2), kill("n1", at_s=70, hold_s=2))
        world = stage.world
        world.late, world.late_s, world.patience_s = ["kill"], 80.0, patience_s

        await stage.run()
        assert stage.nemesis.active() == ("kill n1",)
        assert stage.states(1) == ["planned", "skipped"]
        await stage.until(lambda: not world.running["n1"])
        await stage.heal_all()

        assert stage.states()[-1] == "healed"
        assert world.running["n1"]
        (told,) = stage.nemesis.trouble
        assert "not injected: inject" in told

    in_virtual_time(scenario)


def test_an_injection_that_outlasts_the_wait_behind_the_drive_makes_the_run_inconclusive() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=2), overtime_s=60.0)
        stage.world.late, stage.world.late_s = ["kill"], 45.0
        run = asyncio.ensure_future(stage.run())
        await stage.until(lambda: stage.states()[-1:] == ["injecting"])
        await cancelled(run)

        await stage.heal_all()

        assert stage.states() == ["planned", "injecting", "unproven", "healing", "healed"]
        (told,) = stage.nemesis.trouble
        assert told == "fault 0 (kill n1): not injected: it had not ended when all heals"

    in_virtual_time(scenario)


def test_heal_all_itself_can_be_cancelled_and_called_again() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1", hold_s=90), partition("n2", hold_s=90))
        run = asyncio.ensure_future(stage.run())
        await stage.until(lambda: stage.states(0)[-1:] == stage.states(1)[-1:] == ["effective"])
        await cancelled(run)

        await cancelled(stage.heal_all())
        await stage.heal_all()

        assert stage.world.running["n1"]
        assert stage.world.cuts == ()

    in_virtual_time(scenario)


def test_a_bug_in_a_users_fault_is_trouble_and_the_others_go_on() -> None:
    class Buggy(Kill):
        async def inject(self, provider: Provider, node: str) -> object:
            raise ZeroDivisionError("by nothing")

    async def scenario() -> None:
        buggy = PlannedFault(at_s=1, kind="buggy", target="n2")
        own = attrs.evolve(kill_fault(), kind=replace(KILL, name="buggy"), verbs=Buggy())
        stage = Stage(buggy, kill("n1"), faults={"buggy": own, "kill": kill_fault()})

        await stage.run()

        assert stage.states(1) == WHOLE_LIFE
        assert "ZeroDivisionError: by nothing" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


def test_taking_a_fault_away_leaves_the_targets_of_the_others() -> None:
    async def scenario() -> None:
        first, second = partition("half", at_s=1, hold_s=1), partition("half", at_s=9)
        both, alone = Stage(first, second), Stage(second)

        await both.run()
        await alone.run()

        assert both.last(1, FaultState.HEALED).nodes == alone.last(0, FaultState.HEALED).nodes

    in_virtual_time(scenario)


def test_equal_seeds_give_equal_records_and_others_differ() -> None:
    def records(seed: int) -> list[object]:
        kept: list[object] = []

        async def scenario() -> None:
            stage = Stage(partition("minority"), kill("one", at_s=9), kill("half", 30), seed=seed)
            await stage.run()
            kept.extend(stage.records)

        in_virtual_time(scenario)
        return kept

    assert records(1) == records(1)
    assert len({tuple(map(repr, records(seed))) for seed in range(8)}) > 1


def test_a_missing_capability_is_refused_before_anything_starts() -> None:
    schedule = (kill("n1"),)

    with pytest.raises(MissingCapability, match="fault 'kill' needs 'kill'"):
        refuse_missing(schedule, {"kill": kill_fault()}, frozenset({Capability.PARTITION}))
    refuse_missing(schedule, {"kill": kill_fault()}, frozenset({Capability.KILL}))


def test_a_world_that_answers_shows_what_is_in_force() -> None:
    async def scenario() -> None:
        stage = Stage(partition("all", hold_s=20), world=World())
        run = asyncio.ensure_future(stage.run())
        await stage.until(lambda: bool(stage.nemesis.active()))

        assert stage.nemesis.active() == ("partition n1,n2,n3+2",)
        await run
        assert stage.nemesis.active() == ()

    in_virtual_time(scenario)


def test_the_limits_of_healing_fit_into_what_the_life_cycle_grants() -> None:
    limits = Limits()

    ending_s = limits.inject_s + 2 * limits.verb_s
    assert ending_s + limits.readmit_s + limits.healed_s < HEAL_LIMIT_S


def test_a_history_that_takes_no_more_ends_the_nemesis_in_its_words() -> None:
    async def scenario() -> None:
        stage = Stage(kill("n1"), kill("n2"))

        def full(record: Record) -> None:
            if stage.scene.clock.now_ns() > 0:
                raise HarnessError("cannot write chunk 3: No space left on device")
            stage.records.append(record)

        stage.nemesis._write = full
        with pytest.raises(HarnessError) as failure:
            await stage.run()

        assert str(failure.value) == "cannot write chunk 3: No space left on device"

    in_virtual_time(scenario)
