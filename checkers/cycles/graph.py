"""The graph of transactions, in arrays: dependencies, and the orders of processes and of time.

Vertices 0 to n - 1 are the transactions. Two kinds of helpers follow, so that the graph stays
linear in the history:

* the *timeline*, one vertex a completion in the order of completions. A transaction leads to its
  own, each leads to the next, and the last completion before an invocation leads to what was
  invoked: reachability is exactly "completed before the other was invoked".
* *gates*, where every reader of a key's last known version precedes everyone who appended beyond
  it. A chain of gates leads to the first i appenders, another to the last: a reader that is
  appender i itself enters below and above its own place, so that nobody precedes himself.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from checkers.columns import FAIL, OK, Bools, Ints, group_starts, ints
from checkers.kernel import Tables
from checkers.lists.edges import APPENDER
from checkers.lists.edges import Kind as Dependency
from checkers.lists.ops import Transactions


class Kind(enum.IntEnum):
    """Kinds of edges. ``TIME`` and ``GATE`` go on from helpers, within one realtime or rw step."""

    WW = Dependency.WW
    WR = Dependency.WR
    RW = Dependency.RW
    PROCESS = 3
    REALTIME = 4
    TIME = 5
    GATE = 6


@attrs.frozen(kw_only=True, eq=False)
class Edges:
    """Rows (source, target, kind); ``row`` is the edge's in ``Graph.details``, -1 for none."""

    source: Ints
    target: Ints
    kind: Ints
    row: Ints

    @classmethod
    def of(cls, source: Ints, target: Ints, kind: Ints | int, row: Ints | int = -1) -> Edges:
        """Edges whose kind or row may be one for all."""
        n = len(source)
        kinds, rows = (np.broadcast_to(np.asarray(x, dtype=np.int64), n) for x in (kind, row))
        return cls(source=source, target=target, kind=kinds, row=rows)

    def pick(self, which: Bools | Ints) -> Edges:
        """The edges chosen by a mask or by positions."""
        return Edges(**{name: getattr(self, name)[which] for name in _COLUMNS})

    @classmethod
    def joined(cls, parts: Sequence[Edges]) -> Edges:
        """All edges of ``parts``."""
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS})


_COLUMNS = ("source", "target", "kind", "row")


@attrs.frozen(kw_only=True, eq=False)
class Graph:
    """All edges; ``details`` holds the key and element of dependencies, by ``Edges.row``."""

    txns: int
    vertices: int
    edges: Edges
    details: pa.Table


def graph_of(tables: Tables, txns: Transactions) -> Graph:
    """The graph of what ``lists.edges``, ``lists.tails`` and the transactions tell."""
    n = len(txns.type)
    details = pa.concat_tables(
        [tables[name].select(["key", "element"]) for name in ("lists.edges", "lists.tails")]
    )
    dependencies = _dependencies(tables["lists.edges"], txns.committed)
    first_row = tables["lists.edges"].num_rows
    gates, vertices = _gates(tables["lists.tails"], txns.committed, n, first_row)
    timeline, vertices = _timeline(txns, vertices)
    return Graph(
        txns=n,
        vertices=vertices,
        edges=Edges.joined([dependencies, gates, _processes(txns), timeline]),
        details=details,
    )


def _dependencies(table: pa.Table, committed: Bools) -> Edges:
    kind, source, target = (ints(table, name) for name in ("kind", "source", "target"))
    reader = np.where(kind == Kind.WR, target, source)
    rows = np.flatnonzero((kind == Kind.WW) | committed[reader])
    return Edges.of(source[rows], target[rows], kind[rows], rows)


