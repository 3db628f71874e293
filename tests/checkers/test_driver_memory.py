"""What the driver of an analysis holds does not grow with the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.engine.source import Source
from checkers.engine.stretches import IN_ORDER, STRETCH, begins_in_order

GROUP_ROWS, FEW, MANY = 32_768, 8, 64


def history(directory: Path, groups: int) -> Source:
    """Transactions in ``groups`` row groups."""
    path = directory / f"{groups}.parquet"
    draw = np.random.default_rng(1)
    schema = pa.schema(
        [(name, pa.int64()) for name in ("txn", "invoke_ns", "complete_ns")] + [("type", pa.utf8())]
    )
    with pq.ParquetWriter(path, schema) as sink:
        for group in range(groups):
            txn = np.arange(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
            invoke = txn * 1000 + draw.integers(0, 1000, GROUP_ROWS)
            columns = [txn, invoke, invoke + draw.integers(1, 10**9, GROUP_ROWS)]
            sink.write_table(
                pa.table([*map(pa.array, columns), ["ok"] * GROUP_ROWS], schema=schema)
            )
    return Source.of_files(path, ())


def held_bytes(source: Source) -> int:
    """The most that Arrow holds while the order of all transactions is looked at."""
    before, most = pa.total_allocated_bytes(), 0

    def watched() -> Iterator[pa.Table]:
        nonlocal most
        for piece in source.pieces(IN_ORDER):
            most = max(most, pa.total_allocated_bytes() - before)
            yield piece

    found = begins_in_order(watched(), STRETCH)
    assert found is not None
    assert len(found) == -(-source.count // STRETCH)
    return most


def test_a_look_at_all_transactions_holds_a_part_of_them(tmp_path: Path) -> None:
    few, many = (held_bytes(history(tmp_path, groups)) for groups in (FEW, MANY))

    assert many < 1.5 * few
