"""Transactions as flat arrays: what every inference over single keys, and over all, looks up in."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from checkers.columns import TYPES, Bools, Ints, codes, ints
from checkers.kernel import Setting, Tables
from checkers.lists.proof import committed

PREPARED = "transactions.arrays"
"""The table that ``prepared`` gives. Where it is there, ``transactions_of`` costs nothing."""


@attrs.frozen(kw_only=True, eq=False)
class Transactions:
    """Row i is transaction i. ``start`` and ``finish`` are nanoseconds of the run (or what an
    import made of the order of its records). ``real_time`` says that the transaction's kind
    promises to see what was acknowledged before it, ``committed`` that it answered ok or is proven
    to have committed.
    """

    type: NDArray[np.int8]
    process: Ints
    start: Ints
    finish: Ints
    real_time: Bools
    committed: Bools


def transactions_of(tables: Tables, setting: Setting) -> Transactions:
    """The transactions as arrays."""
    if PREPARED in tables:
        return _unpacked(tables[PREPARED])
    table = tables["transactions"]
    kinds = tuple(p.kind for p in setting.declaration.promises if p.staleness_s is not None)
    type_ = codes(table, "type", TYPES)
    return Transactions(
        type=type_,
        process=ints(table, "process"),
        start=ints(table, "invoke_ns"),
        finish=ints(table, "complete_ns"),
        real_time=codes(table, "kind", kinds) < 0,
        committed=committed(type_, tables),
    )


def prepared(tables: Tables, setting: Setting) -> pa.Table:
    """``transactions_of`` as a table of ``PREPARED``: worked out once for many kernels and cells,
    since it goes over all transactions and a cell mentions few.
    """
    txns = transactions_of(tables, setting)
    columns = {
        name: column.view(np.int8) if column.dtype == np.bool_ else column
        for name, column in attrs.asdict(txns, recurse=False).items()
    }
    return pa.table(columns)


def _unpacked(table: pa.Table) -> Transactions:
    columns = {name: table.column(name).chunk(0).to_numpy() for name in table.column_names}
    for name in ("real_time", "committed"):
        columns[name] = columns[name].view(np.bool_)
    return Transactions(**columns)
