"""What can't be done leaves nothing behind: no directory, no reaper, no claim."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from run_stores import made

from cli.main import execute
from harness.history.run_directory import RunDirectory
from results.store.store import RunStore


def test_a_port_that_is_taken_is_refused_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code = execute(
            [
                *("run", "--provider", "process", "--nodes", "1", "--executor", "local"),
                *("--set", f"cluster.options.first_port={port}", "--set", "nemesis.mix=[]"),
                *("--runs-dir", str(tmp_path)),
            ]
        )

    assert code == 255
    assert f"port {port} on 127.0.0.1 is taken" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "mix", [("--fault", "pause"), ("--set", "nemesis.mix=['pause']")], ids=["flag", "set"]
)
def test_flags_that_name_faults_of_a_mix_and_of_a_schedule_are_refused(
    mix: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = ("--schedule", "1:kill:n1:1")

    code = execute(["run", "--provider", "sim", *schedule, *mix, "--runs-dir", str(tmp_path)])

    assert code == 254
    assert "expected a mix or a schedule, not both" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_breaks_off_is_never_taken_for_another_that_began_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RunStore(tmp_path)

    def broken(*_: object, **__: object) -> None:
        others.append(made(store, "of-somebody-else", 0, bytes(2)))
        raise RuntimeError("a bug")

    others: list[RunDirectory] = []
    monkeypatch.setattr("cli.wiring._run", broken)

    assert execute(["run", "--provider", "sim", "--runs-dir", str(tmp_path)]) == 255

    (own,) = [run.root for run in store.runs() if run != others[0]]
    assert (own / "traceback.txt").exists()
    assert list(others[0].root.iterdir()) == []


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("5:kill", "it has 2 parts, not 3 or 4"),
        ("abc:kill:n1", "AT_S is 'abc', no number of seconds"),
        ("5:kill:n1:x", "HOLD_S is 'x', no number of seconds"),
    ],
)
def test_a_schedule_says_which_of_its_parts_is_wrong(
    schedule: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", "--schedule", schedule]) == 254

    form = "AT_S:KIND:TARGET[:HOLD_S]"
    told = f"flags: nemesis.schedule: expected {form} (got {schedule!r}: {why})"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", [("runs",), ("cleanup",), ("check", "latest")])
def test_a_store_that_is_a_file_is_misuse(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    assert execute([*command, "--runs-dir", str(tmp_path / "file")]) == 254
    assert "expected a directory (got the file" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("compare", "latest"), ("replay", "latest"), ("trend",)])
def test_a_store_of_another_machine_is_misuse(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert execute([*command, "--runs-dir", "hdfs://host/runs"]) == 254
    assert "expected a directory of this machine (got 'hdfs://host/runs'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
