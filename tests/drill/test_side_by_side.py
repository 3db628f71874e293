"""Two runs at once on one host: neither notices the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import read_verdict

FIREDRILL = Path(sys.executable).with_name("firedrill")
LIMIT_S = 150
DRILL = (
    *("run", "--nodes", "3", "--duration", "10", "--concurrency", "4", "--executor", "local"),
    *("--seed", "11", "--schedule", "1:partition:n1:1", "--set", "check.min_ok=10", "--no-report"),
)
# Of a host that is too busy for two controllers runs say so, and nothing else.
STARVED, TRIES = "the controller was starved", 3


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_two_runs_of_one_plan_in_one_store_are_two_whole_runs(
    provider: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if provider == "docker":
        request.getfixturevalue("docker_daemon")

    for attempt in range(TRIES):
        store = tmp_path / str(attempt)
        codes = codes_of_two("--provider", provider, "--runs-dir", str(store))
        runs = [RunDirectory(path) for path in sorted(store.glob("2*"))]
        reasons = [reason for run in runs for reason in reasons_of(run)]
        if not any(reason.startswith(STARVED) for reason in reasons):
            break

    assert codes == [0, 0], reasons
    assert len(runs) == 2
    for run in runs:
        assert read_manifest(run).trouble == ()
        assert ("image-id" in read_manifest(run).versions) == (provider == "docker")
        assert list(run.undo.iterdir()) == []


def codes_of_two(*words: str) -> list[int]:
    """The exit codes of two drills at once; what they say stands in the test's output."""
    both = [subprocess.Popen((str(FIREDRILL), *DRILL, *words)) for _ in range(2)]
    return [process.wait(timeout=LIMIT_S) for process in both]


def reasons_of(run: RunDirectory) -> tuple[str, ...]:
    verdict = read_verdict(run)
    return ("never judged",) if verdict is None else verdict.reasons
