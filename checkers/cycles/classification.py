"""Which kinds of cycles a graph of dependencies holds, and a shortest cycle of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from checkers.cycles.anomaly_kinds import CLASSES, G_NONADJACENT, G_SINGLE, REVERSES, Class, allowed
from checkers.cycles.components import cyclic
from checkers.cycles.cycle_search import SIMPLE_MAX, Step, shortest_cycle
from checkers.cycles.cyclic_core import HELPER, Core, Details, among, core_of, on_cycles
from checkers.cycles.graph import Edges, Kind, dependencies_of, graph_of, tails_of
from checkers.cycles.walks import (
    closed_by_one_rw,
    closed_without_adjacent_rw,
    closed_without_rw,
)
from checkers.engine.arrays import Bools, Ints, distinct
from checkers.engine.split import named
from checkers.engine.transactions import Transactions, transactions_of
from harness.errors import InvariantError
from harness.protocols.checker import EXAMPLES_MAX, Tables
from harness.protocols.setting import Setting

# The limit of states that searches for simple cycles of one kind visit, all components together.
SIMPLE_ALL_MAX = 20 * SIMPLE_MAX
COUNTS = pa.schema([("anomaly", pa.string()), ("count", pa.int64())])
# ``kind`` is ww, wr, rw, process or realtime. Key and element are those of dependencies: the
# element that the target appended (ww, rw) or read last (wr; null where it came after the source's
# append). ``cycle`` is the least transaction of the component that the cycle is of.
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
NUMBERS = {"cycles.steps": ("cycle", "source", "target")}
Row = dict[str, Any]


def classes_of(core: Core, txns: Transactions) -> dict[Class, Ints]:
    """Return for each kind the components (``Core.owner``) that hold it, ascending."""
    found: dict[Class, Ints] = {}
    nothing = np.zeros(0, dtype=np.int64)
    for kind in CLASSES:
        open_ = np.ones(core.owners, dtype=np.bool_)
        # A component that holds a kind which implies this one is not counted here again.
        for lesser in found:
            if kind.implied_by(lesser):
                open_[found[lesser]] = False
        holders = _holders(core, txns, kind, open_)
        if len(holders):
            found[kind] = holders
    rest = np.setdiff1d(np.arange(core.owners), np.concatenate([nothing, *found.values()]))
    return found | ({REVERSES[-1]: rest} if len(rest) else {})


def _holders(core: Core, txns: Transactions, kind: Class, open_: Bools) -> Ints:
    """Return the components among ``open_`` with a simple cycle of ``kind``."""
    edges = core.edges.pick(allowed(core, txns, kind) & open_[core.owner[core.edges.source]])
    if not len(edges.source):
        return edges.source
    # With fewer kinds of edges the components of all edges fall apart: less lies on a cycle.
    edges = edges.pick(cyclic(edges, core.vertices))
    if kind.base == G_NONADJACENT:
        return _without_adjacent_rw(core, txns, kind, edges)
    if kind.base == G_SINGLE:
        vertices = closed_by_one_rw(edges, core.vertices, core.owner)
    # Components with a single or a non-adjacent rw are not ``open_``: those kinds imply this one.
    elif kind.base > G_SINGLE:
        vertices = edges.source[edges.kind == Kind.RW]
    else:
        vertices = edges.source
    return distinct(core.owner[vertices], core.owners)


def _without_adjacent_rw(core: Core, txns: Transactions, kind: Class, edges: Edges) -> Ints:
    walked = distinct(core.owner[closed_without_adjacent_rw(edges, core.vertices)], core.owners)
    # Beside a cycle without rw, a walk may be no simple cycle (see ``simple``): only a search
    # tells.
    tangled = np.isin(walked, core.owner[closed_without_rw(edges, core.vertices)])
    holds = ~tangled
    left = SIMPLE_ALL_MAX
    for place in np.flatnonzero(tangled).tolist():
        # With no states left the search ends at once, and says that there is no cycle.
        search = shortest_cycle(core.only(int(walked[place])), txns, kind, min(left, SIMPLE_MAX))
        holds[place] = search.cycle is not None
        left -= search.states
    return walked[holds]


def find_cycles(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return, of a stretch, ``cycles.counts``: components by kind of cycle; ``cycles.steps``: a
    shortest cycle of each of the first ``EXAMPLES_MAX`` components.
    """
    return cycles_among(tables, setting, on_cycles(tables, transactions_of(tables, setting)))


