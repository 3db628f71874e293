"""Crash points: which there are, which of them are tried, and the command that tries them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from harness.campaigns.cell import CellResult
from harness.campaigns.point_census import NodePoint, every_point, point_totals, sampled
from harness.exit_codes import Outcome
from harness.protocols.crash_points import CrashPoint, MessageClass, Operation, When

COUNTS = {"n1": {"sync": 3, "send votes": 2}, "n2": {"sync": 100}}
PLAN = """
name = "points"
seed = 2
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 1
bugs = []
[workload]
key_count = 8
[drive]
duration_s = 5.0
concurrency = 4
rate_per_s = 25
[nemesis]
mix = []
[check]
executor = "local"
min_ok = 10
"""


def result(outcome: Outcome) -> CellResult:
    return CellResult(key="k", seed=1, name="n", workload="w", outcome=outcome)


def test_each_operation_of_each_node_is_a_point_before_within_and_after_it() -> None:
    points = every_point(COUNTS)

    assert len(points) == len(set(points)) == 3 * (3 + 2 + 100)
    votes = CrashPoint(at=Operation.SEND, when=When.AFTER, nth=2, messages=MessageClass.VOTES)
    assert NodePoint(node="n1", point=votes) in points
    assert NodePoint(node="n2", point=CrashPoint(when=When.BEFORE, nth=100)) in points
    assert NodePoint(node="n1", point=CrashPoint(when=When.BEFORE, nth=4)) not in points


def test_a_sample_has_of_each_kind_as_many_as_there_are_and_is_drawn_by_the_seed() -> None:
    points = every_point(COUNTS)
    chosen = sampled(points, 30, seed=1)

    kinds = Counter(point.kind for point in chosen)
    assert (len(chosen), len(set(chosen))) == (30, 30)
    assert kinds["after send of votes"] == 2  # all that there are
    assert {kinds[f"{when} sync"] for when in When} == {8}
    assert sampled(points, 30, seed=1) == chosen
    assert sampled(points, 30, seed=2) != chosen
    assert set(sampled(points, 10_000, seed=1)) == set(points)


def test_the_table_counts_points_tries_and_ends_of_each_kind() -> None:
    points = every_point({"n1": {"sync": 2}})
    tried = [(points[0], result(Outcome.VALID)), (points[1], result(Outcome.VIOLATION))]
    lines = [line.split() for line in point_totals(tried, points)]

    assert [line[-6:] for line in lines[1:]] == [
        ["2", "0", "0", "0", "0", "0"],
        ["2", "2", "1", "1", "0", "0"],
        ["2", "0", "0", "0", "0", "0"],
        ["6", "2", "1", "1", "0", "0"],
    ]


def tried(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    command = [Path(sys.executable).with_name("firedrill"), "crash-points", path, *more]
    runs = ["--runs-dir", tmp_path / "runs", "--jobs", "1"]
    return subprocess.run(
        list(map(str, [*command, *runs])), capture_output=True, text=True, timeout=300
    )


def test_a_sound_node_keeps_its_promises_at_its_points(tmp_path: Path) -> None:
    done = tried(tmp_path, "--sample", "3")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("VALID: ")
    assert done.stdout.splitlines()[-2].split()[2:4] == ["3", "3"]


def test_a_drive_too_short_to_heal_a_crash_in_is_refused(tmp_path: Path) -> None:
    done = tried(tmp_path, "--hold", "3")

    assert done.returncode == 254
    assert "drive.duration_s: expected more than 5 s: --hold, and to heal (got 5)" in done.stderr


def test_a_workload_that_is_not_there_is_refused_before_the_first_run(tmp_path: Path) -> None:
    done = tried(tmp_path, "--set", "workload.name=bnk")

    assert done.returncode == 254
    assert "workload.name: unknown workload 'bnk' (did you mean 'bank'?" in done.stderr
