"""Children of plans: they can be run, differ from their parents, and end in time."""

from __future__ import annotations

import random
from collections import Counter

from msgspec.structs import replace

from cli.explore import Source, search
from cli.wiring import can_run
from clusters.reference.swarm import within_drift
from harness.campaigns.corpus import Corpus
from harness.campaigns.variation import CALM_S, MOST_FAULTS, fitted, with_rows
from harness.plan.plan import Plan
from harness.protocols.faults import PlannedFault

SOURCE = Source(given={}, seed=3)


def children(parent: Plan, count: int) -> list[Plan]:
    variation = search(SOURCE, Corpus(), runs=1).variation
    other = SOURCE.fresh(7)
    made = (
        variation.child(random.Random(seed), parent, lambda: other, lambda moment: 1.0)
        for seed in range(count)
    )
    return [child for child in made if child is not None]


def test_children_can_be_run_and_their_faults_end_before_the_drive_does() -> None:
    parent = SOURCE.fresh(1)
    made = children(parent, 60)

    assert len(made) > 55
    for child in made:
        assert child != parent
        assert can_run(child)
        assert within_drift(child.nemesis.schedule)
        assert 0 < len(child.nemesis.schedule) <= MOST_FAULTS
        assert any(fault.on is None for fault in child.nemesis.schedule)
        for fault in child.nemesis.schedule:
            end_s = fault.at_s + fault.hold_s + (fault.after_s or 0.0)
            assert end_s <= child.drive.duration_s - CALM_S + 0.01


def test_children_vary_faults_moments_targets_seeds_and_settings() -> None:
    # Where a zone's nodes join and leave, no other system than its own can be run.
    fresh = map(SOURCE.fresh, range(20))
    parent = next(plan for plan in fresh if "ddl" not in plan.system.options)
    seen: Counter[str] = Counter()
    for child in children(parent, 80):
        rows = child.nemesis.schedule
        seen["fault"] += len(rows) != len(parent.nemesis.schedule)
        seen["aim"] += any(row.on is not None for row in rows)
        seen["its node"] += any(row.target.startswith("its node") for row in rows)
        seen["options"] += any(row.options is not None for row in rows)
        seen["seed"] += child.seed != parent.seed
        seen["system"] += child.system != parent.system
        seen["workload"] += child.workload != parent.workload
        seen["cluster"] += child.cluster.options != parent.cluster.options

    assert min(seen.values()) > 0, seen
    assert len(seen) == 8


def test_a_draw_decides_a_child() -> None:
    parent = SOURCE.fresh(2)

    assert children(parent, 6) == children(parent, 6)
    # Two draws may come to the same step, more often where few are possible.
    for parent in map(SOURCE.fresh, range(1, 5)):
        assert len(set(map(repr, children(parent, 40)))) > 25


def test_a_child_gets_no_fault_that_destroys_data_unless_a_parent_had_it() -> None:
    bare = with_rows(SOURCE.fresh(1), ())
    wipe = PlannedFault(at_s=2.0, kind="wipe", target="one", hold_s=2.0)
    wiped = with_rows(bare, (wipe,))
    variation = search(SOURCE, Corpus(), runs=1).variation

    def kinds_of_children(parent: Plan) -> Counter[str]:
        found = [
            variation.child(random.Random(seed), parent, lambda: parent, lambda moment: 1.0)
            for seed in range(60)
        ]
        return Counter(row.kind for child in found if child for row in child.nemesis.schedule)

    assert kinds_of_children(bare).total() > 30
    assert not kinds_of_children(bare).keys() & {"wipe", "bit-flip"}
    assert kinds_of_children(wiped)["wipe"] > 30


def test_rows_are_moved_and_shortened_until_they_fit_or_left_out() -> None:
    rows = [
        PlannedFault(at_s=-3.0, kind="kill", target="one", hold_s=1.0),
        PlannedFault(at_s=9.5, kind="pause", target="one", hold_s=2.0),
        PlannedFault(at_s=1.0, kind="loss", target="one", hold_s=60.0),
    ]
    found = fitted(rows, 10.0)

    assert [(row.kind, row.at_s, row.hold_s) for row in found] == [
        ("kill", 0.1, 1.0),
        ("loss", 0.1, 7.9),
        ("pause", 6.0, 2.0),
    ]
    assert fitted(rows, 2.2) == ()
    assert len(fitted(rows * 20, 10.0)) == MOST_FAULTS


def test_a_strength_in_a_foreign_unit_is_within_no_drift() -> None:
    row = PlannedFault(at_s=1.0, kind="clock-fast", target="n1 at 30 ms", hold_s=1.0)

    assert not within_drift((row,))
    assert within_drift((replace(row, target="n1"),))


def test_clocks_of_a_schedule_stay_within_the_drift_of_the_design() -> None:
    fast = PlannedFault(at_s=1.0, kind="clock-fast", target="n1 at 4.8 %")
    slow = PlannedFault(at_s=1.0, kind="clock-slow", target="one")

    assert within_drift((fast,))
    assert within_drift((slow, replace(fast, target="one")))
    assert not within_drift((fast, slow))
