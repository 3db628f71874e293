"""Breadth-first search over typed states for a shortest cycle of a kind in a component.

The steps that may follow depend only on whether an rw came before, so a state is a vertex and a
mode: the search is polynomial and needs no time limit.

Where only cycles of the kind itself are in the component, any closed walk will do, and time needs
no edges: the order of intervals has no two independent pairs, so of a cycle with two realtime steps
one half is a cycle already, and a shortest one has a single realtime step, from a path's end back
to its beginning. In a component that also holds cycles without rw (*tangled*), the search must
include an rw: the walk begins with one, and time is walked along the timeline. A shortest walk from
an rw back to it is a simple cycle, unless rw may not be adjacent: then see ``simple``.
"""

from __future__ import annotations

from collections import deque

import attrs
import numpy as np

from checkers.cycles.anomaly_kinds import G_NONADJACENT, G_SINGLE, REALTIME, Class, allowed
from checkers.cycles.components import cyclic
from checkers.cycles.cyclic_core import HELPER, Core
from checkers.cycles.graph import GATES, Edges, Kind
from checkers.cycles.simple import Simple, Steps
from checkers.cycles.walks import (
    closed_by_one_rw,
    closed_without_adjacent_rw,
    closed_without_rw,
)
from checkers.engine.arrays import OK, distinct
from checkers.engine.transactions import Transactions

# The limit of states of one search, a second or two of work, once a cycle was found: beyond it the
# shortest cycle so far is reported. Only components of many thousand transactions that hold cycles
# of the kind, but no short one, reach the limit.
STATES_MAX = 1_000_000
# The limit of states of a search for a simple cycle in a tangled component, the only search that is
# not polynomial: beyond it the answer is that there is none.
SIMPLE_MAX = 200_000

# Modes: an rw may follow; an rw came before; an rw must follow, it is the first step.
CALM, AFTER_RW, BEGIN = range(3)

# A vertex, the mode, and whether a step along a process led here.
State = tuple[int, int, bool]


@attrs.frozen(kw_only=True)
class Step:
    """One step of a cycle between transactions; ``row`` as in ``Edges``."""

    kind: int
    source: int
    target: int
    row: int = -1


@attrs.frozen(kw_only=True)
class TypedCycle:
    """The cycle, ``None`` where there is none, and how many states the search visited."""

    cycle: tuple[Step, ...] | None
    states: int


def shortest_cycle(
    core: Core, txns: Transactions, kind: Class, simple_max: int = SIMPLE_MAX
) -> TypedCycle:
    """Find a shortest cycle of ``kind`` in ``core``, one component, which holds no kind that
    implies it.

    ``simple_max`` bounds the states of the one search that may miss an existing cycle.
    """
    edges = core.edges.pick(allowed(core, txns, kind))
    edges = edges.pick(cyclic(edges, core.vertices))
    if kind.base >= G_SINGLE and not kind.reverse and len(closed_without_rw(edges, core.vertices)):
        return _tangled(core, txns, kind, edges, simple_max)
    # A cycle may need time for the order of versions alone, and then no step of time closes it.
    closed_by_time = kind.order == REALTIME and not (edges.kind == Kind.RW_REALTIME).any()
    starts = _starts(core, edges, kind, closed_by_time=closed_by_time)
    if closed_by_time:
        edges = edges.pick(~np.isin(edges.kind, (Kind.REALTIME, Kind.TIME)))
    search = _Search(core, txns, edges, kind, closed_by_time=closed_by_time)
    for start in starts:
        if not search.improve(start):
            break
    return search.found()


def _starts(core: Core, edges: Edges, kind: Class, *, closed_by_time: bool) -> list[int]:
    """Return the vertices to begin at, ascending: those that lie on a cycle of the kind."""
    if kind.base == G_NONADJACENT:
        vertices = closed_without_adjacent_rw(edges, core.vertices)
    elif kind.base == G_SINGLE and not closed_by_time:
        return _readers(core, edges)
    else:
        vertices = edges.source
    if closed_by_time:
        # The path begins where a realtime step ends.
        ends = np.zeros(core.vertices, dtype=np.bool_)
        ends[edges.target[edges.kind == Kind.TIME]] = True
        vertices = vertices[ends[vertices]]
    vertices = distinct(vertices, core.vertices)
    return [int(v) for v in vertices[core.txn[vertices] != HELPER]]


def _readers(core: Core, edges: Edges) -> list[int]:
    """Return the sources of rw steps, first those that one rw is known to lead back to."""
    sure = closed_by_one_rw(edges, core.vertices, core.owner)
    others = np.zeros(core.vertices, dtype=np.bool_)
    others[edges.source[edges.kind == Kind.RW]] = True
    others[sure] = False
    # The first cycle found bounds all later searches.
    return [*sure.tolist(), *np.flatnonzero(others).tolist()]


def _tangled(
    core: Core, txns: Transactions, kind: Class, edges: Edges, simple_max: int
) -> TypedCycle:
    """Find a shortest cycle with an rw in a component that also has cycles without."""
    if kind.base == G_NONADJACENT:
        simple = Simple(edges, core.vertices, simple_max)
        path = simple.shortest(closed_without_adjacent_rw(edges, core.vertices))
        cycle = None if path is None else _told(core, edges, path)
        return TypedCycle(cycle=cycle, states=simple.states)
    if kind.base == G_SINGLE:
        starts = _readers(core, edges)
    else:
        starts = distinct(edges.source[edges.kind == Kind.RW], core.vertices).tolist()
    search = _Search(core, txns, edges, kind, tangled=True)
    for start in starts:
        if not search.improve(start):
            break
    return search.found()


