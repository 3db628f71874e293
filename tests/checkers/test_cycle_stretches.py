"""A history cut into stretches holds the cycles that it holds as a whole."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pytest
from checker_generator import generate
from checker_histories import setting, source

from checkers.cycles.cyclic_core import Core, Details
from checkers.cycles.graph import dependencies_of, tails_of
from checkers.cycles.stretches import core_by_stretches, readers_before
from checkers.engine import output
from checkers.engine.transactions import transactions_of
from checkers.lists.checker import INFERENCE
from checkers.lists.witness import WITNESSES
from harness.protocols.checker import Tables


def inferred(seed: int) -> Tables:
    history = source(generate(seed))
    given = output.run_by_key([WITNESSES, INFERENCE], history, setting())
    return {"transactions": history.transactions, **given.tables}


def core(tables: Tables, stretch: int) -> Core:
    txns = transactions_of(tables, setting())
    dependencies = dependencies_of(tables["lists.edges"], txns.committed)
    tails = tails_of(tables["lists.tails"], txns.committed, tables["lists.edges"].num_rows)
    return core_by_stretches(dependencies, tails, txns, Details.of(tables), stretch=stretch)


def components(found: Core) -> list[tuple[list[int], list[list[int]]]]:
    """Of each component its transactions, and the edges between them."""
    told = []
    for owner in range(found.owners):
        own = found.only(owner)
        source, target = (own.txn[x] for x in (own.edges.source, own.edges.target))
        edges = np.stack([source, target, own.edges.kind, own.edges.row], axis=1)
        txns = sorted(int(txn) for txn in own.txn if txn >= 0)
        told.append((txns, sorted(edges[(source >= 0) & (target >= 0)].tolist())))
    return told


@pytest.mark.parametrize("stretch", [1, 2])
def test_no_cycle_is_lost_or_made_by_cutting(stretch: int) -> None:
    cyclic = without_helpers_of_others = 0
    for seed in range(60):
        tables = inferred(seed)
        whole, parts = core(tables, 10**6), core(tables, stretch)
        assert components(parts) == components(whole), seed
        cyclic += whole.owners > 0
        without_helpers_of_others += parts.vertices < whole.vertices
    assert cyclic > 20
    assert without_helpers_of_others > 0


def test_a_history_whose_order_nothing_contradicts_needs_no_graph() -> None:
    txns = transactions_of(inferred(0), setting())
    forward = pa.table(
        {
            "kind": pa.array([0, 1, 2], pa.int8()),
            "source": pa.array([0, 1, 2], pa.int32()),
            "target": pa.array([1, 2, 3], pa.int32()),
            "key": [1, 1, 1],
            "element": [1, 1, 2],
        }
    )
    none = pa.table({"role": [0], "txn": [0], "key": [1], "element": [0]}).slice(0, 0)
    tables = {"lists.edges": forward, "lists.tails": none}
    txns = attrs.evolve(txns, start=np.sort(txns.start), finish=txns.finish + 10**6)
    found = core_by_stretches(
        dependencies_of(forward, txns.committed),
        tails_of(none, txns.committed, 3),
        txns,
        Details.of(tables),
        stretch=1,
    )
    assert (found.owners, found.vertices) == (0, 0)


def test_a_reader_precedes_appenders_but_not_itself() -> None:
    committed = np.ones(9, dtype=np.bool_)
    tails = pa.table({"role": [0, 1], "txn": [3, 3], "key": [1, 1]})
    assert readers_before(tails_of(tails, committed, 0)) == 0
    tails = pa.table({"role": [0, 1, 1], "txn": [3, 3, 4], "key": [1, 1, 1]})
    assert readers_before(tails_of(tails, committed, 0)) == 1
