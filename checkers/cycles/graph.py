"""The graph of transactions, in arrays: dependencies, and the orders of processes and of time.

Vertices 0 to n - 1 are the transactions. Two kinds of helpers follow, so that the graph stays
linear in the history:

* the *timeline*, one vertex a completion in the order of completions. A transaction leads to its
  own, each leads to the next, and the last completion before an invocation leads to the invoked
  transaction: reachability is exactly "completed before the other was invoked".
* *gates*, where every reader of a key's last known version precedes every appender beyond
  it. A chain of gates leads to the first i appenders, another to the last: a reader that is
  appender i itself enters below and above its own place, so that no transaction precedes itself.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from checkers.cycles.dependencies import APPENDER
from checkers.cycles.dependencies import Kind as Dependency
from checkers.engine.arrays import FAIL, OK, Bools, Ints, group_starts, ints
from checkers.engine.transactions import Transactions


class Kind(enum.IntEnum):
    """Kinds of edges. ``TIME`` and ``GATE`` go on from helpers, within one realtime or rw step; so
    do the last two, within an rw step that rests on an order of processes or of time.
    """

    WW = Dependency.WW
    WR = Dependency.WR
    RW = Dependency.RW
    PROCESS = 3
    REALTIME = 4
    TIME = 5
    GATE = 6
    RW_PROCESS = Dependency.RW_PROCESS
    RW_REALTIME = Dependency.RW_REALTIME


GATES = (Kind.GATE, Kind.RW_PROCESS, Kind.RW_REALTIME)
"""Kinds of edges that go on within an rw step."""


@attrs.frozen(kw_only=True, eq=False)
class Edges:
    """Rows (source, target, kind); ``row`` is the edge's in ``Graph.details``, -1 for none."""

    source: Ints
    target: Ints
    kind: Ints
    row: Ints

    @classmethod
    def of(cls, source: Ints, target: Ints, kind: Ints | int, row: Ints | int = -1) -> Edges:
        """Build edges; their kind or row may be one value for all of them."""
        n = len(source)
        kinds, rows = (np.broadcast_to(np.asarray(x, dtype=np.int64), n) for x in (kind, row))
        return cls(source=source, target=target, kind=kinds, row=rows)

    def pick(self, which: Bools | Ints) -> Edges:
        """Return the edges that a mask or positions choose."""
        return Edges(**{name: getattr(self, name)[which] for name in _COLUMNS})

    @classmethod
    def joined(cls, parts: Sequence[Edges]) -> Edges:
        """Concatenate ``parts``."""
        return cls(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS})


_COLUMNS = ("source", "target", "kind", "row")


@attrs.frozen(kw_only=True, eq=False)
class Tails:
    """Rows of ``lists.tails`` that count; ``row`` as in ``Edges``."""

    appends: Bools
    txn: Ints
    key: Ints
    row: Ints

    def pick(self, which: Bools | Ints) -> Tails:
        """Return the rows that a mask or positions choose."""
        return Tails(**{n: getattr(self, n)[which] for n in ("appends", "txn", "key", "row")})


@attrs.frozen(kw_only=True, eq=False)
class Graph:
    """All edges of ``txns`` transactions and their helpers."""

    txns: int
    vertices: int
    edges: Edges


def dependencies_of(table: pa.Table, committed: Bools) -> Edges:
    """Return the rows of ``lists.edges`` that count: of reads, those of committed transactions."""
    kind, source, target = (_narrow(table, name) for name in ("kind", "source", "target"))
    # Of a wr the target read, of an rw the source; a ww has no reader.
    reader = np.where(kind == Kind.WR, target, source)
    rows = np.flatnonzero((kind == Kind.WW) | committed[reader])
    # Picking copies, and the edges are most of what a long history holds in memory.
    if len(rows) == len(kind):
        return Edges(source=source, target=target, kind=kind, row=rows)
    return Edges(source=source[rows], target=target[rows], kind=kind[rows], row=rows)


def tails_of(table: pa.Table, committed: Bools, first_row: int) -> Tails:
    """Return the rows of ``lists.tails`` that count; the first one's detail is ``first_row``."""
    txn, appends = ints(table, "txn"), ints(table, "role") == APPENDER
    rows = np.flatnonzero(appends | committed[txn])
    return Tails(
        appends=appends[rows], txn=txn[rows], key=ints(table, "key")[rows], row=first_row + rows
    )


