"""A failing simulated run is shrunk to a plan that fails by itself, and always to the same one."""

from __future__ import annotations

import select
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cli import cells
from cli.cells import simulation_pool
from cli.main import execute
from cli.shrinking.candidates import beginnings, smaller, with_schedule
from cli.shrinking.shrink_run import confidence, differences, failures, head
from cli.shrinking.shrink_trials import Failing, OutOfTime, Trials, reseeded
from harness.campaigns.cell import Cell, CellResult, failed, result_of
from harness.campaigns.pool import RunStarted, in_turn
from harness.errors import UsageError
from harness.exit_codes import EXIT_INTERRUPTED, Outcome
from harness.history.manifest import SEALED, write_manifest
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.plan.plan import Plan, dumps, load
from harness.protocols.consistency_models import OF_CLAIMS
from harness.protocols.promise import Declaration
from results.store.store import RunStore

FAULTS = [
    {"at_s": 0.5, "kind": "clock-jump", "target": "n1", "hold_s": 0.5},
    {"at_s": 1.3, "kind": "kill", "target": "all", "hold_s": 0.5},
]
# Small in all but its faults, so that few things are left to try.
FAILING = {
    "seed": 3,
    "cluster.provider": "sim",
    "cluster.nodes": 3,
    "check.executor": "local",
    "check.min_ok": 1,
    "system.partitions": 1,
    "system.bugs": ["no-fsync"],
    "workload.key_count": 1,
    "workload.max_length": 1,
    "limits.quiesce_s": 5.0,
    "limits.final_reads_s": 5.0,
    "drive.duration_s": 3.0,
    "drive.rate_per_s": 9.0,
    "drive.concurrency": 3,
    "nemesis.schedule": FAULTS,
}


REAL = FAILING | {"cluster.provider": "process"}
FAILED = '{"outcome": "violation", "model": "m", "anomalies": {"G0": {"count": 1, "examples": []}}}'


def judged(root: Path, verdict: str) -> None:
    """Make a run of ``root`` of which there is nothing but what it came to."""
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id="run",
        state=SEALED,
        versions={},
        machine={},
        declaration=Declaration(system="s", mode="SC", promises=()),
        workload="list-append",
        checkers=(),
    )
    write_manifest(RunDirectory(root), manifest)
    (root / "plan.toml").write_text("seed = 1\n")
    (root / "analysis").mkdir()
    (root / "analysis" / "verdict.json").write_text(verdict)


def shrink(run: str | Path, *flags: str | Path) -> int:
    return execute(["shrink", str(run), *map(str, flags)])


def test_a_run_is_shrunk_to_the_same_plan_every_time_and_that_plan_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(
        simulation_pool(tmp_path).results(in_turn([Cell(plan=load(None, FAILING))]))
    ) as work:
        (found,) = work
    assert found.outcome is Outcome.VIOLATION

    texts = []
    for jobs in ("1", "3"):
        out = tmp_path / f"{jobs}.toml"
        # What a log without syncs breaks without any fault would be shrunk to none.
        flags = ("--anomaly", "forgotten-state", "--tries", "1", "--jobs", jobs, "--out", out)
        assert shrink(found.run, *flags) == 0
        said = capsys.readouterr().out
        assert "2 faults became 1" in said
        assert "it failed in 1 of 1 repetitions" in said
        texts.append(out.read_text())

    assert texts[0] == texts[1]
    assert texts[0].startswith("# Shrunk from the run ")
    (fault,) = load(out).nemesis.schedule
    assert fault.kind == "kill"
    code = execute(["run", str(out), "--no-report", "--runs-dir", str(tmp_path)])
    assert code == Outcome.VIOLATION.exit_code


