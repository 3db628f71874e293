"""The kernel that finds cycles: of a stretch at once, or by windows where it can't be cut.

A window's *timeline* has a point for each completion in it, those of transactions that began in
earlier windows included. It begins and ends with a *clock*, which a window shares with its
neighbour: all that is over before the clock precedes all that begins behind it.

Vertices of the whole history have names: a transaction its number; others one of ``_LATE`` (the
completion of a transaction in a later window), ``_GATE`` (of a key whose last readers and appenders
lie in several windows), ``_CLOCK`` (of a window) and ``_INNER`` (of a contracted window).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa

from checkers.cycles.backward_edges import leads_back
from checkers.cycles.classification import NUMBERS, cycles_among, find_cycles
from checkers.cycles.components import components
from checkers.cycles.cyclic_core import untimed_of, untimed_rows
from checkers.cycles.graph import Edges, Kind, gates_of, processes_of, tails_of
from checkers.cycles.window_paths import Timeline, contracted
from checkers.engine.arrays import FAIL, OK, Bools, Ints, distinct, group_starts, ints
from checkers.engine.transactions import Transactions, transactions_of
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting
from harness.protocols.windows import (
    CROSSING,
    CYCLIC,
    LABELS,
    LATE,
    MEMBERS,
    OUTLASTING,
    STEPS,
    Window,
)

_LATE, _GATE, _CLOCK, _INNER = 1 << 40, 1 << 42, 1 << 48, 1 << 50
# Bits of a number within a split or a window.
_WIDTH = 32
_EVER = np.iinfo(np.int64).max


@attrs.frozen
class ByWindows:
    """How cycles are found window by window; see ``Windows``."""

    def spanning(self, tables: Tables, length: int, split: int) -> pa.Table:
        """Return the dependencies between windows that time does not give, those of last versions
        by gates.
        """
        edges, tails = (
            tables[name].filter(pa.array(untimed_rows(tables[name])))
            for name in ("lists.edges", "lists.tails")
        )
        source, target = ints(edges, "source"), ints(edges, "target")
        apart = source // length != target // length
        tails = tails.filter(
            pa.array(_in_several(ints(tails, "key"), ints(tails, "txn") // length))
        )
        every = np.ones(int(ints(tails, "txn").max(initial=-1)) + 1, dtype=np.bool_)
        gates, _ = gates_of(tails_of(tails, every, 0), _GATE + (split << _WIDTH))
        return _pairs([source[apart], gates.source], [target[apart], gates.target])

    def outlasting(self, transactions: pa.Table, setting: Setting, end_ns: int | None) -> pa.Table:
        """Return the first transaction, those that end after their window, and those that precede
        or follow one of their process in another.
        """
        txns = transactions_of({"transactions": transactions}, setting)
        rows = np.zeros(len(txns.type), dtype=np.bool_)
        rows[:1] = True
        if end_ns is not None:
            rows |= (txns.type == OK) & txns.real_time & (txns.finish >= end_ns)
        for bound in (txns.real_time, txns.in_session):
            rows[_ends_of_processes(txns, bound)] = True
        return transactions.filter(pa.array(rows))

    def borders(
        self, spanning: pa.Table, outlasting: pa.Table, windows: Sequence[Window], setting: Setting
    ) -> dict[str, pa.Table]:
        """Return the crossing dependencies and steps of processes, and the transactions that end in
        a later window than theirs.
        """
        number = ints(outlasting, "txn")
        txns = transactions_of({"transactions": outlasting}, setting)
        ends = np.asarray([_EVER if w.end_ns is None else w.end_ns for w in windows])
        open_ = (txns.type == OK) & txns.real_time
        late = np.flatnonzero(open_ & (txns.finish >= ends[_places(windows, number)]))
        sessions = processes_of(txns)
        source = np.concatenate([ints(spanning, "source"), number[sessions.source]])
        target = np.concatenate([ints(spanning, "target"), number[sessions.target]])
        begins, leads = _places(windows, source), _places(windows, target)
        # A gate is in no window; what leads out of all of them is on no cycle.
        inside = ((begins >= 0) | (source >= _GATE)) & ((leads >= 0) | (target >= _GATE))
        crossing = inside & ((begins != leads) | (begins < 0))
        own = number[late]
        return {
            CROSSING: _pairs([source[crossing], own], [target[crossing], _LATE + own]),
            LATE: pa.table({"txn": own, "complete_ns": txns.finish[late]}),
        }

    def contract(self, tables: Tables, setting: Setting, window: Window) -> dict[str, pa.Table]:
        """Return the steps through a window between the ends of crossing steps."""
        local = _Local.of(tables, setting, window)
        label = components(local.edges, local.vertices)
        cyclic = bool((label[local.edges.source] == label[local.edges.target]).any())
        left = np.append(ints(tables[CROSSING], "source"), _CLOCK + window.place + 1)
        entered = np.append(ints(tables[CROSSING], "target"), _CLOCK + window.place)
        left, leaves = local.known(left)
        entered, enters = local.known(entered)
        source, target = contracted(local.timeless, local.timeline, label, enters, leaves)
        inner = _INNER + (window.place << _WIDTH)
        into, out = inner + label[enters], inner + label[leaves]
        # A transaction is the same vertex on both sides of its name. A clock is of two windows.
        same, also = entered < _LATE, left < _LATE
        return {
            STEPS: _pairs(
                [inner + source, entered, into[same], out, left[also]],
                [inner + target, into, entered[same], left, out[also]],
            ),
            CYCLIC: pa.table({"place": pa.array([window.place] * cyclic, pa.int64())}),
        }

    def solve(self, tables: Tables, windows: Sequence[Window]) -> pa.Table:
        """Return the components that pass several windows, by the names in them."""
        parts = (tables[STEPS], tables[CROSSING])
        source, target = (
            np.concatenate([ints(part, side) for part in parts]) for side in ("source", "target")
        )
        names = np.concatenate([source, target])
        names.sort()
        names = names[group_starts(names)]
        steps = Edges.of(np.searchsorted(names, source), np.searchsorted(names, target), Kind.WW)
        label = components(steps, len(names))
        place = _places(windows, names)
        place = np.where(names >= _CLOCK, names - _CLOCK, place)
        place = np.where(names >= _INNER, (names - _INNER) >> _WIDTH, place)
        several = _in_several(label[place >= 0], place[place >= 0])
        spans = np.zeros(len(names), dtype=np.bool_)
        spans[label[place >= 0][several]] = True
        told = np.flatnonzero(spans[label] & (names < _INNER))
        # A clock is of the window before as well.
        clocks = told[(names[told] >= _CLOCK) & (place[told] > 0)]
        rows = np.concatenate([told, clocks])
        at = np.concatenate([place[told], place[clocks] - 1])
        return pa.table({"name": names[rows], "component": label[rows], "place": at})

    def judge(self, tables: Tables, setting: Setting, window: Window) -> dict[str, pa.Table]:
        """Return the window's own cycles, and its transactions in components of several windows."""
        local = _Local.of(tables, setting, window)
        vertex = local.vertex_of(ints(tables[LABELS], "name"))
        known = vertex >= 0
        component, place = np.unique(ints(tables[LABELS], "component")[known], return_inverse=True)
        hub = local.vertices + place
        edges = Edges.joined(
            [
                local.edges,
                Edges.of(vertex[known], hub, Kind.TIME),
                Edges.of(hub, vertex[known], Kind.TIME),
            ]
        )
        count = local.vertices + len(component)
        label = components(edges, count)
        on_cycle = distinct(edges.source[label[edges.source] == label[edges.target]], count)
        on_cycle = on_cycle[on_cycle < local.txns]
        of_label = np.full(count, -1)
        of_label[label[local.vertices :]] = component
        of = of_label[label[on_cycle]]
        members = pa.table({"component": of[of >= 0], "txn": on_cycle[of >= 0]})
        return {**cycles_among(tables, setting, on_cycle[of < 0]), MEMBERS: members}


