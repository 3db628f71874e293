"""What holds a run, and that it is neither removed nor archived meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_stores import made

from cli import run_state
from cli.judging import judge
from cli.judging.analysis import AnalysisResult
from cli.main import execute
from cli.run_state import JUDGED, LEFT, ON, driven, held_by, holding
from clusters.providers.process.cleanup import cleanup
from harness.history.directory_locks import locked
from harness.history.run_directory import RunDirectory
from results.store.store import RunStore

OWNER = Path(__file__).parents[1] / "process" / "process_owner.py"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return made(RunStore(tmp_path / "runs"), "drill", 86_400 * 10**9, b"ab")


def pruned(run: RunDirectory) -> bool:
    code = execute(["runs", "prune", "--keep-last", "0", "--runs-dir", str(run.root.parent)])
    assert code == 0
    return not run.root.exists()


def test_a_run_that_has_only_begun_is_driven(run: RunDirectory) -> None:
    with locked(run.root):
        assert held_by(run) == ON
        assert driven(run)
        assert not pruned(run)

    assert held_by(run) == ""
    assert pruned(run)


def test_a_run_that_is_judged_is_neither_removed_nor_archived(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.history.mkdir()
    seen: list[str] = []

    def analyzed(*_: object, **__: object) -> AnalysisResult:
        seen.append(held_by(run))
        of = ["--runs-dir", str(run.root.parent)]
        assert execute(["runs", "archive", run.root.name, "--to", str(tmp_path), *of]) == 254
        assert not pruned(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(judge, "analyzed", analyzed)
    with pytest.raises(KeyboardInterrupt):
        judge.judge(run, None)

    assert seen == [JUDGED]
    assert held_by(run) == ""


def test_two_may_judge_a_run_and_look_at_it(run: RunDirectory) -> None:
    run.history.mkdir()
    with holding(run):
        with holding(run):
            assert held_by(run) == JUDGED
        assert held_by(run) == JUDGED
    with holding(RunDirectory(run.root / "none")):
        assert held_by(run) == ""


def test_what_holds_it_is_asked_again_before_it_goes(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["", ON, ""])
    monkeypatch.setattr("cli.runs.held_by", lambda _: next(answers))

    assert not pruned(run)
    assert f"{run.root.name} stays: {ON}" in capsys.readouterr().err


def test_processes_that_a_dead_controller_left_hold_their_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "20260101-000000-drill-0001")
    run.root.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, str(OWNER), str(run.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert held_by(run) == ON
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)

        assert held_by(run) == LEFT
        assert not pruned(run)
    finally:
        process.kill()
        killed = cleanup(run.undo)

    assert len(killed) == 3
    assert run_state.held_by(run) == ""
    assert os.listdir(run.undo) == []
    assert pruned(run)
