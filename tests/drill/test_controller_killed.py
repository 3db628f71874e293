"""kill -9 of the controller at random moments: nothing is left, and the prefix accuses nobody.

Nobody cleans up: the reaper of each run does, in bounded time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

FIREDRILL = Path(sys.executable).with_name("firedrill")
ROOT = Path(__file__).resolve().parents[2]
MOMENTS = int(os.environ.get("FIREDRILL_KILLS", "3"))  # how many, for each provider
LATEST_S = 14.0  # a drill of six seconds is over by then: some kills hit sealing and analysis
COMMAND_LIMIT_S = 120
REAP_LIMIT_S = 40


def moments(provider: str) -> list[float]:
    """Seconds after the start, one from each equal part of the run, equal on every machine."""
    draw = random.Random(f"{provider} {MOMENTS}")
    return [round(LATEST_S * (part + draw.random()) / MOMENTS, 2) for part in range(MOMENTS)]


def firedrill(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FIREDRILL, *arguments], capture_output=True, text=True, timeout=COMMAND_LIMIT_S
    )


def kill_after(
    seconds: float, arguments: list[str], begun: Callable[[], bool] = lambda: True
) -> None:
    """Run firedrill and SIGKILL it, and only it, ``seconds`` after it has ``begun``, unless it
    ended before.
    """
    controller = subprocess.Popen(
        [FIREDRILL, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ends_s = time.monotonic() + COMMAND_LIMIT_S
    while not begun() and time.monotonic() < ends_s:
        time.sleep(0.1)
    try:
        controller.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        controller.send_signal(signal.SIGKILL)
        controller.wait(timeout=10)


def processes_below(directory: Path) -> list[str]:
    """Command lines of living processes that name ``directory`` or work in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if str(directory) in line or where.startswith(str(directory)):
            found.append(line)
    return found


def containers_and_networks(run_id: str) -> list[str]:
    label = f"label=firedrill.run={run_id}"
    listed = []
    for kind in (["ps", "--all"], ["network", "ls"]):
        done = subprocess.run(
            ["docker", *kind, "--quiet", "--filter", label],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        listed += done.stdout.split()
    return listed


def gone_within(limit_s: float, left: Callable[[], list[str]]) -> None:
    """Return once nothing is ``left``; fail with what is."""
    ends_s = time.monotonic() + limit_s
    while found := left():
        assert time.monotonic() < ends_s, found
        time.sleep(0.2)  # another process acts: there is nothing to wait on


def judge_what_is_left(store: Path) -> None:
    """The reaper's work is done without us, then check: no violation, no traceback."""
    gone_within(REAP_LIMIT_S, lambda: processes_below(store))
    cleaned = firedrill("cleanup", "--runs-dir", str(store))
    assert cleaned.returncode == 0, cleaned.stderr
    assert "removed process" not in cleaned.stdout
    for run in sorted(p for p in store.iterdir() if p.is_dir() and not p.is_symlink()):
        sealed = (run / "manifest.json").exists() and (
            json.loads((run / "manifest.json").read_text())["state"] == "sealed"
        )
        checked = firedrill("check", str(run), "--executor", "local", "--json")
        assert "Traceback" not in checked.stderr
        if sealed:
            assert checked.returncode in (0, 2), checked.stdout
        elif checked.returncode == 254:  # killed before the first record
            assert not (run / "history").exists()
        else:
            verdict = json.loads(checked.stdout)
            assert checked.returncode == 2, checked.stdout
            assert verdict["outcome"] == "unknown"
            assert verdict["anomalies"] == {}
            assert any("prefix" in r or "incomplete" in r for r in verdict["reasons"])


def drill(provider: str, store: Path) -> list[str]:
    plan = str(ROOT / "scenarios/reference/drill.toml")
    flags = ["--provider", provider, "--duration", "6", "--seed", "7", "--executor", "local"]
    faults = [
        "--set",
        "nemesis.first_s=1",
        "--set",
        "nemesis.hold_s=2",
        "--set",
        "nemesis.quiet_s=1",
    ]
    return ["run", plan, *flags, *faults, "--runs-dir", str(store)]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", moments("process"))
def test_a_killed_controller_leaves_no_process(seconds: float, tmp_path: Path) -> None:
    kill_after(seconds, drill("process", tmp_path))

    judge_what_is_left(tmp_path)


@pytest.mark.slow
def test_a_cluster_that_nobody_decided_to_keep_goes_with_its_controller(tmp_path: Path) -> None:
    kill_after(
        3.0, [*drill("process", tmp_path), "--keep=always"], lambda: any(tmp_path.glob("*/undo"))
    )

    [run] = [p for p in tmp_path.iterdir() if p.is_dir() and not p.is_symlink()]
    assert (run / "undo").exists(), "it was killed before it had nodes"
    judge_what_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.parametrize("seconds", moments("docker"))
def test_a_killed_controller_leaves_no_container(
    seconds: float, tmp_path: Path, docker_daemon: object
) -> None:
    kill_after(seconds, drill("docker", tmp_path))

    for run in sorted(p for p in tmp_path.iterdir() if p.is_dir() and not p.is_symlink()):
        gone_within(REAP_LIMIT_S, partial(containers_and_networks, run.name))
    judge_what_is_left(tmp_path)