@attrs.frozen(kw_only=True, eq=False)
class _Local:
    """The graph of a window: its transactions, then gates, then those of earlier windows that end
    in it (``late``), then the points of its timeline. ``timeless`` are the edges that are not in
    time.
    """

    window: Window
    txns: int
    late: Ints
    edges: Edges
    timeless: Edges
    timeline: Timeline

    @classmethod
    def of(cls, tables: Tables, setting: Setting, window: Window) -> _Local:
        """Build it from the tables of the window."""
        txns = transactions_of(tables, setting)
        dependencies, tails = untimed_of(tables, txns)
        gates, first = gates_of(tails, len(txns.type))
        timeless = Edges.joined([dependencies, gates, processes_of(txns)])
        late, end = (ints(tables[LATE], name) for name in ("txn", "complete_ns"))
        mine = (late < window.low) & (end >= window.begin_ns) & (end < _end_of(window))
        order = np.argsort(late[mine])
        late, end = late[mine][order], end[mine][order]
        timeline = _timeline(txns, first, end, _end_of(window))
        points = timeline.vertex
        in_time = [
            Edges.of(timeline.ended, points[timeline.by], Kind.REALTIME),
            Edges.of(points[:-1], points[1:], Kind.TIME),
            Edges.of(points[timeline.after], timeline.begun, Kind.TIME),
        ]
        return cls(
            window=window,
            txns=len(txns.type),
            late=late,
            edges=Edges.joined([timeless, *in_time]),
            timeless=timeless,
            timeline=timeline,
        )

    @property
    def vertices(self) -> int:
        """The number of vertices."""
        return int(self.timeline.vertex[-1]) + 1

    def known(self, names: Ints) -> tuple[Ints, Ints]:
        """Return those of ``names`` that are of this window, each once, and their vertices."""
        vertex = self.vertex_of(names)
        here = vertex >= 0
        names, first = np.unique(names[here], return_index=True)
        return names, vertex[here][first]

    def vertex_of(self, names: Ints) -> Ints:
        """Return the vertices of ``names``; -1 for those of other windows."""
        window, points = self.window, self.timeline.vertex
        found = np.where((names >= window.low) & (names < window.high), names - window.low, -1)
        if len(self.late):
            at = np.minimum(np.searchsorted(self.late, names - _LATE), len(self.late) - 1)
            met = self.late[at] == names - _LATE
            found[met] = points[0] - len(self.late) + at[met]
        found[names == _CLOCK + window.place] = points[0]
        found[names == _CLOCK + window.place + 1] = points[-1]
        return found


