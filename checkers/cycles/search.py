"""A shortest cycle of a kind in a component, by breadth first over typed states.

What may follow a step depends only on whether an rw came before, so a state is a vertex and one
bit: the search is polynomial and needs no time limit. Time needs no edges here. The order of
intervals has no two independent pairs, so of a cycle with two realtime steps one half is a cycle
already: a shortest one has a single realtime step, from a path's end back to its beginning.
"""

from __future__ import annotations

from collections import deque

import attrs
import numpy as np

from checkers.columns import OK
from checkers.cycles.classes import (
    G_NONADJACENT,
    G_SINGLE,
    REALTIME,
    Class,
    allowed,
    closed_by_one_rw,
    closed_without_adjacent_rw,
)
from checkers.cycles.core import HELPER, Core
from checkers.cycles.graph import Edges, Kind, cyclic
from checkers.lists.ops import Transactions
from harness.errors import InvariantError

STATES_MAX = 1_000_000
"""States looked at in one search, a second or two of work, once a cycle was found: beyond it the
shortest so far is shown. Only components of many thousand transactions that hold cycles of the
kind, but no short one, get there."""

State = tuple[int, int, bool]
"""A vertex, the bit that says what may follow, and whether a step along a process led here."""


@attrs.frozen(kw_only=True)
class Step:
    """One step of a cycle between transactions; ``row`` as in ``Edges``."""

    kind: int
    source: int
    target: int
    row: int = -1


def shortest_cycle(core: Core, txns: Transactions, kind: Class, owner: int) -> tuple[Step, ...]:
    """A shortest cycle of ``kind`` in component ``owner``, which holds it and no lesser one."""
    edges = core.edges.pick(allowed(core, kind) & (core.owner[core.edges.source] == owner))
    edges = edges.pick(cyclic(edges, core.vertices))
    starts = _starts(core, edges, kind)
    in_time = np.isin(edges.kind, (Kind.REALTIME, Kind.TIME))
    search = _Search(core, txns, edges.pick(~in_time), kind)
    for start in starts:
        if not search.improve(start):
            break
    if search.best is None:
        raise InvariantError(f"component {owner} holds {kind.name}, but no cycle of it was found")
    return search.best


def _starts(core: Core, edges: Edges, kind: Class) -> list[int]:
    """Where to begin: vertices that lie on a cycle of the kind, ascending."""
    if kind.base == G_NONADJACENT:
        vertices = closed_without_adjacent_rw(edges, core.vertices)
    elif kind.base == G_SINGLE and kind.order < REALTIME:
        sure = closed_by_one_rw(edges, core)
        readers = np.unique(edges.source[edges.kind == Kind.RW])
        rest = readers[~np.isin(readers, sure)]
        return [*sure.tolist(), *rest.tolist()]
    else:
        vertices = edges.source
    if kind.order == REALTIME:
        # The path begins where a realtime step ends.
        vertices = np.intersect1d(vertices, edges.target[edges.kind == Kind.TIME])
    vertices = np.unique(vertices)
    return [int(v) for v in vertices[core.txn[vertices] != HELPER]]


