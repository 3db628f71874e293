"""What a simulated campaign served in calm: recorded, compared, and said."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from cli.campaign_plans import seed_plans, swarm_plans
from cli.served_baseline import NOT_FIXED, RECORDED, Comparison, setting_of
from harness.campaigns import baseline
from harness.campaigns.baseline import Baseline
from harness.campaigns.cell import CalmCounts, CellResult, RunStats
from harness.errors import UsageError
from harness.exit_codes import Outcome
from harness.plan.plan import LimitsPlan, Plan

FIXED = seed_plans(None, {}, (), range(6))


def results(ok: int, outcome: Outcome = Outcome.VALID) -> list[CellResult]:
    """Of eight seeds, a little apart from each other."""
    return [
        CellResult(
            key=str(number),
            seed=number,
            name="n",
            workload=("list-append", "bank")[number % 2],
            outcome=outcome,
            stats=RunStats(calm=CalmCounts(ok=ok + number, conflicts=100 - ok - number)),
        )
        for number in range(8)
    ]


def compared(path: Path | None = None, record: Path | None = None) -> Comparison:
    return Comparison.of(FIXED, path, record)


def test_seeds_of_one_setting_have_one_name_whatever_their_faults_and_bugs() -> None:
    bugs = seed_plans(None, {"system.bugs": ["clock-not-advanced"]}, ("bank",), range(9, 12))
    kills = seed_plans(None, {"nemesis.mix": ["kill"]}, (), range(2))
    busier = seed_plans(None, {"drive.rate_per_s": 40.0}, (), range(4))

    assert setting_of(FIXED)
    assert setting_of(bugs) == setting_of(kills) == setting_of(FIXED)
    assert setting_of(busier) not in ("", setting_of(FIXED))
    assert setting_of([*FIXED, *busier]) == ""
    assert setting_of(swarm_plans(None, {}, (), range(4))) == ""


class LaterPlan(Plan, frozen=True, kw_only=True):
    """A plan of a version that has one more table."""

    later: LimitsPlan = LimitsPlan()


def test_a_table_that_plans_gain_makes_another_setting_only_where_it_says_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = setting_of(FIXED)
    monkeypatch.setattr("cli.served_baseline.Plan", LaterPlan)
    later = [LaterPlan(**asdict(plan)) for plan in FIXED]

    assert setting_of(later) == before
    said = [replace(plan, later=LimitsPlan(ready_s=1.0)) for plan in later]
    assert setting_of(said) not in ("", before)


def test_what_is_recorded_is_compared_and_worse_is_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    valid = Outcome.VALID
    assert compared(record=path).outcome(results(70), valid, finished=True) is valid

    again = compared(path).outcome(results(70), valid, finished=True)
    worse = compared(path).outcome(results(45), valid, finished=True)

    assert (again, worse) == (Outcome.VALID, Outcome.REGRESSION)
    assert worse.exit_code == 3
    said = capsys.readouterr().out
    assert (
        "in calm, bank: ok 74.0%, conflicts 26.0%, other failures 0.0% (means of 4 seeds)" in said
    )
    assert "WORSE THAN THE BASELINE: bank: in calm 49.0% of the operations succeeded, 74.0%" in said
    for graver in (Outcome.VIOLATION, Outcome.UNKNOWN):
        assert compared(path).outcome(results(45), graver, finished=True) is graver


def test_what_was_recorded_under_another_setting_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    baseline.write(path, Baseline(setting="another", workloads=baseline.served(results(70))))

    assert compared(path).outcome(results(10), Outcome.VALID, finished=True) is Outcome.VALID
    assert (
        "not compared: the baseline was recorded under another setting" in capsys.readouterr().out
    )


def test_seeds_with_settings_of_their_own_have_no_baseline_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = Comparison.of((), None, None)

    assert drawn.outcome(results(10), Outcome.VALID, finished=True) is Outcome.VALID
    assert NOT_FIXED in capsys.readouterr().out
    with pytest.raises(UsageError, match="no baseline"):
        Comparison.of((), None, tmp_path / "new.json")


def test_a_campaign_that_failed_or_was_cut_short_records_nothing(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"

    with pytest.raises(UsageError, match="not recorded, since a seed failed"):
        compared(record=path).outcome(results(70), Outcome.VIOLATION, finished=True)
    compared(record=path).outcome(results(70), Outcome.VALID, finished=False)

    assert not path.exists()


def test_the_baseline_that_comes_along_is_of_the_setting_that_is_simulated() -> None:
    recorded = baseline.read(RECORDED)

    assert recorded.setting == setting_of(FIXED)
    assert set(recorded.workloads) == {"list-append", "bank"}
    for served in recorded.workloads.values():
        assert served.seeds >= 20
        shares = served.ok.mean + served.conflicts.mean + served.failures.mean
        assert shares == pytest.approx(1.0, abs=1e-4)
    assert compared().recorded == recorded
    other = [replace(plan, drive=replace(plan.drive, rate_per_s=1.0)) for plan in FIXED]
    assert setting_of(other) != recorded.setting