def _gates(tails: pa.Table, committed: Bools, first: int, first_row: int) -> tuple[Edges, int]:
    """rw edges from the readers of last versions to the appenders beyond; the next free vertex."""
    role, txn, key = (ints(tails, name) for name in ("role", "txn", "key"))
    below = np.flatnonzero((role != APPENDER) & committed[txn])
    beyond = np.flatnonzero(role == APPENDER)
    beyond = beyond[np.lexsort((txn[beyond], key[beyond]))]
    starts = group_starts(key[beyond])
    group = np.cumsum(starts) - 1
    low = np.flatnonzero(starts)
    size = np.diff(np.append(low, len(beyond)))
    place = np.arange(len(beyond)) - low[group] if len(beyond) else group
    down, up = first + np.arange(len(beyond)), first + len(beyond) + np.arange(len(beyond))
    inner, outer = place > 0, place < size[group] - 1 if len(beyond) else place > 0
    helpers = [
        Edges.of(down, txn[beyond], Kind.GATE, first_row + beyond),
        Edges.of(up, txn[beyond], Kind.GATE, first_row + beyond),
        Edges.of(down[inner], down[inner] - 1, Kind.GATE),
        Edges.of(up[outer], up[outer] + 1, Kind.GATE),
    ]
    keys = key[beyond][low]
    at = np.searchsorted(keys, key[below])
    met = at < len(keys)
    met[met] = keys[at[met]] == key[below][met]
    below, at = below[met], at[met]
    entries = (
        [helpers[0].pick(np.zeros(0, dtype=np.int64))]
        if not len(below)
        else _entries(txn[below], at, low, size, txn[beyond], (down, up))
    )
    return Edges.joined([*helpers, *entries]), first + 2 * len(beyond)


def _entries(
    reader: Ints, group: Ints, low: Ints, size: Ints, appender: Ints, gates: tuple[Ints, Ints]
) -> list[Edges]:
    """How each reader enters the gates of its key: all of them but its own."""
    down, up = gates
    n = int(max(reader.max(), appender.max())) + 1
    # Appenders are sorted within their group, so one code sorts them all.
    code = np.repeat(np.arange(len(low)), size) * n + appender
    at = np.minimum(np.searchsorted(code, group * n + reader), len(code) - 1)
    own = code[at] == group * n + reader
    last = low[group] + size[group] - 1
    lower = own & (at > low[group])
    upper = own & (at < last)
    return [
        Edges.of(reader[~own], down[last[~own]], Kind.RW),
        Edges.of(reader[lower], down[at[lower] - 1], Kind.RW),
        Edges.of(reader[upper], up[at[upper] + 1], Kind.RW),
    ]


def _processes(txns: Transactions) -> Edges:
    """To each transaction from the last ok one that its process ran before."""
    rows = np.flatnonzero((txns.type != FAIL) & txns.real_time)
    rows = rows[np.lexsort((rows, txns.start[rows], txns.process[rows]))]
    last_ok = np.maximum.accumulate(np.where(txns.type[rows] == OK, np.arange(len(rows)), -1))
    after, last_ok = rows[1:], last_ok[:-1]
    before = rows[np.maximum(last_ok, 0)]
    pick = (last_ok >= 0) & (txns.process[before] == txns.process[after])
    return Edges.of(before[pick], after[pick], Kind.PROCESS)


def _timeline(txns: Transactions, first: int) -> tuple[Edges, int]:
    """The timeline's edges, and the next free vertex."""
    done = np.flatnonzero((txns.type == OK) & txns.real_time)
    done = done[np.lexsort((done, txns.finish[done]))]
    points = first + np.arange(len(done))
    later = np.flatnonzero((txns.type != FAIL) & txns.real_time)
    last = np.searchsorted(txns.finish[done], txns.start[later], side="left") - 1
    later, last = later[last >= 0], last[last >= 0]
    edges = [
        Edges.of(done, points, Kind.REALTIME),
        Edges.of(points[:-1], points[1:], Kind.TIME),
        Edges.of(points[last], later, Kind.TIME),
    ]
    return Edges.joined(edges), first + len(done)


def components(edges: Edges, vertices: int) -> Ints:
    """A number for each vertex: equal in the same strongly connected component."""
    ones = np.ones(len(edges.source), dtype=np.int8)
    matrix = coo_array((ones, (edges.source, edges.target)), shape=(vertices, vertices))
    label = connected_components(matrix.tocsr(), directed=True, connection="strong")[1]
    return np.asarray(label, dtype=np.int64)


def cyclic(edges: Edges, vertices: int) -> Bools:
    """Which edges lie on a cycle, that is inside a component."""
    label = components(edges, vertices)
    inside: Bools = label[edges.source] == label[edges.target]
    return inside
