"""What was shrunk and kept fails as its head says, and only because of its bug."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cli.cells import simulation_pool
from harness.campaigns.cell import CELL_LIMIT_S, Cell, CellResult
from harness.campaigns.pool import in_turn
from harness.exit_codes import Outcome
from harness.plan.plan import Plan, load

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "reference"
SEEDS = 6  # what a seed means may change with the simulation; a scenario bites under most


def buggy() -> list[Path]:
    files = sorted(SCENARIOS.glob("*.toml"))
    plans = {path: load(path, seed=1) for path in files}
    simulated = [path for path, plan in plans.items() if plan.cluster.provider == "sim"]
    return [path for path in simulated if plans[path].system.options.get("bugs")]


def simulated(
    plans: list[Plan], into: Path, limit_s: float = CELL_LIMIT_S
) -> Generator[CellResult, None, None]:
    return simulation_pool(into).results(
        in_turn(Cell(plan=plan, limit_s=limit_s) for plan in plans)
    )


def test_minutes_of_the_long_simulation_are_valid_and_have_every_kind_of_fault(
    tmp_path: Path,
) -> None:
    plan = load(SCENARIOS / "long-simulation.toml", {"drive.duration_s": 245, "check.min_ok": 500})
    with closing(simulated([plan], tmp_path, limit_s=600)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, result.reasons
    assert sorted(result.stats.tried) == sorted(plan.nemesis.mix)
    assert len(result.stats.tried) == 20


def test_data_nodes_without_metastorage_lose_nothing_and_serve_again(tmp_path: Path) -> None:
    plan = load(SCENARIOS / "data-majority-alone.toml", {"cluster.provider": "sim"})
    with closing(simulated([plan], tmp_path)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, result.reasons
    assert result.stats.tried == ("partition",)


def test_an_operator_resets_what_a_strongly_consistent_store_waits_for(tmp_path: Path) -> None:
    plan = load(SCENARIOS / "manual-reset.toml", {"cluster.provider": "sim"})
    with closing(simulated([plan], tmp_path)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, (result.reasons, result.anomalies)
    assert result.stats.tried == ("ddl", "kill")
    assert result.stats.resets > 0


def test_copies_that_are_cleaned_up_cost_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    plan = load(SCENARIOS / "cleanup.toml", {"cluster.provider": "sim"})
    with closing(simulated([plan], tmp_path)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, (result.reasons, result.anomalies)
    assert result.stats.tried == ("ddl", "partition")
    assert {"cleanup of a copy that is needed refused", "replica cleaned up by an operator"} <= set(
        result.stats.markers
    )


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("rolling-restart", ("rolling-restart",)),
        ("full-restart", ("full-restart", "successive-loss")),
    ],
)
def test_restarts_of_every_node_lose_nothing(
    name: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    # As often as an open loop needs for its figures, and no more.
    given = {"cluster.provider": "sim", "drive.rate_per_s": 25, "check.min_ok": 300}
    plan = seamless(load(SCENARIOS / f"{name}.toml", given))
    with closing(simulated([plan], tmp_path, limit_s=600)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, (result.reasons, result.anomalies)
    assert result.stats.tried == kinds


def seamless(plan: Plan) -> Plan:
    """``plan`` with the usual limits of an orderly rolling restart, which those in its file exceed,
    since a machine may be busy: no virtual one is.
    """
    limits = ("silence_s", "p99_times", "failed_share", "slow_share")
    schedule = tuple(
        fault
        if fault.options.get("by") == "kill"
        else msgspec.structs.replace(
            fault, options={k: v for k, v in fault.options.items() if k not in limits}
        )
        for fault in plan.nemesis.schedule
    )
    return msgspec.structs.replace(
        plan, nemesis=msgspec.structs.replace(plan.nemesis, schedule=schedule)
    )


def under(plan: Plan, seed: int) -> Plan:
    return msgspec.structs.replace(plan, seed=seed)


def violated(result: CellResult) -> set[str]:
    """The anomalies of a run that broke a promise."""
    return set(result.anomalies) if result.outcome is Outcome.VIOLATION else set()


def test_some_are_kept() -> None:
    assert len(buggy()) >= 2


@pytest.mark.parametrize("path", buggy(), ids=lambda path: path.stem)
def test_a_shrunk_scenario_fails_and_without_its_bug_it_does_not(
    path: Path, tmp_path: Path
) -> None:
    plan = load(path)
    sound = load(path, {"system.bugs": []})
    named = set(re.findall(r"`([^`]+)`", path.read_text()))
    # The two side by side; other seeds only where this one shows nothing: they are seconds each.
    with closing(simulated([sound, plan], tmp_path)) as found:
        calm, first = found
    assert calm.outcome is Outcome.VALID, calm.reasons

    shown = [violated(first)]  # the anomalies of each seed
    if not named & shown[0]:
        others = [under(plan, seed) for seed in range(1, SEEDS)]
        with closing(simulated(others, tmp_path)) as found:
            for result in found:
                shown.append(violated(result))
                if named & shown[-1]:
                    break

    assert any(named & anomalies for anomalies in shown), (named, shown)


@pytest.mark.parametrize("mode", ["SC", "HA"])
def test_a_partition_that_loses_its_majority_refuses_or_goes_on(mode: str, tmp_path: Path) -> None:
    given = {"cluster.provider": "sim", "system.mode": mode}
    plan = load(SCENARIOS / "majority-lost.toml", given)
    with closing(simulated([plan], tmp_path)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, (result.anomalies, result.reasons)
    assert (result.stats.resets > 0) == (mode == "HA")


@pytest.mark.parametrize("phase2", [False, True])
@pytest.mark.parametrize("mode", ["SC", "HA"])
def test_a_node_that_starts_alone_after_all_were_lost_resets_nothing(
    mode: str, phase2: bool, tmp_path: Path
) -> None:
    given = {"cluster.provider": "sim", "system.mode": mode, "system.phase2": phase2}
    plan = load(SCENARIOS / "reset-after-restart.toml", given)
    with closing(simulated([plan], tmp_path)) as found:
        (result,) = found

    assert result.outcome is Outcome.VALID, (result.anomalies, result.reasons)
    assert result.stats.resets == 0
    assert sorted(result.stats.tried) == ["kill"]
