"""Whatever goes wrong: one sentence, the right exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from cli.main import EXIT_NO_READER, execute
from harness.history.chunks import ChunkWriter
from harness.history.consistency import MARKS
from harness.history.manifest import write_manifest
from harness.history.records import Complete, Invoke, MicroOp, OpType, PhaseMark, Record
from harness.history.regular_files import sha256
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.seal import seal
from harness.protocols.client import READ_WRITE
from harness.protocols.promise import Declaration, Promise

FIREDRILL = [sys.executable, "-c", "from cli.main import main; main()"]
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
MS = 1_000_000


@attrs.frozen
class Said:
    """What one command line did."""

    code: int
    out: str
    err: str


@pytest.fixture
def firedrill(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """One command line, in this process, with a store of its own."""
    monkeypatch.setenv("FIREDRILL_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")

    def run(*arguments: str) -> Said:
        code = execute(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Said(code, out, err)

    return run


def appended(count: int, shown: int | None = None) -> list[Record]:
    """``count`` acknowledged appends to one key, then a read of the first ``shown``, or of all."""
    read = count if shown is None else shown
    found: list[Record] = [PhaseMark(name="drive", at_ns=0)]
    for value in range(count):
        found += operation(value, (MicroOp("append", 7, value),), (MicroOp("append", 7, value),))
    return [*found, *operation(count, (MicroOp("r", 7),), (MicroOp("r", 7, tuple(range(read))),))]


def operation(
    number: int, asked: Sequence[MicroOp], got: Sequence[MicroOp]
) -> tuple[Invoke, Complete]:
    at_ns = 10 * number * MS
    invoke = Invoke(
        index=2 * number,
        process=0,
        kind=READ_WRITE,
        node="n1",
        intended_ns=at_ns,
        at_ns=at_ns,
        wall_ns=at_ns,
        ops=tuple(asked),
    )
    complete = Complete(
        index=2 * number + 1,
        invoke=2 * number,
        process=0,
        type=OpType.OK,
        at_ns=at_ns + MS,
        ops=tuple(got),
    )
    return invoke, complete


def break_in_child(directory: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have every interpreter that starts from now on run ``code`` first."""
    (directory / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(directory))


def recorded(root: Path, records: Sequence[Record], *, sealed: bool = True) -> RunDirectory:
    root.mkdir(parents=True)
    run = RunDirectory(root)
    run.plan.write_text('seed = 1\n[check]\nexecutor = "local"\nmin_ok = 5\n')
    declaration = Declaration(system="reference", mode="sc", promises=(Promise(kind=READ_WRITE),))
    write_manifest(
        run,
        Manifest(
            schema_version=SCHEMA_VERSION,
            run_id=root.name,
            state="running",
            versions={},
            machine={},
            declaration=declaration,
            workload="list-append",
            checkers=("list-append", "lost-write", "statistics", "availability", "evidence"),
            checksums={run.plan.name: sha256(run.plan)},
        ),
    )
    writer = ChunkWriter(run.chunks)
    for record in records:
        writer.append(record)
    if sealed:
        end_ns = 1 + max((getattr(record, "at_ns", 0) for record in records), default=0)
        for name in MARKS[1:]:
            writer.append(PhaseMark(name=name, at_ns=end_ns))
    writer.close()
    if sealed:
        seal(run, partition_of=None)
    return run


# -- verdicts -------------------------------------------------------------------------------------


def test_a_history_that_keeps_its_promises_is_valid_and_its_mutation_is_a_violation(
    firedrill, tmp_path: Path
) -> None:
    recorded(tmp_path / "good", appended(20))
    recorded(tmp_path / "lost", appended(20, 19))

    kept, broken = (
        firedrill("check", str(tmp_path / "good")),
        firedrill("check", str(tmp_path / "lost")),
    )

    assert (kept.code, broken.code) == (0, 1)
    assert kept.out.splitlines()[-1].startswith("VALID: every promise that was tested was kept: ")
    assert "lost write: an acknowledged append to key 7 (value 19)" in broken.out
    assert broken.out.splitlines()[-1] == (
        f"VIOLATION: a promise of the store was broken: {tmp_path}/lost/report.html"
    )
    assert (tmp_path / "lost" / "report.html").exists()


