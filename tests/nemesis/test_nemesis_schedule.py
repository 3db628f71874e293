"""Random mixes follow from their seed, and a schedule that can't be applied is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import PlanError
from harness.protocols import targets
from harness.protocols.fault_kinds import BUILT_IN
from harness.protocols.faults import Fault, PlannedFault
from nemesis.node_faults import kill as kill_fault
from nemesis.packet_faults import delay
from nemesis.packet_faults import loss as loss_fault
from nemesis.partition_faults import partition as partition_fault
from nemesis.schedule import check_schedule, materialise

MIX = ("kill", "partition")
FAULTS: dict[str, Fault] = {"kill": kill_fault(), "partition": partition_fault()}


def mix(**given: Any) -> tuple[PlannedFault, ...]:
    defaults: dict[str, Any] = {
        "mix": MIX,
        "seed": 1,
        "duration_s": 30.0,
        "first_s": 3.0,
        "hold_s": 5.0,
        "quiet_s": 4.0,
        "partitions": 8,
    }
    return materialise(**(defaults | given))


def refused(*schedule: PlannedFault) -> PlanError:
    with pytest.raises(PlanError) as refusal:
        check_schedule(
            schedule, faults=FAULTS, nodes=("n1", "n2", "n3"), duration_s=30.0, partitions=4
        )
    return refusal.value


def test_a_refusal_says_which_fault_of_the_schedule_it_is_about() -> None:
    sound = PlannedFault(at_s=1, kind="kill", target="n1", hold_s=2)
    wrong = PlannedFault(at_s=1, kind="kill", target="n7", hold_s=2)

    assert refused(sound, sound, wrong).fault == 2
    assert refused(*[sound] * 10_001).fault is None


@given(st.integers(0, 2**64))
def test_the_default_drill_kills_a_leader_and_cuts_one_off(seed: int) -> None:
    schedule = mix(seed=seed)

    assert len(schedule) == 3
    leaders = [fault.kind for fault in schedule if fault.target == "leader of any partition"]
    assert sorted(leaders) == sorted(MIX)


@given(st.integers(0, 2**64), st.sampled_from([1, 2, 3]))
def test_what_is_drawn_for_few_nodes_is_never_none_of_them(seed: int, nodes: int) -> None:
    names = tuple(f"n{number + 1}" for number in range(nodes))
    kinds = {"clock-jump": BUILT_IN["clock-jump"]}
    drawn = mix(seed=seed, duration_s=300.0, nodes=nodes, mix=("kill", "clock-jump"), kinds=kinds)

    for fault in drawn:
        targets.check(targets.parse(fault.target), names, 8)


@given(
    seed=st.integers(0, 2**64),
    duration_s=st.floats(20, 600),
    hold_s=st.floats(0.5, 10),
    quiet_s=st.floats(0, 9),
)
def test_faults_follow_each_other_with_quiet_between_and_at_the_end(
    seed: int, duration_s: float, hold_s: float, quiet_s: float
) -> None:
    schedule = mix(seed=seed, duration_s=duration_s, first_s=1.0, hold_s=hold_s, quiet_s=quiet_s)

    assert schedule[0].at_s == 1.0
    last = schedule[-1]
    assert last.at_s + last.hold_s + quiet_s <= duration_s + 0.002
    for one, after in pairwise(schedule):
        assert after.at_s - one.at_s - one.hold_s >= quiet_s - 0.002
    assert all(0 < fault.hold_s <= hold_s + 0.001 for fault in schedule)


@given(st.integers(0, 2**64))
def test_kinds_and_targets_are_spread_evenly(seed: int) -> None:
    schedule = mix(seed=seed, duration_s=600.0)

    kinds = [fault.kind for fault in schedule]
    assert abs(kinds.count("kill") - kinds.count("partition")) <= 1
    for kind in MIX:
        aimed = [fault.target for fault in schedule if fault.kind == kind]
        assert aimed[0] == "leader of any partition"
        assert len(set(aimed[:4])) == 4
        assert {"leader of any partition", "minority", "one", "half"} == set(aimed)


def test_equal_seeds_give_equal_schedules_and_others_differ() -> None:
    assert mix(seed=5) == mix(seed=5)
    assert len({mix(seed=seed) for seed in range(20)}) > 10


def test_the_order_in_which_a_mix_is_written_does_not_matter() -> None:
    assert mix(mix=("partition", "kill", "kill")) == mix(mix=MIX)


def test_a_store_that_tells_no_partitions_is_not_asked_for_leaders() -> None:
    aimed = {fault.target for fault in mix(partitions=None, duration_s=600.0)}

    assert aimed == {"minority", "one", "half"}


def test_every_target_of_a_mix_is_in_the_language() -> None:
    for fault in mix(duration_s=600.0):
        targets.parse(fault.target)


def test_an_empty_mix_is_an_empty_schedule() -> None:
    assert mix(mix=()) == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"duration_s": 10.0}, "one fault needs 12 s"),
        ({"hold_s": 0.0}, "nemesis.hold_s"),
        ({"quiet_s": -1.0}, "nemesis.quiet_s"),
        ({"first_s": float("nan")}, "nemesis.first_s"),
    ],
)
def test_times_that_make_no_schedule_are_refused(given: dict[str, float], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        mix(**given)


@pytest.mark.parametrize(
    ("fault", "path", "says"),
    [
        (PlannedFault(at_s=1, kind="flood", target="n1"), ".kind", "installed: kill, partition"),
        (
            PlannedFault(at_s=30, kind="kill", target="n1"),
            ".at_s",
            "below drive.duration_s, 30 s (got 30)",
        ),
        (PlannedFault(at_s=-1, kind="kill", target="n1"), ".at_s", "got -1"),
        (PlannedFault(at_s=1, kind="kill", target="n1", hold_s=0), ".hold_s", "got 0"),
        (
            PlannedFault(at_s=5, kind="kill", target="n1", hold_s=100),
            ".hold_s",
            "would end at 105 s, after drive.duration_s, 30 s: drive for more than 105 s",
        ),
        (PlannedFault(at_s=1, kind="kill", target="boss!"), ".target", "one of"),
        (PlannedFault(at_s=1, kind="kill", target="n7"), ".target", "n1, n2, n3"),
        (PlannedFault(at_s=1, kind="kill", target="leader of partition 4"), ".target", "below 4"),
    ],
)
def test_a_fault_that_cannot_be_applied_is_refused_with_its_place(
    fault: PlannedFault, path: str, says: str
) -> None:
    fine = PlannedFault(at_s=1, kind="kill", target="n1")

    refusal = refused(fine, fault)

    assert refusal.path == f"nemesis.schedule[1]{path}"
    assert says in str(refusal)


def test_a_schedule_that_can_be_applied_passes() -> None:
    check_schedule(mix(), faults=FAULTS, nodes=("n1", "n2", "n3"), duration_s=30.0, partitions=8)


@given(st.integers(0, 2**64), st.integers(2, 4))
def test_faults_that_overlap_come_together_and_leave_the_quiet_between(
    seed: int, overlap: int
) -> None:
    schedule = mix(seed=seed, overlap=overlap, duration_s=120.0)

    assert len(schedule) == overlap * len(mix(seed=seed, duration_s=120.0))
    groups = [schedule[at : at + overlap] for at in range(0, len(schedule), overlap)]
    for one, after in pairwise(groups):
        ends_s = max(fault.at_s + fault.hold_s for fault in one)
        assert min(fault.at_s for fault in after) - ends_s >= 4.0 - 0.002
        # They really meet: the last begins before the first is over.
        assert max(f.at_s for f in one) < min(f.at_s + f.hold_s for f in one)
    kinds = [fault.kind for fault in schedule]
    assert abs(kinds.count("kill") - kinds.count("partition")) <= 1


@given(st.integers(0, 2**64))
def test_a_kind_that_takes_all_nodes_meets_only_kinds_of_other_mechanisms(seed: int) -> None:
    names = ("kill", "partition", "loss", "majorities-ring")

    schedule = mix(seed=seed, mix=names, kinds=BUILT_IN, overlap=2, duration_s=900.0)

    rings = [fault for fault in schedule if fault.kind == "majorities-ring"]
    assert {ring.target for ring in rings} == {"all"}
    beside = {
        other.kind
        for ring in rings
        for other in schedule
        if other is not ring and other.at_s < ring.at_s + ring.hold_s + 4.0 - 0.002
        and ring.at_s < other.at_s + other.hold_s + 4.0 - 0.002
    }  # fmt: skip
    assert beside == {"kill"}


def test_one_at_a_time_is_what_a_mix_does_unless_told() -> None:
    assert mix(overlap=1) == mix()
    assert mix(overlap=2) != mix()


def test_a_kind_refuses_the_target_that_is_not_its_own() -> None:
    faults: dict[str, Fault] = {"loss": loss_fault(), "kill": kill_fault(), "delay": delay()}

    def check(kind: str, target: str) -> None:
        check_schedule(
            (PlannedFault(at_s=1, kind=kind, target=target),),
            faults=faults, nodes=("n1", "n2", "n3"), duration_s=30.0, partitions=4,
        )  # fmt: skip

    check("loss", "primary of partition 3 at 12.5 %")
    with pytest.raises(PlanError, match=r"nemesis\.schedule\[0\]\.target: target expects no"):
        check("kill", "primary of partition 3 at 12.5 %")
    with pytest.raises(PlanError, match=r"must be at least 5 ms: .* busy link \(got 0\.5\)"):
        check("delay", "n1 at 0.5 ms")
    with pytest.raises(PlanError, match=r"must be at least 2 %"):
        check("loss", "one at 1.9 %")
    with pytest.raises(PlanError, match="must be below 4"):
        check("loss", "majority of partition 4")


@given(st.integers(0, 2**64))
def test_nodes_that_break_each_for_itself_meet_and_are_well_at_the_end(seed: int) -> None:
    nodes = ("n2", "n3", "n4")
    schedule = mix(seed=seed, duration_s=90.0, hold_s=16.0, quiet_s=8.0, among=nodes)

    assert {fault.target for fault in schedule} == {*nodes}
    assert {fault.kind for fault in schedule} <= {*MIX}
    assert all(fault.at_s + fault.hold_s <= 82 for fault in schedule)
    assert [fault.at_s for fault in schedule] == sorted(fault.at_s for fault in schedule)
    for node in nodes:
        own = [fault for fault in schedule if fault.target == node]
        assert all(b.at_s - (a.at_s + a.hold_s) >= 3.9 for a, b in pairwise(own))


def test_what_breaks_for_itself_does_so_whoever_else_does() -> None:
    together = mix(duration_s=90.0, among=("n2", "n3"))

    assert [f for f in together if f.target == "n2"] == [*mix(duration_s=90.0, among=("n2",))]


def test_a_drive_too_short_for_one_fault_of_each_is_refused() -> None:
    with pytest.raises(PlanError, match="one fault needs"):
        mix(duration_s=12.0, among=("n2",))


@pytest.mark.parametrize("among", [(), ("n1", "n2")])
def test_a_night_of_more_faults_than_a_plan_holds_is_refused(among: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match=r"at most 10000 faults fit into a plan \(got [12]\d{4}\)"):
        mix(duration_s=24_000.0, hold_s=1.0, quiet_s=1.0, among=among)
