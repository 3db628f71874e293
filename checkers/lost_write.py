"""The checker of lost writes: what was acknowledged must be in every read that starts later.

An append is *lost* when it was acknowledged and the last committed read of its key that was invoked
after the acknowledgement lacks it. A key without such a read says nothing: its appends are
*unverified*, and counted. Reads of kinds that promise no real time are no evidence.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.attribution import attribute, explain
from checkers.columns import OK, Ints, group_starts, spread
from checkers.kernel import (
    EXAMPLES_MAX,
    Exchange,
    Kernel,
    Lookup,
    Part,
    Setting,
    Tables,
)
from checkers.lists.ops import ListOps, list_ops
from checkers.models import promises_real_time
from checkers.resets import Cause, causes, columns
from checkers.words import of_lost_write
from harness.checking import Anomaly
from harness.outcome import Outcome

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


def find_lost(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``lost-write.lost``, and ``lost-write.counts``: acknowledged and unverified appends."""
    ops = list_ops(tables, setting)
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


@attrs.frozen
class LostWrite:
    """Lost writes, each with the fault that explains it, and with the reset where there was one."""

    name: str = "lost-write"
    kernels: tuple[Kernel, ...] = (Kernel(name="lost-write", exchange=Exchange.KEY, run=find_lost),)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """The lost writes by key and value, and how many appends nobody read back.

        A run of ours reads every key at its end: what is unverified then, nobody can vouch for.
        """
        counts = tables["lost-write.counts"]
        statistics = {
            name: pc.sum(counts.column(name)).as_py() for name in ("acknowledged", "unverified")
        }
        lost = tables["lost-write.lost"].sort_by([("key", "ascending"), ("value", "ascending")])
        lost = attribute(lost, tables["faults"])
        found = causes(lost, tables["faults"], tables["events"])
        statistics["lost"] = lost.num_rows
        if by_resets := sum(cause is not None for cause in found):
            statistics["lost_across_a_reset"] = by_resets
        anomalies = {}
        if lost.num_rows:
            shown = lost.slice(0, EXAMPLES_MAX).to_pylist()
            operations = lookup.operations(tuple(r[n] for r in shown for n in ("writer", "read")))
            told = zip(shown, found, strict=False)
            examples = tuple(_example(row, cause, operations) for row, cause in told)
            anomalies["lost-write"] = Anomaly(count=lost.num_rows, examples=examples)
        doubts = _doubts(statistics["unverified"], setting)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=doubts,
            statistics={"lost_writes": statistics},
            tables={"lost_writes": _beside(lost, columns(found))},
        )


def _doubts(unverified: int, setting: Setting) -> tuple[str, ...]:
    read_at_the_end = "final-reads" in dict(setting.phases)
    if not (unverified and read_at_the_end and promises_real_time(setting.model)):
        return ()
    return (f"{unverified} acknowledged appends are unverified: no ok read came after them",)


def _beside(table: pa.Table, more: pa.Table) -> pa.Table:
    return pa.Table.from_arrays(
        table.columns + more.columns, schema=pa.schema([*table.schema, *more.schema])
    )


def _example(
    row: dict[str, Any], cause: Cause | None, operations: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    txns = [row["writer"], row["read"]]
    example = {
        "text": of_lost_write(row["key"], row["value"]),
        "txns": txns,
        "keys": [row["key"]],
        "value": row["value"],
        "ack_ns": row["ack_ns"],
        "read_ns": row["read_ns"],
        "operations": [operations[txn] for txn in txns],
    }
    explained = explain(row, "acknowledged")
    if cause is not None:
        reset = cause.told()
        by = explained.setdefault("explained_by", {"text": "acknowledged before a reset"})
        by |= {"reset": reset, "text": f"{by['text']}; then {reset['text']}"}
    return example | explained


CHECKER = LostWrite()