@pytest.mark.parametrize("flags", [["--json"], ["--no-report"], []])
def test_a_violation_that_nobody_could_read_about_is_one_all_the_same(
    tmp_path: Path, flags: list[str]
) -> None:
    good = appended(20)
    lost = operation(20, (MicroOp("r", 7),), (MicroOp("r", 7, tuple(range(19))),))
    recorded(tmp_path / "lost", [*good[:-1], *lost[1:]])

    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*FIREDRILL, "check", str(tmp_path / "lost"), "--executor", "local", *flags],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    assert done.returncode == 1
    assert "stdout: No space left on device" in done.stderr


def test_too_little_to_judge_is_unknown(firedrill, tmp_path: Path) -> None:
    recorded(tmp_path / "run", appended(2))

    said = firedrill("check", str(tmp_path / "run"))

    assert said.code == 2
    assert said.out.splitlines()[-1].startswith("UNKNOWN: ")
    assert "because: " in said.out


def test_json_is_the_verdict_and_nothing_else_and_the_same_twice(firedrill, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", appended(20))

    first = firedrill("check", str(run.root), "--json")
    second = firedrill("check", str(run.root), "--json", "--no-report")

    assert json.loads(first.out)["outcome"] == "valid"
    assert first.out == second.out == run.verdict.read_text()


def test_a_killed_run_is_recovered_called_incomplete_and_accuses_nobody(
    firedrill, tmp_path: Path
) -> None:
    run = recorded(tmp_path / "run", appended(20)[:-1], sealed=False)

    first, second = firedrill("check", str(run.root)), firedrill("check", str(run.root))

    assert (first.code, second.code) == (2, 2)
    assert "was not sealed: recovering" in first.err
    assert "recovering" not in second.err
    assert first.out == second.out


def test_report_writes_the_page_again(firedrill, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", appended(20))
    firedrill("check", str(run.root))
    before = run.report.read_bytes()
    run.report.unlink()

    said = firedrill("report", str(run.root))

    assert (said.code, said.out.strip()) == (0, str(run.report))
    assert run.report.read_bytes() == before


# -- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "nope"], "no such run"),
        (["report", "latest"], "holds no runs"),
        (["cleanup", "nope"], "no such run"),
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["run", "--set", "drive.duraton_s=3"], "drive.duraton_s"),
        (["run", "--set", "drive"], "KEY=VALUE"),
        (["run", "--workload", "nope", "--provider", "process"], "unknown workload 'nope'"),
        (["run", "--system", "nope", "--provider", "process"], "unknown system 'nope'"),
        (["run", "--provider", "nope"], "unknown provider 'nope'"),
        (["run", "--fault", "nope", "--provider", "process"], "nope"),
        (["run", "--schedule", "5:kill"], "AT_S:KIND:TARGET[:HOLD_S]"),
        (["run", "--schedule", "soon:kill:n1"], "AT_S:KIND:TARGET[:HOLD_S]"),
        (["run", "--nodes", "0", "--provider", "process"], "cluster.nodes"),
        (["run", "--nodes", "many"], "many"),
        (["run", "--nope"], "--nope"),
        (["nope"], "nope"),
        (["check", "--executor", "abacus"], "abacus"),
        (["compare", "e" * 300, "latest"], "eee...: expected a path that a file can have"),
        (["run", "--provider", "sim", "--set", "cluster.options.skew_s=1e12"], "expected a number"),
        # Nothing is worse by a level that no figure is under.
        (["compare", "latest", "latest", "--level", "nan"], "expected a number"),
        (["compare", "latest", "latest", "--page", "a.json"], "expected a page, as a.html"),
        (["trend", "--page", "a.json"], "expected a page, as a.html"),
    ],
)
def test_misuse_is_254_and_one_sentence_that_names_it(
    firedrill, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    said = firedrill(*arguments)

    assert said.code == 254
    assert sentence in said.err
    assert said.out == ""
    runs = tmp_path / "runs"
    assert not runs.exists() or [p.name for p in runs.iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("command", [["run", "--provider", "sim"], ["runs"], ["cleanup"]])
def test_a_directory_of_a_name_that_no_file_can_have_is_refused(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert execute([*command, "--runs-dir", "e" * 300]) == 254
    assert "expected a path that a file can have" in capfd.readouterr().err


def test_no_memory_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("results.store.store.RunStore.runs", refused)
    assert execute(["runs", "--runs-dir", str(tmp_path)]) == 255
    assert "there is no memory left" in capfd.readouterr().err


def test_an_unknown_key_in_a_plan_file_is_named_with_its_path(firedrill, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[drive]\nduraton_s = 3\n")

    said = firedrill("run", str(plan))

    assert said.code == 254
    assert "drive.duraton_s" in said.err
    assert "duration_s" in said.err


def test_no_daemon_for_containers_is_said_before_anything_starts(firedrill, tmp_path: Path) -> None:
    said = firedrill("run", "--provider", "docker")

    assert said.code == 254
    assert "nobody.sock" in said.err
    runs = tmp_path / "runs"
    assert not runs.exists() or [path for path in runs.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "name", ["history/transactions.parquet", "faults.parquet", "manifest.json"]
)
def test_a_flipped_byte_in_a_sealed_run_is_named_and_nothing_is_lost(
    firedrill, tmp_path: Path, name: str
) -> None:
    run = recorded(tmp_path / "run", appended(20))
    path = run.root / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)

    said = firedrill("check", str(run.root))

    assert said.code == 254
    assert path.name in said.err
    assert path.read_bytes() == bytes(content)
    assert not run.verdict.exists()


def test_a_directory_that_is_no_run_is_named(firedrill, tmp_path: Path) -> None:
    said = firedrill("check", str(tmp_path))

    assert said.code == 254
    assert "manifest" in said.err


# -- what is not the user's fault -----------------------------------------------------------------


def test_an_unexpected_error_is_255_with_its_traceback_in_the_run(
    firedrill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded(tmp_path / "run", appended(20))
    break_in_child(
        tmp_path,
        monkeypatch,
        "import checkers.engine.analyze\n"
        "def broken(*_, **__):\n"
        "    raise ZeroDivisionError('by\\nnought')\n"
        "checkers.engine.analyze.analyze = broken\n",
    )

    said = firedrill("check", str(run.root))

    assert said.code == 255
    assert said.err.splitlines()[-1].startswith(
        "firedrill: unexpected ZeroDivisionError: by nought"
    )
    assert "in broken" in (run.root / "traceback.txt").read_text()


def test_debug_shows_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert execute(["--debug", "check", "nope"]) == 254
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shown", "code", "last", "outcome"),
    [(20, 255, "HARNESS ERROR: ", "valid"), (19, 1, "VIOLATION: ", "violation")],
)
def test_a_report_that_fails_is_a_harness_error_unless_a_violation_is_proven(
    firedrill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: int,
    code: int,
    last: str,
    outcome: str,
) -> None:
    break_in_child(
        tmp_path,
        monkeypatch,
        "import results.report.render\n"
        "def broken(_run):\n"
        "    raise OSError('no paper')\n"
        "results.report.render.write_report = broken\n",
    )
    run = recorded(tmp_path / "run", appended(20, shown))

    said = firedrill("check", str(run.root))

    assert said.code == code
    assert "no report was written: unexpected OSError: no paper" in said.err
    assert said.out.splitlines()[-1].startswith(last)
    assert json.loads(run.verdict.read_bytes())["outcome"] == outcome


def test_a_reader_that_left_is_no_error_and_no_verdict(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", appended(20))
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        [*FIREDRILL, "check", str(run.root), "--no-report"],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    os.close(writing)

    assert done.returncode == EXIT_NO_READER
    assert b"Broken" not in done.stderr
    assert run.verdict.exists()


def test_a_run_is_judged_from_a_directory_that_is_gone(tmp_path: Path) -> None:
    run, gone = recorded(tmp_path / "run", appended(20)), tmp_path / "gone"
    gone.mkdir()

    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *FIREDRILL, "check", str(run.root)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=gone,
    )

    assert done.returncode == 0, done.stderr
    assert "VALID: " in done.stdout


def test_a_machine_that_takes_no_file_at_all_is_no_violation(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", appended(20))

    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *FIREDRILL, "check", str(run.root)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 255, done.stderr
    assert "Traceback" not in done.stderr
    assert "no temporary directory can be made" in done.stderr


def test_a_machine_without_room_for_a_library_is_no_violation(tmp_path: Path) -> None:
    """numpy would end the process with 1, pyarrow with SIGSEGV."""
    run = recorded(tmp_path / "run", appended(20))
    command = [str(Path(sys.executable).with_name("firedrill")), "check", str(run.root)]

    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 200000; exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 255, done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"firedrill: \w+: it can't be loaded within 195 MiB of addresses \(ulimit -v\)", last
    )


@pytest.mark.parametrize("text", ["x.so: failed to map segment from shared object", "no module"])
def test_a_library_that_found_no_room_behind_its_trial_is_told_as_that(
    text: str, tmp_path: Path
) -> None:
    source = (
        "import resource, sys\n"
        "from cli.address_limit import no_room\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        f"print(no_room(ImportError({text!r}, name='pyarrow.lib')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    room = "pyarrow: it can't be loaded within 8192 MiB of addresses (ulimit -v)\n"
    assert done.stdout == (room if "segment" in text else "None\n")


def test_a_library_that_was_refused_once_is_tried_again_and_ends_no_process(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import os; os.abort()")
    twice = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from cli import entry\n"
        "sys.meta_path.insert(0, entry._TriedFirst())\n"
        "for _ in range(2):\n"
        "    try: import numpy\n"
        "    except Exception as error: print(error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", twice], capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("numpy: it can't be loaded within") == 2


def test_a_command_line_that_can_not_be_imported_is_no_violation() -> None:
    broken = "import sys; sys.modules['cli.main'] = None; from cli.entry import main; main()"

    done = subprocess.run(
        [sys.executable, "-P", "-c", broken], capture_output=True, timeout=LIMIT_S, check=False
    )

    assert done.returncode == 255
    assert b"ModuleNotFoundError" in done.stderr


LOST = operation(21, (MicroOp("r", 7),), (MicroOp("r", 7, tuple(range(19))),))


@pytest.mark.parametrize(
    "failure",
    [KeyboardInterrupt(), OSError("no disk"), ValueError("odd"), SystemExit(3)],
    ids=lambda failure: type(failure).__name__,
)
def test_a_violation_that_was_found_stays_one_whatever_comes_after_it(
    failure: BaseException, tmp_path: Path, firedrill, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"

    def refuse(_store: object) -> None:
        raise failure

    for number, (records, code) in enumerate((([*appended(20), *LOST], 1), (appended(20), None))):
        run = recorded(runs / f"20260101-000000-r-000{number}", records)
        monkeypatch.setattr("cli.check.refresh_index", refuse)

        said = firedrill("check", str(run.root), "--no-report")

        assert said.err.splitlines()[-1].startswith("firedrill: ")
        if code is not None:
            assert said.code == code
        else:
            assert said.code == (130 if isinstance(failure, KeyboardInterrupt) else 255)


def test_a_pipe_that_breaks_inside_is_no_reader_that_left(
    tmp_path: Path, firedrill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_store: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    run = recorded(tmp_path / "runs" / "20260101-000000-r-0000", appended(20))
    monkeypatch.setattr("cli.check.refresh_index", refuse)

    said = firedrill("check", str(run.root), "--no-report")

    assert said.code == 255
    assert "BrokenPipeError: [Errno 32] Broken pipe (the traceback is in " in said.err


# -- what every start must be ---------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    heavy = ("pyspark", "docker", "paramiko", "matplotlib", "pyarrow", "numpy", "jinja2", "pandas")
    code = (
        "import sys; from cli.main import execute; code = execute(['--help']);"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )

    assert done.stderr.strip() == "[]"
    assert "Break a replicated store on purpose" in done.stdout


def test_version_is_the_distributions(firedrill) -> None:
    said = firedrill("--version")

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (said.code, said.out) == (0, f"firedrill, version {declared}\n")
