"""Cycles of dependencies between transactions, named and explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from checkers.columns import Ints, ints
from checkers.graph import Edges, components, cyclic, shortest_path
from checkers.kernel import EXAMPLES_MAX, Lookup, Setting, Tables
from checkers.lists.edges import Kind
from harness.checking import Anomaly


def cycle_anomalies(tables: Tables, setting: Setting, lookup: Lookup) -> dict[str, Anomaly]:
    """G0 and G1c: cycles of ww edges, and of ww and wr edges."""
    table = tables["lists.edges"]
    edges = Edges(
        source=ints(table, "source"),
        target=ints(table, "target"),
        kind=ints(table, "kind"),
        row=np.arange(table.num_rows),
    )
    vertices = tables["transactions"].num_rows
    found: dict[str, Anomaly] = {}
    for name, kinds, needed in (
        ("G0", (Kind.WW,), Kind.WW),
        ("G1c", (Kind.WW, Kind.WR), Kind.WR),
    ):
        allowed = edges.pick(np.isin(edges.kind, kinds))
        label = components(allowed, vertices)
        inside = cyclic(allowed, label)
        owners = np.unique(label[inside.source[inside.kind == needed]])
        if len(owners):
            examples = [
                _example(inside.pick(label[inside.source] == owner), needed, table, lookup)
                for owner in owners[:EXAMPLES_MAX]
            ]
            found[name] = Anomaly(count=len(owners), examples=tuple(examples))
    return found


def _example(inside: Edges, needed: Kind, table: pa.Table, lookup: Lookup) -> dict[str, Any]:
    """A shortest cycle through the first edge of the kind needed."""
    order = np.lexsort((inside.row, inside.kind, inside.target, inside.source))
    edges = inside.pick(order)
    following: dict[int, list[tuple[int, int]]] = {}
    for i, (source, target) in enumerate(zip(edges.source, edges.target, strict=True)):
        following.setdefault(int(source), []).append((i, int(target)))
    cycles = []
    for first in np.flatnonzero(edges.kind == needed):
        path = shortest_path(following, int(edges.target[first]), int(edges.source[first]))
        if path is not None:
            cycles.append([int(first), *path])
    cycle = min(cycles, key=len)
    return _told(edges.pick(np.asarray(cycle)), table, lookup)


def _told(cycle: Edges, table: pa.Table, lookup: Lookup) -> dict[str, Any]:
    rows: Ints = cycle.row
    steps = table.take(pa.array(rows)).to_pylist()
    txns = tuple(int(t) for t in cycle.source)
    operations = lookup.operations(txns)
    text = "; ".join(_step(step) for step in steps)
    return {
        "text": f"a cycle: {text}",
        "txns": list(txns),
        "keys": sorted({step["key"] for step in steps}),
        "operations": [operations[txn] for txn in txns],
    }


def _step(step: dict[str, Any]) -> str:
    source, target, key, element = (step[n] for n in ("source", "target", "key", "element"))
    if step["kind"] == Kind.WW:
        return f"T{target} appended {element} to key {key} after an append of T{source}"
    return f"T{target} read {element} in key {key}, which T{source} appended"