def test_there_is_nothing_to_shrink_where_nothing_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path, '{"outcome": "valid", "model": "m"}')

    assert shrink(tmp_path) == 254
    assert "broke no promise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("harmed", "text", "said"),
    [
        ("manifest.json", "{", "manifest.json: expected a manifest, found"),
        ("analysis/verdict.json", "{", "verdict.json: expected a verdict, found"),
    ],
)
def test_a_damaged_run_is_refused_by_the_file_that_is(
    harmed: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path, FAILED)
    (tmp_path / harmed).write_text(text)

    assert shrink(tmp_path) == 254
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "why"), [("none/x.toml", "No such file or directory"), (".", "Is a directory")]
)
def test_a_plan_that_could_not_be_written_is_refused_before_the_trials(
    out: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path, FAILED)

    assert shrink(tmp_path, "--out", tmp_path / out) == 254
    said = capsys.readouterr().err
    assert "--out: expected a file in a directory that can be written" in said
    assert why in said


def test_what_it_is_to_fail_with_is_what_it_failed_with(tmp_path: Path) -> None:
    verdict = {"outcome": "violation", "model": "m"}
    none = {"count": 1, "examples": []}
    (tmp_path / "analysis").mkdir()
    path = tmp_path / "analysis" / "verdict.json"

    def asked(found: list[str], wanted: tuple[str, ...] = ()) -> frozenset[str]:
        path.write_bytes(msgspec.json.encode(verdict | {"anomalies": dict.fromkeys(found, none)}))
        return failures(RunDirectory(tmp_path), wanted)

    assert asked(["lost-write", "G1a", "node-exit"]) == {"lost-write", "G1a"}
    assert asked(["liveness", "node-exit"]) == {"liveness", "node-exit"}
    claim = min(OF_CLAIMS)
    assert asked(["counter-of-ones-own", claim, "liveness"]) == {"counter-of-ones-own"}
    assert asked([claim, "liveness"]) == {claim}
    assert asked(["counter-of-ones-own", claim], (claim,)) == {claim}
    assert asked(["lost-write", "node-exit"], ("node-exit",)) == {"node-exit"}
    with pytest.raises(UsageError, match=r"expected one of G1a, lost-write \(got 'G0'\)"):
        asked(["lost-write", "G1a"], ("G0",))


def plans(count: int) -> list[Plan]:
    return [load(None, FAILING | {"drive.duration_s": 3.0 + number}) for number in range(count)]


def trials(tmp_path: Path, **more: object) -> Trials:
    given = {"names": frozenset({"lost-write"}), "tries": 1, "store": RunStore(tmp_path)}
    return Trials(**({"ends_s": float("inf")} | given | more))  # type: ignore[arg-type]


def failing(place: int, plan: Plan) -> Failing:
    return Failing(place=place, plan=plan, names=frozenset({"lost-write"}))


def test_the_last_plan_fails_with_a_name_that_every_one_before_it_failed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = '"G1a": {"count": 1}, "lost-write": {"count": 1}, "G0":'
    judged(tmp_path, FAILED.replace('"G0":', others))
    larger = REAL | {"cluster.nodes": 5, "drive.concurrency": 16, "drive.duration_s": 20.0}
    (tmp_path / "plan.toml").write_bytes(dumps(load(None, larger)).encode())
    shown = iter([("G0", "lost-write"), ("G1a",), ("G1a", "lost-write"), ("G0", "G1a")])
    tried: list[tuple[str, ...]] = []

    def another_each_time(cell: Cell, _run_started: RunStarted, **_: object) -> CellResult:
        tried.append(next(shown, ("lost-write",)))
        return result_of(cell, Outcome.VIOLATION, anomalies=dict.fromkeys(tried[-1], 1))

    monkeypatch.setattr("cli.shrinking.shrink_trials.run_on_nodes", another_each_time)

    assert shrink(tmp_path) == 0
    said = capsys.readouterr().out
    assert "still fails with lost-write:" in said
    assert "no longer with G0, G1a: --anomaly NAME keeps one of its own" in said
    assert "still fails with lost-write:" in (tmp_path / "shrunk.toml").read_text()
    assert len(tried) > 5, tried


