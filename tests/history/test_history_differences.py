"""Columns of numbers that ascend are stored as differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.history import schema
from harness.history.parquet import ASCENDING, require_plausible, writer

ROWS = 30_000


def column(name: str, kind: pa.DataType) -> pa.Array:
    draw = np.random.default_rng(5)
    if name in ASCENDING:
        step = 0 if name == "txn" else 1_000_000
        return pa.array(np.arange(ROWS) * max(step, 1) + draw.integers(0, step + 1, ROWS), kind)
    if pa.types.is_integer(kind):
        return pa.array(draw.integers(0, 20, ROWS), kind)
    if pa.types.is_list(kind):
        return pa.array([list(range(n % 7)) for n in range(ROWS)], kind)
    return pa.array(["ok"] * ROWS, kind)


def test_times_take_three_bytes_and_read_back_equal(tmp_path: Path) -> None:
    for columns in (schema.TRANSACTIONS, schema.SPLIT):
        table = pa.table([column(f.name, f.type) for f in columns], schema=columns)
        path = tmp_path / "table.parquet"
        with writer(path, columns) as sink:
            sink.write_table(table)
        assert require_plausible(path).equals(columns, check_metadata=True)
        assert pq.read_table(path).equals(table)
        group = pq.ParquetFile(path).metadata.row_group(0)
        chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
        # As numbers of 64 bits, or in a dictionary of as many, it would be 5 to 8.
        assert chunks["invoke_ns"].total_compressed_size < 3 * ROWS
        assert chunks["txn"].total_compressed_size < ROWS / 10
        # What repeats stays in a dictionary: 20 processes take 5 bits.
        assert chunks["process"].total_compressed_size < ROWS
