"""The Docker daemon goes away under a run: no false verdict, nothing left once it is back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
from own_daemon import OwnDaemon, own_daemon

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUN_LIMIT_S = 150
REAP_LIMIT_S = 40
DRILL = (
    *("run", "--provider", "docker", "--nodes", "3", "--executor", "local", "--seed", "3"),
    *("--set", "nemesis.mix=[]", "--set", "limits.quiesce_s=4", "--set", "limits.final_reads_s=4"),
    "--no-report",
)


@pytest.fixture(scope="module")
def daemon(
    docker_daemon: docker.APIClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnDaemon]:
    with own_daemon(tmp_path_factory.mktemp("daemon") / "own", docker_daemon) as daemon:
        yield daemon


@contextmanager
def driving(daemon: OwnDaemon, store: Path, duration_s: int) -> Iterator[subprocess.Popen[str]]:
    """A drill on ``daemon`` that has come to its drive phase."""
    command = (FIREDRILL, *DRILL, "--duration", str(duration_s), "--runs-dir", store)
    process = subprocess.Popen(
        daemon.inside(*command),
        env=dict(daemon.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        said = []
        for line in process.stderr:
            said.append(line)
            if "drive for" in line:
                break
        assert process.poll() is None, said
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def outcome_of(store: Path) -> tuple[str, list[str]]:
    verdict = json.loads((store / "latest" / "analysis" / "verdict.json").read_text())
    return verdict["outcome"], verdict["reasons"]


def within(limit_s: float, holds: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.2)  # another process acts: there is nothing to wait on
    return True


@pytest.mark.docker
@pytest.mark.slow
def test_a_daemon_that_is_restarted_under_a_run_makes_it_unknown_with_the_reason(
    daemon: OwnDaemon, tmp_path: Path
) -> None:
    with driving(daemon, tmp_path, 6) as process:
        daemon.kill()
        daemon.start()
        out, err = process.communicate(timeout=RUN_LIMIT_S)

    assert process.returncode == 2, (out, err)
    outcome, reasons = outcome_of(tmp_path)
    assert outcome == "unknown"
    assert any("its machine is gone, which was none of ours" in reason for reason in reasons)
    assert daemon.listed() == []


@pytest.mark.docker
@pytest.mark.slow
def test_what_a_run_could_not_remove_goes_when_the_daemon_is_back(
    daemon: OwnDaemon, tmp_path: Path
) -> None:
    with driving(daemon, tmp_path, 3) as process:
        daemon.kill()
        out, err = process.communicate(timeout=RUN_LIMIT_S)

    assert process.returncode in (2, 255), (out, err)
    outcome, reasons = outcome_of(tmp_path)
    assert outcome == "unknown"
    assert any(reason.startswith("teardown: ") for reason in reasons)
    assert "removed in the background" in err
    daemon.start()
    assert within(REAP_LIMIT_S, lambda: daemon.listed() == [])
    said = (tmp_path / "latest" / "reaper.log").read_text()
    assert "will be tried again: NoDaemon" in said
