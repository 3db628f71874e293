"""Counts of operations by their outcome; decides nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import TYPES, ints
from harness.protocols.checker import Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.conflicts import conflicts
from harness.protocols.setting import Setting


def count_steps(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``statistics.steps``: micro-operations by f and by how their transaction ended."""
    micro_ops = tables["micro_ops"]
    ended = tables["transactions"].column("type").take(pa.array(ints(micro_ops, "txn")))
    steps = pa.table({"f": micro_ops.column("f"), "type": ended})
    return {"statistics.steps": steps.group_by(["f", "type"]).aggregate([([], "count_all")])}


STEPS = Kernel(name="statistics", exchange=Exchange.KEY, run=count_steps, numbers={})


def steps_by_f(tables: Tables) -> dict[str, dict[str, int]]:
    """Return {f: {type: micro-operations}} from the rows of ``STEPS``; every type is there."""
    totals: dict[str, dict[str, int]] = {}
    for row in tables["statistics.steps"].to_pylist():
        counts = totals.setdefault(row["f"], dict.fromkeys(TYPES, 0))
        counts[row["type"]] += row["count_all"]
    return dict(sorted(totals.items()))


CONFLICT = "conflict"
ENDS = (TYPES[0], CONFLICT, *TYPES[1:])
"""How a transaction may have ended: a conflict is no ``fail`` of the service."""


@attrs.frozen
class Statistics:
    """Transactions by how they ended, kind, node and error code; micro-operations by f and type."""

    name: str = "statistics"
    kernels: tuple[Kernel, ...] = (STEPS,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """The counts; latencies are the report's."""
        ended = pa.concat_tables(
            [_ended(piece, setting) for piece in lookup.pieces(("kind", "node", "error", "type"))]
        )
        statistics: dict[str, Any] = {
            "transactions": dict.fromkeys(ENDS, 0) | _counted(ended, "end"),
            "f": steps_by_f(tables),
            "kind": _by(ended, "kind"),
            "node": _by(ended, "node"),
            "error": _by(ended.filter(pc.is_valid(ended["error"])), "error"),
        }
        return Part(statistics=statistics)


def _ended(piece: pa.Table, setting: Setting) -> pa.Table:
    """Return how many transactions there are of each kind, node, error and end."""
    gave_way = conflicts(setting.declaration, piece)
    ends = pc.if_else(gave_way, CONFLICT, piece["type"].cast(pa.string()))
    names = ["kind", "node", "error"]
    # As strings: of dictionaries each piece has its own.
    columns = [piece[name].cast(pa.string()) for name in names]
    ended = pa.table([*columns, ends], names=[*names, "end"])
    return ended.group_by([*names, "end"], use_threads=False).aggregate([([], "count_all")])


def _counted(ended: pa.Table, column: str) -> dict[str, int]:
    counts = ended.group_by(column).aggregate([("count_all", "sum")]).to_pylist()
    return {row[column]: row["count_all_sum"] for row in counts}


def _by(ended: pa.Table, column: str) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for row in ended.group_by([column, "end"]).aggregate([("count_all", "sum")]).to_pylist():
        totals.setdefault(row[column], dict.fromkeys(ENDS, 0))[row["end"]] = row["count_all_sum"]
    return dict(sorted(totals.items()))


CHECKER = Statistics()
