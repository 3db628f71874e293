"""The package as it is used: installed beside firedrill, and found by the command."""

from pathlib import Path

import pytest

from cli.main import execute

DRILL = (
    *("run", "--provider", "sim", "--executor", "local", "--workload", "ledger", "--seed", "1"),
    *("--nodes", "3", "--duration", "5", "--set", "system.partitions=2", "--no-report"),
    *("--set", "drive.rate_per_s=60", "--set", "check.min_ok=50"),
    *("--schedule", "2:kill:primary of partition 0:1"),
)


def test_a_sound_store_keeps_what_was_written(tmp_path: Path) -> None:
    assert execute([*DRILL, "--runs-dir", str(tmp_path)]) == 0


def test_a_key_that_the_workload_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([*DRILL, "--set", "workload.kyes=3", "--runs-dir", str(tmp_path)]) == 254
    assert "workload.kyes: unknown key (did you mean 'keys'?)" in capsys.readouterr().err
