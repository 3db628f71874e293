"""Runs whose sums match what a forger put there: refused by name, or said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers.engine.analyze import analyze
from cli.main import execute
from harness.errors import MalformedHistory
from harness.history.evidence import sizes
from harness.history.files import sha256
from harness.history.load import load
from harness.history.manifest import read_manifest, write_manifest
from harness.run.directory import Manifest, RunDirectory

RUNS = Path(__file__).with_name("runs")
NAME = "20261123-001122-drill-00ab"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / NAME)))


def resealed(run: RunDirectory, **changes: object) -> Manifest:
    """Give ``run`` the sums of the files that are there."""
    manifest = read_manifest(run)
    named = {name: sha256(run.root / name) for name in manifest.checksums}
    manifest = msgspec.structs.replace(
        manifest, **({"checksums": named, "sizes": sizes(run, named)} | changes)
    )
    write_manifest(run, manifest)
    return manifest


def refused(run: RunDirectory, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MalformedHistory, match=reason):
        analyze(run, executor="local")
    assert execute(["check", str(run.root), "--no-report"]) == 254
    assert "Traceback" not in capsys.readouterr().err


def test_micro_operations_of_transactions_that_are_not_there_are_refused(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.history / "micro_ops-0000.parquet"
    table = pq.read_table(path)
    moved = pa.array([txn + 1_000_000 for txn in table["txn"].to_pylist()], pa.int64())
    pq.write_table(table.set_column(0, table.schema.field("txn"), moved), path)
    resealed(run)

    refused(run, "micro_ops-0000.*it is of another run", capsys)


@pytest.mark.parametrize("name", ["states.parquet", "logs.parquet"])
def test_states_and_logs_with_columns_of_another_table_are_refused(
    run: RunDirectory, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run.events, run.root / name)
    resealed(run)

    refused(run, f"{name}: expected the columns", capsys)


def test_a_number_of_splits_that_the_sums_belie_is_refused(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = read_manifest(run).splits
    resealed(run, splits=splits - 1)

    refused(run, f"{splits - 1} files of micro-operations, found {splits}", capsys)


def test_states_that_are_in_no_sum_are_not_read_and_leave_no_verdict_valid(
    run: RunDirectory,
) -> None:
    manifest = read_manifest(run)
    kept = {name: sha for name, sha in manifest.checksums.items() if name != "states.parquet"}
    assert kept != manifest.checksums
    resealed(run, checksums=kept, sizes=sizes(run, kept))

    said = "states.parquet is not in the manifest, and was not read"
    assert load(run).unnamed == (said,)
    assert said in analyze(run, executor="local").reasons


@pytest.mark.parametrize("what", ["FIFO", "link"])
def test_the_list_says_why_a_run_is_refused(
    run: RunDirectory, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.root / "status.json"
    if what == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")

    assert execute(["runs", "--runs-dir", str(run.root.parent)]) == 0

    shown = capsys.readouterr().out
    assert "refused: status.json: it is a " in shown
    assert what in shown
    assert "no history" not in shown
