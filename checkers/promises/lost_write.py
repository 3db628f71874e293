"""The checker of lost writes: an acknowledged append must be in some read that starts later.

An append is *lost* when it was acknowledged, its key was read after that, and no such read shows
it; or when none of a run's final reads does. A read that lacks an append which another read after
the acknowledgement shows is stale, and the cycles report it (G-single-item-realtime). A key without
later reads says nothing: its appends are *unverified*, and counted. Reads of kinds that promise no
real time are no evidence of a loss.
"""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.explain.attribution import ACKNOWLEDGED, attribute, explain
from checkers.explain.resets import Cause, causes, columns
from checkers.explain.words import of_lost_write
from checkers.lists.checker import INFERENCE
from checkers.lists.lost import FINAL_READS
from harness.exit_codes import Outcome
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Setting, Tables
from harness.protocols.finding import Finding, RecordedOperation
from harness.protocols.models import LOST_WRITE, promises_real_time
from harness.protocols.verdict import Anomaly

_SINCE = "since_ns"


@attrs.frozen
class LostWrite:
    """Lost writes, each with the fault that explains it and the resets where there were any."""

    name: str = "lost-write"
    kernels: tuple[Kernel, ...] = (INFERENCE,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return the lost writes by key and value, and the number of appends that no read verified.

        A run of ours reads every key at its end: an append that is unverified then makes the
        outcome ``unknown``.
        """
        counts = tables["lost-write.counts"]
        statistics = {
            name: pc.sum(counts.column(name)).as_py() for name in ("acknowledged", "unverified")
        }
        lost = tables["lost-write.lost"].sort_by([("key", "ascending"), ("value", "ascending")])
        begun = tables["transactions"]["invoke_ns"].take(lost["writer"])
        lost = attribute(lost.append_column(_SINCE, begun), tables["faults"])
        found = causes(lost, tables["faults"], tables["events"])
        statistics["lost"] = lost.num_rows
        if by_resets := sum(cause is not None for cause in found):
            statistics["lost_across_a_reset"] = by_resets
        anomalies = {}
        if lost.num_rows:
            shown = lost.slice(0, EXAMPLES_MAX).to_pylist()
            operations = lookup.operations(tuple(t for row in shown for t in _transactions(row)))
            # ``found`` is of all rows, ``shown`` of the first ones.
            told = zip(shown, found, strict=False)
            examples = tuple(
                _finding(row, cause, operations, tables["faults"]) for row, cause in told
            )
            anomalies[LOST_WRITE] = Anomaly(count=lost.num_rows, examples=examples)
        doubts = _doubts(statistics["unverified"], setting)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=doubts,
            statistics={"lost_writes": statistics},
            tables={"lost_writes": _beside(lost.drop_columns(_SINCE), columns(found))},
        )


def _doubts(unverified: int, setting: Setting) -> tuple[str, ...]:
    read_at_the_end = FINAL_READS in dict(setting.phases)
    if not (unverified and read_at_the_end and promises_real_time(setting.model)):
        return ()
    return (f"{unverified} acknowledged appends are unverified: no ok read came after them",)


def _beside(table: pa.Table, more: pa.Table) -> pa.Table:
    return pa.Table.from_arrays(
        table.columns + more.columns, schema=pa.schema([*table.schema, *more.schema])
    )


def _transactions(row: dict[str, Any]) -> tuple[int, ...]:
    """Return the writer, the last reader that saw its value, and the one that missed it."""
    return tuple(row[name] for name in ("writer", "seen", "read") if row[name] is not None)


def _finding(
    row: dict[str, Any],
    cause: Cause | None,
    operations: dict[int, RecordedOperation],
    faults: pa.Table,
) -> Finding:
    txns = _transactions(row)
    explained = explain(row, ACKNOWLEDGED, faults)
    return Finding(
        text=of_lost_write(row["key"], row["value"], row["seen"]),
        txns=txns,
        keys=(row["key"],),
        value=row["value"],
        ack_ns=row["ack_ns"],
        read_ns=row["read_ns"],
        operations=tuple(operations[txn] for txn in txns),
        explained_by=explained if cause is None else cause.told(explained, row["ack_ns"]),
    )


CHECKER = LostWrite()
