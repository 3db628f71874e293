"""Seeds of a mode: majorities that are lost, one behind the other, and all nodes that restart."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import pytest

from cli.campaign_plans import swarm_plans
from cli.cells import simulate
from cli.plan_schedule import schedule_of
from clusters.reference import majority_losses
from clusters.reference.majority_losses import CALM_S, DATA_NODES, MAJORITY
from clusters.reference.node.catalog.options import FILTER
from harness.campaigns.cell import Cell
from harness.exit_codes import Outcome
from harness.plan.plan import Plan, dumps, loads
from harness.protocols.faults import PlannedFault

SEEDS = range(7800, 8000)


def plans(mode: str) -> list[Plan]:
    return swarm_plans(None, {majority_losses.ASKED_BY: mode}, (), SEEDS)


def test_both_modes_meet_the_same_faults_and_a_seed_the_same_ones_again() -> None:
    strong, available = plans("SC"), plans("HA")

    assert [dumps(plan) for plan in plans("HA")] == [dumps(plan) for plan in available]
    for one, other in zip(strong, available, strict=True):
        assert one.nemesis.schedule == other.nemesis.schedule
        assert schedule_of(loads(dumps(one))) == one.nemesis.schedule
        assert one.cluster.nodes - int(str(one.system.options["system_nodes"])) == DATA_NODES
        assert (one.system.options["mode"], other.system.options["mode"]) == ("SC", "HA")


def test_most_seeds_lose_a_majority_and_have_phase_2() -> None:
    found = plans("HA")
    kinds = Counter(fault.kind for plan in found for fault in plan.nemesis.schedule)
    lost = [
        plan
        for plan in found
        if any(f.target.count(",") + 1 >= MAJORITY for f in plan.nemesis.schedule)
    ]
    phase2 = sum(bool(plan.system.options["phase2"]) for plan in found)

    assert set(kinds) == majority_losses.KINDS
    assert len(lost) > 0.9 * len(found)
    assert 0.55 * len(found) < phase2 < 0.85 * len(found)
    assert sum(bool(plan.promise.during) for plan in found) > 0.05 * len(found)
    for plan in found:
        end_s = max(fault.at_s + fault.hold_s for fault in plan.nemesis.schedule)
        assert end_s <= plan.drive.duration_s - CALM_S / 2


def test_no_seed_asks_for_a_service_that_is_due_after_its_loss_is_over() -> None:
    # 8597 and 8829 have the latest service and the shortest loss that are drawn.
    seeds = range(8590, 8830)
    found = swarm_plans(None, {majority_losses.ASKED_BY: "HA"}, (), seeds)
    asked = [plan for plan in found if plan.promise.during]

    assert asked
    for plan in asked:
        served_s = plan.promise.during["kill"].serves_within_s
        kills = [fault for fault in plan.nemesis.schedule if fault.kind == "kill"]
        assert served_s is not None
        assert max(fault.hold_s for fault in kills) > served_s


def statements(fault: PlannedFault) -> list[str]:
    return list((fault.options or {}).get("statements", ()))


def is_about(fault: PlannedFault, text: str) -> bool:
    """Whether the one statement of ``fault`` holds ``text``."""
    return len(statements(fault)) == 1 and text in statements(fault)[0]


def test_most_seeds_have_an_operator_who_resets_or_restarts_partitions() -> None:
    found = plans("SC")
    asked = Counter[str]()
    for plan in found:
        schedule = plan.nemesis.schedule
        said = [text for fault in schedule for text in statements(fault)]
        assert {text.split()[0] for text in said} <= {"RESET", "RESTART", "ALTER"}
        kinds = {"CLEANUP" if "CLEANUP" in text else text.split()[0] for text in said}
        asked.update(kinds - {"ALTER"})
        if "RESET" in kinds:
            assert any(
                f.kind == "kill" and (f.target.count(",") + 1 >= MAJORITY or f.on is not None)
                for f in schedule
            )
    assert set(asked) == {"RESET", "RESTART", "CLEANUP"}
    assert all(0.2 * len(found) < count < 0.7 * len(found) for count in asked.values()), asked


def test_many_seeds_lose_a_majority_while_data_moves_or_more_within_one_timer() -> None:
    moved, aimed, again = 0, 0, 0
    for plan in plans("HA"):
        schedule = plan.nemesis.schedule
        kills = [f for f in schedule if f.kind == "kill"]
        struck = [
            kill
            for fault in schedule
            for kill in kills
            if is_about(fault, "SET REPLICAS") and 0 <= kill.at_s - fault.at_s < 1
        ]
        moved += bool(struck)
        aimed += any(kill.on is not None for kill in struck)
        assert not (struck and plan.promise.during)
        again += any(
            one is not other
            and other.target.count(",") + 1 < MAJORITY <= one.target.count(",") + 1
            and 0 < other.at_s - one.at_s < max(int(str(plan.system.options["reset_timeout_s"])), 1)
            for one in kills
            for other in kills
        )
    assert 0.2 * len(SEEDS) < moved < 0.6 * len(SEEDS)
    assert 0.1 * len(SEEDS) < aimed < moved
    assert again > 0.1 * len(SEEDS)


def test_many_seeds_lose_the_nodes_that_data_leaves_and_an_operator_may_ask_too_early() -> None:
    replaced, silent, asked = 0, 0, 0
    for plan in plans("HA"):
        schedule = plan.nemesis.schedule
        for fault in schedule:
            if is_about(fault, FILTER) and "back" in (fault.options or {}):
                gone = {f.target for f in schedule if f.kind == "kill" and f.at_s == fault.at_s}
                assert len(gone) == 2
                assert all(f'!"{node}"' in statements(fault)[0] for node in gone)
                lag = [f for f in schedule if f.kind == "partition" and f.at_s < fault.at_s]
                replaced += bool(lag) and gone.isdisjoint(lag[-1].target.split(","))
            elif is_about(fault, "RESET"):
                asked += 1
                silent += any(
                    f.kind == "partition" and f.at_s < fault.at_s < f.at_s + f.hold_s
                    for f in schedule
                )
    assert replaced > 0.15 * len(SEEDS)
    assert 0 < silent < asked


def test_no_seed_tells_a_story_twice_and_most_tell_several() -> None:
    restarts, faults = Counter[int](), []
    for plan in plans("HA"):
        kinds = Counter(fault.kind for fault in plan.nemesis.schedule)
        restarts[kinds["full-restart"]] += 1
        faults.append(len(plan.nemesis.schedule))
    assert set(restarts) == {0, 1}
    assert min(restarts.values()) > 0.25 * len(SEEDS)
    assert statistics.median(faults) >= 6


def test_most_full_restarts_come_while_a_majority_is_cut_off_for_longer_than_a_reset_waits() -> (
    None
):
    linked, restarts = 0, 0
    for plan in plans("HA"):
        options, schedule = plan.system.options, plan.nemesis.schedule
        waits_s = float(str(options["detection_s"])) + float(str(options["reset_timeout_s"]))
        for restart in (fault for fault in schedule if fault.kind == "full-restart"):
            restarts += 1
            linked += any(
                cut.kind == "partition"
                and cut.target.count(",") + 1 >= MAJORITY
                and cut.at_s + waits_s < restart.at_s < cut.at_s + cut.hold_s
                for cut in schedule
            )
    assert 0.5 * restarts < linked < 0.9 * restarts


def test_a_disk_is_lost_before_a_majority_only_where_it_can_be_whole_by_then() -> None:
    damaged = 0
    for plan in plans("HA"):
        schedule = plan.nemesis.schedule
        for fault in schedule:
            if fault.kind in ("wipe", "bit-flip"):
                damaged += 1
                end_s = fault.at_s + fault.hold_s
                others = (f for f in schedule if f.target != "metastorage leader")
                later = [f.at_s for f in others if f.at_s > end_s]
                assert not later or min(later) - end_s > majority_losses.APART_S[0]
    assert damaged > 0.1 * len(SEEDS)


def test_a_seed_without_a_mode_or_with_a_schedule_has_none() -> None:
    own = {"nemesis.schedule": [{"at_s": 1.0, "kind": "kill", "target": "one", "hold_s": 1.0}]}

    assert not majority_losses.wanted({})
    assert not majority_losses.wanted({majority_losses.ASKED_BY: "HA", **own})


# Its stories have an operator who resets, and a restart of all nodes behind a reset; phase 2 is on.
SEED = 7801041


@pytest.mark.parametrize("mode", ["SC", "HA"])
def test_a_sound_store_keeps_what_its_mode_promises(mode: str, tmp_path: Path) -> None:
    (plan,) = swarm_plans(None, {majority_losses.ASKED_BY: mode}, (), [SEED])

    result = simulate(Cell(plan=plan), lambda _run: None, runs_dir=tmp_path, keep=False)

    assert result.outcome is Outcome.VALID, (result.anomalies, result.reasons)
    # An operator resets in either mode.
    assert result.stats.resets > 0
    # Links of a chain are those of resets that the store does by itself.
    available = mode == "HA"
    assert (result.stats.full_restarts, result.stats.chained_restarts) == (1, int(available))
    unwound = "starts its replica: the chain was unwound"
    assert (unwound in result.stats.start_decisions) is available