def test_the_first_in_place_counts_and_not_the_first_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worker that is free begins the last one only once the result before it has arrived.
    wanted, begun = plans(6), tmp_path / "begun"

    def backwards(cell: Cell, _begun: RunStarted, **_: object) -> CellResult:
        place = wanted.index(cell.plan)
        with begun.open("a") as file:
            file.write(f"{place}\n")
        ends_s = time.monotonic() + 120
        while place == 0 and begun.read_text().count("\n") < 6:  # the others have ended
            assert time.monotonic() < ends_s
            select.select([], [], [], 0.005)
        fails = place in (1, 3)
        outcome = Outcome.VIOLATION if fails else Outcome.VALID
        return result_of(cell, outcome, anomalies={"lost-write": 1} if fails else {})

    monkeypatch.setattr(cells, "simulate", backwards)
    asked = trials(tmp_path, jobs=2)

    assert asked.first([]) is None
    assert asked.first(wanted) == failing(1, wanted[1])
    # The last one was broken off; the others are known, and not run again.
    assert asked.first(wanted[2:5]) == failing(1, wanted[3])
    assert sorted(begun.read_text().split()) == ["0", "1", "2", "3", "4", "5"]
    assert asked.times(wanted[3], 2) == 2  # what is known does not count
    assert begun.read_text().split()[6:] == ["3", "3"]


def test_a_trial_that_came_to_nothing_is_said_once_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(cell: Cell, _begun: RunStarted, **_: object) -> CellResult:
        raise ValueError("no more")

    monkeypatch.setattr(cells, "simulate", broken)
    asked = trials(tmp_path)

    assert asked.first(plans(1)) is None
    assert asked.first(plans(1)) is None
    assert capsys.readouterr().err.count("a trial came to nothing: ValueError: no more") == 1


def test_on_real_nodes_every_trial_is_a_run_one_after_the_other_up_to_the_first_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = [load(None, FAILING | {"cluster.provider": "process", "seed": n}) for n in (1, 2, 3)]
    made: list[int] = []

    def failing_late(cell: Cell, _run_started: RunStarted, **_: object) -> CellResult:
        made.append(cell.plan.seed)
        if cell.plan.seed == 1:
            return failed(cell, "the disk is gone")
        found = {"lost-write": 1} if made.count(2) == 2 else {}
        return result_of(cell, Outcome.VIOLATION, anomalies=found)

    monkeypatch.setattr("cli.shrinking.shrink_trials.run_on_nodes", failing_late)
    asked = trials(tmp_path, tries=3)

    assert asked.first(real) == failing(1, real[1])
    assert made == [1, 2, 3, 1, 2]
    assert len(asked.ledger.known) == 5
    assert capsys.readouterr().err.count("a trial came to nothing: the disk is gone") == 2


@pytest.mark.parametrize("interrupted_at", [2, 3])
def test_what_was_found_by_then_outlives_a_signal(
    interrupted_at: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    judged(tmp_path, FAILED)
    (tmp_path / "plan.toml").write_bytes(dumps(load(None, REAL)).encode())
    made: list[Plan] = []

    def no_fault_needed(cell: Cell, _run_started: RunStarted, **_: object) -> CellResult:
        made.append(cell.plan)
        if len(made) == interrupted_at:
            raise KeyboardInterrupt
        return result_of(cell, Outcome.VIOLATION, anomalies={"G0": 1})

    monkeypatch.setattr("cli.shrinking.shrink_trials.run_on_nodes", no_fault_needed)

    assert shrink(tmp_path) == EXIT_INTERRUPTED
    kept = tmp_path / "shrunk.toml"
    assert f"interrupted: the smallest plan that was found by then is {kept}" in (
        capsys.readouterr().err
    )
    assert len(made) == interrupted_at  # no run was begun after the signal
    assert load(kept) == made[interrupted_at - 2]
    assert "not repeated" in kept.read_text()


def test_what_was_found_by_then_outlives_a_daemon_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path, FAILED)
    (tmp_path / "plan.toml").write_bytes(dumps(load(None, REAL)).encode())
    made: list[Plan] = []

    def gone_soon(cell: Cell, _run_started: RunStarted, **_: object) -> CellResult:
        made.append(cell.plan)
        if len(made) > 1:
            raise UsageError("no daemon answers")
        return result_of(cell, Outcome.VIOLATION, anomalies={"G0": 1})

    monkeypatch.setattr("cli.shrinking.shrink_trials.run_on_nodes", gone_soon)

    assert shrink(tmp_path) == 254
    said = capsys.readouterr().err
    assert "the smallest plan that was found by then is" in said
    assert "no daemon answers" in said
    assert load(tmp_path / "shrunk.toml") == made[0]


