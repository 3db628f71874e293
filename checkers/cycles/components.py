"""Strongly connected components: what lies on a cycle, and on which."""

from __future__ import annotations

import numpy as np

from checkers.cycles.graph import Edges
from checkers.engine.arrays import Bools, Ints

SMALL_EDGES = 30_000
"""Up to here (0.05 s) importing scipy takes several times as long as the whole search."""


def components(edges: Edges, vertices: int) -> Ints:
    """Number each vertex: equal in the same strongly connected component."""
    if len(edges.source) <= SMALL_EDGES:
        return _components_of_few(edges, vertices)
    return _components_of_many(edges, vertices)


def _components_of_few(edges: Edges, vertices: int) -> Ints:
    """As ``components``, by Tarjan's algorithm; its stack is a list, since chains are long."""
    order = np.argsort(edges.source, kind="stable")
    bounds = np.searchsorted(edges.source[order], np.arange(vertices + 1)).tolist()
    targets = edges.target[order].tolist()
    begin, end = bounds[:-1], bounds[1:]
    label, low = [-1] * vertices, [0] * vertices
    found = 0  # vertices so far; ``low`` of a vertex that was not found is 0
    open_: list[int] = []
    for root in range(vertices):
        if low[root] or begin[root] == end[root]:
            continue
        path, place = [root], [begin[root]]
        found += 1
        low[root] = found
        # One root's numbers suffice: what is on the stack was reached from this root.
        number = {root: found}
        open_.append(root)
        while path:
            here = path[-1]
            if place[-1] < end[here]:
                there = targets[place[-1]]
                place[-1] += 1
                if not low[there]:
                    found += 1
                    low[there] = number[there] = found
                    path.append(there)
                    place.append(begin[there])
                    open_.append(there)
                elif label[there] < 0:
                    low[here] = min(low[here], number[there])
                continue
            path.pop()
            place.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[here])
            if low[here] == number[here]:
                while label[here] < 0:
                    label[open_.pop()] = here
    # A component bears the number of one of its vertices, so a lone vertex's own number is free.
    alone = [at if own < 0 else own for at, own in enumerate(label)]
    return np.asarray(alone, dtype=np.int64)


def _components_of_many(edges: Edges, vertices: int) -> Ints:
    """As ``components``, by a compiled library."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(edges.source), dtype=np.int8)
    matrix = coo_array((ones, (edges.source, edges.target)), shape=(vertices, vertices))
    label = connected_components(matrix.tocsr(), directed=True, connection="strong")[1]
    return np.asarray(label, dtype=np.int64)


def cyclic(edges: Edges, vertices: int) -> Bools:
    """Mark the edges that lie on a cycle, that is inside a component."""
    label = components(edges, vertices)
    inside: Bools = label[edges.source] == label[edges.target]
    return inside
