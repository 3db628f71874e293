"""Judging goes on in a process with limits: what ends that process ends no command, and what other
checkers find is told all the same. Checkers of a package of their own, in real processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.judging import analysis, resource_limits
from cli.judging.child_messages import Drawing, HistoryFile, JudgeOptions, Request
from cli.main import execute
from harness.exit_codes import Outcome
from harness.history import regular_files
from harness.history.chunks import ChunkWriter
from harness.history.consistency import MARKS
from harness.history.manifest import read_manifest, write_manifest
from harness.history.records import Complete, Invoke, MicroOp, OpType, PhaseMark, Record
from harness.history.regular_files import sha256
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.seal import seal
from harness.protocols.promise import Declaration, Promise
from harness.protocols.verdict import Verdict

FIREDRILL = Path(sys.executable).with_name("firedrill")
LIMIT_S = 300
MS = 1_000_000
PACKAGE = """
import os, signal, time
import attrs, numpy
from checkers.engine import stages
from harness.protocols.checker import Exchange, Kernel, Part

{beside}

@attrs.frozen
class Checker:
    name: str = "rash"
    kernels: tuple = ()
    def judge(self, tables, setting, lookup):
        return Part()

def run(tables, setting):
    {body}
    return {{}}

CHECKER = Checker(kernels=(Kernel(name="rash-kernel", exchange=Exchange.{exchange}, run=run),))
"""


def operation(number: int, asked: MicroOp, got: MicroOp) -> Sequence[Record]:
    at_ns = 10 * number * MS
    invoke = Invoke(
        index=2 * number,
        process=0,
        kind="read-write",
        node="n1",
        intended_ns=at_ns,
        at_ns=at_ns,
        wall_ns=at_ns,
        ops=(asked,),
    )
    return invoke, Complete(
        index=2 * number + 1,
        invoke=2 * number,
        process=0,
        type=OpType.OK,
        at_ns=at_ns + MS,
        ops=(got,),
    )


def recorded(root: Path, *, lost: bool, splits: int = 1) -> RunDirectory:
    """Appends of one key and a read of them, or of all but one; judged by ``rash`` as well."""
    root.mkdir()
    run = RunDirectory(root)
    run.plan.write_text('seed = 1\n[check]\nexecutor = "local"\nmin_ok = 1\n')
    promises = (Promise(kind="read-write"),)
    write_manifest(
        run,
        Manifest(
            schema_version=SCHEMA_VERSION,
            run_id=root.name,
            state="running",
            versions={},
            machine={},
            declaration=Declaration(system="reference", mode="sc", promises=promises),
            workload="list-append",
            checkers=("list-append", "rash"),
            checksums={run.plan.name: sha256(run.plan)},
        ),
    )
    writer = ChunkWriter(run.chunks)
    writer.append(PhaseMark(name="drive", at_ns=0))
    for value in range(20):
        for record in operation(value, *[MicroOp("append", 7, value)] * 2):
            writer.append(record)
    read = tuple(value for value in range(20) if not (lost and value == 7))
    for record in operation(20, MicroOp("r", 7), MicroOp("r", 7, read)):
        writer.append(record)
    for name in MARKS[1:]:
        writer.append(PhaseMark(name=name, at_ns=1_000_000_000))
    writer.close()
    seal(run, partition_of=None, splits=splits)
    return run


def installed(
    directory: Path, body: str, exchange: str = "KEY", beside: str = ""
) -> dict[str, str]:
    """A package with the checker ``rash`` whose kernel does ``body``, and that does ``beside`` when
    it is imported; the environment with it.
    """
    package = directory / "packages"
    described = package / "rash-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: rash\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[firedrill.checkers]\nrash = rash:CHECKER\n")
    (package / "rash.py").write_text(PACKAGE.format(body=body, exchange=exchange, beside=beside))
    return {**os.environ, "PYTHONPATH": str(package)}


def checked(
    run: RunDirectory, environment: dict[str, str], executor: str = "local", **limits: str
) -> tuple[int, dict, str]:
    """Exit code, verdict, and what was said."""
    done = subprocess.run(
        [FIREDRILL, "check", run.root, "--executor", executor, "--json", "--no-report"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environment, **limits},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("exchange", ["KEY", "ONE_PLACE"])
def test_a_kernel_that_crashes_the_process_leaves_what_others_find(
    exchange: str, tmp_path: Path
) -> None:
    environment = installed(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", exchange)

    code, verdict, said = checked(recorded(tmp_path / "run", lost=True), environment)

    assert code == 1
    assert "G-single-item-process" in verdict["anomalies"]
    gave_up = "checker rash gave up: its process was ended by SIGSEGV"
    assert verdict["reasons"][-1] == gave_up
    assert "rash-kernel: its process was ended by SIGSEGV; judging goes on without it" in said


def test_of_kernels_side_by_side_the_one_that_crashes_is_found_one_by_one(tmp_path: Path) -> None:
    body, long = "os.kill(os.getpid(), signal.SIGSEGV)", "stages.LONG = 0"
    environment = installed(tmp_path, body, beside=long)

    code, verdict, said = checked(recorded(tmp_path / "run", lost=True, splits=4), environment)

    assert code == 1
    assert "G-single-item-process" in verdict["anomalies"]
    assert verdict["reasons"][-1] == "checker rash gave up: its process was ended by SIGSEGV"
    assert "kernels side by side: its process was ended by SIGSEGV" in said
    assert "rash-kernel: its process was ended by SIGSEGV; judging goes on without it" in said


@pytest.mark.spark
def test_on_spark_too_a_crash_leaves_what_others_find(tmp_path: Path) -> None:
    environment = installed(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")

    code, verdict, said = checked(recorded(tmp_path / "run", lost=True), environment, "spark")

    assert code == 1
    assert "Spark lost the analysis" in said
    assert verdict["reasons"][-1] == "checker rash gave up: its process was ended by SIGSEGV"


def checked_together(
    runs: Sequence[Path], environment: dict[str, str], *flags: str, **limits: str
) -> tuple[int, list[dict], str]:
    """Exit code, what was found of each, and what was said."""
    done = subprocess.run(
        [FIREDRILL, "check", *runs, "--executor", "local", "--no-report", "--json", *flags],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environment, **limits},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_one_process_judges_many_runs_as_each_is_judged_alone(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"with open({str(seen)!r}, 'a') as file: print(os.getpid(), file=file)"
    environment = installed(tmp_path, body)
    runs = [recorded(tmp_path / f"run{n}", lost=n == 1).root for n in range(3)]
    alone = [checked(RunDirectory(root), environment)[1] for root in runs]
    seen.unlink()

    code, found, _ = checked_together(runs, environment)

    assert code == 1
    assert [each["path"] for each in found] == [str(root) for root in runs]
    assert [each["verdict"] for each in found] == alone
    assert len(set(seen.read_text().split())) == 1


@pytest.mark.parametrize("ended", ["os.abort()", "os._exit(0)", "raise MemoryError"])
def test_what_ends_the_judging_of_one_run_touches_no_other(ended: str, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    body = f"if not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'x').close(); {ended}"
    environment = installed(tmp_path, body)
    runs = [recorded(tmp_path / f"run{n}", lost=n == 1).root for n in range(3)]

    code, found, _ = checked_together(runs, environment)

    assert code == 1
    outcomes = [each["verdict"]["outcome"] for each in found]
    assert outcomes == ["unknown", "violation", "valid"]
    assert "checker rash gave up" in found[0]["verdict"]["reasons"][0]
    assert not any("gave up" in reason for reason in found[1]["verdict"]["reasons"])


def test_one_that_can_not_be_judged_lets_others_go_on(tmp_path: Path) -> None:
    environment = installed(tmp_path, "pass")
    sound, broken = (recorded(tmp_path / name, lost=False).root for name in ("sound", "broken"))
    lost = recorded(tmp_path / "lost", lost=True).root
    (broken / "manifest.json").write_text("{")
    absent = tmp_path / "absent"

    code, found, said = checked_together([broken, absent, sound], environment)

    assert code == 254
    assert [each["path"] for each in found] == [str(sound)]
    assert f"firedrill: {broken}" in said
    assert f"firedrill: {absent}" in said
    assert checked_together([broken, lost], environment)[0] == 1
    assert checked_together([sound, lost], environment, "--output", str(tmp_path / "o"))[0] == 254
    assert not (tmp_path / "o").exists()


def test_a_run_that_may_use_more_memory_than_those_before_gets_it(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    told = "os.getpid(), resource.getrlimit(resource.RLIMIT_DATA)[0]"
    body = f"import resource; print({told}, file=open({str(seen)!r}, 'a'))"
    environment = installed(tmp_path, body)
    runs = [recorded(tmp_path / f"run{n}", lost=False).root for n in range(3)]
    (runs[1] / "notes").write_bytes(os.urandom(64 << 20))

    code, found, _ = checked_together(runs, environment)

    assert (code, len(found)) == (0, 3)
    (first, a_few), (second, more), (third, again) = (
        map(int, line.split()) for line in seen.read_text().splitlines()
    )
    assert more - a_few >= resource_limits.MEMORY_PER_BYTE * (64 << 20)
    assert again == a_few
    assert first != second == third


def test_where_nothing_else_is_found_a_crash_is_unknown(tmp_path: Path) -> None:
    environment = installed(tmp_path, "os.abort()")

    code, verdict, _ = checked(recorded(tmp_path / "run", lost=False), environment)

    assert code == 2
    assert verdict["reasons"] == ["checker rash gave up: its process was ended by SIGABRT"]


def test_a_kernel_that_asks_for_too_much_memory_gives_up_alone(tmp_path: Path) -> None:
    environment = installed(tmp_path, "numpy.ones(1 << 28).sum()")  # 2 GiB
    run = recorded(tmp_path / "run", lost=True)

    code, verdict, _ = checked(run, environment, FIREDRILL_MEMORY_MIB="1500")
    enough, _, _ = checked(run, environment, FIREDRILL_MEMORY_MIB="6000")

    assert (code, enough) == (1, 1)
    told = "checker rash gave up: it needs more memory than the 1500 MiB allowed"
    assert told in verdict["reasons"]


def test_an_analysis_that_comes_to_no_end_is_unknown(tmp_path: Path) -> None:
    environment = installed(tmp_path, "time.sleep(600)")
    run = recorded(tmp_path / "run", lost=False)

    code, verdict, _ = checked(run, environment, FIREDRILL_JUDGING_S="5")

    assert code == 2
    (reason,) = verdict["reasons"]
    assert reason.startswith("the analysis did not end: it came to no end within 5 s")
    assert verdict["model"] == "strict-serializable"
    assert json.loads(run.verdict.read_bytes()) == verdict


def test_an_analysis_that_comes_to_no_end_takes_no_verdict_away(tmp_path: Path) -> None:
    environment = installed(tmp_path, "time.sleep(float(os.environ['SLEEP_S']))")
    run = recorded(tmp_path / "run", lost=True)

    assert checked(run, environment | {"SLEEP_S": "0"})[0] == 1
    proven = run.verdict.read_bytes()
    code, verdict, said = checked(run, environment | {"SLEEP_S": "600"}, FIREDRILL_JUDGING_S="5")

    assert (code, verdict["outcome"]) == (2, "unknown")
    assert f"the verdict that is stored stays: {run.verdict}" in said
    assert run.verdict.read_bytes() == proven


def test_a_checker_that_gives_up_takes_no_violation_away(tmp_path: Path) -> None:
    body = "if 'ASKED' in os.environ: exec(os.environ['ASKED'])"
    environment = installed(tmp_path, body)
    run = recorded(tmp_path / "run", lost=True)
    assert checked(run, environment)[0] == 1
    stored = {path: path.read_bytes() for path in run.analysis.iterdir()}

    for asked in ("os.kill(os.getpid(), signal.SIGSEGV)", "raise KeyError(7)"):
        code, verdict, said = checked(run, environment | {"ASKED": asked})
        assert (code, verdict["outcome"]) == (1, "violation")
        assert "it leaves out rash, and the violation that is stored stays" in said
        assert {path: path.read_bytes() for path in run.analysis.iterdir()} == stored


DIES_ONCE = """
import os, pathlib, signal, sys
if any("cli.judging.child" in word for word in sys.orig_argv):
    from checkers.engine import {module}
    armed, whole = pathlib.Path({armed!r}), {module}.{function}
    def dies(*arguments):
        if armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments)
    {module}.{function} = dies
