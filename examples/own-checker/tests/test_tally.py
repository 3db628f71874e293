"""The package as it is used: installed beside firedrill, and found by the command."""

from pathlib import Path

import pytest

from cli.main import execute

DRILL = (
    *("run", "--provider", "sim", "--executor", "local", "--workload", "tally", "--seed", "1"),
    *("--nodes", "3", "--duration", "5", "--set", "system.partitions=2", "--no-report"),
    *("--set", "drive.rate_per_s=60", "--set", "check.min_ok=50", "--set", "nemesis.mix=[]"),
)


def test_a_sound_store_counts_right(tmp_path: Path) -> None:
    assert execute([*DRILL, "--runs-dir", str(tmp_path)]) == 0


def test_a_store_that_loses_increments_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = ("--set", "system.bugs=['read-lock-skipped']")

    assert execute([*DRILL, *bug, "--runs-dir", str(tmp_path)]) == 1
    assert "missing increment: T" in capsys.readouterr().out
