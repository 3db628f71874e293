"""Graphs of transactions as arrays: components by a compiled library, cycles by breadth first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from checkers.columns import Bools, Ints


@attrs.frozen(kw_only=True, eq=False)
class Edges:
    """Rows (source, target, kind); ``row`` says where an edge came from, -1 for derived ones."""

    source: Ints
    target: Ints
    kind: Ints
    row: Ints

    def pick(self, which: Bools | Ints) -> Edges:
        """The edges chosen by a mask or by positions."""
        return Edges(
            source=self.source[which],
            target=self.target[which],
            kind=self.kind[which],
            row=self.row[which],
        )

    @classmethod
    def joined(cls, parts: Sequence[Edges]) -> Edges:
        """All edges of ``parts``."""
        columns = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("source", "target", "kind", "row")
        )
        return cls(**dict(zip(("source", "target", "kind", "row"), columns, strict=True)))


def components(edges: Edges, vertices: int) -> Ints:
    """For each vertex the least vertex of its strongly connected component."""
    ones = np.ones(len(edges.source), dtype=np.int8)
    matrix = coo_array((ones, (edges.source, edges.target)), shape=(vertices, vertices))
    _, label = connected_components(matrix.tocsr(), directed=True, connection="strong")
    least = np.full(label.max(initial=-1) + 1, vertices, dtype=np.int64)
    np.minimum.at(least, label, np.arange(vertices))
    return least[label]


def cyclic(edges: Edges, label: Ints) -> Edges:
    """The edges inside components: those that lie on a cycle."""
    return edges.pick(label[edges.source] == label[edges.target])


def shortest_path(
    following: Mapping[int, Sequence[tuple[int, int]]], start: int, end: int
) -> list[int] | None:
    """Edge numbers of a shortest path from ``start`` to ``end``; ``following[v]`` are (edge,
    target) pairs in the order to try them. ``None`` where there is none.
    """
    came_by: dict[int, tuple[int, int]] = {}
    queue = deque([start])
    while queue:
        vertex = queue.popleft()
        for edge, target in following.get(vertex, ()):
            if target in came_by:
                continue
            came_by[target] = (edge, vertex)
            if target == end:
                return _walked(came_by, start, end)
            queue.append(target)
    return None


def _walked(came_by: Mapping[int, tuple[int, int]], start: int, end: int) -> list[int]:
    edge, vertex = came_by[end]
    path = [edge]
    while vertex != start:
        edge, vertex = came_by[vertex]
        path.append(edge)
    return path[::-1]
