"""The package as it is used: installed beside firedrill, and found by the command."""

from pathlib import Path

import pytest

from cli.main import execute

DRILL = (
    *("run", "--provider", "sim", "--executor", "local", "--seed", "1", "--nodes", "3"),
    *("--duration", "8", "--set", "system.partitions=2", "--set", "drive.rate_per_s=60"),
    *("--set", "workload.key_choice=uniform", "--set", "workload.key_count=20", "--no-report"),
)


def test_it_bites_and_the_store_survives_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = ("--schedule", "2:crashloop:leader of partition 0:2")

    assert execute([*DRILL, *fault, "--runs-dir", str(tmp_path)]) == 0
    assert "1 fault, 1 with proven effect" in capsys.readouterr().out


def test_a_target_that_is_not_there_is_refused(tmp_path: Path) -> None:
    fault = ("--schedule", "2:crashloop:n7:2")

    assert execute([*DRILL, *fault, "--runs-dir", str(tmp_path)]) == 254
