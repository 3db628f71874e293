"""Cutting a split into cells changes what is in memory at once, and nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from checker_generator import generate
from checker_histories import setting, source

from checkers.engine.arrays import cells
from checkers.engine.kernel_output import apply, merge
from checkers.engine.transactions import PREPARED, prepared
from checkers.lists import contradictions, lost_writes, versions, within_transaction
from checkers.lists.checker import INFERENCE
from harness.protocols.checker import KEY_COLUMNS, Tables


def micro_ops(keys: list[int]) -> pa.Table:
    elements = pa.array([[1, 2, 3]] * len(keys), pa.list_(pa.int64()))
    return pa.table({"txn": np.arange(len(keys)), "key": keys, "elements": elements})


def test_every_key_is_whole_in_one_cell_and_rows_keep_their_order() -> None:
    table = micro_ops([key % 50 for key in range(1000)])
    parts = list(cells(table, 400))
    held = [set(part.column("key").to_pylist()) for part in parts]
    assert len(parts) == 10
    assert sum(map(len, held)) == len(set().union(*held)) == 50
    for part in parts:
        txns = part.column("txn").to_pylist()
        assert txns == sorted(txns)
    assert sorted(t for part in parts for t in part.column("txn").to_pylist()) == [*range(1000)]


def test_keys_of_every_spacing_fall_into_all_cells() -> None:
    for spacing in (1, 1000, 2**32, 2**40 + 2**8):
        parts = list(cells(micro_ops([place * spacing for place in range(4096)]), 2048))
        sizes = [part.num_rows for part in parts]
        assert len(sizes) == 8
        assert max(sizes) < 2 * 4096 / 8, spacing


def test_what_fits_into_one_cell_is_not_touched() -> None:
    table = micro_ops([1, 2])
    assert [*cells(table)] == [table]
    assert [*cells(table.slice(0, 0))] == [table.slice(0, 0)]


def test_cells_give_what_the_whole_gives() -> None:
    for seed in range(20):
        history = source(generate(seed))
        tables: Tables = {"transactions": history.transactions.select(KEY_COLUMNS)}
        tables = {**tables, PREPARED: prepared(tables, setting())}
        whole = apply([INFERENCE], {**tables, "micro_ops": history.micro_ops(0)}, setting())
        parts = merge(
            apply([INFERENCE], {**tables, "micro_ops": cell}, setting())
            for cell in cells(history.micro_ops(0), 10)
        )
        for name, table in whole.tables.items():
            assert rows(name, parts.tables[name]) == rows(name, table), (seed, name)


@pytest.mark.parametrize("size", [1, 4])
def test_elements_compared_a_few_at_a_time_give_what_all_at_once_give(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = set[str]()
    for seed in range(60):
        history = source(generate(seed))
        tables: Tables = {"transactions": history.transactions.select(KEY_COLUMNS)}
        tables = {**tables, PREPARED: prepared(tables, setting())}
        tables = {**tables, "micro_ops": history.micro_ops(0)}
        whole = apply([INFERENCE], tables, setting())
        with monkeypatch.context() as few:
            for module in (contradictions, lost_writes, versions, within_transaction):
                few.setattr(module, "CHUNK", size)
            parts = apply([INFERENCE], tables, setting())
        assert parts.tables == whole.tables, seed
        told |= set(whole.tables["lists.findings"]["anomaly"].to_pylist())
    assert {"internal", "incompatible-order"} <= told


def rows(name: str, table: pa.Table) -> object:
    """Counts are a row a cell, to be added; of all else the rows count."""
    if name.endswith(".counts"):
        return {column: sum(table.column(column).to_pylist()) for column in table.column_names}
    return table.sort_by([(column, "ascending") for column in table.column_names])