def cycles_among(tables: Tables, setting: Setting, here: Ints) -> dict[str, pa.Table]:
    """Return the same of the components that the transactions ``here`` are of. What is beside them
    takes no part, so that it does not matter how much of a history is looked at.
    """
    counts: list[Row] = []
    steps: list[Row] = []
    if len(here):
        counts, steps = _cycles(among(tables, here), setting)
    found = {
        "cycles.counts": pa.Table.from_pylist(counts, schema=COUNTS),
        "cycles.steps": pa.Table.from_pylist(steps, schema=STEPS),
    }
    return {name: named(table, NUMBERS.get(name, ()), here) for name, table in found.items()}


def _cycles(tables: Tables, setting: Setting) -> tuple[list[Row], list[Row]]:
    txns = transactions_of(tables, setting)
    details = Details.of(tables)
    dependencies = dependencies_of(tables["lists.edges"], txns.committed)
    tails = tails_of(tables["lists.tails"], txns.committed, tables["lists.edges"].num_rows)
    core = core_of(graph_of(dependencies, tails, txns), details)
    counts, steps = [], []
    for kind, owners in classes_of(core, txns).items():
        counts.append({"anomaly": kind.name, "count": len(owners)})
        steps += _examples(details, core, txns, kind, owners[:EXAMPLES_MAX])
    return counts, steps


def _examples(
    details: Details, core: Core, txns: Transactions, kind: Class, owners: Ints
) -> list[Row]:
    rows = []
    for owner in owners.tolist():
        alone = core.only(owner)
        least = int(alone.txn[alone.txn != HELPER].min())
        kinds = REVERSES if kind.reverse else (kind,)
        cycles = (shortest_cycle(alone, txns, each).cycle for each in kinds)
        cycle = next((cycle for cycle in cycles if cycle is not None), None)
        if cycle is None:
            raise InvariantError(f"component {owner} holds {kind.name}, but none was found in it")
        steps = [_row(details, step) for step in _turned(cycle)]
        for place, step in enumerate(_folded(steps, kind)):
            rows.append({"anomaly": kind.name, "cycle": least, "step": place} | step)
    return rows


def _folded(steps: list[Row], kind: Class) -> list[Row]:
    """Return the same cycle with fewer steps: those along the versions of one key become one step.

    An rw step is not extended where that could put it beside another rw, which is another kind.
    """
    able = {("ww", "ww"), ("ww", "wr")}
    if kind.base != G_NONADJACENT:
        able.add(("rw", "ww"))
    folded = steps[:1]
    for step in steps[1:]:
        last = folded[-1]
        one_key = last["key"] is not None and last["key"] == step["key"]
        # A fold must not lead from a transaction to itself.
        if one_key and (last["kind"], step["kind"]) in able and last["source"] != step["target"]:
            word = "rw" if last["kind"] == "rw" else step["kind"]
            element = None if word == "wr" else step["element"]
            folded[-1] = last | {"kind": word, "target": step["target"], "element": element}
        else:
            folded.append(step)
    return folded


def _turned(cycle: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the same cycle, beginning at its least transaction."""
    at = min(range(len(cycle)), key=lambda i: cycle[i].source)
    return cycle[at:] + cycle[:at]


def _row(details: Details, step: Step) -> Row:
    key = element = None
    if step.row >= 0:
        (detail,) = details.table.slice(step.row, 1).to_pylist()
        key, element = detail["key"], detail["element"]
    return {
        "kind": Kind(step.kind).name.lower(),
        "source": step.source,
        "target": step.target,
        "key": key,
        "element": element,
    }
