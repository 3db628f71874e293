"""Temporary directories: none stays of a command that was ended, and none in use is removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from checkers.engine.spark import gateway
from cli.judging.analysis import analyzed
from cli.judging.child_messages import JudgeOptions
from harness.errors import HarnessError
from harness.history.run_directory import RunDirectory
from harness.scratch import PREFIX, SUFFIX, scratch_directory, sweep

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUNS = Path(__file__).parents[1] / "evidence" / "runs"
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


def test_a_directory_that_is_held_stays_and_one_that_is_not_goes(temporary: Path) -> None:
    left = temporary / f"{PREFIX}judge-left{SUFFIX}"
    (left / "firedrill-jvm-1").mkdir(parents=True)
    foreign = temporary / f"{PREFIX}plan-of-mine"
    foreign.mkdir()

    with scratch_directory("judge") as scratch:
        sweep()
        assert scratch.path.is_dir()
        assert not left.exists()
        assert foreign.exists()

    assert not scratch.path.exists()


def test_no_link_is_followed(temporary: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (temporary / f"{PREFIX}judge-link{SUFFIX}").symlink_to(precious)
    left = temporary / f"{PREFIX}judge-left{SUFFIX}"
    left.mkdir()
    (left / "link").symlink_to(precious)

    sweep()

    assert not left.exists()
    assert (precious / "file").read_text() == "kept"


def test_the_next_command_removes_what_a_killed_one_left(temporary: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            "import time\nfrom harness.scratch import scratch_directory\n"
            "with scratch_directory('judge'):\n    print('made', flush=True)\n    time.sleep(600)",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "made\n"
    command = [FIREDRILL, "runs", "--runs-dir", temporary / "runs"]

    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    assert len(list(temporary.glob(f"{PREFIX}*"))) == 1

    holder.kill()
    holder.communicate(timeout=LIMIT_S)
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    assert list(temporary.glob(f"{PREFIX}*")) == []


KILLED_AT_EACH_CALL = """
import ctypes, itertools, os, signal, sys, tempfile
from pathlib import Path
from cli.judging.analysis import analyzed
from harness.errors import Interrupted
from harness.history.run_directory import RunDirectory

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # adopts what is orphaned: PR_SET_CHILD_SUBREAPER
temporary = Path(tempfile.gettempdir())  # asked once: Python tries it by a file for an instant
seen = 0

def die(at):
    def hook(event, arguments):
        global seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)
    return hook

for at in itertools.count(1):
    child = os.fork()
    if child == 0:
        sys.addaudithook(die(at))
        try:
            analyzed(RunDirectory(Path(sys.argv[1])), print, None, interrupted=lambda: True)
        except Interrupted:
            os._exit(0)
        os._exit(1)
    killed = os.waitpid(child, 0)[1]
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    left = sorted(p.name for p in temporary.iterdir())
    if left or killed not in (0, signal.SIGKILL):
        sys.exit(f"call {at}: left {left}, ended by {killed}")
    if killed == 0:
        print(at)
        break
"""
"""Starts a judge and kills the starting process at its first call that Python reports to an audit
hook (opening, making, forking ...), at its second, and so on until it ends by itself.
"""


def test_a_command_killed_at_any_call_as_it_starts_the_judge_leaves_no_directory(
    tmp_path: Path,
) -> None:
    run = shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")

    told = subprocess.run(
        [sys.executable, "-P", "-c", KILLED_AT_EACH_CALL, run],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip

    assert told.returncode == 0, told.stderr
    assert int(told.stdout.split()[-1]) > 10  # else the hook saw nothing


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_shrink_that_is_ended_removes_its_directory(
    number: signal.Signals, temporary: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")
    judge = [FIREDRILL, "check", run, "--no-report", "--executor", "local"]
    assert subprocess.run(judge, capture_output=True, timeout=LIMIT_S).returncode == 1

    shrinking = subprocess.Popen(
        [FIREDRILL, "shrink", run, "--jobs", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    ends_s = time.monotonic() + LIMIT_S
    while not list(temporary.glob(f"{PREFIX}shrink-*/*")):  # it is in the block for sure
        assert shrinking.poll() is None
        assert time.monotonic() < ends_s
        os.sched_yield()
    shrinking.send_signal(number)

    told, _ = shrinking.communicate(timeout=LIMIT_S)
    assert shrinking.returncode == 130, told
    assert b"interrupted" in told
    assert list(temporary.glob(f"{PREFIX}shrink-*")) == []


def test_what_a_killed_selftest_left_among_the_runs_goes_with_cleanup(
    temporary: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    mine = runs / f"{PREFIX}of-mine"
    mine.mkdir(parents=True)
    command = [FIREDRILL, "selftest", "--jobs", "1", "--runs-dir", runs]
    drilling = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends_s = time.monotonic() + LIMIT_S
    while not list(runs.glob(f"{PREFIX}selftest-*{SUFFIX}/*")):
        assert drilling.poll() is None
        assert time.monotonic() < ends_s
        time.sleep(0.01)
    drilling.kill()
    drilling.wait(timeout=LIMIT_S)

    held = [FIREDRILL, "cleanup", "--runs-dir", runs]
    while list(runs.glob(f"{PREFIX}selftest-*")):  # its workers end by themselves
        assert time.monotonic() < ends_s
        subprocess.run(held, check=True, capture_output=True, timeout=LIMIT_S)
    assert mine.is_dir()


@pytest.mark.parametrize("found", [True, False], ids=["none that takes a file", "none at all"])
def test_where_no_directory_can_be_made_neither_judge_nor_jvm_starts_and_nothing_stays_open(
    found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone") if found else None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    # As in a process that has no JVM yet, which another test may have started in this one.
    monkeypatch.setattr(gateway, "_running", [])
    monkeypatch.setattr(gateway, "_starting", [])
    run, before = RunDirectory(tmp_path), os.listdir("/proc/self/fd")

    with pytest.raises(HarnessError, match="no temporary directory can be made: No "):
        analyzed(run, print, JudgeOptions())
    with pytest.raises(HarnessError, match="no temporary directory can be made: No "):
        gateway.begin(lambda: Path(sys.executable), alone=True)

    assert os.listdir("/proc/self/fd") == before
