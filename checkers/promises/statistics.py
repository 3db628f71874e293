"""Counts of operations by their outcome; decides nothing."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import TYPES, codes, ints
from harness.protocols.checker import Exchange, Kernel, Lookup, Part, Setting, Tables


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


@attrs.frozen
class Statistics:
    """Transactions and micro-operations by f, type, kind, node and error code."""

    name: str = "statistics"
    kernels: tuple[Kernel, ...] = (STEPS,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """The counts; latencies are the report's."""
        transactions = tables["transactions"]
        type_ = codes(transactions, "type", TYPES)
        statistics: dict[str, Any] = {
            "transactions": {name: int((type_ == i).sum()) for i, name in enumerate(TYPES)},
            "f": steps_by_f(tables),
            "kind": _by(transactions, "kind"),
            "node": _by(transactions, "node"),
            "error": _errors(transactions),
        }
        return Part(statistics=statistics)


def _by(transactions: pa.Table, column: str) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    counted = transactions.group_by([column, "type"]).aggregate([([], "count_all")])
    for row in counted.to_pylist():
        totals.setdefault(row[column], dict.fromkeys(TYPES, 0))[row["type"]] = row["count_all"]
    return dict(sorted(totals.items()))


def _errors(transactions: pa.Table) -> dict[str, dict[str, int]]:
    wrong = transactions.filter(pa.array(np.asarray(transactions.column("error").is_valid())))
    return _by(wrong, "error")


CHECKER = Statistics()
