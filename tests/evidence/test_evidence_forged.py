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
from harness.history.load import load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.regular_files import sha256
from harness.history.run_directory import USAGE_FILE, Manifest, RunDirectory
from harness.run.node_usage import USAGE, read_usage
from results.compare.measure import keep_figures
from results.store.run_figures import figures_path, read_figures
from results.store.store import RunStore

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


@pytest.mark.parametrize("claimed", ["fail", "info"])
def test_micro_operations_of_another_type_than_their_transactions_are_refused(
    run: RunDirectory, claimed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.history / "micro_ops-0000.parquet"
    table = pq.read_table(path)
    types = table["type"].to_pylist()
    at = types.index("ok")
    types[at] = claimed
    column = table.schema.get_field_index("type")
    forged = pa.array(types, table.schema.field("type").type)
    pq.write_table(table.set_column(column, table.schema.field("type"), forged), path)
    resealed(run)

    txn = table["txn"].to_pylist()[at]
    refused(run, f"expected the type ok of transaction {txn} in .*, found {claimed}", capsys)


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


def explained(run: RunDirectory) -> Path:
    """Give ``run`` a table of what its nodes used; returns its path."""
    rows = [dict.fromkeys(USAGE.names) | {"at_ns": 10**9, "node": "n1", "memory_bytes": 1 << 20}]
    path = run.root / USAGE_FILE
    pq.write_table(pa.Table.from_pylist(rows, schema=USAGE), path)
    resealed(run, explaining={USAGE_FILE: sha256(path)})
    return path


@pytest.mark.parametrize("damage", ["flipped", "emptied", "cut", "gone"])
def test_damage_of_what_decides_nothing_is_told_and_decides_nothing(
    run: RunDirectory, damage: str
) -> None:
    whole = analyze(run, executor="local")
    path = explained(run)
    assert analyze(run, executor="local") == whole
    assert read_usage(run, read_manifest(run)).num_rows == 1

    content = path.read_bytes()
    flipped = content[:40] + bytes([content[40] ^ 4]) + content[41:]
    path.write_bytes({"flipped": flipped, "emptied": b"", "cut": content[:-1]}.get(damage, b""))
    if damage == "gone":
        path.unlink()
    verdict = analyze(run, executor="local")

    assert verdict.outcome == whole.outcome
    (told,) = (reason for reason in verdict.reasons if USAGE_FILE in reason)
    assert told.startswith("usage.parquet explains nothing here: expected ")
    assert read_usage(run, read_manifest(run)).num_rows == 0
    assert execute(["report", str(run.root)]) == 0


def test_what_explains_is_exported_and_imported_as_that(run: RunDirectory, tmp_path: Path) -> None:
    explained(run)
    target = tmp_path / "history.edn"
    assert execute(["export", "--edn", str(run.root), "--output", str(target)]) == 0

    store = tmp_path / "runs"
    assert execute(["check", str(target), "--executor", "local", "--runs-dir", str(store)]) == 0
    (imported,) = RunStore(store).runs()

    manifest = read_manifest(imported)
    assert set(manifest.explaining or ()) == {USAGE_FILE}
    assert USAGE_FILE not in manifest.checksums
    assert read_usage(imported, manifest).num_rows == 1


def test_evidence_that_is_called_an_explanation_is_refused(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = dict(read_manifest(run).checksums)
    states = sums.pop("states.parquet")
    manifest = msgspec.structs.replace(read_manifest(run), checksums=sums)
    write_manifest(run, msgspec.structs.replace(manifest, explaining={"states.parquet": states}))

    refused(run, "explaining: expected of usage.parquet, found 'states.parquet'", capsys)


def test_figures_of_another_run_or_another_hand_are_none(run: RunDirectory, tmp_path: Path) -> None:
    other = RunDirectory(Path(shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "other")))
    for each in (run, other):
        assert execute(["check", str(each.root), "--executor", "local", "--no-report"]) in (0, 1)
    kept = figures_path(run).read_bytes()
    assert read_figures(run) is not None

    changed = kept.replace(b'"ok_per_s": ', b'"ok_per_s": 1')
    for content in (changed, figures_path(other).read_bytes()):
        assert content != kept
        figures_path(run).write_bytes(content)
        assert read_figures(run) is None
    keep_figures(run)
    assert figures_path(run).read_bytes() == kept
