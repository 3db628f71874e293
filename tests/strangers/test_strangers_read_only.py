"""Runs on a medium that takes nothing: judged rightly, and that nothing was stored is said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from capabilities import lacking
from stranger_kit import NAME, copied, firedrill, sound_run

from harness.history.run_directory import RunDirectory


@pytest.fixture(params=["read-only", "full"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A store of a sound run and of one that lost a write, on a disk that takes nothing more."""
    store = tmp_path / "runs"
    store.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(store)]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        lacking("only root can mount a disk of its own")
    try:
        for number, lost in enumerate((False, True)):
            sound_run(store / f"{NAME[:-1]}{number}", lost=lost)
        if request.param == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", str(store)], check=True)
            yield store, "Read-only file system"
        else:
            _fill(store / "filler")
            yield store, "No space left on device"
    finally:
        subprocess.run(["umount", "--lazy", str(store)], check=True)


def _fill(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    os.write(handle, b"x" * size)
            except OSError:
                continue
    finally:
        os.close(handle)


def test_a_run_is_judged_where_nothing_can_be_written(
    medium: tuple[Path, str], tmp_path: Path
) -> None:
    store, why = medium
    for number, (code, word) in enumerate(((0, "VALID: "), (1, "VIOLATION: "))):
        name = f"{NAME[:-1]}{number}"
        ended = firedrill(
            "check", name, "--executor", "local", "--runs-dir", str(store), cwd=tmp_path
        )
        assert ended.code == code, ended.said
        # No report was written: the line names the run, and not a page that is not there.
        assert word in ended.out.splitlines()[-1]
        assert ended.out.splitlines()[-1].endswith(f": {store / name}")
        assert ended.err.count("is not stored (--output DIR stores it elsewhere)") == 1
        assert why in ended.err
        as_json = firedrill(
            "check", name, "--json", "--executor", "local", "--runs-dir", str(store), cwd=tmp_path
        )
        assert as_json.code == code
        assert as_json.out.startswith("{")


def test_a_report_that_can_not_be_written_names_the_true_reason(
    medium: tuple[Path, str], tmp_path: Path
) -> None:
    store, why = medium

    ended = firedrill("report", NAME[:-1] + "0", "--runs-dir", str(store), cwd=tmp_path)

    assert ended.code == 255
    assert why in ended.err
    assert ("bytes are missing" in ended.err) == (why == "No space left on device")


def test_results_go_where_output_says(medium: tuple[Path, str], tmp_path: Path) -> None:
    store, _ = medium
    there = tmp_path / "there"

    ended = firedrill(
        "check", NAME[:-1] + "1", "--output", str(there), "--executor", "local",
        "--runs-dir", str(store), cwd=tmp_path,
    )  # fmt: skip

    assert ended.code == 1, ended.said
    assert ended.out.splitlines()[-1].endswith(str(there / "report.html"))
    assert (there / "analysis" / "verdict.json").is_file()
    assert "lost-write" in (there / "report.html").read_text()


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    run: RunDirectory = copied(sound_run(tmp_path / "one"), tmp_path / NAME)
    (tmp_path / "file").write_text("")

    ended = firedrill("check", str(run.root), "--output", str(tmp_path / "file"), cwd=tmp_path)

    assert ended.code == 254
    assert "--output: expected a directory" in ended.err
