"""Dependencies between transactions as tables: what kernels that infer them give to that of cycles.

Products of two groups go through a *gate*, a vertex of its own (see ``graph``): the readers of a
key's last known version precede all its writers beyond.
"""

from __future__ import annotations

import enum

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import FAIL, OK, Bools, Ints, group_starts
from checkers.engine.transactions import Transactions


class Kind(enum.IntEnum):
    """Kinds of dependencies, those that accuse most first. The last two are rw whose order of
    versions rests on that of a process or of time. The numbers between are those of orders
    (``graph.Kind``).
    """

    WW = 0
    WR = 1
    RW = 2
    RW_PROCESS = 7
    RW_REALTIME = 8


# ``element`` is what was read (wr) or what the target wrote (ww, rw). ``untimed``: real time
# alone does not say that the source precedes the target (null: not known). Without the other rows
# the graph has the same components.
EDGES = pa.schema(
    [
        # Narrow columns: as 64 bits, the edges of long histories fill the memory.
        ("kind", pa.int8()),
        ("source", pa.int32()),
        ("target", pa.int32()),
        ("key", pa.int64()),
        ("element", pa.int64()),
        ("untimed", pa.bool_()),
    ]
)

# Readers (role 0) of a key's last known version, and appenders or other writers (role 1) beyond it.
# ``untimed``: of a reader, that real time does not put it before all appenders of the key; of an
# appender, not behind all untimed readers.
TAILS = pa.schema(
    [
        ("role", pa.int8()),
        ("txn", pa.int32()),
        ("key", pa.int64()),
        ("element", pa.int64()),
        ("untimed", pa.bool_()),
    ]
)
READER, APPENDER = 0, 1


def edge_rows(
    txns: Transactions,
    kind: Kind,
    source: Ints,
    target: Ints,
    key: Ints,
    element: Ints,
) -> pa.Table:
    """Return rows of ``EDGES``: those between different transactions of which none failed. What
    failed takes no part in an order: where a read shows it nevertheless, that is G1a.
    """
    type_ = txns.type
    pick = (source != target) & (type_[source] != FAIL) & (type_[target] != FAIL)
    source, target = source[pick], target[pick]
    columns = [
        pa.array(np.full(len(source), int(kind)), pa.int8()),
        pa.array(source, pa.int32()),
        pa.array(target, pa.int32()),
        pa.array(key[pick], pa.int64()),
        pa.array(element[pick], pa.int64()),
        pa.array(end_of(txns, source) >= begin_of(txns, target)),
    ]
    return pa.Table.from_arrays(columns, schema=EDGES)


@attrs.frozen(kw_only=True, eq=False)
class Ends:
    """Transactions at the end of the known versions of keys: ``k`` are positions among the keys."""

    txn: Ints
    k: Ints
    element: Ints


def tail_rows(txns: Transactions, keys: Ints, readers: Ends, appenders: Ends) -> pa.Table:
    """Return rows of ``TAILS``, one a transaction, key and role: of keys that have both."""
    early, late = _untimed(txns, len(keys), readers, appenders)
    parts = ((READER, readers, early), (APPENDER, appenders, late))
    return pa.concat_tables([_tails(keys, *part) for part in parts])


def _tails(keys: Ints, role: int, ends: Ends, untimed: Bools) -> pa.Table:
    order = np.lexsort((ends.element, ends.txn, ends.k))
    order = order[group_starts(ends.k[order], ends.txn[order])]
    columns = [
        pa.array(np.full(len(order), role), pa.int8()),
        pa.array(ends.txn[order], pa.int32()),
        pa.array(keys[ends.k[order]], pa.int64()),
        pa.array(ends.element[order], pa.int64()),
        pa.array(untimed[order]),
    ]
    return pa.Table.from_arrays(columns, schema=TAILS)


def _untimed(txns: Transactions, keys: int, readers: Ends, appenders: Ends) -> tuple[Bools, Bools]:
    """Return which readers and appenders time alone does not order."""
    end, begin = end_of(txns, readers.txn), begin_of(txns, appenders.txn)
    first = np.full(keys, _NEVER)
    np.minimum.at(first, appenders.k, begin)
    early: Bools = end >= first[readers.k]
    last = np.full(keys, -_NEVER)
    np.maximum.at(last, readers.k[early], end[early])
    return early, begin <= last[appenders.k]


_NEVER = np.iinfo(np.int64).max


def begin_of(txns: Transactions, which: Ints) -> Ints:
    """Return the times before which others precede the transactions ``which``: at no time where
    real time does not bind one.
    """
    bound = txns.real_time[which] & (txns.type[which] != FAIL)
    return np.where(bound, txns.start[which], -_NEVER)


def end_of(txns: Transactions, which: Ints) -> Ints:
    """Return the times after which the transactions ``which`` precede others."""
    bound = txns.real_time[which] & (txns.type[which] == OK)
    return np.where(bound, txns.finish[which], _NEVER)
