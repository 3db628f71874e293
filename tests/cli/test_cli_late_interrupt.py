"""Ctrl-C when nothing is left to be cut short: said so, and the run is a whole one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cli import signals
from cli.main import execute
from clusters.reference.system import ReferenceSystem
from harness.history.manifest import read_manifest
from harness.run.directory import RunDirectory

DRILL = ["run", "--provider", "sim", "--executor", "local", "--set", "nemesis.mix=[]"]


def interrupt(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_while_the_run_is_sealed_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.history import seal

    tabulate = seal._tabulate

    def interrupted(*arguments):
        interrupt()
        return tabulate(*arguments)

    monkeypatch.setattr(seal, "_tabulate", interrupted)

    code = execute([*DRILL, "--duration", "4", "--runs-dir", str(tmp_path)])

    assert code == 0
    err = capsys.readouterr().err
    assert signals.OVER in err
    assert signals.STOPPING not in err
    assert not read_manifest(RunDirectory(tmp_path / "latest")).interrupted


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
    monkeypatch.setattr("cli.judging.judge", interrupt)

    code = execute([*DRILL, "--duration", "2", "--runs-dir", str(tmp_path)])

    assert code == 130
    run = (tmp_path / "latest").resolve()
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "firedrill: interrupted while judging: the run is sealed; "
        f"'firedrill check {tmp_path}/{run.name}' judges it"
    )
