"""Ctrl-C when nothing is left to be cut short: said so, and the run is a whole one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from cli import signals, wiring
from cli.main import execute
from clusters.reference.system import ReferenceSystem
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.supervisor import Supervised

DRILL = ["run", "--provider", "sim", "--executor", "local", "--set", "nemesis.mix=[]"]


def again(run: RunDirectory) -> str:
    return f"'firedrill check {run.root}' judges it"


def interrupt(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_while_the_run_is_sealed_it_is_whole_and_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.history import seal

    tabulate = seal._tabulate

    def interrupted(*arguments):
        interrupt()
        return tabulate(*arguments)

    monkeypatch.setattr(seal, "_tabulate", interrupted)

    code = execute([*DRILL, "--duration", "4", "--runs-dir", str(tmp_path)])

    assert code == 130
    err = capsys.readouterr().err
    assert signals.OVER in err
    assert signals.STOPPING not in err
    run = RunDirectory((tmp_path / "latest").resolve())
    assert err.splitlines()[-1].endswith(f"the run is sealed; {again(run)}")
    assert not read_manifest(run).interrupted
    assert not run.verdict.exists()
    assert execute(["check", str(run.root), "--no-report"]) == 0


def test_before_anything_was_made_nothing_is_recorded_or_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse = wiring._refuse

    async def interrupted(*arguments: Any) -> Any:
        interrupt()
        return await refuse(*arguments)

    monkeypatch.setattr(wiring, "_refuse", interrupted)

    code = execute([*DRILL, "--provider", "process", "--nodes", "3", "--runs-dir", str(tmp_path)])

    assert code == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "firedrill: interrupted before the run began: nothing was made"
    assert [path.name for path in tmp_path.iterdir()] == []


def test_while_final_reads_are_still_to_come_the_run_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def recover(*_: object) -> None:
        interrupt()

    monkeypatch.setattr(ReferenceSystem, "recover", recover)

    code = execute([*DRILL, "--duration", "4", "--runs-dir", str(tmp_path)])

    assert code == 130
    err = capsys.readouterr().err
    assert signals.STOPPING in err
    assert signals.OVER not in err
    assert read_manifest(RunDirectory(tmp_path / "latest")).interrupted


def test_while_it_is_judged_the_sealed_run_and_how_to_judge_it_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.judging.judge.judge", interrupt)

    code = execute([*DRILL, "--duration", "2", "--runs-dir", str(tmp_path)])

    assert code == 130
    run = RunDirectory((tmp_path / "latest").resolve())
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (f"firedrill: interrupted while judging: the run is sealed; {again(run)}")


@pytest.mark.slow
def test_while_it_is_judged_with_its_cluster_up_the_cluster_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(command: list[str], *arguments: Any, **options: Any) -> Supervised:
        interrupt()
        return Supervised(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], *arguments, **options
        )

    monkeypatch.setattr("cli.judging.children.Supervised", slow)

    on_nodes = [*DRILL, "--provider", "process", "--nodes", "3", "--duration", "2"]
    code = execute([*on_nodes, "--keep", "--runs-dir", str(tmp_path)])

    run = RunDirectory((tmp_path / "latest").resolve())
    assert code == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith(again(run))
    assert not run.kept.exists()