class _Search:
    """The shortest cycle so far, and the states left for finding a shorter one."""

    def __init__(
        self,
        core: Core,
        txns: Transactions,
        edges: Edges,
        kind: Class,
        *,
        closed_by_time: bool = False,
        tangled: bool = False,
    ) -> None:
        self._best: tuple[Step, ...] | None = None
        self._states = 0
        self._core, self._kind, self._edges = core, kind, edges
        self._by_time, self._tangled = closed_by_time, tangled
        on_axis = core.txn != HELPER
        txn = np.where(on_axis, core.txn, 0)
        timed = on_axis & txns.real_time[txn]
        # The extremes hold in no comparison, so that such a vertex never closes a cycle by time.
        self._start = np.where(timed, txns.start[txn], np.iinfo(np.int64).min)
        # Only an acknowledgement precedes anything: an unknown outcome may come about later.
        ends = timed & (txns.type[txn] == OK)
        self._finish = np.where(ends, txns.finish[txn], np.iinfo(np.int64).max)
        self._steps = Steps.of(edges, core.vertices)

    def found(self) -> TypedCycle:
        """The result so far."""
        return TypedCycle(cycle=self._best, states=self._states)

    def improve(self, start: int) -> bool:
        """Look for a shorter cycle from ``start``; return false where further searches are
        pointless.
        """
        path = self._breadth_first(start)
        if path is not None:
            self._best = _told(self._core, self._edges, path)
            if self._by_time:
                first, last = self._best[0].source, self._best[-1].target
                closing = Step(kind=Kind.REALTIME, source=last, target=first)
                self._best = (*self._best, closing)
        # No cycle has fewer than two steps.
        return self._best is None or (self._states < STATES_MAX and len(self._best) > 2)

    def _breadth_first(self, start: int) -> list[int] | None:
        """Return the edges of a cycle through ``start`` with fewer steps than the shortest so far.

        Steps within a helper or along one process cost nothing, so free steps go first.
        """
        limit = len(self._best) if self._best else np.iinfo(np.int64).max
        initial: State = (start, self._initial_mode(), False)
        came_by: dict[State, tuple[int, State]] = {}
        # Unless time closes the cycle, the search ends when it comes back to the beginning.
        least = {initial: 0} if self._by_time else {}
        queue = deque([(initial, 0)])
        while queue and (self._states < STATES_MAX or self._best is None):
            state, length = queue.popleft()
            self._states += 1
            # Queued before a shorter way to the same state was found.
            if length > least.get(state, length):
                continue
            if length and self._closes(state[0], start):
                return _walk(came_by, state, initial)
            for edge, target, kind in self._steps.from_vertex(state[0]):
                mode = self._mode_after(state[1], kind)
                cost = self._steps.cost(kind, state[2])
                steps = length + cost
                # ``_by_time``: the realtime step that closes the cycle counts as well.
                if mode is None or steps + self._by_time >= limit:
                    continue
                following = (target, mode, kind == Kind.PROCESS)
                if steps >= least.get(following, limit):
                    continue
                least[following] = steps
                came_by[following] = (edge, state)
                if cost:
                    queue.append((following, steps))
                else:
                    queue.appendleft((following, steps))
        return None

    def _closes(self, vertex: int, start: int) -> bool:
        if self._by_time:
            return bool(self._finish[vertex] < self._start[start])
        return vertex == start

    def _initial_mode(self) -> int:
        """Return the mode at the beginning: a cycle without two rw in a row begins where its first
        step is no rw.
        """
        if self._tangled:
            return BEGIN
        between = self._kind.base == G_NONADJACENT and not self._by_time
        return AFTER_RW if between else CALM

    def _mode_after(self, mode: int, kind: int) -> int | None:
        """Return the mode after a step of ``kind``, or ``None`` where that step may not follow."""
        # A gate continues the rw that entered it.
        if kind in GATES:
            return mode
        if mode == BEGIN and kind != Kind.RW:
            return None
        if self._kind.base == G_SINGLE:
            if mode == AFTER_RW:
                return None if kind == Kind.RW else AFTER_RW
            return AFTER_RW if kind == Kind.RW else CALM
        if self._kind.base == G_NONADJACENT:
            if kind != Kind.RW:
                return CALM
            return None if mode == AFTER_RW else AFTER_RW
        return CALM


def _walk(came_by: dict[State, tuple[int, State]], end: State, initial: State) -> list[int]:
    edge, state = came_by[end]
    path = [edge]
    while state != initial:
        edge, state = came_by[state]
        path.append(edge)
    return path[::-1]


def _told(core: Core, edges: Edges, path: list[int]) -> tuple[Step, ...]:
    """Return the path between transactions: helpers are folded into the step that entered them."""
    steps: list[Step] = []
    for edge in path:
        source, target = (int(core.txn[x[edge]]) for x in (edges.source, edges.target))
        kind, row = int(edges.kind[edge]), int(edges.row[edge])
        if kind in (*GATES, Kind.TIME):
            # The row is that of the gate's last edge: the edge from the reader into the gates has
            # none.
            steps.append(attrs.evolve(steps.pop(), target=target, row=row))
        elif kind == Kind.PROCESS and steps and steps[-1].kind == Kind.PROCESS:
            steps.append(attrs.evolve(steps.pop(), target=target))
        else:
            steps.append(Step(kind=kind, source=source, target=target, row=row))
    return tuple(steps)
