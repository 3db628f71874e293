"""Search for a shortest simple cycle without two rw in a row, beside cycles without rw.

A walk that visits a vertex twice between two rw steps, and goes round a cycle without rw there,
separates them as no simple cycle does. So the search follows paths instead of states, deepens step
by step, and extends a path only where a walk leads on from it to the end (Korf's IDA*): exponential
at worst, and bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs
import numpy as np

from checkers.cycles.graph import GATES, Edges, Kind
from checkers.engine.arrays import Ints

# A vertex, and whether an rw led to it.
Node = tuple[int, bool]


@attrs.frozen
class Steps:
    """Edges by their source: (edge, target, kind), in the order of the edges. Rows are made of
    those that are asked for: of a component of a million transactions a search visits few.
    """

    _edges: Edges
    _order: Ints
    _begin: Ints
    _known: dict[int, list[tuple[int, int, int]]]

    @classmethod
    def of(cls, edges: Edges, vertices: int) -> Steps:
        """All of ``edges``."""
        order = np.argsort(edges.source, kind="stable")
        begin = np.searchsorted(edges.source[order], np.arange(vertices + 1))
        return cls(edges, order, begin, {})

    def from_vertex(self, vertex: int) -> list[tuple[int, int, int]]:
        """Return the edges whose source is ``vertex``."""
        found = self._known.get(vertex)
        if found is None:
            edge = self._order[self._begin[vertex] : self._begin[vertex + 1]]
            columns = (edge, self._edges.target[edge], self._edges.kind[edge])
            found = list(zip(*(column.tolist() for column in columns), strict=True))
            self._known[vertex] = found
        return found

    @staticmethod
    def cost(kind: int, along_process: bool) -> int:
        """Return the steps that an edge adds: none within a helper, or further
        along one process.
        """
        free = kind in (*GATES, Kind.TIME) or (along_process and kind == Kind.PROCESS)
        return 0 if free else 1


class Simple:
    """The search in one component; ``states`` counts the visited states."""

    def __init__(self, edges: Edges, vertices: int, states_max: int) -> None:
        self.states = 0
        self._max = states_max
        self._edges = edges
        self._steps = Steps.of(edges, vertices)
        self._back: dict[int, list[tuple[int, int]]] = {}
        for source, target, kind in zip(
            edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True
        ):
            self._back.setdefault(target, []).append((source, kind))

    def shortest(self, on_walks: Ints) -> list[int] | None:
        """Return the edges of the cycle; ``on_walks`` are the vertices on closed
        walks of the kind.
        """
        rw = np.unique(self._edges.source[self._edges.kind == Kind.RW])
        ways = {}
        for start in np.intersect1d(rw, on_walks).tolist():
            ways[start] = self._ways_back(start)
            if self.states >= self._max:
                break
        limit: int | None = 0
        while limit is not None:
            # Deepening goes over all beginnings at once, so the first that is found is shortest.
            beyond: list[int] = []
            for start, way in ways.items():
                path, more = self._deepen(start, way, limit)
                if path is not None:
                    return path
                beyond += [] if more is None else [more]
            # IDA*: the next limit is the least that any path exceeded.
            limit = min(beyond, default=None) if self.states < self._max else None
        return None

    def _ways_back(self, start: int) -> dict[Node, int]:
        """Return the least number of steps of a walk from each node back to ``start``, which the
        walk must not enter by an rw.
        """
        least: dict[Node, int] = {(start, False): 0}
        queue: deque[tuple[Node, int]] = deque([((start, False), 0)])
        while queue and self.states < self._max:
            (vertex, by_rw), far = queue.popleft()
            self.states += 1
            if far > least[vertex, by_rw]:
                continue
            for node, cost in self._before(vertex, by_rw):
                if far + cost < least.get(node, far + cost + 1):
                    least[node] = far + cost
                    # Free steps first keep the queue sorted by length.
                    queue.append((node, far + cost)) if cost else queue.appendleft((node, far))
        return least

    def _before(self, vertex: int, by_rw: bool) -> Iterator[tuple[Node, int]]:
        """Yield the nodes that may precede a node, and the fewest steps from there."""
        for source, kind in self._back.get(vertex, ()):
            if kind in GATES and by_rw:
                yield (source, True), 0
            elif kind == Kind.RW and by_rw:
                yield (source, False), 1
            elif kind not in (Kind.RW, *GATES) and not by_rw:
                # Backwards it is unknown whether a process step continues one: the bound may be
                # low, never high.
                cost = 0 if kind in (Kind.TIME, Kind.PROCESS) else 1
                yield (source, False), cost
                yield (source, True), cost

    def _deepen(
        self, start: int, way: dict[Node, int], limit: int
    ) -> tuple[list[int] | None, int | None]:
        """Return a simple cycle from ``start``, an rw first, of at most ``limit`` steps; or the
        least limit that leads further.
        """
        beyond: int | None = None
        path: list[int] = []
        passed: list[int] = []
        stack = [self._onward(start, False, False, 0, begin=True)]
        on_path = {start}
        while stack and self.states < self._max:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                if path:
                    path.pop()
                    on_path.discard(passed.pop())
                continue
            edge, target, by_rw, along, taken = step
            self.states += 1
            rest = way.get((target, by_rw))
            if rest is None or (target in on_path and (target != start or by_rw)):
                continue
            if taken + rest > limit:
                beyond = taken + rest if beyond is None else min(beyond, taken + rest)
            elif target == start:
                return [*path, edge], None
            else:
                path.append(edge)
                passed.append(target)
                on_path.add(target)
                stack.append(self._onward(target, by_rw, along, taken))
        return None, beyond

    def _onward(
        self, vertex: int, by_rw: bool, along: bool, taken: int, *, begin: bool = False
    ) -> Iterator[tuple[int, int, bool, bool, int]]:
        """Yield (edge, target, by rw, along a process, steps taken) of every step
        that may follow.
        """
        for edge, target, kind in self._steps.from_vertex(vertex):
            is_rw = kind == Kind.RW
            if (is_rw and by_rw) or (begin and not is_rw):
                continue
            after = by_rw if kind in GATES else is_rw
            cost = self._steps.cost(kind, along)
            yield edge, target, after, kind == Kind.PROCESS, taken + cost