def _narrow(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column in its stored width: as 64 bits, the edges of long histories
    fill the memory.
    """
    return np.asarray(table.column(name).to_numpy())


def graph_of(dependencies: Edges, tails: Tails, txns: Transactions) -> Graph:
    """Build the graph of ``txns``, whose vertices are the positions of the transactions."""
    gates, vertices = gates_of(tails, len(txns.type))
    timeline, vertices = _timeline(txns, vertices)
    parts, vertices = _by_order(dependencies, vertices)
    return Graph(
        txns=len(txns.type),
        vertices=vertices,
        edges=_narrowed([*parts, gates, processes_of(txns), timeline]),
    )


def _by_order(dependencies: Edges, first: int) -> tuple[list[Edges], int]:
    """Return ``dependencies``, each rw that rests on an order as one into a helper and one out of
    it, which only a cycle with that order may pass; and the next free vertex.
    """
    resting = np.isin(dependencies.kind, GATES)
    if not resting.any():
        return [dependencies], first
    some = dependencies.pick(resting)
    helper = first + np.arange(len(some.source))
    parts = [
        dependencies.pick(~resting),
        Edges.of(some.source, helper, Kind.RW),
        Edges.of(helper, some.target, some.kind, some.row),
    ]
    return parts, first + len(helper)


def _narrowed(parts: Sequence[Edges]) -> Edges:
    """Concatenate ``parts`` in columns as narrow as those of tables: of a component of a million
    transactions the edges are most of what is in memory.
    """
    columns: dict[str, Any] = {
        name: np.concatenate(
            [getattr(part, name) for part in parts],
            dtype=np.int8 if name == "kind" else np.int32,
            casting="unsafe",
        )
        for name in _COLUMNS
    }
    return Edges(**columns)


def gates_of(tails: Tails, first: int) -> tuple[Edges, int]:
    """Return rw edges from the readers of last versions to the appenders beyond, and the next free
    vertex.
    """
    txn, key, row = tails.txn, tails.key, tails.row
    below = np.flatnonzero(~tails.appends)
    beyond = np.flatnonzero(tails.appends)
    beyond = beyond[np.lexsort((txn[beyond], key[beyond]))]
    starts = group_starts(key[beyond])
    group = np.cumsum(starts) - 1
    low = np.flatnonzero(starts)
    size = np.diff(np.append(low, len(beyond)))
    place = np.arange(len(beyond)) - low[group] if len(beyond) else group
    down, up = first + np.arange(len(beyond)), first + len(beyond) + np.arange(len(beyond))
    inner, outer = place > 0, place < size[group] - 1 if len(beyond) else place > 0
    helpers = [
        Edges.of(down, txn[beyond], Kind.GATE, row[beyond]),
        Edges.of(up, txn[beyond], Kind.GATE, row[beyond]),
        Edges.of(down[inner], down[inner] - 1, Kind.GATE),
        Edges.of(up[outer], up[outer] + 1, Kind.GATE),
    ]
    keys = key[beyond][low]
    at = np.searchsorted(keys, key[below])
    met = at < len(keys)
    met[met] = keys[at[met]] == key[below][met]
    below, at = below[met], at[met]
    # ``_entries`` takes maxima, which an empty array does not have.
    entries = (
        [helpers[0].pick(np.zeros(0, dtype=np.int64))]
        if not len(below)
        else _entries(txn[below], at, low, size, txn[beyond], (down, up))
    )
    return Edges.joined([*helpers, *entries]), first + 2 * len(beyond)


def _entries(
    reader: Ints, group: Ints, low: Ints, size: Ints, appender: Ints, gates: tuple[Ints, Ints]
) -> list[Edges]:
    """Return the edges by which each reader enters the gates of its key: all of
    them but its own.
    """
    down, up = gates
    n = int(max(reader.max(), appender.max())) + 1
    # Appenders are sorted within their group, so one code sorts them all.
    code = np.repeat(np.arange(len(low)), size) * n + appender
    # Beyond the last code nothing is equal; clamped, the comparison says so without an index error.
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


def processes_of(txns: Transactions) -> Edges:
    """Return edges to each transaction from the last ok one that its process ran before: among
    those that promise real time, and through those that promise the order of a session alone.
    """
    timely = _following(txns, txns.real_time)
    if np.array_equal(txns.in_session, txns.real_time):
        return timely
    # A cycle in real time may not pass those, so that the order without them stands beside.
    every = _following(txns, txns.in_session)
    through = ~(txns.real_time[every.source] & txns.real_time[every.target])
    return Edges.joined([timely, every.pick(through)])


def _following(txns: Transactions, among: Bools) -> Edges:
    rows = np.flatnonzero((txns.type != FAIL) & among)
    rows = rows[np.lexsort((rows, txns.start[rows], txns.process[rows]))]
    # A transaction of unknown outcome may take effect after later ones: only an ok precedes them.
    last_ok = np.maximum.accumulate(np.where(txns.type[rows] == OK, np.arange(len(rows)), -1))
    after, last_ok = rows[1:], last_ok[:-1]
    before = rows[np.maximum(last_ok, 0)]
    # The running maximum goes on from one process to the next, whose first rows it must not reach.
    pick = (last_ok >= 0) & (txns.process[before] == txns.process[after])
    return Edges.of(before[pick], after[pick], Kind.PROCESS)


def _timeline(txns: Transactions, first: int) -> tuple[Edges, int]:
    """Return the timeline's edges, and the next free vertex."""
    done = np.flatnonzero((txns.type == OK) & txns.real_time)
    done = done[np.lexsort((done, txns.finish[done]))]
    points = first + np.arange(len(done))
    later = np.flatnonzero((txns.type != FAIL) & txns.real_time)
    # "left": a completion at the very time of an invocation does not precede it.
    last = np.searchsorted(txns.finish[done], txns.start[later], side="left") - 1
    later, last = later[last >= 0], last[last >= 0]
    edges = [
        Edges.of(done, points, Kind.REALTIME),
        Edges.of(points[:-1], points[1:], Kind.TIME),
        Edges.of(points[last], later, Kind.TIME),
    ]
    return Edges.joined(edges), first + len(done)
