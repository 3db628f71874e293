"""The limits of a plan's ``[promise]``, kept and broken, in drills that a user would run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import docker
import pytest

from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.protocols.consistency_models import (
    INDEFINITE,
    LONGEST_GAP,
    P99,
    RECOVERY,
    REFUSAL,
    SERVICE,
)
from harness.protocols.verdict import LimitState, Verdict, read_verdict

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUN_LIMIT_S = 300
DRILL = """
name = "limits"
seed = 2

[cluster]
nodes = 5

[system]
name = "reference"
partitions = 4
replicas = 3
system_nodes = 1
system_apart = true
reset_timeout_s = 1

[drive]
duration_s = 36.0
concurrency = 12
rate_per_s = 40.0
op_deadline_s = 1.0

# Over so many keys that no conflicts lower the rate, which a limit compares.
[workload]
name = "list-append"
key_count = 200
key_choice = "uniform"
max_length = 2

[check]
executor = "local"

[[nemesis.schedule]]
at_s = 3.0
kind = "pause"
target = "primary of partition 0"
hold_s = 2.5

[[nemesis.schedule]]
at_s = 15.0
kind = "kill"
target = "majority of partition 1"
hold_s = 8.0
"""
# A machine that others use serves late, not never; and heals late: the drive goes on for a while.
KEPT = """
[promise]
longest_gap_s = 24.0
p99_ms = 20000.0
recovered_within_s = 4.0
indefinite_share = 0.5
[promise.kill]
refused_within_s = 3.0
serves_within_s = 7.0
"""
# In containers a sound store breaks neither of the other two for certain: outcomes may be known,
# and the rate may be back at once. Simulated nodes are always the same.
BROKEN = """
[promise]
longest_gap_s = 0.01
p99_ms = 0.5
[promise.kill]
refused_within_s = 0.00005
serves_within_s = 0.1
"""
# All nodes go while each client has a transaction open, and none serves at once as they come back.
ALL_KILLED = (
    DRILL.partition("[[nemesis")[0]
    .replace("rate_per_s = 40.0\n", "")
    .replace("duration_s = 36.0", "duration_s = 16.0")
    + """
[[nemesis.schedule]]
at_s = 5.0
kind = "kill"
target = "all"
hold_s = 3.0

[promise]
indefinite_share = 0.0
recovered_within_s = 0.05
"""
)
OF_BOTH = {LONGEST_GAP, P99}
OF_MODE = {"sc": REFUSAL, "ha": SERVICE}
WINDOW = re.compile(r"from \d+\.\d{3} s to \d+\.\d{3} s")


def drilled(drill: str, provider: str, mode: str, directory: Path) -> tuple[int, Verdict]:
    plan = directory / "limits.toml"
    plan.write_text(drill)
    command = [
        *(str(FIREDRILL), "run", str(plan), "--provider", provider, "--no-report"),
        *("--set", f"system.mode={mode.upper()}", "--runs-dir", str(directory / "runs")),
    ]
    done = subprocess.run(command, capture_output=True, timeout=RUN_LIMIT_S, check=False)
    verdict = read_verdict(RunDirectory((directory / "runs" / "latest").resolve()))
    assert verdict is not None, done.stderr.decode()[-2000:]
    return done.returncode, verdict


@pytest.mark.parametrize("mode", ["sc", "ha"])
def test_limits_that_a_sound_store_keeps_leave_a_drill_valid(mode: str, tmp_path: Path) -> None:
    kept("sim", mode, tmp_path)


@pytest.mark.parametrize("mode", ["sc", "ha"])
def test_limits_that_no_store_keeps_make_it_a_violation_that_shows_when(
    mode: str, tmp_path: Path
) -> None:
    broken("sim", mode, tmp_path)


@pytest.mark.parametrize("mode", ["sc", "ha"])
def test_nodes_that_go_with_all_that_was_open_break_the_limits_of_outcomes_and_recovery(
    mode: str, tmp_path: Path
) -> None:
    code, verdict = drilled(ALL_KILLED, "sim", mode, tmp_path)

    assert (verdict.outcome, code) == (Outcome.VIOLATION, 1)
    assert set(verdict.anomalies) == {INDEFINITE, RECOVERY}
    assert {limit.state for limit in verdict.limits} == {LimitState.BROKEN}
    require_windows(verdict)


@pytest.mark.docker
@pytest.mark.slow
def test_limits_are_kept_in_containers(docker_daemon: docker.APIClient, tmp_path: Path) -> None:
    kept("docker", "ha", tmp_path)


@pytest.mark.docker
@pytest.mark.slow
def test_limits_are_broken_in_containers(docker_daemon: docker.APIClient, tmp_path: Path) -> None:
    broken("docker", "sc", tmp_path)


def kept(provider: str, mode: str, directory: Path) -> None:
    code, verdict = drilled(DRILL + KEPT, provider, mode, directory)

    states = [limit.state for limit in verdict.limits]
    assert (verdict.outcome, code) == (Outcome.VALID, 0), verdict.reasons
    assert sorted(states) == [LimitState.KEPT] * 5 + [LimitState.NOT_PROMISED]


def broken(provider: str, mode: str, directory: Path) -> None:
    code, verdict = drilled(DRILL + BROKEN, provider, mode, directory)

    assert (verdict.outcome, code) == (Outcome.VIOLATION, 1)
    assert set(verdict.anomalies) == OF_BOTH | {OF_MODE[mode]}
    require_windows(verdict)


def require_windows(verdict: Verdict) -> None:
    for anomaly in verdict.anomalies.values():
        for example in anomaly.examples:
            assert WINDOW.search(example.text), example.text
            assert example.details["window_start_ns"] < example.details["window_end_ns"]
