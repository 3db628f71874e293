"""A run is judged by the plan that drove it, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import execute
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory

SHORT = ("--provider", "sim", "--executor", "local", "--duration", "4", "--no-report")
TOO_MUCH = ("--set", "check.min_ok=1000000")


def test_a_run_whose_plan_was_lost_or_changed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--runs-dir", str(tmp_path))
    drive = ("run", *SHORT, *TOO_MUCH, "--schedule", "1:kill:n1:1", *store)
    check = ("check", "latest", "--executor", "local", "--no-report", *store)
    assert execute(drive) == 2
    plan = RunDirectory(tmp_path / "latest").plan
    kept = plan.read_bytes()

    plan.write_bytes(kept.replace(b"min_ok = 1000000", b"min_ok = 10"))
    changed = execute(check), capsys.readouterr().err
    plan.unlink()
    lost = execute(check), capsys.readouterr().err
    plan.write_bytes(kept)

    for code, said in (changed, lost):
        assert code == 254
        assert "plan.toml: expected" in said
    assert execute(check) == 2


def test_the_plan_is_in_the_checksums_from_the_first_manifest_on(tmp_path: Path) -> None:
    assert execute(["run", *SHORT, "--set", "nemesis.mix=[]", "--runs-dir", str(tmp_path)]) == 0

    checksums = read_manifest(RunDirectory(tmp_path / "latest")).checksums
    assert {"plan.toml", "faults.parquet", "events.parquet"} <= checksums.keys()
