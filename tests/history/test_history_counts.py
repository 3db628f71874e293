"""What a sealer loses is noticed: records are counted before there are tables of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from history_parts import append, complete, invoke, new_run, read, small_history, write

from harness.errors import HarnessBug, MalformedHistory
from harness.history import parquet, tables
from harness.history.evidence import sizes
from harness.history.load import load
from harness.history.manifest import RUNNING, SEALED, read_manifest, write_manifest
from harness.history.parquet import ParquetSink
from harness.history.regular_files import sha256
from harness.history.run_directory import RecordCounts, RunDirectory
from harness.history.seal import recover, seal
from harness.importers.jepsen.imported_history import import_run


def unsealed(root: Path) -> RunDirectory:
    run = new_run(root)
    write(run, small_history())
    return run


def rows(run: RunDirectory) -> tuple[int, int]:
    history = load(run)
    return history.transactions().num_rows, history.micro_ops().num_rows


def test_a_sealed_run_tells_how_much_was_recorded(tmp_path: Path) -> None:
    run = unsealed(tmp_path)
    manifest = seal(run, partition_of=None, splits=2)

    assert manifest.recorded == RecordCounts(transactions=4, micro_ops=6)
    assert rows(run) == (4, 6)


def test_a_prefix_tells_how_much_of_it_was_recorded(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    # Of an operation without an outcome every step that was asked for may have taken effect.
    write(
        run,
        [
            invoke(0, append(1, 1), append(2, 1), read(3)),
            invoke(1, append(1, 2), process=1),
            complete(2, 1, append(1, 2), process=1),
        ],
    )

    assert recover(run).recorded == RecordCounts(transactions=2, micro_ops=4)
    assert rows(run) == (2, 4)


@pytest.mark.parametrize("name", ["transactions", "micro_ops-0000", "micro_ops-0001"])
def test_a_sealer_that_loses_a_row_seals_nothing_and_keeps_the_chunks(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = unsealed(tmp_path)
    chunks = {path.name: path.read_bytes() for path in run.chunks.iterdir()}
    put = ParquetSink.put

    def losing(sink: ParquetSink, table: str, piece: pa.Table, **how: Any) -> None:
        put(sink, table, piece.slice(1) if table == name else piece, **how)

    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "put", losing)
        with pytest.raises(HarnessBug, match="of 4 transactions and 6 micro-operations, found"):
            seal(run, partition_of=None, splits=2)

    assert read_manifest(run).state == RUNNING
    assert {path.name: path.read_bytes() for path in run.chunks.iterdir()} == chunks
    assert seal(run, partition_of=None, splits=2).state == SEALED
    assert rows(run) == (4, 6)


def test_a_late_row_that_its_merging_loses_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    monkeypatch.setattr(tables, "BATCH_ROWS", 4)
    monkeypatch.setattr(tables, "HELD_ROWS", 8)
    records = [invoke(0, append(1, 0), process=0)]
    for number in range(1, 31):
        records.append(invoke(2 * number, append(1, number), process=1))
        records.append(complete(2 * number + 1, 2 * number, append(1, number), process=1))
    write(run, [*records, complete(100, 0, append(1, 0), process=0)])
    monkeypatch.setattr(parquet, "_woven", lambda source, late: iter([source.read()]))

    with pytest.raises(HarnessBug, match="of 31 transactions and 31 micro-operations, found 30"):
        seal(run, partition_of=None, splits=1)


def cut(run: RunDirectory, name: str, rows: int) -> None:
    """Take the last ``rows`` from table ``name``, and make the sums anew."""
    path = run.history / f"{name}.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows - rows), path)
    manifest = read_manifest(run)
    sums = {each: sha256(run.root / each) for each in manifest.checksums}
    changed = msgspec.structs.replace(manifest, checksums=sums, sizes=sizes(run, sums))
    write_manifest(run, changed)


def test_tables_with_less_than_was_recorded_are_refused(tmp_path: Path) -> None:
    run = unsealed(tmp_path)
    seal(run, partition_of=None, splits=1)
    cut(run, "micro_ops-0000", 2)

    with pytest.raises(MalformedHistory, match=r"of 6 micro-operations, as were rec.*found 4 of 4"):
        load(run)


def test_a_history_of_jepsen_is_counted_as_it_is_read(tmp_path: Path) -> None:
    file, run = tmp_path / "history.edn", RunDirectory(tmp_path / "run")
    file.write_text(
        "{:type :invoke :process 0 :f :txn :value [[:append :a 1] [:r 2 nil]]}\n"
        "{:type :ok :process 0 :f :txn :value [[:append :a 1] [:r 2 []]]}\n"
        "{:type :invoke :process 0 :f :txn :value [[:append :a 2]]}\n"
    )
    import_run(file, run)

    assert read_manifest(run).recorded == RecordCounts(transactions=2, micro_ops=3)
    held = [p for p in run.history.glob("micro_ops-*") if pq.read_metadata(p).num_rows]
    cut(run, held[0].stem, 1)
    with pytest.raises(MalformedHistory, match="2 transactions of 3 micro-operations, as were"):
        load(run)
