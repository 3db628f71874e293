"""A failing simulated run is shrunk to a plan that fails by itself."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from harness.cli.campaign import campaign
from harness.outcome import Outcome
from harness.plan import load

FIREDRILL = Path(sys.executable).with_name("firedrill")
FAULTS = [
    {"at_s": 0.7, "kind": "clock-jump", "target": "n1", "hold_s": 0.5},
    {"at_s": 1.5, "kind": "kill", "target": "all", "hold_s": 0.5},
    {"at_s": 3.0, "kind": "disk-slow", "target": "n2", "hold_s": 0.5},
    {"at_s": 4.0, "kind": "kill", "target": "all", "hold_s": 0.5},
]


def firedrill(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FIREDRILL, *arguments], capture_output=True, text=True, timeout=200)


@pytest.mark.slow
def test_what_is_left_still_fails_and_is_less(tmp_path: Path) -> None:
    given = {
        "seed": 3,
        "cluster.provider": "sim",
        "cluster.nodes": 3,
        "check.executor": "local",
        "check.min_ok": 1,
        "system.partitions": 2,
        "system.bugs": ["no-fsync"],
        "drive.duration_s": 7.0,
        "drive.rate_per_s": 20.0,
        "nemesis.schedule": FAULTS,
    }
    with closing(campaign([load(None, given)], tmp_path)) as results:  # type: ignore[type-var]
        (found,) = results
    assert found.outcome is Outcome.VIOLATION

    done = firedrill("shrink", found.run, "--time-budget", "60s")

    assert done.returncode == 0, done.stderr
    assert "4 faults became" in done.stdout
    assert "it failed in 1 of 1 repetitions" in done.stdout
    small = load(Path(found.run) / "shrunk.toml")
    assert 1 <= len(small.nemesis.schedule) <= 2
    assert {fault.kind for fault in small.nemesis.schedule} == {"kill"}
    assert small.drive.duration_s <= 7.0


def test_there_is_nothing_to_shrink_where_nothing_failed(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "plan.toml").write_text("seed = 1\n")
    (tmp_path / "analysis" / "verdict.json").write_text('{"outcome": "valid", "model": "m"}')

    done = firedrill("shrink", tmp_path)

    assert done.returncode == 254
    assert "broke no promise" in done.stderr
