"""Seeds of a mode: majorities that are lost, one behind the other, and all nodes that restart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cli.campaign_plans import swarm_plans
from cli.cells import simulate
from cli.wiring import schedule_of
from clusters.reference import majority_losses
from clusters.reference.majority_losses import CALM_S, DATA_NODES, MAJORITY
from clusters.reference.node.catalog.options import FILTER
from harness.campaigns.cell import Cell
from harness.exit_codes import Outcome
from harness.plan.plan import Plan, dumps, loads

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


def test_most_seeds_lose_a_majority_and_half_have_phase_2() -> None:
    found = plans("HA")
    kinds = Counter(fault.kind for plan in found for fault in plan.nemesis.schedule)
    lost = [
        plan
        for plan in found
        if any(f.target.count(",") + 1 >= MAJORITY for f in plan.nemesis.schedule)
    ]
    phase2 = sum(bool(plan.system.options["phase2"]) for plan in found)

    assert set(kinds) == {"kill", "partition", "full-restart", "successive-loss", "ddl"}
    assert len(lost) > 0.7 * len(found)
    assert 0.3 * len(found) < phase2 < 0.7 * len(found)
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


def test_few_seeds_have_an_operator_who_resets_or_restarts_partitions() -> None:
    found = plans("SC")
    statements = [
        (str(fault.options["statements"][0]), plan.nemesis.schedule)
        for plan in found
        for fault in plan.nemesis.schedule
        if fault.kind == "ddl"
    ]

    assert {text.split()[0] for text, _ in statements} == {"RESET", "RESTART", "ALTER"}
    recovered = [each for each in statements if not each[0].startswith("ALTER")]
    assert 0.05 * len(found) < len(recovered) < 0.4 * len(found)
    for text, schedule in recovered:
        lost = any(
            f.kind == "kill" and (f.target.count(",") + 1 >= MAJORITY or f.on is not None)
            for f in schedule
        )
        assert lost or text.startswith("RESTART")


def test_some_seeds_lose_a_majority_while_data_moves_and_some_lose_more_within_a_timer() -> None:
    moved, aimed, again = 0, 0, 0
    for plan in plans("HA"):
        schedule = plan.nemesis.schedule
        cleaned = any("CLEANUP" in str(f.options) for f in schedule)
        altered = [f for f in schedule if "SET REPLICAS" in str(f.options) and not cleaned]
        kills = [f for f in schedule if f.kind == "kill"]
        moved += bool(altered)
        aimed += bool(altered) and any(f.on is not None for f in kills)
        for fault in altered:
            assert any(0 <= f.at_s - fault.at_s < 1 for f in kills)
            assert not plan.promise.during
        again += any(
            one is not other
            and other.target.count(",") + 1 < MAJORITY <= one.target.count(",") + 1
            and 0 < other.at_s - one.at_s < max(int(str(plan.system.options["reset_timeout_s"])), 1)
            for one in kills
            for other in kills
        )
    assert 0.05 * len(SEEDS) < moved < 0.5 * len(SEEDS)
    assert 0 < aimed <= moved
    assert again > 0.03 * len(SEEDS)


def test_some_seeds_lose_the_nodes_that_data_leaves_and_an_operator_may_ask_too_early() -> None:
    replaced, silent, asked = 0, 0, 0
    for plan in plans("HA"):
        schedule = plan.nemesis.schedule
        for fault in schedule:
            statement = str((fault.options or {}).get("statements", ""))
            if FILTER in statement and "back" in (fault.options or {}):
                gone = {f.target for f in schedule if f.kind == "kill" and f.at_s == fault.at_s}
                assert len(gone) == 2
                assert all(f'!"{node}"' in statement for node in gone)
                lag = [f for f in schedule if f.kind == "partition" and f.at_s < fault.at_s]
                assert all(gone.isdisjoint(f.target.split(",")) for f in lag[-1:])
                replaced += bool(lag)
            elif "RESET" in statement:
                asked += 1
                silent += any(
                    f.kind == "partition" and f.at_s < fault.at_s < f.at_s + f.hold_s
                    for f in schedule
                )
    assert replaced > 0.05 * len(SEEDS)
    assert 0 < silent < asked


def test_a_seed_without_a_mode_or_with_a_schedule_has_none() -> None:
    own = {"nemesis.schedule": [{"at_s": 1.0, "kind": "kill", "target": "one", "hold_s": 1.0}]}

    assert not majority_losses.wanted({})
    assert not majority_losses.wanted({majority_losses.ASKED_BY: "HA", **own})


@pytest.mark.parametrize("mode", ["SC", "HA"])
def test_a_sound_store_keeps_what_its_mode_promises(mode: str, tmp_path: Path) -> None:
    (plan,) = swarm_plans(None, {majority_losses.ASKED_BY: mode}, (), [7800000])

    result = simulate(Cell(plan=plan), lambda _run: None, runs_dir=tmp_path, keep=False)

    assert result.outcome is Outcome.VALID, (result.anomalies, result.reasons)
    assert (result.stats.resets > 0) == (mode == "HA")
