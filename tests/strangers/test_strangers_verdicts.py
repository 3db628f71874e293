"""What lies beside a judged run: nothing else is taken for its verdict, or written over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stranger_kit import sound_run

from cli.main import execute
from harness.errors import MalformedHistory
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import read_verdict

BROKEN, SOUND = "20261122-060000-broken-0001", "20261122-060000-sound-0002"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs that were judged, one with a lost write."""
    sound_run(tmp_path / BROKEN, lost=True)
    sound_run(tmp_path / SOUND)
    assert execute(["check", BROKEN, "--no-report", "--runs-dir", str(tmp_path)]) == 1
    assert execute(["check", SOUND, "--no-report", "--runs-dir", str(tmp_path)]) == 0
    return tmp_path


def test_the_verdict_of_another_run_is_not_taken_for_that_of_this_one(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken, sound = RunDirectory(store / BROKEN), RunDirectory(store / SOUND)
    assert read_verdict(broken) is not None
    shutil.copyfile(sound.verdict, broken.verdict)
    with pytest.raises(MalformedHistory, match="made of this run"):
        read_verdict(broken)

    # Nor with its seal, which names the other run's manifest.
    shutil.copyfile(sound.verdict_seal, broken.verdict_seal)
    with pytest.raises(MalformedHistory, match="made of this run"):
        read_verdict(broken)
    capfd.readouterr()
    assert execute(["runs", "--runs-dir", str(store)]) == 0
    (line,) = (line for line in capfd.readouterr().out.splitlines() if BROKEN in line)
    assert "valid" not in line

    assert execute(["check", BROKEN, "--no-report", "--runs-dir", str(store)]) == 1
    assert read_verdict(broken) is not None


def test_the_verdict_of_an_older_version_has_no_seal_and_is_read(store: Path) -> None:
    run = RunDirectory(store / SOUND)
    run.verdict_seal.unlink()
    assert read_verdict(run) is not None


def test_a_page_of_the_users_own_is_not_written_over(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = store / "index.html"
    assert "<title>firedrill: 2 runs" in page.read_text()
    page.write_text("<title>mine</title>")
    capfd.readouterr()
    assert execute(["check", SOUND, "--no-report", "--runs-dir", str(store)]) == 0
    assert page.read_text() == "<title>mine</title>"
    assert "is not one of ours" in capfd.readouterr().err