def test_no_trial_begins_after_the_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime):
        trials(tmp_path, ends_s=time.monotonic()).first(plans(1))


def test_what_is_smaller_can_be_run_and_ends() -> None:
    plan = load(None, FAILING | {"drive.concurrency": 20, "cluster.nodes": 5})
    steps = 0
    while less := smaller(plan):
        assert plan not in less
        plan, steps = less[0], steps + 1
        assert steps < 50
    assert plan.drive.concurrency < 4
    assert plan.nemesis.schedule[0].at_s < 1.0
    assert plan.drive.duration_s == 3.0
    assert plan.cluster.nodes == 3


def test_a_beginning_has_the_faults_that_came_before_its_end() -> None:
    plan = load(None, FAILING | {"drive.duration_s": 24.0})
    told = [(less.drive.duration_s, len(less.nemesis.schedule)) for less in beginnings(plan)]

    assert told == [(3.0, 2), (6.0, 2), (9.0, 2), (12.0, 2), (15.0, 2), (18.0, 2), (21.0, 2)]
    late = [*FAULTS, {"at_s": 8.5, "kind": "kill", "target": "n1", "hold_s": 0.5}]
    plan = load(None, FAILING | {"drive.duration_s": 12.0, "nemesis.schedule": late})
    assert [len(less.nemesis.schedule) for less in beginnings(plan)] == [2, 2, 2, 2, 2, 3]


def test_nodes_that_faults_name_stay() -> None:
    named = [{"at_s": 1.0, "kind": "kill", "target": "n5", "hold_s": 0.5}]
    plan = load(None, FAILING | {"cluster.nodes": 5, "nemesis.schedule": named})

    assert {less.cluster.nodes for less in smaller(plan)} == {5}
    assert 3 in {less.cluster.nodes for less in smaller(with_schedule(plan, ()))}


def test_other_seeds_are_for_simulated_plans_only() -> None:
    simulated = load(None, FAILING)
    real = load(None, FAILING | {"cluster.provider": "process"})

    assert reseeded(simulated, 0) == simulated
    assert len({reseeded(simulated, turn).seed for turn in range(4)}) == 4
    assert reseeded(real, 2) == real


def test_a_result_says_how_sure_it_is() -> None:
    assert confidence(1, 1, exact=True).endswith("the same code fails every time")
    assert confidence(0, 1, exact=True) == "it failed in 0 of 1 repetitions"
    said = confidence(3, 5, exact=False)
    assert said.startswith("it failed in 3 of 5 repetitions: between 15% and 95% of its runs fail")


def test_the_plan_file_says_in_its_head_what_became_of_what() -> None:
    plan = load(None, FAILING)
    small = with_schedule(plan, plan.nemesis.schedule[1:2])

    text = head(list(differences(plan, small, {"lost-write"})))

    assert "# still fails with lost-write: 2 faults became 1\n" in text
    assert "#   1.3 s: kill of all for 0.5 s\n" in text


def test_of_a_plan_without_faults_none_became_fewer() -> None:
    plan = with_schedule(load(None, FAILING), ())

    first = next(differences(plan, plan, {"lost-write"}))

    assert first == "still fails with lost-write: there were no faults in its plan"