def _end_of(window: Window) -> int:
    return _EVER if window.end_ns is None else window.end_ns


def _timeline(txns: Transactions, first: int, late_end: Ints, until: int) -> Timeline:
    """Return the timeline of a window in which also the vertices from ``first`` on end; its points
    are the vertices that follow.
    """
    late = first + np.arange(len(late_end))
    done = np.flatnonzero((txns.type == OK) & txns.real_time & (txns.finish < until))
    ended = np.concatenate([done, late])
    finish = np.concatenate([txns.finish[done], late_end])
    order = np.lexsort((ended, finish))
    later = np.flatnonzero((txns.type != FAIL) & txns.real_time)
    return Timeline(
        vertex=first + len(late) + np.arange(len(ended) + 2),
        ended=ended[order],
        by=1 + np.arange(len(ended)),
        begun=later,
        # "left": a completion at the very time of an invocation does not precede it.
        after=np.searchsorted(finish[order], txns.start[later], side="left"),
    )


def _ends_of_processes(txns: Transactions, bound: Bools) -> Ints:
    """Return of each process, among ``bound`` transactions, those that no ok one precedes, and the
    last ok one.
    """
    rows = np.flatnonzero((txns.type != FAIL) & bound)
    rows = rows[np.lexsort((rows, txns.start[rows], txns.process[rows]))]
    starts = group_starts(txns.process[rows])
    okay = txns.type[rows] == OK
    before = np.cumsum(okay) - okay
    first = np.flatnonzero(starts)
    of = np.cumsum(starts) - 1
    heads = before == before[first][of]
    last = np.full(len(first), -1)
    last[of[okay]] = np.flatnonzero(okay)
    found: Ints = rows[np.union1d(np.flatnonzero(heads), last[last >= 0])]
    return found


def _in_several(group: Ints, place: Ints) -> Bools:
    """Mark the rows of groups that have rows at more than one place."""
    order = np.lexsort((place, group))
    starts = group_starts(group[order])
    apart = group_starts(group[order], place[order]) & ~starts
    of = np.cumsum(starts) - 1
    several = np.zeros(int(starts.sum()), dtype=np.bool_)
    several[of[apart]] = True
    found = np.empty(len(group), dtype=np.bool_)
    found[order] = several[of]
    return found


def _places(windows: Sequence[Window], names: Ints) -> Ints:
    """Return the places of the windows of transactions; -1 for one of no window."""
    low, high = (np.asarray([getattr(w, end) for w in windows]) for end in ("low", "high"))
    at = np.searchsorted(low, names, side="right") - 1
    return np.where((at >= 0) & (names < high[at]), at, -1)


def _pairs(source: Sequence[Ints], target: Sequence[Ints]) -> pa.Table:
    return pa.table({"source": np.concatenate(source), "target": np.concatenate(target)})


CYCLES = Kernel(
    name="cycles",
    exchange=Exchange.STRETCH,
    run=find_cycles,
    numbers={**NUMBERS, MEMBERS: ("txn",), OUTLASTING: ("txn",)},
    takes={"lists.edges": ("source", "target"), "lists.tails": ("txn",)},
    leads_back=leads_back,
    windows=ByWindows(),
)
