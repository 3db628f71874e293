"""A plan that lies beside an imported history drove nothing, and nothing is read from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from cli.judging.executor_choice import DEFAULT_EXECUTOR, planned_executor
from cli.main import execute
from harness.history.manifest import plan_drove, read_manifest, write_manifest
from harness.history.run_directory import Origin, RunDirectory
from results.report.next_commands import run_before
from results.report.run_data import gather
from results.store.run_entry import entry_of

RUN = Path(__file__).parents[1] / "evidence" / "runs" / "sim-valid"
OLDER, NEWER = "20261126-020001-drill-0001", "20261126-020002-drill-0002"


@pytest.fixture
def driven(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(RUN, tmp_path / NEWER)))


def imported(run: RunDirectory) -> RunDirectory:
    """The same as a history from elsewhere, beside which the plan lies by chance."""
    manifest = read_manifest(run)
    sums = {name: sha for name, sha in manifest.checksums.items() if name != run.plan.name}
    origin = Origin(file="history.edn", operations=1)
    write_manifest(run, msgspec.structs.replace(manifest, checksums=sums, origin=origin))
    return run


def spark_planned(run: RunDirectory) -> None:
    run.plan.write_text(run.plan.read_text().replace('executor = "local"', 'executor = "spark"'))


def test_only_the_plan_that_drove_a_run_chooses_its_executor(driven: RunDirectory) -> None:
    spark_planned(driven)

    assert planned_executor(driven) == "spark"
    assert planned_executor(imported(driven)) == DEFAULT_EXECUTOR


def test_only_the_plan_that_drove_a_run_is_in_its_entry_and_report(driven: RunDirectory) -> None:
    before = entry_of(driven)
    assert gather(driven).plan["seed"] == 3

    after = entry_of(imported(driven))

    assert (before.name, before.provider, before.seed) == ("drill", "sim", 3)
    assert (after.name, after.provider, after.seed) == ("", "", None)
    found = gather(driven)
    assert (found.plan, found.plan_text) == ({}, "")


def test_a_run_is_compared_with_no_import_that_a_plan_lies_beside(
    driven: RunDirectory, tmp_path: Path
) -> None:
    older = RunDirectory(Path(shutil.copytree(RUN, tmp_path / OLDER)))
    assert execute(["check", str(older.root), "--no-report"]) == 0
    assert run_before(driven) == older

    assert not plan_drove(older, read_manifest(imported(older)))
    assert run_before(driven) is None
