"""``check`` and ``run`` interrupted at moments all over their course, in four ways: soon no
process of theirs lives, in whatever session it was, and no file of theirs is left behind.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_campaign import PLAN

from harness.history.manifest import SEALED, read_manifest
from harness.history.run_directory import RunDirectory

FIREDRILL = Path(sys.executable).with_name("firedrill")
MOMENTS = int(os.environ.get("FIREDRILL_INTERRUPTS", "0"))
"""How many, for each command and executor, where that is set; 40 are the whole proof."""
FEW = {"local": 4, "spark": 2}  # a course on Spark takes the tests half a minute
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GONE_LIMIT_S = 5.0 if MOMENTS else 30.0  # the proof has the machine to itself
COMMAND_LIMIT_S = 240.0
MARK = "FIREDRILL_TEST_MARK"
CALM = ["--set", "nemesis.mix=[]", "--set", "check.min_ok=1"]
NIGHT = """
name = "night"
plan = "base.toml"
repeats = 0
seeds = 3
[matrix]
workload = ["list-append"]
"""
HISTORY = """
{:type :invoke, :f :txn, :value [[:append 1 1]], :process 0, :time 5, :index 0}
{:type :ok, :f :txn, :value [[:append 1 1]], :process 0, :time 7, :index 1}
{:type :invoke, :f :txn, :value [[:r 1 nil]], :process 1, :time 8, :index 2}
{:type :ok, :f :txn, :value [[:r 1 [1]]], :process 1, :time 9, :index 3}
"""


def marked(mark: str) -> dict[int, str]:
    """Living processes that were started with ``mark`` in their environment, whoever adopted them
    since, and their command lines.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                if line:  # else it is a zombie that its parent has not looked at yet
                    found[int(entry.name)] = line.decode(errors="replace")[:200]
        except OSError:
            continue
    return found


def whole_course_s(command: list[str | Path], cwd: Path) -> float:
    """How long ``command`` takes here and now when it is left alone."""
    began_s = time.monotonic()
    done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=COMMAND_LIMIT_S)
    assert done.returncode in (0, 2), done.stderr.decode()
    return time.monotonic() - began_s


_COURSES_S: dict[str, float] = {}


def course_s(name: str, command: list[str | Path], cwd: Path) -> float:
    """How long ``command`` takes, as it is measured, or as it follows from the others: a run on
    Spark is one in process, and the difference that Spark makes to a check.
    """
    by_others = [_COURSES_S.get(other) for other in ("run local", "check spark", "check local")]
    if name == "run spark" and None not in by_others:
        run_s, spark_s, local_s = (float(length_s or 0) for length_s in by_others)
        return run_s + max(0.0, spark_s - local_s)
    return _COURSES_S.setdefault(name, whole_course_s(command, cwd))


def moments(name: str, length_s: float, count: int) -> list[tuple[float, signal.Signals]]:
    """Seconds after the start, one from each equal part of the course, the signals in turn."""
    draw = random.Random(f"{name} {count}")
    parts = [(part + draw.random()) / count for part in range(count)]
    # Shuffled against the parts: else each signal would meet one part only.
    kinds = [SIGNALS[number % len(SIGNALS)] for number in range(count)]
    draw.shuffle(kinds)
    return [(length_s * part, kind) for part, kind in zip(parts, kinds, strict=True)]


def left_after(
    command: list[str | Path], cwd: Path, at_s: float, number: signal.Signals
) -> tuple[dict[int, str], list[str], float]:
    """The processes and files that are left ``GONE_LIMIT_S`` after ``command``, itself among them,
    got ``number`` at ``at_s``; and the time from there to the end of the last process.
    """
    mark = secrets.token_hex(8)
    scratch = cwd / f"tmp-{mark}"
    scratch.mkdir()
    child = subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, MARK: mark, "TMPDIR": str(scratch)},
    )
    try:
        child.wait(at_s)
    except subprocess.TimeoutExpired:
        child.send_signal(number)
    asked_s = time.monotonic()
    while (left := marked(mark)) and time.monotonic() - asked_s < GONE_LIMIT_S:
        child.poll()  # so that it is no zombie
        time.sleep(0.05)  # others' processes: there is nothing to wait on
    took_s = time.monotonic() - asked_s
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    child.wait(COMMAND_LIMIT_S)
    return left, sorted(p.name for p in scratch.iterdir()), took_s


