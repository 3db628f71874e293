"""Many runs of one plan: seeds of their own, bounds that end them, the worst exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import drill, repeat
from cli.main import execute
from cli.plan_schedule import schedule_of
from cli.repeat import Bounds, over, rate, seed_of, series_code
from cli.wiring import resolve, without_untestable
from harness.campaigns.cell import CellResult
from harness.clock import NS_PER_S
from harness.errors import PlanError
from harness.exit_codes import EXIT_INTERRUPTED, Outcome
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, load
from harness.run.stop import Stop
from results.store.store import RunStore

SIM = ["run", "--provider", "sim", "--executor", "local", "--set", "nemesis.mix=[]", "--no-report"]
SHORT = ["--duration", "2", "--concurrency", "4", "--set", "check.min_ok=10", "--nodes", "3"]


def row(outcome: Outcome = Outcome.VALID, *, interrupted: bool = False) -> CellResult:
    return CellResult(
        key="k",
        seed=1,
        name="n",
        workload="w",
        outcome=outcome,
        run="runs/x",
        interrupted=interrupted,
        wall_s=10.0,
    )


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


ONE_FAULT = ["--set", "nemesis.mix=['kill', 'partition']", "--set", "nemesis.first_s=0.2"]
ONE_FAULT += ["--set", "nemesis.hold_s=0.6", "--set", "nemesis.quiet_s=0.4"]


def drawing(kind: str, count: int) -> list[Plan]:
    """Plans of the first seeds whose one fault is of ``kind``, with limits for kills."""
    limits = {"promise.kill.longest_gap_s": 1.5, "promise.kill.recovered_within_s": 0.1}
    mix = {"nemesis.mix": ["kill", "partition"], "nemesis.first_s": 1, "nemesis.hold_s": 0.4}
    mix |= {"nemesis.quiet_s": 1.2, "drive.duration_s": 2.6, "cluster.provider": "sim"}
    plans = (load(None, {**limits, **mix, "seed": seed}) for seed in range(50))
    found = [plan for plan in plans if {f.kind for f in schedule_of(plan)} == {kind}]
    return found[:count]


def test_limits_that_a_seed_does_not_test_are_left_out_of_its_run_alone() -> None:
    (killing,), (cutting,) = drawing("kill", 1), drawing("partition", 1)

    assert without_untestable(killing) == (killing, ())
    left, gone = without_untestable(cutting)
    assert gone == ("promise.kill",)
    assert left.promise.sections == {}
    with pytest.raises(PlanError, match=r"promise\.kill"):
        resolve(cutting)


def test_a_limit_for_a_kind_that_no_seed_draws_is_refused() -> None:
    plan = load(None, {"seed": 1, "nemesis.mix": ["kill"], "promise.pause.p99_ms": 5.0})

    left, gone = without_untestable(plan)
    assert gone == ()
    with pytest.raises(PlanError, match=r"promise\.pause"):
        resolve(left)


def test_a_series_goes_on_where_a_seed_draws_no_fault_of_a_limits_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plan,) = drawing("partition", 1)
    base = ["run", "--provider", "sim", "--executor", "local", "--no-report"]
    limit = ["--set", "promise.kill.longest_gap_s=1.5", "--set", "check.min_ok=1"]

    words_ = [*base, *SHORT, *ONE_FAULT, *limit, "--seed", str(plan.seed), "--repeat", "2"]
    code = execute([*words_, "--runs-dir", str(tmp_path)])

    out, err = capsys.readouterr()
    assert code in (0, 2)
    assert f"seed {plan.seed} draws nothing that tests promise.kill" in err
    assert "2 runs: " in out


def test_runs_have_seeds_of_their_own_that_follow_from_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute([*SIM, *SHORT, "--seed", "5", "--repeat", "2", "--runs-dir", str(tmp_path)])

    out, err = capsys.readouterr()
    assert code == 0
    assert f"run 2 of at most 2, seed {seed_of(5, 2)}" in err
    *_, head, first, second, total, rated = out.splitlines()
    assert head.split() == ["run", "seed", "outcome", "took", "directory"]
    assert first.split()[:3] == ["1", "5", "valid"]
    assert second.split()[:3] == ["2", str(seed_of(5, 2)), "valid"]
    assert total == "2 runs: 2 valid; all runs were made"
    assert rated.startswith("violations in 0 of 2 runs, 0%: between 0% and 84% of such runs")
    assert len(RunStore(tmp_path).runs()) == 2


def test_the_first_seed_is_the_plans_and_no_two_are_equal() -> None:
    seeds = [seed_of(7, number) for number in range(1, 100)]

    assert seeds[0] == 7
    assert len(set(seeds)) == len(seeds)
    assert seeds == [seed_of(7, number) for number in range(1, 100)]


def test_a_violation_ends_a_search_and_is_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = iter([Outcome.UNKNOWN, Outcome.VIOLATION, Outcome.VALID])

    def one(session, plan, store, options, budget=None):
        outcome = next(outcomes)
        return drill.DrillResult(run=RunDirectory(tmp_path), outcome=outcome)

    monkeypatch.setattr(repeat, "one", one)

    code = execute([*SIM, "--until-failure", "--runs-dir", str(tmp_path)])

    assert code == 1
    out = capsys.readouterr().out
    assert "2 runs: 1 violation, 1 unknown; the last run failed" in out
    assert "violations in" not in out  # it ended because of one: no rate comes of that


def test_a_run_that_the_environment_broke_is_one_row_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.errors import HarnessError

    def one(session, plan, store, options, budget=None):
        raise HarnessError("the disk is gone")

    monkeypatch.setattr(repeat, "one", one)

    code = execute([*SIM, "--repeat", "2", "--runs-dir", str(tmp_path)])

    out, err = capsys.readouterr()
    assert code == 255
    assert err.count("firedrill: the disk is gone") == 2
    assert "2 runs: 2 harness error; all runs were made" in out


@pytest.mark.parametrize(
    ("rows", "bounds", "why"),
    [
        ([row()], Bounds(runs=2), ""),
        ([row(), row()], Bounds(runs=2), "all runs were made"),
        ([row(Outcome.VIOLATION)], Bounds(runs=9), ""),
        ([row(Outcome.VIOLATION)], Bounds(runs=9, until_failure=True), "the last run failed"),
        ([row(Outcome.UNKNOWN)], Bounds(runs=9, until_failure=True), ""),
        ([row(interrupted=True)], Bounds(runs=9), "interrupted"),
    ],
)
def test_what_ends_a_series(rows: list[CellResult], bounds: Bounds, why: str) -> None:
    assert over(rows, bounds) == why


def test_a_cluster_that_is_kept_up_ends_a_series() -> None:
    assert over([row()], Bounds(runs=9), kept=True) == "the cluster of the last run is kept up"


def test_no_run_is_begun_that_may_not_fit_the_budget() -> None:
    clock = Clock()
    bounds = Bounds(runs=9, budget=drill.Budget(25.0, clock))

    clock.now_s = 10.0
    assert over([row()], bounds) == ""
    clock.now_s = 20.0
    assert over([row()], bounds) == (
        "5 s are left of the time budget of 25 s, and a run may take 10 s"
    )


def test_the_worst_row_decides() -> None:
    interrupted = row(Outcome.UNKNOWN, interrupted=True)

    assert series_code([row(), row()]) == 0
    assert series_code([row(), row(Outcome.UNKNOWN)]) == 2
    assert series_code([row(), interrupted]) == EXIT_INTERRUPTED
    assert series_code([row(Outcome.VIOLATION), interrupted]) == 1
    assert series_code([row(Outcome.HARNESS_ERROR), interrupted]) == 255


def test_a_series_says_how_often_such_runs_fail_and_how_sure_that_is() -> None:
    found, other = row(Outcome.VIOLATION), [row(), row(Outcome.UNKNOWN)]
    unjudged = [row(Outcome.HARNESS_ERROR), row(Outcome.UNKNOWN, interrupted=True)]

    assert rate([found, found, *other, *unjudged]) == (
        "violations in 2 of 4 runs, 50%: between 7% and 93% of such runs end in one "
        "(Clopper-Pearson, 95% confidence)"
    )
    assert rate([found, *unjudged]) == ""


def test_a_run_that_outlasts_its_budget_ends_in_order_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drive = ["--provider", "process", "--duration", "60", "--time-budget", "6s"]

    code = execute([*SIM, *SHORT, *drive, "--runs-dir", str(tmp_path)])

    assert code == 2, capsys.readouterr()
    manifest = read_manifest(RunDirectory(tmp_path / "latest"))
    assert "ended early: the time budget of 6 s was spent" in manifest.trouble
    assert not manifest.interrupted
    assert "because: ended early: the time budget of 6 s was spent" in capsys.readouterr().out


def test_the_budget_of_a_simulated_run_is_the_machines_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--duration", "3000", "--nodes", "3", "--set", "check.min_ok=1"]

    code = execute([*SIM, *flags, "--time-budget", "2s", "--runs-dir", str(tmp_path)])

    assert code == 2, capsys.readouterr()
    manifest = read_manifest(RunDirectory(tmp_path / "latest"))
    assert "ended early: the time budget of 2 s was spent" in manifest.trouble
    assert dict(manifest.phases)["heal"] < 3000 * NS_PER_S


def test_who_asks_first_says_why() -> None:
    stop = Stop()
    stop.ask("ended early: the run directory is full")
    stop.ask()

    assert stop.reason == "ended early: the run directory is full"


@pytest.mark.parametrize("text", ["0", "-5m", "5 weeks", "m", ""])
def test_a_time_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert execute([*SIM, "--time-budget", text, "--runs-dir", str(tmp_path)]) == 254
    assert "expected a time like 90s, 30m, 8h or 14d" in capsys.readouterr().err


def test_nothing_simulated_is_kept_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*SIM, "--keep", "--runs-dir", str(tmp_path / "runs")]) == 254
    assert "--keep needs nodes that outlive the run" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
