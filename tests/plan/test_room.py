"""Room on the disk: what a plan may need, what a run has taken, and when that is too much."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.plan.plan import Plan, loads
from harness.run import disk_budget

MIB = disk_budget.MIB


def plan(text: str = "") -> Plan:
    return loads(f"seed = 1\n{text}")


def test_longer_and_busier_runs_need_more_until_their_cap() -> None:
    short = disk_budget.estimate_bytes(plan("[drive]\nduration_s = 10"))
    long = disk_budget.estimate_bytes(plan("[drive]\nduration_s = 3600"))
    open_loop = disk_budget.estimate_bytes(plan("[drive]\nduration_s = 3600\nrate_per_s = 5000"))
    capped = disk_budget.estimate_bytes(
        plan("[drive]\nduration_s = 3600\nrate_per_s = 5000\n[limits]\ndisk_mib = 200")
    )

    assert short < long < open_loop
    assert short < 150 * MIB
    assert capped == 200 * MIB


def test_a_store_that_does_not_exist_yet_is_measured_where_it_would_be(tmp_path: Path) -> None:
    disk_budget.require_room(plan(), tmp_path / "not" / "yet")

    assert not (tmp_path / "not").exists()


def test_what_hardly_fits_is_refused_with_both_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 20 * MIB

    monkeypatch.setattr(disk_budget.shutil, "disk_usage", lambda path: Usage)

    with pytest.raises(HarnessError, match=r"may need \d+ MiB in .*, and 20 MiB are free"):
        disk_budget.require_room(plan(), tmp_path)


def test_a_run_is_measured_with_all_its_files_and_no_file_twice_removed(tmp_path: Path) -> None:
    (tmp_path / "nodes" / "n1").mkdir(parents=True)
    (tmp_path / "nodes" / "n1" / "log").write_bytes(b"x" * 3 * MIB)
    (tmp_path / "elsewhere").symlink_to("/usr")

    assert 3 * MIB <= disk_budget.used_bytes(tmp_path) < 4 * MIB
    assert disk_budget.used_bytes(tmp_path / "gone") == 0


def test_a_file_that_vanishes_meanwhile_hides_no_other_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"x" * MIB)
    listed = list(os.scandir(tmp_path))
    (tmp_path / listed[0].name).unlink()
    monkeypatch.setattr(disk_budget.os, "scandir", lambda _: contextlib.nullcontext(listed))

    assert 2 * MIB <= disk_budget.used_bytes(tmp_path) < 3 * MIB


def test_a_run_over_its_cap_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 3 * MIB)

    assert disk_budget.over_cap(plan("[limits]\ndisk_mib = 9"), tmp_path) == ""
    assert disk_budget.over_cap(plan("[limits]\ndisk_mib = 2"), tmp_path) == (
        "ended early: the run directory holds 3 MiB, limits.disk_mib allows 2 MiB"
    )
