"""Zone timers: seeds whose nodes come and go while timers of zones run."""

from __future__ import annotations

import itertools

from cli.campaign_plans import swarm_plans
from cli.plan_schedule import schedule_of
from clusters.reference import churn, zone_timers
from clusters.reference.node.catalog.options import JOINT
from clusters.reference.node.placement.lease_expiry import LEASE_S
from harness.plan.plan import Plan, dumps, loads
from harness.protocols.faults import PlannedFault

SEEDS = range(7100, 7180)
GOES = ("kill", "restart", "partition", "pause")


def plans(variant: str = "base") -> list[Plan]:
    found = swarm_plans(None, {churn.ASKED_BY: variant}, (), SEEDS)
    return [plan for plan in found if not plan.cluster.spares]


def statements(plan: Plan) -> str:
    return " ".join(str(fault.options) for fault in plan.nemesis.schedule if fault.kind == "ddl")


def ddl(plan: Plan) -> str:
    return str(plan.system.options["ddl"])


def test_a_seed_is_the_same_plan_again_and_its_statements_can_be_carried_out() -> None:
    found = plans()

    assert [dumps(plan) for plan in plans()] == [dumps(plan) for plan in found]
    assert 0.3 * len(SEEDS) < len(found) < 0.7 * len(SEEDS)
    for plan in found:
        # Also checks the statements against the catalog.
        assert schedule_of(loads(dumps(plan))) == plan.nemesis.schedule
        end_s = max(fault.at_s + fault.hold_s for fault in plan.nemesis.schedule)
        assert end_s <= plan.drive.duration_s - zone_timers.CALM_S / 2


def test_waits_are_apart_and_joint_filters_admit_and_leave_out_and_some_zones_are_available() -> (
    None
):
    found = plans()

    assert 0.1 < sum(f"{JOINT} =" in ddl(plan) for plan in found) / len(found) < 0.7
    assert 0.15 < sum("HIGH_AVAILABILITY" in ddl(plan) for plan in found) / len(found) < 0.6
    for option in ("REPLICAS", "PRIMARY_ZONE", "DATA_NODES_FILTER", "SCALE_UP", f"{JOINT} ="):
        assert sum(option in statements(plan) for plan in found) > 0.1 * len(found), option


def test_in_most_seeds_metastorage_is_left_alone_and_nodes_go_within_one_wait() -> None:
    found, troubled, together = plans(), 0, 0
    for plan in found:
        system_nodes = int(str(plan.system.options["system_nodes"]))
        data = {f"n{number + 1}" for number in range(system_nodes, plan.cluster.nodes)}
        gone = [fault for fault in plan.nemesis.schedule if fault.kind in GOES]
        others = [fault for fault in gone if fault.target not in data]
        assert {fault.target for fault in others} <= {"metastorage leader"}
        troubled += bool(others)
        away = sorted((f.at_s, f.at_s + f.hold_s) for f in gone if f not in others)
        together += any(later < end for (_, end), (later, _) in itertools.pairwise(away))
    assert 0 < troubled < 0.5 * len(found)
    assert together > 0.5 * len(found)


def late(plan: Plan) -> list[PlannedFault]:
    """The faults of metastorage that hears, or commits, late."""
    system = int(str(plan.system.options["system_nodes"]))
    voters = tuple(f"n{number + 1} at " for number in range(system))
    return [
        fault
        for fault in plan.nemesis.schedule
        if fault.kind in ("drop-messages", "hold-messages") or fault.target.startswith(voters)
    ]


def test_in_some_seeds_metastorage_hears_and_commits_late() -> None:
    found = [plan for plan in plans() if late(plan)]
    assert 0.2 * len(plans()) < len(found) < 0.7 * len(plans())
    renewals = leaves = slow = 0
    for plan in found:
        assert plan.system.options["system_nodes"] == 3
        detection_s = float(str(plan.system.options["detection_s"]))
        faults = {(f.kind, (f.options or {}).get("messages")): f for f in late(plan)}
        dropped = faults.get(("drop-messages", "renewals"))
        held = faults.get(("hold-messages", "appends"))
        if dropped is not None and held is not None:
            # The next renewal comes before the node is out, and is committed after that.
            out_s = dropped.at_s + detection_s
            assert held.at_s < dropped.at_s + dropped.hold_s < out_s < held.at_s + held.hold_s
            assert held.hold_s < LEASE_S
            renewals += 1
        if (leave := faults.get(("hold-messages", "joins"))) is not None:
            again = [f for f in plan.nemesis.schedule if f.target == leave.target]
            began_s = [f.at_s for f in again if f.kind == "restart"]
            assert any(leave.at_s < at_s < leave.at_s + leave.hold_s for at_s in began_s)
            leaves += 1
        disks = [f for f in late(plan) if f.kind == "disk-slow"]
        assert len(disks) % 3 == 0
        slow += bool(disks)
    assert min(renewals, leaves, slow) > 0.3 * len(found)


def test_some_nodes_come_back_with_other_attributes_that_the_same_filters_let_in() -> None:
    found = [(p, f) for p in plans() for f in p.nemesis.schedule if f.kind == "attributes"]
    assert len({plan.seed for plan, _ in found}) > 0.2 * len(plans())
    for plan, fault in found:
        options = fault.options or {}
        names = options["attributes"]
        assert isinstance(names, list)
        given = plan.system.options["attributes"]
        assert isinstance(given, dict)
        assert {*names} == {*given.get(fault.target, ()), "hot"}
        assert options["by"] == "kill"


def test_waits_of_all_zones_become_joint_at_once_in_some_seeds() -> None:
    statements = [
        str((fault.options or {}).get("statements"))
        for plan in plans()
        for fault in plan.nemesis.schedule
        if fault.kind == "ddl"
    ]
    assert sum(text.count(f"{JOINT} =") > 1 for text in statements) > 5


def test_a_seed_whose_faults_are_given_has_no_timers_of_its_own() -> None:
    given = {churn.ASKED_BY: "base", "nemesis.mix": ["kill"]}

    found = list(swarm_plans(None, given, (), range(7100, 7110)))

    assert all(plan.cluster.spares for plan in found)
    assert not [plan for plan in found if "TIMED" in ddl(plan)]
    assert all("TIMED" in ddl(plan) for plan in plans())


def test_some_nodes_go_again_before_the_timer_of_their_coming_is_due() -> None:
    found = plans()
    visits = 0
    for plan in found:
        gone = [fault for fault in plan.nemesis.schedule if fault.kind in GOES]
        for one, other in itertools.permutations(gone, 2):
            stays_s = other.at_s - (one.at_s + one.hold_s)
            longest_s = zone_timers.STARTS_S + zone_timers._STAYS_S[1]
            visits += one.target == other.target and 0 < stays_s <= longest_s + 0.01
    assert visits > 0.3 * len(found)