def interrupted_everywhere(name: str, command: list[str | Path], cwd: Path) -> None:
    length_s = course_s(name, command, cwd)
    for at_s, number in moments(name, length_s, MOMENTS or FEW[name.rpartition(" ")[2]]):
        left, files, took_s = left_after(command, cwd, at_s, number)
        print(f"{name}: {number.name} at {at_s:.1f} of {length_s:.1f} s: gone after {took_s:.2f} s")
        assert left == {}, (at_s, number)
        assert [f for f in files if f.startswith("firedrill-j")] == [], (at_s, number)


@pytest.mark.parametrize(
    "executor", ["local", pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.slow))]
)
def test_a_check_that_is_ended_at_any_moment_leaves_nothing(executor: str, tmp_path: Path) -> None:
    (tmp_path / "history.edn").write_text(HISTORY)
    command = [FIREDRILL, "check", "history.edn", "--executor", executor]

    interrupted_everywhere(f"check {executor}", command, tmp_path)


# Spark is ended within a check above, the drive within a run here: both in one are the long form.
RUN_ON = ["local", *([pytest.param("spark", marks=pytest.mark.spark)] if MOMENTS else [])]


@pytest.mark.slow
@pytest.mark.parametrize("executor", RUN_ON)
def test_a_run_that_is_ended_at_any_moment_leaves_nothing(executor: str, tmp_path: Path) -> None:
    command = [FIREDRILL, "run", "--provider", "process", "--nodes", "3", "--duration", "3"]

    interrupted_everywhere(f"run {executor}", [*command, "--executor", executor, *CALM], tmp_path)


def ended_by(
    number: signal.Signals, command: list[str | Path], cwd: Path, begun: Callable[[str], bool]
) -> int:
    """The exit code of ``command``, which got ``number`` once it had ``begun``, asked with the mark
    of its processes; of these none is left then.
    """
    mark = secrets.token_hex(8)
    child = subprocess.Popen(
        command,
        cwd=cwd,
        stdout=(cwd / "out").open("w"),
        stderr=(cwd / "err").open("w"),
        env={**os.environ, MARK: mark},
    )
    try:
        until_s = time.monotonic() + COMMAND_LIMIT_S
        while not begun(mark) and child.poll() is None and time.monotonic() < until_s:
            time.sleep(0.05)  # another process's file: there is nothing to wait on
        child.send_signal(number)
        code = child.wait(GONE_LIMIT_S)
    finally:
        left = marked(mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == {}
    return code


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("command", "number"), [("check", signal.SIGTERM), ("run", signal.SIGINT)])
def test_what_is_interrupted_while_spark_judges_says_so_and_leaves_nothing(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "history.edn").write_text(HISTORY)
    whole: dict[str, list[str | Path]] = {
        "check": [FIREDRILL, "check", "history.edn"],
        "run": [FIREDRILL, "run", "--provider", "sim", "--duration", "3", *CALM],
    }

    def begun(mark: str) -> bool:
        judged = "judging " in (tmp_path / "err").read_text()
        return judged and any("java" in line.split()[0] for line in marked(mark).values())

    code = ended_by(number, [*whole[command], "--executor", "spark"], tmp_path, begun)

    *_, last = (tmp_path / "err").read_text().splitlines()
    assert code == 130, last
    assert last.startswith("firedrill: interrupted")
    if command == "run":
        sealed = RunDirectory((tmp_path / "runs" / "latest").resolve())
        assert last.endswith(
            f"the run is sealed; 'firedrill check {Path('runs') / sealed.root.name}' judges it"
        )
        assert read_manifest(sealed).state == SEALED
        assert not sealed.verdict.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_that_is_ended_ends_in_order(number: signal.Signals, tmp_path: Path) -> None:
    told = tmp_path / "out"

    def begun(_: str) -> bool:
        return told.exists() and "http://" in told.read_text()

    assert ended_by(number, [FIREDRILL, "serve", "--port", "0"], tmp_path, begun) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_night_that_is_ended_writes_what_it_has(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(PLAN.replace("duration_s = 3.0", "duration_s = 600.0"))
    (tmp_path / "night.toml").write_text(NIGHT)
    night = tmp_path / "runs" / "campaigns" / "night-20261101"

    def begun(_: str) -> bool:
        return any((tmp_path / "runs").glob("2*/chunks"))

    command = [FIREDRILL, "nightly", "night.toml", "--night", "2026-11-01"]
    code = ended_by(number, command, tmp_path, begun)

    assert code == 130
    assert json.loads((night / "night.json").read_bytes())["exit_code"] == 130
