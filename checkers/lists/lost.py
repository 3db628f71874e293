"""Acknowledged appends that the last read of their key lacks; the checker is
``checkers.lost_write``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.columns import OK, Ints, group_starts, spread
from checkers.kernel import Tables
from checkers.lists.ops import ListOps

LOST = pa.schema(
    [
        ("key", pa.int64()),
        ("value", pa.int64()),
        ("partition", pa.int32()),
        ("writer", pa.int64()),
        ("invoke_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("read", pa.int64()),
        ("read_ns", pa.int64()),
    ]
)
"""``read`` is the transaction whose read misses the value, ``read_ns`` when it was invoked."""


def lost_writes(ops: ListOps, tables: Tables) -> dict[str, pa.Table]:
    """``lost-write.lost``, and ``lost-write.counts``: acknowledged and unverified appends."""
    last = _last_reads(ops)
    acked = np.flatnonzero(ops.txns.type[ops.appends.txn] == OK)
    witness = last[ops.appends.k[acked]]
    started = ops.txns.start[ops.reads.txn[witness]] if len(ops.reads.txn) else witness
    judged = (witness >= 0) & (started > ops.txns.finish[ops.appends.txn[acked]])
    present = _present(ops, last[last >= 0])
    lost = acked[judged & ~present[acked]]
    counts = pa.table({"acknowledged": [len(acked)], "unverified": [int((~judged).sum())]})
    return {
        "lost-write.lost": _table(tables, ops, lost, last[ops.appends.k[lost]]),
        "lost-write.counts": counts,
    }


def _last_reads(ops: ListOps) -> Ints:
    """Per key the committed real-time read that was invoked last; -1 for none.

    Of those invoked at the same time, the last transaction's last.
    """
    reads, txns = ops.reads, ops.txns
    last = np.full(len(ops.keys), -1)
    rows = np.flatnonzero((txns.type[reads.txn] == OK) & txns.real_time[reads.txn])
    if len(rows):
        started = txns.start[reads.txn[rows]]
        groups = np.flatnonzero(group_starts(reads.k[rows]))
        latest = np.zeros(len(ops.keys), dtype=np.int64)
        latest[reads.k[rows[groups]]] = np.maximum.reduceat(started, groups)
        # Reads are sorted by (key, transaction, position), and the last assignment stays.
        rows = rows[started == latest[reads.k[rows]]]
        last[reads.k[rows]] = rows
    return last


def _present(ops: ListOps, read: Ints) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each append, whether one of the reads ``read`` (one a key) shows it."""
    row, place = spread(ops.reads.length[read])
    element = ops.elements[ops.reads.start[read][row] + place]
    append = ops.writer(ops.reads.k[read][row], element)
    present = np.zeros(len(ops.appends.txn), dtype=np.bool_)
    present[append[append >= 0]] = True
    return present


def _table(tables: Tables, ops: ListOps, lost: Ints, read: Ints) -> pa.Table:
    writer = ops.appends.txn[lost]
    reader = ops.reads.txn[read]
    times = tables["transactions"]
    columns: dict[str, Any] = {
        "key": pa.array(ops.keys[ops.appends.k[lost]], pa.int64()),
        "value": pa.array(ops.appends.element[lost], pa.int64()),
        "partition": _partitions(tables["micro_ops"], ops.keys[ops.appends.k[lost]]),
        "writer": pa.array(writer, pa.int64()),
        "invoke_ns": times.column("invoke_ns").take(pa.array(writer)),
        "ack_ns": times.column("complete_ns").take(pa.array(writer)),
        "read": pa.array(reader, pa.int64()),
        "read_ns": times.column("invoke_ns").take(pa.array(reader)),
    }
    return pa.table(columns).cast(LOST)


def _partitions(micro_ops: pa.Table, keys: Ints) -> pa.Array:
    """The partition of each key, null where the store does not tell."""
    if not len(keys) or "partition" not in micro_ops.column_names:
        return pa.nulls(len(keys), pa.int32())
    at = pc.index_in(pa.array(keys, pa.int64()), value_set=micro_ops.column("key").combine_chunks())
    return pc.take(micro_ops.column("partition").combine_chunks(), at).cast(pa.int32())
