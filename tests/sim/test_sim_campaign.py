"""A campaign: every seed in a process of its own, its end a result, and none simulated twice."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cli.campaign_course import Announcer
from cli.campaign_plans import flags_given, seed_plans
from cli.cells import simulation_pool
from cli.replay import clipped, compared, faults_compared
from harness.campaigns.campaign_summary import overall, totals
from harness.campaigns.cell import Cell, CellResult, RunStats, result_of
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import Pool, RunStarted, in_turn
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, load

FIREDRILL = Path(sys.executable).with_name("firedrill")
SMALL: dict[str, object] = {
    "cluster.provider": "sim",
    "cluster.nodes": 3,
    "cluster.options.weather": {"loss": 0.01, "reorder": 0.1, "slow": 0.3, "resets_per_s": 0.5},
    "check.executor": "local",
    "check.min_ok": 20,
    "system.partitions": 2,
    "drive.duration_s": 7.0,
    "drive.rate_per_s": 20.0,
    "nemesis.schedule": [
        {"at_s": 1.0, "kind": "kill", "target": "leader of partition 0", "hold_s": 1.0},
        {"at_s": 3.0, "kind": "disk-full", "target": "leader of partition 1", "hold_s": 1.0},
    ],
}


def small(seed: int, **more: object) -> Plan:
    given = SMALL | {"seed": seed, "name": f"small-{seed}"}
    return load(None, given | {key.replace("__", "."): value for key, value in more.items()})


def results(*plans: Plan, into: Path, **options: object) -> dict[int, CellResult]:
    cells = in_turn(Cell(plan=plan) for plan in plans)
    with closing(simulation_pool(into, **options).results(cells)) as found:  # type: ignore[arg-type]
        return {result.seed: result for result in found}


def test_each_seed_is_run_judged_and_thrown_away_where_it_is_valid(tmp_path: Path) -> None:
    found = results(small(1), small(2), into=tmp_path)

    assert [found[seed].outcome for seed in (1, 2)] == [Outcome.VALID] * 2
    assert found[1].digest != found[2].digest
    stats = [result.stats for result in found.values()]
    assert all(run.ok > 25 and run.simulated_s > 7 for run in stats)
    assert all({"kill", "disk-full"} <= run.hits.keys() for run in stats)
    assert list(tmp_path.iterdir()) == []  # nor a name that leads nowhere


def test_what_fails_is_kept_and_named_and_a_replay_is_the_same_byte_for_byte(
    tmp_path: Path,
) -> None:
    buggy = small(8, system__bugs=["no-fsync"], nemesis__schedule=all_nodes_killed())
    (found,) = results(buggy, into=tmp_path).values()
    assert found.outcome is Outcome.VIOLATION
    assert Path(found.run, "analysis", "verdict.json").is_file()

    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    command = [FIREDRILL, "replay", found.run, "--trace", "--no-report", "--runs-dir", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1, done.stderr
    assert "byte for byte" in done.stdout
    assert "NOT the same" not in done.stdout
    again = (tmp_path / "latest").resolve()
    assert again != Path(found.run).resolve()
    rows = [msgspec.json.decode(line) for line in (again / "trace.jsonl").open("rb")]
    assert {"message", "sync", "append"} <= {row["did"] for row in rows}
    assert any(
        "AppendEntries" in row["what"] or "Append" in row["what"]
        for row in rows
        if row["did"] == "message"
    )
    old = RunDirectory(Path(found.run))
    told = faults_compared(old, RunDirectory(again))
    count = int(told.split()[0])
    assert count >= 1
    assert told.startswith(f"{count} of {count} faults of ")
    assert f"at most 0.00 s off; {count} of them met" in told
    (again / "history" / "transactions.parquet").write_bytes(b"junk")
    same, why = compared(RunDirectory(again), old)
    assert not same
    assert "is damaged (history/transactions.parquet" in why
    span_s = max(at_ns for _, at_ns in read_manifest(old).phases) / 1e9
    assert clipped(read_manifest(old), ((0.5, 900.0),)) == ((0.5, span_s),)
    with pytest.raises(PlanError, match=rf"within the run, 0:{span_s:.3f} \(got 500:600\)"):
        clipped(read_manifest(old), ((0.0, 1.0), (500.0, 600.0)))
    svg = (again / "trace.svg").read_text()
    assert svg.count("<line") > 20
    assert "kill of all" in svg


IMPORTS = """
import sys
from pathlib import Path
from cli.cells import simulate, simulation_pool
from cli.campaign_plans import seed_plans
from harness.campaigns.cell import Cell, result_of
from harness.campaigns.pool import Pool, in_turn
pool = simulation_pool(Path(sys.argv[1]))
before = set(sys.modules)
OURS = ("cli", "harness", "workloads", "nemesis", "checkers", "clusters", "results", "pandas")
def work(cell, run_started):
    result = pool.work(cell, run_started)
    made = sorted(m for m in set(sys.modules) - before if m.partition(".")[0] in OURS)
    return result_of(cell, result.outcome, [" ".join(made)])