"""


@pytest.mark.parametrize("function", ["_combined", "_write"])
def test_a_death_after_the_last_checker_is_no_checkers(function: str, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    environment = installed(tmp_path, "pass")
    planted = DIES_ONCE.format(module="analyze", function=function, armed=str(armed))
    (tmp_path / "packages" / "sitecustomize.py").write_text(planted)
    run = recorded(tmp_path / "run", lost=True)
    proven = checked(run, environment)
    stored = run.verdict.read_bytes()
    armed.touch()

    code, verdict, said = checked(run, environment)

    assert not armed.exists()
    assert (code, verdict) == proven[:2]
    assert code == 1
    assert "after the last checker: its process was ended by SIGKILL" in said
    assert run.verdict.read_bytes() == stored


@pytest.mark.parametrize("name", ["transactions", "micro_ops-0000"])
def test_a_file_that_claims_more_rows_than_it_can_hold_is_refused_unread(
    name: str, tmp_path: Path
) -> None:
    run = recorded(tmp_path / "run", lost=False)
    path = run.history / f"{name}.parquet"
    table = pq.read_table(path)
    many = 20_000_000
    equal = [pa.repeat(table.column(column)[0], 1 << 20) for column in table.column_names]
    group = pa.table(equal, schema=table.schema)
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(many >> 20):
            writer.write_table(group)
    manifest = read_manifest(run)
    sums = {**manifest.checksums, f"history/{path.name}": regular_files.sha256(path)}
    assert isinstance(manifest.sizes, dict)
    sizes = {**manifest.sizes, f"history/{path.name}": path.stat().st_size}
    write_manifest(run, msgspec.structs.replace(manifest, checksums=sums, sizes=sizes))

    done = subprocess.run(
        [FIREDRILL, "check", run.root], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert done.returncode == 254, done.stderr
    assert f"{path}: expected at most " in done.stderr
    assert "rows in a file of its size, found 19,922,944" in done.stderr


def test_a_checker_that_does_well_changes_nothing(tmp_path: Path) -> None:
    environment = installed(tmp_path, "pass")

    code, verdict, _ = checked(recorded(tmp_path / "run", lost=False), environment)

    assert (code, verdict["reasons"]) == (0, [])


@pytest.mark.parametrize("value", ["0", "many", "-1", "inf", "nan"])
def test_a_limit_that_is_none_is_misuse(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(resource_limits.MEMORY_VARIABLE, value)

    with pytest.raises(analysis.UsageError, match=f"FIREDRILL_MEMORY_MIB: .*{value}"):
        resource_limits.limits_of(tmp_path)


@pytest.mark.parametrize("value", ["1e300", "3153600001"])
def test_a_time_for_which_the_system_has_no_number_is_misuse(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", lost=False)
    monkeypatch.setenv(resource_limits.TIME_VARIABLE, value)

    assert execute(["check", str(run.root), "--no-report"]) == 254

    told = f"FIREDRILL_JUDGING_S: expected a number > 0, at most 3153600000 (got {value!r})"
    assert told in capsys.readouterr().err
    assert not run.verdict.exists()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (resource_limits.LimitOptions(memory_mib=10**30), "--memory-mib: .*at most 4294967296 "),
        (resource_limits.LimitOptions(time_s=1e300), "--time-limit: .*at most 3153600000 "),
    ],
)
def test_an_option_has_the_bounds_of_its_variable(
    asked: resource_limits.LimitOptions, named: str, tmp_path: Path
) -> None:
    with pytest.raises(analysis.UsageError, match=named):
        resource_limits.limits_of(tmp_path, asked)


def test_the_most_that_may_be_asked_for_is_a_limit(tmp_path: Path) -> None:
    most = resource_limits.LimitOptions(
        memory_mib=resource_limits.MEMORY_ASKED_MAX_MIB, time_s=resource_limits.TIME_ASKED_MAX_S
    )

    found = resource_limits.limits_of(tmp_path, most)

    assert (found.memory_bytes, found.time_s) == (1 << 52, 100 * 365 * 86_400)


def test_a_limit_of_years_is_a_limit() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    with open(reader, "rb"):
        lines = list(analysis._lines(reader, time.monotonic() + 1e9, lambda: None))

    assert lines == [b"one", b"two"]


def test_limits_grow_with_the_run_up_to_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_limits, "machine_memory_bytes", lambda: 8 << 30)
    small = resource_limits.limits_of(tmp_path)
    # Of random bytes: some file systems keep no others.
    (tmp_path / "history").write_bytes(os.urandom(1 << 20))
    larger = resource_limits.limits_of(tmp_path)
    (tmp_path / "history").write_bytes(os.urandom(33 << 20))
    largest = resource_limits.limits_of(tmp_path)

    assert small.memory_bytes == resource_limits.MEMORY_BASE_BYTES
    assert larger.memory_bytes == small.memory_bytes + (resource_limits.MEMORY_PER_BYTE << 20)
    assert largest.memory_bytes == 6 << 30
    assert small.time_s < larger.time_s < largest.time_s


def test_a_hole_lifts_no_limit_and_no_size_lifts_it_above_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = resource_limits.limits_of(tmp_path)
    with (tmp_path / "history").open("wb") as file:
        file.truncate(1 << 43)
    hole = resource_limits.limits_of(tmp_path)
    (tmp_path / "history").write_bytes(b"whole")
    monkeypatch.setattr(resource_limits, "TIME_PER_MIB_S", 1e12)

    assert hole == small
    assert resource_limits.limits_of(tmp_path).time_s == resource_limits.TIME_MAX_S


def test_a_reply_travels_whole() -> None:
    reply = analysis.Reply(findings=(":x\n",), text="a\nb")

    assert msgspec.json.decode(msgspec.json.encode(reply), type=analysis.Reply) == reply


def test_what_goes_on_is_told_by_what_is_asked_for_and_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(analysis, "ALIVE_EVERY_S", 0.0)
    told: list[str] = []
    found = analysis.AnalysisResult()
    history = HistoryFile(path="some.edn")
    request = Request(
        root="r", reply=1, memory_bytes=1, history=history, judge=JudgeOptions(), report=True
    )
    alive = analysis._Alive(found, told.append, request)

    alive.tell()
    found.imported = True
    alive.tell()
    found.progress = "KEY, 2 of 8 tasks done"
    alive.tell()
    found.verdict = Verdict(outcome=Outcome.VALID, model="serializable")
    alive.tell()
    found.drawing = Drawing.DONE
    alive.tell()

    assert [text.removeprefix("still ").removesuffix(" (0 s)") for text in told] == [
        "importing some.edn",
        "judging: starting",
        "judging: KEY, 2 of 8 tasks done",
        "drawing the report",
        "summing it up for comparisons",
    ]
