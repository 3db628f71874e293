"""The package as it is used: installed beside firedrill, and found by the command."""

from pathlib import Path

from cli.main import execute


def test_it_survives_a_kill(tmp_path: Path) -> None:
    drill = (
        *("run", "--system", "pebble", "--provider", "process", "--nodes", "3", "--seed", "1"),
        *("--executor", "local", "--duration", "6", "--no-report", "--set", "check.min_ok=20"),
        *("--schedule", "2:kill:leader of partition 0:1.5"),
    )

    assert execute([*drill, "--runs-dir", str(tmp_path)]) == 0
