"""Two runs at once on one host: neither notices the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.history.manifest import read_manifest
from harness.run.directory import RunDirectory

FIREDRILL = Path(sys.executable).with_name("firedrill")
LIMIT_S = 150
DRILL = (
    *("run", "--nodes", "3", "--duration", "10", "--concurrency", "4", "--executor", "local"),
    *("--seed", "11", "--schedule", "1:partition:n1:1", "--set", "check.min_ok=10", "--no-report"),
)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_two_runs_of_one_plan_in_one_store_are_two_whole_runs(
    provider: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if provider == "docker":
        request.getfixturevalue("docker_daemon")
    command = (FIREDRILL, *DRILL, "--provider", provider, "--runs-dir", tmp_path)
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=LIMIT_S) for process in both]

    assert [process.returncode for process in both] == [0, 0], said
    runs = [RunDirectory(path) for path in sorted(tmp_path.glob("2*"))]
    assert len(runs) == 2
    for run in runs:
        assert read_manifest(run).trouble == ()
        assert ("image-id" in read_manifest(run).versions) == (provider == "docker")
        assert list(run.undo.iterdir()) == []
