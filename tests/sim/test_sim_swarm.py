"""Swarm: every seed draws settings of its own, and all of them stand in its plan."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from cli.campaign_plans import swarm_plans
from clusters.reference import chosen_faults, churn, majority_losses
from clusters.reference.chosen_faults import MESSAGES
from clusters.reference.node.placement.lease_expiry import DRIFT, LEASE_S, RENEW_S
from clusters.reference.node.tx.limits import RECOVER_AFTER_S
from clusters.reference.node.tx.outcome_sender import FINISH_TIMEOUT_S
from clusters.reference.swarm import (
    DESTROYED_DRIVE_S,
    DRIFT_EDGE,
    FAULTS,
    JUMP_EDGE_MS,
    SKEW_S,
)
from harness.campaigns.cell import Cell
from harness.errors import PlanError
from harness.plan.plan import Plan, dumps, loads
from harness.protocols.crash_points import MessageClass
from harness.protocols.faults import PlannedFault
from harness.protocols.moments import Moment

SEEDS = range(5000, 6000)


@pytest.fixture(scope="module")
def all_plans() -> list[Plan]:
    return swarm_plans(None, {}, (), SEEDS)


@pytest.fixture(scope="module")
def plans(all_plans: list[Plan]) -> list[Plan]:
    """Those whose members and placement stay as they are."""
    return [plan for plan in all_plans if not (churns(plan) or loses_majorities(plan))]


def churns(plan: Plan) -> bool:
    return "rebalance" in plan.system.options


def loses_majorities(plan: Plan) -> bool:
    return "mode" in plan.system.options


def strength(target: str) -> float:
    return float(target.partition(" at ")[2].split()[0])


def test_one_seed_is_one_plan_and_the_plan_holds_all_that_was_drawn(
    all_plans: list[Plan],
) -> None:
    again = swarm_plans(None, {}, (), SEEDS)

    assert [dumps(plan) for plan in again] == [dumps(plan) for plan in all_plans]
    assert all(loads(dumps(plan)) == plan for plan in all_plans[:50])
    assert len({Cell(plan=plan).key for plan in all_plans}) == len(all_plans)
    assert all(plan.nemesis.schedule and not plan.nemesis.mix for plan in all_plans)


def test_in_some_seeds_members_and_placement_change(
    all_plans: list[Plan], plans: list[Plan]
) -> None:
    churning = [plan for plan in all_plans if plan.cluster.spares]

    assert 0.1 <= len(churning) / len(all_plans) <= 0.2
    assert {plan.system.options["rebalance"] for plan in churning} == {"base", "lock", "cancel"}
    kinds = {fault.kind for plan in churning for fault in plan.nemesis.schedule}
    changes = {"join", "leave", "replace", "ddl", "attributes"}
    assert {*changes, *churn.KINDS, *churn.CHOSEN} <= kinds
    assert kinds <= {*changes, *churn.KINDS, *chosen_faults.CHOSEN}
    assert not any(map(loses_majorities, churning))


def test_in_some_seeds_nodes_come_and_go_while_timers_of_zones_run(
    all_plans: list[Plan],
) -> None:
    timed = [
        plan
        for plan in all_plans
        if churns(plan) and not plan.cluster.spares and not loses_majorities(plan)
    ]

    assert 0.1 <= len(timed) / len(all_plans) <= 0.2
    assert {plan.system.options["rebalance"] for plan in timed} == {"base", "lock", "cancel"}
    kinds = {fault.kind for plan in timed for fault in plan.nemesis.schedule}
    assert kinds == {
        *("kill", "restart", "partition", "pause", "attributes", "ddl", "full-restart"),
        *("drop-messages", "hold-messages", "disk-slow"),
    }


def test_in_some_seeds_majorities_are_lost_and_operators_act(
    all_plans: list[Plan], plans: list[Plan]
) -> None:
    losing = [plan for plan in all_plans if loses_majorities(plan)]

    assert 0.3 <= len(losing) / len(all_plans) <= 0.44
    assert {plan.system.options["mode"] for plan in losing} == {"HA", "SC"}
    kinds = {fault.kind for plan in losing for fault in plan.nemesis.schedule}
    assert kinds == majority_losses.KINDS
    assert len(plans) + len(losing) <= len(all_plans)


def test_no_seed_moves_more_than_it_can_afford(all_plans: list[Plan]) -> None:
    for plan in all_plans:
        options = plan.system.options
        value = int(str(options.get("padding_bytes", 0))) / 2
        rate = plan.drive.rate_per_s or 0.0
        writes = 1 - float(str(plan.workload.options["read_fraction"]))
        flow = value * rate * writes  # of one write each, at least

        assert flow <= 310_000, plan.name
        tuning = options.get("tuning", {})
        assert isinstance(tuning, dict)
        # Of which a second brings some dozens.
        assert tuning.get("segment_bytes", flow) >= flow / 60, plan.name
        # All that is written may be one snapshot.
        state = flow * plan.drive.duration_s / int(str(options.get("partitions", 8)))
        assert tuning.get("piece_bytes", state) >= state / 400, plan.name


def test_the_history_of_metastorage_comes_in_few_pieces(all_plans: list[Plan]) -> None:
    found = 0
    for plan in all_plans:
        tuning = plan.system.options.get("tuning", {})
        assert isinstance(tuning, dict)
        if "system_nodes" in plan.system.options and "piece_bytes" in tuning:
            found += 1
            nodes = plan.cluster.nodes + plan.cluster.spares
            history = 200 * nodes * plan.drive.duration_s
            assert "max_history" in tuning or tuning["piece_bytes"] >= history / 100, plan.name
    assert found >= 20


def test_no_seed_replicates_one_entry_a_round_trip(all_plans: list[Plan]) -> None:
    limits = [
        (plan.system.options.get("append_entries", 64), plan.system.options.get("appends_ahead", 3))
        for plan in all_plans
    ]

    assert (1, 1) not in limits
    assert {entries for entries, _ in limits} >= {1, 4, 32}
    assert {ahead for _, ahead in limits} >= {1, 3}


def test_every_kind_of_fault_is_tried_by_some_seeds_and_by_none_all(plans: list[Plan]) -> None:
    kinds = [{fault.kind for fault in plan.nemesis.schedule} for plan in plans]

    seeds = Counter(kind for some in kinds for kind in some)
    assert set(seeds) == set(FAULTS)
    assert min(seeds.values()) >= 8
    # A jump brings the starts that show it, a sequence the fall of its leaders.
    assert max(map(len, kinds)) <= 10


def options(fault: PlannedFault) -> Mapping[str, Any]:
    assert fault.options is not None
    return fault.options


def test_crashes_and_chosen_messages_are_of_every_kind(plans: list[Plan]) -> None:
    faults = [fault for plan in plans for fault in plan.nemesis.schedule]

    crashes = [options(fault) for fault in faults if fault.kind == "crash"]
    assert len(crashes) >= 50
    assert {options["at"] for options in crashes} >= {"sync", "send", "receive"}
    assert {options["when"] for options in crashes} == {"before", "instead", "after"}
    chosen = [options(fault) for fault in faults if fault.kind in chosen_faults.MESSAGES]
    assert len(chosen) >= 100
    # Nothing joins where there are no zones.
    assert {options["messages"] for options in chosen} == {*MessageClass} - {MessageClass.JOINS}
    assert any("until" in options for options in chosen)
    assert any("count" in options for options in chosen)


def test_a_leader_that_cannot_replicate_is_deposed_before_it_can_again(plans: list[Plan]) -> None:
    found = 0
    for plan in plans:
        for fault in plan.nemesis.schedule:
            if fault.kind not in ("drop-messages", "hold-messages") or "of" not in options(fault):
                continue
            if options(fault)["way"] != "from" or not fault.target.startswith("leader of "):
                continue  # a participant that can't finish, a primary without a lease
            end_s = fault.at_s + fault.hold_s
            found += any(
                fault.at_s < other.at_s < end_s and other.target == fault.target
                for other in plan.nemesis.schedule
                if other.kind in ("kill", "pause", "partition", "one-way")
            )
            assert plan.system.options["replicas"] >= 3
    assert found >= 30


def test_some_leaders_go_as_they_are_elected(plans: list[Plan]) -> None:
    short = [
        fault
        for plan in plans
        for fault in plan.nemesis.schedule
        if fault.on is Moment.LEADER_ELECTED and fault.by is not None
    ]

    assert len(short) >= 25
    assert all(str(fault.by).startswith("leader of partition ") for fault in short)
    assert all(fault.kind == "kill" and fault.target == "its node" for fault in short)


def test_some_participants_cannot_finish_what_they_have_prepared(plans: list[Plan]) -> None:
    found = Counter[str]()
    for plan in plans:
        for fault in plan.nemesis.schedule:
            if fault.kind not in MESSAGES or fault.hold_s <= FINISH_TIMEOUT_S:
                continue
            if options(fault).get("way") != "both" or "of" not in options(fault):
                continue
            # Longer than home waits for one answer, and never in the partition that is home.
            primary = f"primary of partition {options(fault)['of']}"
            assert options(fault)["of"] > 0
            if fault.on is not None:
                assert (fault.on, fault.by) == (Moment.PREPARE_LOGGED, primary)
                found["of one moment"] += 1
                continue
            assert fault.target == primary
            (held,) = [
                other
                for other in plan.nemesis.schedule
                if other.kind == "hold-messages" and options(other)["messages"] == "commits"
                if other.at_s < fault.at_s < other.at_s + other.hold_s
            ]
            assert held.target == "primary of partition 0"
            found["held up"] += 1
    assert min(found["of one moment"], found["held up"]) >= 8


def test_some_homes_are_silent_for_longer_than_a_participant_asks(plans: list[Plan]) -> None:
    found = 0
    for plan in plans:
        others = [f for f in plan.nemesis.schedule if f.target == "other voter of its partition"]
        for fault in others:
            if fault.on is Moment.PREPARE_LOGGED:
                continue  # of a participant: see below
            found += 1
            (home,) = [
                each
                for each in plan.nemesis.schedule
                if each.target == "its node" and (each.on, each.at_s) == (fault.on, fault.at_s)
            ]
            assert fault.on is Moment.OUTCOME_LOGGED
            assert plan.system.options["replicas"] == 3  # neither has a majority without both
            # It is due, and then asked for in vain.
            assert RECOVER_AFTER_S + FINISH_TIMEOUT_S < home.hold_s == fault.hold_s
    assert found >= 10


def test_some_participants_are_away_for_longer_than_outcomes_are_kept(plans: list[Plan]) -> None:
    found = 0
    for plan in plans:
        moment = Moment.PREPARE_LOGGED
        kills = [f for f in plan.nemesis.schedule if f.kind == "kill" and f.on is moment]
        tuning = plan.system.options.get("tuning", {})
        assert isinstance(tuning, dict)
        kept_s = float(str(tuning.get("outcome_retention_s", 60)))
        for away in (f for f in kills if f.target == "its node" and f.hold_s > kept_s):
            found += 1
            both = [f for f in kills if (f.at_s, f.hold_s) == (away.at_s, away.hold_s)]
            assert len(both) == (2 if plan.system.options["replicas"] == 3 else 1)
            assert plan.workload.name != "register"
            # Soon enough for what they leave undecided to be dropped while the other is away.
            undecided = [f for f in kills if f not in both and 0 <= f.at_s - away.at_s < 1]
            assert any(f.hold_s < 1 for f in undecided)
    assert found >= 5


def test_some_leases_run_out_while_their_holders_lead(plans: list[Plan]) -> None:
    found = Counter[str]()
    for plan in plans:
        schedule = [fault for fault in plan.nemesis.schedule if fault.kind in MESSAGES]
        for lost in (f for f in schedule if f.target == "metastorage leader"):
            found["lost"] += 1
            assert (options(lost)["messages"], options(lost)["way"]) == ("renewals", "to")
            # The next of them comes so late that a lease has run out, whenever the last one came.
            assert lost.hold_s > LEASE_S + RENEW_S
            for slow in schedule:
                if options(slow).get("way") == "from" and lost.at_s < slow.at_s < lost.at_s + 1:
                    assert slow.kind == "hold-messages"
                    assert options(slow)["messages"] == "appends"
                    ends_s = slow.at_s + slow.hold_s - lost.at_s
                    # What is proposed meanwhile comes to be committed after the end of some.
                    assert LEASE_S - RENEW_S < ends_s < lost.hold_s + RENEW_S
                    found["slow"] += 1
    assert min(found["lost"], found["slow"]) >= 30


def test_some_voters_take_a_lease_for_over_that_is_renewed(plans: list[Plan]) -> None:
    found = 0
    for plan in plans:
        schedule = plan.nemesis.schedule
        messages = [fault for fault in schedule if fault.kind in MESSAGES]
        deaf = [fault for fault in messages if options(fault).get("of") == "metastorage"]
        for voter in deaf:
            assert voter.target.startswith("other voter of partition ")
            assert sum(voter.at_s == other.at_s for other in deaf) == 2
            partition = voter.target.rpartition(" ")[2]
            (standing,) = [
                fault
                for fault in schedule
                if fault.kind == "pause" and fault.target == f"primary of partition {partition}"
                if voter.at_s < fault.at_s < voter.at_s + voter.hold_s
            ]
            # Past the end that the voter has to wait for, and for less than a lease lasts.
            assert standing.at_s - voter.at_s > LEASE_S * (1 + DRIFT)
            assert standing.hold_s < LEASE_S
            found += 1
    assert found >= 30


def test_seeds_differ_in_everything_that_a_store_may_depend_on(plans: list[Plan]) -> None:
    def share(wanted: object, of: list[object]) -> float:
        return of.count(wanted) / len(plans)

    replicas: list[object] = [plan.system.options["replicas"] for plan in plans]
    assert all(share(count, replicas) >= 0.05 for count in (1, 2, 3, 5))
    nodes: list[object] = [plan.cluster.nodes for plan in plans]
    assert all(share(count, nodes) >= 0.05 for count in (3, 4, 5, 6))
    partitions: list[object] = [plan.system.options["partitions"] for plan in plans]
    assert all(share(count, partitions) >= 0.05 for count in (1, 2, 8))
    assert sum((plan.drive.rate_per_s or 0) > 100 for plan in plans) >= 15
    keys = [
        plan.workload.options["key_count"] for plan in plans if plan.workload.name == "list-append"
    ]
    assert min(keys) == 1
    assert 55 <= max(keys) <= 60
    accounts = {plan.workload.options["accounts"] for plan in plans if plan.workload.name == "bank"}
    assert (min(accounts), max(accounts)) == (4, 20)
    shares = {plan.workload.options.get("cas_fraction") for plan in plans}
    assert shares == {None, 0.0, 0.3, 0.7}
    drawn = (plan.workload.options.get("read_kinds", []) for plan in plans)
    kinds = Counter(kind for some in drawn for kind in some)
    assert min(kinds[kind] for kind in ("read-write", "snapshot", "one-shot")) >= 50
    assert sum(plan.workload.options.get("once_fraction", 0) > 0 for plan in plans) >= 50


def test_sizes_are_small_in_about_half_of_the_seeds(plans: list[Plan]) -> None:
    tuned = Counter(name for plan in plans for name in plan.system.options.get("tuning", {}))

    assert {"segment_bytes", "record_bytes", "piece_bytes", "outcome_retention_s"} <= set(tuned)
    assert all(0.35 <= count / len(plans) <= 0.65 for count in tuned.values())
    usual = [plan for plan in plans if not quarrels(plan)]
    ticks = Counter(plan.system.options.get("tick_ms") for plan in usual)
    assert set(ticks) == {None, 40, 70}
    assert 0.35 <= ticks[None] / len(usual) <= 0.65
    assert {plan.system.options.get("election_ticks") for plan in usual} == {None, 5, 9}


def quarrels(plan: Plan) -> bool:
    """Whether leaders go faster than in any other seed."""
    return plan.nemesis.quiet_s <= 0.8 and plan.nemesis.hold_s <= 1.2


def test_in_some_seeds_leaders_go_one_behind_the_other_with_what_only_they_have(
    plans: list[Plan],
) -> None:
    found = [plan for plan in plans if quarrels(plan)]

    assert 0.3 <= len(found) / len(plans) <= 0.5
    for plan in found:
        options = plan.system.options
        assert options["tick_ms"] == 40
        assert options["election_ticks"] in (5, 7)
        assert options["append_entries"] in (1, 2, 4)
        assert 3 <= options["replicas"] <= plan.cluster.nodes
    kinds = Counter(kind for p in found for kind in {f.kind for f in p.nemesis.schedule})
    # What deposes, and what keeps entries from others before that.
    for kind in ("partition", "one-way", "pause", "kill", "drop-messages", "hold-messages"):
        assert kinds[kind] >= len(found) / 4
    assert sum(len(plan.nemesis.schedule) for plan in found) / len(found) >= 10


def test_some_pauses_are_as_long_as_a_lease(plans: list[Plan]) -> None:
    holds = [
        fault.hold_s
        for plan in plans
        for fault in plan.nemesis.schedule
        if fault.kind in ("pause", "freeze")
    ]

    assert sum(abs(hold - LEASE_S) <= 0.2 for hold in holds) >= 20
    assert sum(hold > 1.5 * LEASE_S for hold in holds) >= 10


def test_jumps_are_on_both_sides_of_what_is_followed_and_a_start_shows_them(
    plans: list[Plan],
) -> None:
    jumps = shown = 0
    amounts = set()
    for plan in plans:
        for fault in plan.nemesis.schedule:
            if fault.kind != "clock-jump":
                continue
            jumps += 1
            node = fault.target.partition(" ")[0]
            amounts.add(strength(fault.target))
            starts = [
                other
                for other in plan.nemesis.schedule
                if other.target == node and other.kind in ("kill", "restart")
            ]
            healed_s = fault.at_s + fault.hold_s
            under = any(fault.at_s < s.at_s and s.at_s + s.hold_s < healed_s for s in starts)
            after = any(s.at_s > healed_s for s in starts)
            shown += under and after
    assert shown / jumps >= 0.7
    assert {JUMP_EDGE_MS - 100, JUMP_EDGE_MS + 100} <= amounts


def test_wall_clocks_differ_from_the_begin_on_in_some_seeds_and_never_beside_jumps(
    all_plans: list[Plan], plans: list[Plan]
) -> None:
    skews = Counter(plan.cluster.options.get("skew_s") for plan in plans)

    assert set(skews) == {None, *SKEW_S}
    assert all(count >= 0.05 * len(plans) for count in skews.values())
    for plan in all_plans:
        skewed = "skew_s" in plan.cluster.options
        jumps = any(fault.kind == "clock-jump" for fault in plan.nemesis.schedule)
        assert not (skewed and (jumps or churns(plan) or loses_majorities(plan)))


def test_clocks_never_drift_apart_by_more_than_the_design_allows(plans: list[Plan]) -> None:
    most = 0.0
    for plan in plans:
        of = {"clock-fast": 0.0, "clock-slow": 0.0}
        for fault in plan.nemesis.schedule:
            if fault.kind in of:
                of[fault.kind] = max(of[fault.kind], strength(fault.target))
        apart = (1 + of["clock-fast"] / 100) / (1 - of["clock-slow"] / 100) - 1
        most = max(most, apart)
    assert DRIFT_EDGE / 100 <= most <= 0.0505


def test_what_destroys_a_disk_spares_a_majority(plans: list[Plan]) -> None:
    for plan in plans:
        destroyed = [f for f in plan.nemesis.schedule if f.kind in ("wipe", "bit-flip")]
        assert not destroyed or plan.system.options["replicas"] >= 3


def test_what_destroys_a_disk_leaves_its_node_the_time_to_be_whole_again(
    plans: list[Plan],
) -> None:
    lengths = [
        plan.drive.duration_s
        for plan in plans
        if {"wipe", "bit-flip"} & {fault.kind for fault in plan.nemesis.schedule}
    ]

    assert len(lengths) >= 20
    assert min(lengths) >= DESTROYED_DRIVE_S
    assert min(plan.drive.duration_s for plan in plans) < DESTROYED_DRIVE_S / 2


def test_what_is_given_is_not_drawn() -> None:
    given = {
        "cluster.nodes": 3,
        "system.partitions": 7,
        "nemesis.mix": ["kill", "pause"],
        "drive.rate_per_s": 30.0,
        "cluster.options.weather.loss": 0.25,
    }
    for plan in swarm_plans(None, given, ("bank",), range(30)):
        assert (plan.cluster.nodes, plan.system.options["partitions"]) == (3, 7)
        assert plan.system.options["replicas"] <= 3
        assert {fault.kind for fault in plan.nemesis.schedule} <= {"kill", "pause"}
        assert (plan.drive.rate_per_s, plan.workload.name) == (30.0, "bank")
        assert plan.cluster.options["weather"]["loss"] == 0.25


def test_a_mix_of_nothing_and_a_schedule_stay_what_they_are() -> None:
    (plan,) = swarm_plans(None, {"nemesis.mix": []}, (), range(1))
    assert plan.nemesis.schedule == ()

    row = {"at_s": 1.0, "kind": "kill", "target": "n1", "hold_s": 0.5}
    (plan,) = swarm_plans(None, {"nemesis.schedule": [row]}, (), range(1))
    assert [fault.kind for fault in plan.nemesis.schedule] == ["kill"]


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"nemesis\.mix.*nonesuch"):
        swarm_plans(None, {"nemesis.mix": ["nonesuch"]}, (), range(1))


def test_workloads_take_turns() -> None:
    names = [plan.workload.name for plan in swarm_plans(None, {}, (), range(10))]

    turn = ("list-append", "bank", "list-append", "bank", "register")
    assert names == list(itertools.islice(itertools.cycle(turn), 10))


def test_some_faults_wait_for_a_moment_and_never_all_of_a_seed(
    all_plans: list[Plan], plans: list[Plan]
) -> None:
    moments = {fault.on for plan in all_plans for fault in plan.nemesis.schedule} - {None}
    assert moments == set(Moment)
    aimed = [fault for plan in plans for fault in plan.nemesis.schedule if fault.on is not None]

    assert len(aimed) >= 100
    assert {fault.kind for fault in aimed} == {
        *("kill", "restart", "pause", "partition", "one-way", "one-way-in"),
        *("drop-messages", "hold-messages"),
    }
    assert any(fault.target == "its node" for fault in aimed)
    assert any(fault.target != "its node" for fault in aimed)
    for plan in plans:
        assert any(fault.on is None for fault in plan.nemesis.schedule)
        for fault in plan.nemesis.schedule:
            if plan.system.options["partitions"] == 1:
                assert fault.on not in (Moment.PREPARE_LOGGED, Moment.OUTCOME_LOGGED)
