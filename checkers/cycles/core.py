"""The part of a graph that lies on cycles: small in a healthy history, all that is looked at."""

from __future__ import annotations

import attrs
import numpy as np

from checkers.columns import Ints, ints
from checkers.cycles.graph import Edges, Graph, components

HELPER = -1


@attrs.frozen(kw_only=True, eq=False)
class Core:
    """The edges inside components, on vertices numbered anew.

    ``txn`` is each vertex's transaction or ``HELPER``; ``owner`` numbers the components of vertices
    from 0 in the order of their least transaction. Edges are sorted, so that whatever is chosen
    among them does not depend on how they were found.
    """

    edges: Edges
    txn: Ints
    owner: Ints
    owners: int

    @property
    def vertices(self) -> int:
        """How many vertices there are."""
        return len(self.txn)


def core_of(graph: Graph) -> Core:
    """What lies on cycles of ``graph``."""
    label = components(graph.edges, graph.vertices)
    inside = graph.edges.pick(label[graph.edges.source] == label[graph.edges.target])
    # Helpers have higher numbers than transactions and are numbered alike by every executor.
    old = np.unique(np.concatenate([inside.source, inside.target]))
    source, target = np.searchsorted(old, inside.source), np.searchsorted(old, inside.target)
    key, element = (_detail(graph, name, inside.row) for name in ("key", "element"))
    order = np.lexsort((element, key, inside.kind, target, source))
    _, first, which = np.unique(label[old], return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return Core(
        edges=Edges(
            source=source[order],
            target=target[order],
            kind=inside.kind[order],
            row=inside.row[order],
        ),
        txn=np.where(old < graph.txns, old, HELPER),
        owner=rank[which],
        owners=len(first),
    )


def _detail(graph: Graph, name: str, row: Ints) -> Ints:
    if not graph.details.num_rows:
        return row
    return np.where(row >= 0, ints(graph.details, name)[np.maximum(row, 0)], 0)