short = {"drive.duration_s": 8.0, "check.min_ok": 1, "nemesis.mix": ["kill"]}
cells = (Cell(plan=plan) for plan in seed_plans(None, short, (), range(2)))
for result in Pool(work=work).results(in_turn(cells)):
    print(result.outcome.value, *result.reasons)
"""


def test_no_seed_pays_for_an_import(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IMPORTS, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.stdout.split() == ["valid", "valid"], done.stdout + done.stderr


def test_a_replay_that_proves_nothing_ends_as_unknown_although_its_run_is_valid(
    tmp_path: Path,
) -> None:
    (found,) = results(small(1), into=tmp_path, keep=True).values()
    assert found.outcome is Outcome.VALID
    (Path(found.run) / "history" / "transactions.parquet").write_bytes(b"junk")

    command = [FIREDRILL, "replay", found.run, "--no-report", "--runs-dir", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (done.returncode, "VALID" in done.stdout) == (2, True), done.stderr
    assert "nothing to compare" in done.stdout


def all_nodes_killed() -> list[dict[str, object]]:
    return [
        {"at_s": at_s, "kind": "kill", "target": "all", "hold_s": 0.5} for at_s in (1.0, 2.5, 4.0)
    ]


def test_a_seed_that_breaks_off_says_where_its_run_is_and_not_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "20261121-180000-small-1-abcd").mkdir()
    monkeypatch.setattr("checkers.engine.analyze.analyze", lambda *_, **__: os._exit(9))

    refused = small(1, workload__nope=1)
    found = results(refused, small(2), into=tmp_path)

    assert found[1].run == ""
    assert found[1].reasons[0].startswith("PlanError: ")
    assert found[2].reasons == ("it died (exit code 9)",)
    (made,) = tmp_path.glob("*-small-2-????")
    assert found[2].run == str(made)


def test_a_seed_that_showed_nothing_is_known_since_it_would_show_nothing_again(
    tmp_path: Path,
) -> None:
    vacuous = small(1, check__min_ok=190)
    first, second = (results(vacuous, into=tmp_path / again)[1] for again in ("a", "b"))
    assert (first.outcome, first.digest) == (Outcome.UNKNOWN, second.digest)
    assert first.reasons == second.reasons

    path = tmp_path / "campaign.jsonl"
    Ledger(path, "code-1").add(first)
    assert Ledger.read(path, "code-1").known == {Cell(plan=vacuous).key: first}


def result(seed: int, outcome: Outcome, **more: object) -> CellResult:
    given = {"key": str(seed), "seed": seed, "name": "n", "workload": "w", "outcome": outcome}
    return CellResult(**(given | more))  # type: ignore[arg-type]


def test_a_few_seeds_that_show_nothing_are_let_pass_and_a_violation_never_is() -> None:
    valid = [result(n, Outcome.VALID) for n in range(99)]

    assert overall([]) is Outcome.UNKNOWN
    assert overall([*valid, result(99, Outcome.UNKNOWN)]) is Outcome.VALID
    assert overall([*valid[:9], result(99, Outcome.UNKNOWN)]) is Outcome.UNKNOWN
    assert overall([*valid[:9], result(99, Outcome.UNKNOWN)], 0.25) is Outcome.VALID
    assert overall([*valid[:2], result(99, Outcome.UNKNOWN)], 0.25) is Outcome.UNKNOWN
    assert overall([*valid, result(99, Outcome.VIOLATION)]) is Outcome.VIOLATION
    assert overall([*valid, result(99, Outcome.HARNESS_ERROR)]) is Outcome.HARNESS_ERROR


def test_the_sums_add_up() -> None:
    hits = {"kill": {"other voter": 2}}
    tried = ("kill", "wipe")
    first = RunStats(ok=90, fail=10, changes=2, open_changes=1, hits=hits, tried=tried)
    one = result(1, Outcome.VALID, stats=first)
    two = result(2, Outcome.UNKNOWN, stats=RunStats(ok=50, info=50, hits=hits))
    text = "\n".join(totals([one, two], 1.0))

    assert "2 seeds: unknown 1, valid 1" in text
    assert "operations: 200, median 100 a seed; ok: median 70%, least 50%" in text
    assert "change of primary: 50%, under open transactions: 50%" in text
    assert "kill                        0            4                   0" in text
    assert "wipe                        0            0                   0" in text
    assert "empty cells: kill of primary of a partition, kill of metastorage leader, wipe" in text


def test_seeds_take_turns_among_workloads_and_take_a_few_kinds_each() -> None:
    plans = seed_plans(None, {}, (), range(20))

    assert [plan.workload.name for plan in plans[:2]] == ["list-append", "bank"]
    assert len({Cell(plan=plan).key for plan in plans}) == 20
    assert all(1 <= len(plan.nemesis.mix) <= 4 for plan in plans)
    assert len({kind for plan in plans for kind in plan.nemesis.mix}) > 10
    assert seed_plans(None, {}, (), range(20)) == plans


def test_a_mix_of_nothing_is_no_fault_and_takes_no_schedule_away() -> None:
    schedule = 'nemesis.schedule=[{at_s=1.0, kind="kill", target="all", hold_s=0.5}]'
    none = flags_given((), (), ["nemesis.mix=[]"])
    both = flags_given((), (), [schedule, "nemesis.mix=[]"])

    assert [plan.nemesis.mix for plan in seed_plans(None, none, (), range(2))] == [(), ()]
    for flags in (both, flags_given((), (), [schedule])):
        (plan,) = seed_plans(None, flags, (), range(1))
        assert (plan.nemesis.mix, len(plan.nemesis.schedule)) == ((), 1)


@pytest.mark.parametrize(
    ("faults", "sets", "key"),
    [
        (["kill"], ['nemesis.schedule=[{at_s=1.0, kind="kill", target="n1"}]'], "nemesis.mix"),
        ([], ["cluster.provider=docker"], "cluster.provider"),
        ([], ["check.executor=spark"], "check.executor"),
        ([], ["seed=5"], "seed"),
    ],
)
def test_flags_that_would_count_for_nothing_are_refused(
    faults: list[str], sets: list[str], key: str
) -> None:
    with pytest.raises(PlanError) as refused:
        flags_given(faults, (), sets)
    assert refused.value.path == key
    assert flags_given((), (), ["cluster.provider=sim"]) == {"cluster.provider": "sim"}


def sim(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [FIREDRILL, "sim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_what_would_refuse_every_seed_is_told_before_any(tmp_path: Path) -> None:
    for flags, said in (
        (("--faults", "kil"), "unknown fault 'kil'"),
        (("--bug", "nonesuch"), "nonesuch"),
        (("--set", "drive.duratoin_s=3"), "duratoin_s"),
        (("--set", "cluster.options.nope=1"), "cluster.options.nope: unknown key"),
        (("--set", "cluster.options.weather.loss=-1"), "cluster.options.weather.loss"),
    ):
        done = sim(*flags, "--runs-dir", tmp_path)
        assert done.returncode == 254, done.stderr
        assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_ended_behind_a_seed_that_goes_on_is_told_when_the_user_interrupts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(cell: Cell, _begun: RunStarted) -> CellResult:
        if cell.plan.seed == 1:
            select.select([], [], [], 60)
        return result_of(cell, Outcome.VIOLATION, ("why",))

    class Interrupting(Ledger):
        def add(self, result: CellResult) -> None:
            super().add(result)
            if result.seed == 2:
                raise KeyboardInterrupt

    cells = [Cell(plan=small(seed)) for seed in range(4)]
    announcer = Announcer(title=lambda result: f"seed {result.seed}", progress=str)
    pool = Pool(work=work, workers=2)
    done, finished = announcer.run(pool, in_turn(cells), Interrupting())

    assert not finished
    assert [result.seed for result in done] == [0, 2]
    assert capsys.readouterr().out.count("VIOLATION: why") == 2


def test_a_campaign_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    keys = ("cluster.nodes", "system.partitions", "drive.duration_s", "check.min_ok")
    small_ones = [f"{key}={value}" for key, value in zip(keys, (3, 1, 3, 1), strict=True)]
    sets = [*small_ones, "limits.quiesce_s=5", "limits.final_reads_s=5"]
    sets.append('nemesis.schedule=[{at_s=1.0, kind="kill", target="all", hold_s=0.5}]')
    command = [FIREDRILL, "sim", "--seeds", "3", "--bug", "no-fsync", "--jobs", "1"]
    command += [*itertools.chain(*(("--set", text) for text in sets)), "--runs-dir", tmp_path]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        first = killed.stdout.readline()
        killed.kill()
        killed.stdout.read()  # to its end: its workers hold it until they are gone, too
    assert first.startswith("seed 0 (list-append): VIOLATION: ")

    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1, done.stderr
    assert "of 3 seeds are known from" in done.stderr
    assert all(read_manifest(RunDirectory(p)).state != "running" for p in tmp_path.glob("*-sim-*"))
    assert first in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    assert sorted(line.split()[1] for line in lines) == ["0", "1", "2"]
    assert done.stdout.count("  firedrill replay ") == 3


@pytest.mark.parametrize(
    ("campaign", "hunts", "tests", "bare", "code"),
    [
        (0, 0, 0, 0, 0),
        (1, 255, 0, 0, 1),
        (1, 2, 0, 0, 1),
        (255, 1, 0, 0, 1),
        (2, 0, 0, 0, 2),
        (0, 2, 0, 0, 2),
        (2, 255, 0, 0, 255),
        (0, 0, 0, 2, 255),
        (0, 0, 2, 0, 255),
        (1, 0, 0, 2, 1),
        (0, 1, 2, 2, 1),
        (0, 2, 0, 2, 255),
    ],
)
def test_a_night_ends_with_the_worst_of_what_it_found(
    campaign: int, hunts: int, tests: int, bare: int, code: int, tmp_path: Path
) -> None:
    script = tmp_path / ".ci" / "nightly"
    firedrill = tmp_path / ".venv" / "bin" / "firedrill"
    cage = tmp_path / "scripts" / "bare"
    for file in (script, firedrill, cage):
        file.parent.mkdir(parents=True)
    (tmp_path / "Makefile").write_text(f"test:\n\t@exit {tests}\n")
    script.write_bytes((Path(__file__).parents[2] / ".ci" / "nightly").read_bytes())
    firedrill.write_text(f'#!/bin/sh\n[ "$1" = sim ] && exit {campaign}\nexit {hunts}\n')
    cage.write_text(f"#!/bin/sh\nexit {bare}\n")
    for file in (firedrill, cage):
        file.chmod(0o755)

    assert subprocess.run(["bash", script], timeout=20).returncode == code


def test_no_seed_begins_after_the_time_is_over(tmp_path: Path) -> None:
    done = sim("--seeds", "3", "--time-budget", "0.001s", "--runs-dir", tmp_path)

    assert done.returncode == Outcome.UNKNOWN.exit_code
    assert "the time is over: 3 of 3 seeds were not simulated" in done.stdout