class _Search:
    """The best cycle so far, and the work left for a better one."""

    def __init__(self, core: Core, txns: Transactions, edges: Edges, kind: Class) -> None:
        self.best: tuple[Step, ...] | None = None
        self._states_left = STATES_MAX
        self._kind, self._edges = kind, edges
        self._txn = core.txn
        on_axis = core.txn != HELPER
        txn = np.where(on_axis, core.txn, 0)
        timed = on_axis & txns.real_time[txn]
        self._start = np.where(timed, txns.start[txn], np.iinfo(np.int64).min)
        ends = timed & (txns.type[txn] == OK)
        self._finish = np.where(ends, txns.finish[txn], np.iinfo(np.int64).max)
        self._following: dict[int, list[tuple[int, int, int]]] = {}
        columns = (edges.source.tolist(), edges.target.tolist(), edges.kind.tolist())
        for edge, (source, target, kind_) in enumerate(zip(*columns, strict=True)):
            self._following.setdefault(source, []).append((edge, target, kind_))

    def improve(self, start: int) -> bool:
        """Look for a shorter cycle from ``start``; false where there is no point in going on."""
        found = self._breadth_first(start)
        if found is not None:
            self.best = self._steps(found)
        return self.best is None or (self._states_left > 0 and len(self.best) > 2)

    def _breadth_first(self, start: int) -> list[int] | None:
        """Edges of a cycle through ``start`` with fewer steps than the best one.

        Steps within a gate or along one process cost nothing, so what is free goes first.
        """
        limit = len(self.best) if self.best else np.iinfo(np.int64).max
        realtime = self._kind.order == REALTIME
        initial: State = (start, self._initial_mode(), False)
        came_by: dict[State, tuple[int, State]] = {}
        # Unless time closes the cycle, coming back to the beginning is what is looked for.
        least = {initial: 0} if realtime else {}
        queue = deque([(initial, 0)])
        while queue and (self._states_left > 0 or self.best is None):
            state, length = queue.popleft()
            self._states_left -= 1
            if length > least.get(state, length):
                continue
            if length and self._closes(state[0], start, realtime):
                return self._walk(came_by, state, initial)
            for edge, target, kind in self._following.get(state[0], ()):
                mode = self._mode_after(state[1], kind)
                free = kind == Kind.GATE or (state[2] and kind == Kind.PROCESS)
                steps = length + (not free)
                if mode is None or steps + realtime >= limit:
                    continue
                following = (target, mode, kind == Kind.PROCESS)
                if steps >= least.get(following, limit):
                    continue
                least[following] = steps
                came_by[following] = (edge, state)
                if free:
                    queue.appendleft((following, steps))
                else:
                    queue.append((following, steps))
        return None

    def _closes(self, vertex: int, start: int, realtime: bool) -> bool:
        if realtime:
            return bool(self._finish[vertex] < self._start[start])
        return vertex == start

    def _initial_mode(self) -> int:
        """Of a cycle without two rw in a row, begin where the first step is none."""
        return int(self._kind.base == G_NONADJACENT and self._kind.order < REALTIME)

    def _mode_after(self, mode: int, kind: int) -> int | None:
        """The state's bit after a step of ``kind``, or ``None`` where that may not follow."""
        if kind == Kind.GATE:
            return mode
        if self._kind.base == G_SINGLE:
            return None if mode and kind == Kind.RW else int(mode or kind == Kind.RW)
        if self._kind.base == G_NONADJACENT:
            return None if mode and kind == Kind.RW else int(kind == Kind.RW)
        return 0

    def _walk(
        self,
        came_by: dict[State, tuple[int, State]],
        end: State,
        initial: State,
    ) -> list[int]:
        edge, state = came_by[end]
        path = [edge]
        while state != initial:
            edge, state = came_by[state]
            path.append(edge)
        return path[::-1]

    def _steps(self, path: list[int]) -> tuple[Step, ...]:
        """The path between transactions: helpers folded into the step that entered them."""
        steps: list[Step] = []
        for edge in path:
            source, target = (int(x[edge]) for x in (self._edges.source, self._edges.target))
            kind, row = int(self._edges.kind[edge]), int(self._edges.row[edge])
            if kind == Kind.GATE:
                entered = steps.pop()
                steps.append(attrs.evolve(entered, target=int(self._txn[target]), row=row))
            elif kind == Kind.PROCESS and steps and steps[-1].kind == Kind.PROCESS:
                steps.append(attrs.evolve(steps.pop(), target=int(self._txn[target])))
            else:
                first, last = int(self._txn[source]), int(self._txn[target])
                steps.append(Step(kind=kind, source=first, target=last, row=row))
        if self._kind.order == REALTIME:
            first, last = steps[0].source, steps[-1].target
            steps.append(Step(kind=Kind.REALTIME, source=last, target=first))
        return tuple(steps)
