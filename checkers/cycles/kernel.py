"""The kernel that finds cycles, once every key's dependencies are in one place."""

from __future__ import annotations

import pyarrow as pa

from checkers.columns import Ints
from checkers.cycles.classes import Class, classes_of
from checkers.cycles.core import Core, core_of
from checkers.cycles.graph import Graph, Kind, graph_of
from checkers.cycles.search import Step, shortest_cycle
from checkers.kernel import EXAMPLES_MAX, Exchange, Kernel, Setting, Tables
from checkers.lists.ops import Transactions, transactions_of

COUNTS = pa.schema([("anomaly", pa.string()), ("count", pa.int64())])
STEPS = pa.schema(
    [
        ("anomaly", pa.string()),
        ("cycle", pa.int64()),
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("source", pa.int64()),
        ("target", pa.int64()),
        ("key", pa.int64()),
        ("element", pa.int64()),
    ]
)
"""``kind`` is ww, wr, rw, process or realtime; key and element are those of dependencies."""


def find_cycles(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``cycles.counts``: components by kind of cycle; ``cycles.steps``: a shortest one of each of
    the first ``EXAMPLES_MAX`` components.
    """
    txns = transactions_of(tables, setting)
    graph = graph_of(tables, txns)
    core = core_of(graph)
    counts, steps = [], []
    for kind, owners in classes_of(core).items():
        counts.append({"anomaly": kind.name, "count": len(owners)})
        steps += _examples(graph, core, txns, kind, owners[:EXAMPLES_MAX])
    return {
        "cycles.counts": pa.Table.from_pylist(counts, schema=COUNTS),
        "cycles.steps": pa.Table.from_pylist(steps, schema=STEPS),
    }


def _examples(
    graph: Graph, core: Core, txns: Transactions, kind: Class, owners: Ints
) -> list[dict[str, object]]:
    rows = []
    for number, owner in enumerate(owners.tolist()):
        cycle = _turned(shortest_cycle(core, txns, kind, owner))
        for place, step in enumerate(cycle):
            row = {"anomaly": kind.name, "cycle": number, "step": place, "kind": _word(step)}
            row |= {"source": step.source, "target": step.target} | _detail(graph, step)
            rows.append(row)
    return rows


def _turned(cycle: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same cycle, beginning at its least transaction."""
    at = min(range(len(cycle)), key=lambda i: cycle[i].source)
    return cycle[at:] + cycle[:at]


def _word(step: Step) -> str:
    return Kind(step.kind).name.lower()


def _detail(graph: Graph, step: Step) -> dict[str, int]:
    if step.row < 0:
        return {}
    (row,) = graph.details.slice(step.row, 1).to_pylist()
    return {"key": row["key"], "element": row["element"]}


CYCLES = Kernel(name="cycles", exchange=Exchange.ONE_PLACE, run=find_cycles)
