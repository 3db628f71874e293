"""The part of a graph that lies on cycles: the only part that is searched; small in a healthy
history.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.cycles.components import components
from checkers.cycles.graph import Edges, Graph, Tails, dependencies_of, graph_of, tails_of
from checkers.engine.arrays import Bools, Ints, distinct, group_starts, ints
from checkers.engine.transactions import OBSERVED_TABLE, Transactions
from harness.protocols.checker import Tables

HELPER = -1


def untimed_of(tables: Tables, txns: Transactions) -> tuple[Edges, Tails]:
    """Return the dependencies that real time alone does not give: with them the graph has the same
    components, and fewer edges.
    """
    edges, tails = tables["lists.edges"], tables["lists.tails"]
    dependencies = dependencies_of(edges, txns.committed)
    ends = tails_of(tails, txns.committed, 0)
    return dependencies.pick(untimed_rows(edges)[dependencies.row]), ends.pick(
        untimed_rows(tails)[ends.row]
    )


def untimed_rows(table: pa.Table) -> Bools:
    """Tell which rows may say what time alone does not: those of which it is not known, too."""
    column = pc.fill_null(table.column("untimed"), True)
    return np.asarray(column.to_numpy(), dtype=np.bool_)


def on_cycles(tables: Tables, txns: Transactions) -> Ints:
    """Return the transactions that lie on cycles, ascending."""
    graph = graph_of(*untimed_of(tables, txns), txns)
    label = components(graph.edges, graph.vertices)
    inside = label[graph.edges.source] == label[graph.edges.target]
    found = distinct(graph.edges.source[inside], graph.vertices)
    return found[found < graph.txns]


def among(tables: Tables, here: Ints) -> dict[str, pa.Table]:
    """Return ``tables`` with the transactions ``here`` alone, ascending, numbered anew from 0 in
    the same order.
    """
    size = tables["transactions"].num_rows
    if len(here) == size:
        return dict(tables)
    place = np.full(size, -1)
    place[here] = np.arange(len(here))
    found = {"transactions": tables["transactions"].take(pa.array(here)).combine_chunks()}
    for name, columns in _NUMBERS.items():
        if name in tables:
            found[name] = _renumbered_rows(tables[name], columns, place)
    return {**tables, **found}


_NUMBERS = {
    "lists.edges": ("source", "target"),
    "lists.tails": ("txn",),
    OBSERVED_TABLE: ("writer",),
}


def _renumbered_rows(table: pa.Table, columns: tuple[str, ...], place: Ints) -> pa.Table:
    numbers = {name: place[ints(table, name)] for name in columns}
    inside = np.all([number >= 0 for number in numbers.values()], axis=0)
    rows = table.filter(pa.array(inside))
    for name, number in numbers.items():
        field = table.schema.field(name)
        at = table.column_names.index(name)
        rows = rows.set_column(at, field, pa.array(number[inside]).cast(field.type))
    return rows


@attrs.frozen(kw_only=True, eq=False)
class Details:
    """The key and element of each dependency, by ``Edges.row``."""

    table: pa.Table

    @classmethod
    def of(cls, tables: Tables) -> Details:
        """The rows of ``lists.edges``, then those of ``lists.tails``."""
        names = ("lists.edges", "lists.tails")
        parts = [tables[name].select(["key", "element"]) for name in names]
        return cls(table=pa.concat_tables(parts).combine_chunks())

    def column(self, name: str, row: Ints) -> Ints:
        """Return the keys or elements of ``row``; 0 where that is -1."""
        if not self.table.num_rows:
            return row
        return np.where(row >= 0, ints(self.table, name)[np.maximum(row, 0)], 0)


@attrs.frozen(kw_only=True, eq=False)
class Core:
    """The edges inside components, on vertices numbered anew.

    ``txn`` is each vertex's transaction or ``HELPER``; ``owner`` numbers the components of vertices
    from 0 in the order of their least transaction. Edges are sorted, so that a choice among them
    does not depend on the order in which they were found; those of component i begin at
    ``first[i]``.
    """

    edges: Edges
    txn: Ints
    owner: Ints
    first: Ints

    @property
    def owners(self) -> int:
        """The number of components."""
        return len(self.first) - 1

    @property
    def vertices(self) -> int:
        """The number of vertices."""
        return len(self.txn)

    def only(self, owner: int) -> Core:
        """Return component ``owner`` alone, on vertices numbered anew in the same order."""
        if self.owners == 1:
            return self
        edges = self.edges.pick(np.arange(self.first[owner], self.first[owner + 1]))
        old = distinct(edges.source, self.vertices)
        source, target = (
            _renumbered(old, ends, self.vertices) for ends in (edges.source, edges.target)
        )
        return Core(
            edges=attrs.evolve(edges, source=source, target=target),
            txn=self.txn[old],
            owner=np.zeros(len(old), dtype=np.int64),
            first=np.asarray([0, len(edges.source)]),
        )


def _renumbered(old: Ints, ends: Ints, size: int) -> Ints:
    """Return the places of ``ends`` in ``old``, ascending numbers of 0 to before ``size``."""
    place = np.empty(size, dtype=np.int64)
    place[old] = np.arange(len(old))
    found: Ints = place[ends]
    return found


def _sorted_edges(columns: tuple[Ints, ...], owner: Ints) -> Ints:
    """Return the order of edges by owner, source, target, kind, key and element: by one number
    each, since few differ in the last three alone.
    """
    source, target, *rest = columns
    n = len(owner)
    rank = np.empty(n, dtype=np.int64)
    rank[np.argsort(owner, kind="stable")] = np.arange(n)
    code = rank[source] * n + target
    order = np.argsort(code, kind="stable")
    again = ~group_starts(code[order])
    again[:-1] |= again[1:]
    tied = np.flatnonzero(again)
    among = order[tied]
    kind, key, element = (column[among] for column in rest)
    order[tied] = among[np.lexsort((element, key, kind, code[among]))]
    return order


def core_of(graph: Graph, details: Details) -> Core:
    """Return the part of ``graph`` that lies on cycles."""
    label = components(graph.edges, graph.vertices)
    inside = graph.edges.pick(label[graph.edges.source] == label[graph.edges.target])
    # Helpers have higher numbers than transactions and are numbered alike by every executor.
    # A vertex inside a component is the source of an edge there.
    old = distinct(inside.source, graph.vertices)
    source, target = (
        _renumbered(old, ends, graph.vertices) for ends in (inside.source, inside.target)
    )
    key, element = (details.column(name, inside.row) for name in ("key", "element"))
    # Labels depend on the algorithm that found the components; their least vertices do not.
    first = np.empty(graph.vertices, dtype=np.int64)
    # Backwards, so that the least of each component stays.
    first[label[old[::-1]]] = np.arange(len(old))[::-1]
    leaders = first[label[old]]
    owner = (np.cumsum(leaders == np.arange(len(old))) - 1)[leaders]
    order = _sorted_edges((source, target, inside.kind, key, element), owner)
    return Core(
        edges=Edges(
            source=source[order],
            target=target[order],
            kind=inside.kind[order],
            row=inside.row[order],
        ),
        txn=np.where(old < graph.txns, old, HELPER),
        owner=owner,
        first=np.searchsorted(owner[source[order]], np.arange(int(owner.max(initial=-1)) + 2)),
    )
