"""Churn: seeds whose members and placement change."""

from __future__ import annotations

from collections import Counter

import msgspec

from cli.campaign_plans import swarm_plans
from cli.plan_schedule import schedule_of
from clusters.reference import churn
from clusters.reference.chosen_faults import CHOSEN
from harness.plan.plan import Plan, dumps, loads

VARIANTS = ("base", "lock", "cancel")
SEEDS = range(7000, 7080)
WAITS = (churn.UP, churn.DOWN)
ALTERED = ("REPLICAS", churn.FILTER, "PRIMARY_ZONE")
CHANGES = ("join", "leave", "replace", "attributes", "ddl")


def churning(variant: str) -> list[Plan]:
    """The plans of the seeds in which members change; in the others timers of zones run."""
    plans = swarm_plans(None, {churn.ASKED_BY: variant}, (), SEEDS)
    return [plan for plan in plans if plan.cluster.spares]


def test_each_seed_of_each_variant_has_changes_that_can_be_applied() -> None:
    seen, altered, timed = Counter[str](), Counter[str](), Counter[str]()
    for variant in VARIANTS:
        plans = churning(variant)
        assert [dumps(plan) for plan in churning(variant)] == [dumps(plan) for plan in plans]
        assert 0.25 * len(SEEDS) < len(plans) < 0.75 * len(SEEDS)
        for plan in plans:
            assert plan.system.options["rebalance"] == variant
            assert plan.cluster.spares == churn.SPARES
            assert schedule_of(loads(dumps(plan))) == plan.nemesis.schedule
            changes = [fault for fault in plan.nemesis.schedule if fault.kind in CHANGES]
            assert len(changes) == churn.CHANGES
            assert max(f.at_s + f.hold_s for f in changes) < plan.drive.duration_s - 5
            seen.update(fault.kind for fault in plan.nemesis.schedule)
            waits = str(plan.system.options["ddl"])
            timed.update(name for name in WAITS if f"{name} = 0" not in waits)
            for fault in changes:
                said = str((fault.options or {}).get("statements", ""))
                altered.update(name for name in (*WAITS, *ALTERED) if name in said)
    assert set(CHANGES) < set(seen)
    # Data moves for all that may be altered, at once and after a wait.
    assert set(altered) == {*WAITS, *ALTERED}
    assert set(timed) == set(WAITS)
    assert set(churn.CHOSEN) < set(seen) <= {*CHANGES, *churn.KINDS, *CHOSEN}


def test_where_there_are_fewer_replicas_for_a_while_no_member_leaves() -> None:
    fewer = 0
    for plan in churning("base"):
        said = [str(fault.options) for fault in plan.nemesis.schedule if fault.kind == "ddl"]
        if any(f"REPLICAS = {count}'" in text for text in said for count in (1, 2)):
            fewer += 1
            assert not {f.kind for f in plan.nemesis.schedule} & {"leave", "replace"}
    assert 0 < fewer < len(SEEDS) / 2


def test_a_seed_that_asks_for_no_variant_has_changes_with_churn_alone() -> None:
    counts = Counter[bool]()
    for plan in swarm_plans(None, {}, (), SEEDS):
        changes = {fault.kind for fault in plan.nemesis.schedule} & set(CHANGES)
        churns = "rebalance" in plan.system.options
        counts[churns] += 1
        assert not plan.cluster.spares or churns
        # Operators who end a loss of majorities send statements, too.
        assert not changes or churns or "mode" in plan.system.options
    # A third has members that change, a third loses majorities.
    assert len(SEEDS) / 2 < counts[True] < 0.85 * len(SEEDS)


def test_a_seed_whose_shape_is_given_does_not_churn() -> None:
    for plan in swarm_plans(None, {"system.partitions": 4}, (), SEEDS):
        assert plan.cluster.spares == 0
        assert not {fault.kind for fault in plan.nemesis.schedule} & set(CHANGES)


def test_partitions_are_counted_as_the_statements_say_them() -> None:
    (plan, *_) = churning("base")

    def of(*statements: str) -> int:
        options = {**plan.system.options, "ddl": list(statements)}
        system = msgspec.structs.replace(plan.system, options=options)
        return churn.partitions(msgspec.structs.replace(plan, system=system))

    zone = "create zone A with replicas = 1, partitions = 3"
    table = "CREATE TABLE {} WITH PRIMARY_ZONE = A"

    assert of(zone, table.format("X")) == 3
    assert of(zone, table.format("X"), table.format("Y")) == 6
    assert of(zone, table.format("X"), table.format("Y"), "DROP TABLE X") == 3
