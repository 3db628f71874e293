"""doctor, cleanup, and one whole drill on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cli.main import execute
from harness.history.chunks import ChunkWriter
from harness.history.manifest import SEALED, read_manifest
from harness.history.run_directory import RunDirectory

LIMIT_S = 120
FIREDRILL = [sys.executable, "-c", "from cli.main import main; main()"]
DRILL = [
    *FIREDRILL, "run", "--provider", "process", "--nodes", "3", "--duration", "20",
    "--executor", "local", "--concurrency", "3",
]  # fmt: skip
RUN_ID = "20261121-104500-drill-1a2b"


@pytest.fixture(autouse=True)
def _own_store_and_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREDRILL_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setenv("CI", "true")


def test_doctor_says_what_is_missing_and_what_auto_would_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["doctor", "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: finding for finding in said["findings"]}
    assert findings["Python"]["ok"]
    assert not findings["docker daemon"]["ok"]
    assert findings["docker daemon"]["remedy"]
    assert {"Java for Spark", "disk", "memory"} <= findings.keys()
    assert said["provider"]["name"] == "process"
    assert "nobody.sock" in said["provider"]["why"]


def test_doctor_names_the_remedy_beside_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["doctor"]) == 0

    out = capsys.readouterr().out
    assert "missing" in out
    assert "scripts/start-docker" in out
    assert 'provider "auto" would use process' in out


def test_cleanup_works_without_a_daemon_and_says_that_it_did_not_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["cleanup"]) == 0

    said = capsys.readouterr()
    assert said.out == "nothing to remove\n"
    assert "containers were not looked at" in said.err
    assert "nobody.sock" in said.err


def test_cleanup_refuses_a_run_that_is_still_driven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "runs" / RUN_ID)
    run.root.mkdir(parents=True)
    writer = ChunkWriter(run.chunks)

    refused = execute(["cleanup", RUN_ID])
    writer.close()
    allowed = execute(["cleanup", RUN_ID])

    assert (refused, allowed) == (254, 0)
    assert "is still driven" in capsys.readouterr().err


def test_an_interrupt_during_an_analysis_is_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "plan.toml").touch()  # what makes it a run
    monkeypatch.setattr("cli.judging.judge.analyzed", interrupted)

    assert execute(["report", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_plan_for_spark_is_refused_before_it_starts_where_there_is_no_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from checkers.engine.spark import java

    nothing = java.JavaChoice(home=None, version=None, origin="none", reason="no Java 17 or newer")
    monkeypatch.setattr(java, "find_java", lambda: nothing)

    assert execute(["run", "--provider", "process", "--executor", "spark"]) == 254
    assert "--executor local" in capsys.readouterr().err


@pytest.mark.slow
def test_a_drill_that_is_stopped_heals_seals_and_is_judged_later(tmp_path: Path) -> None:
    with _drill() as process:
        _await_line(process, "drive for")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_S)

    (run,) = _runs(tmp_path)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == (
        f"firedrill: interrupted: the run is sealed; 'firedrill check {run.root}' judges it"
    )
    assert read_manifest(run).interrupted
    assert not run.verdict.exists()
    assert _nodes_of(run) == []
    checked = _output("check", "latest", "--no-report")
    assert checked.returncode == 2
    assert "interrupted" in checked.stdout


@pytest.mark.slow
def test_a_drill_whose_terminal_is_closed_heals_and_seals(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        DRILL, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=_on_its_terminal
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):
        while b"drive" not in shown:
            shown += os.read(controller, 4096)

    os.close(controller)

    assert process.wait(LIMIT_S) == 130, shown
    (run,) = _runs(tmp_path)
    manifest = read_manifest(run)
    assert (manifest.state, manifest.interrupted) == (SEALED, True)
    assert _nodes_of(run) == []


@pytest.mark.slow
def test_after_kill_9_the_reaper_leaves_nothing_and_the_prefix_is_judged(tmp_path: Path) -> None:
    with _drill() as process:
        _await_line(process, "drive for")
        (run,) = _runs(tmp_path)
        nodes = _nodes_of(run)
        process.kill()
        process.wait(timeout=LIMIT_S)

    assert len(nodes) == 3
    for pid in nodes:
        assert _ends_by_itself(pid)
    checked = _output("check", "latest", "--executor", "local")
    assert checked.returncode == 2
    assert "incomplete" in checked.stdout
    assert _output("cleanup").stdout == "nothing to remove\n"


def _drill() -> subprocess.Popen[str]:
    return subprocess.Popen(DRILL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _on_its_terminal() -> None:
    """Make standard input the terminal of a session of its own, as a shell does."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _output(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*FIREDRILL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def _await_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"no line with {text!r} in {said}")


def _runs(tmp_path: Path) -> list[RunDirectory]:
    found = sorted(p for p in (tmp_path / "runs").glob("2*"))
    return [RunDirectory(path) for path in found]


def _nodes_of(run: RunDirectory) -> list[int]:
    """The living processes whose working directory lies in the run's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = os.readlink(entry / "cwd")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:  # it ended meanwhile
                continue
            if where.startswith(str(run.root)) and state != "Z":
                found.append(int(entry.name))
    return found


def _ends_by_itself(pid: int, limit_s: float = 30.0) -> bool:
    """Whether the process ends in time, without our doing."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(limit_s * 1000))
    finally:
        os.close(handle)
