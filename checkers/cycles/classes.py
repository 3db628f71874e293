"""Which kinds of cycles each component holds.

A component is said to hold a kind where it has a simple cycle of it and holds nothing that means
that kind anyway. Asked for in the order of ``CLASSES``, what means a kind is known to be absent
when the kind is asked for, and that makes the questions easy:

* G0 and G1c: any cycle of the edges that are allowed is of the kind.
* G-single-item: an rw, and a path back that has none. A path can be made simple.
* G2-item: an rw, and any path back; with one rw or with none in a row it would be a lesser kind.
* G-nonadjacent-item: any closed walk with an rw, but never two in a row, splits into simple cycles
  of the kind, or of lesser ones. Only where the component has cycles without any rw, which mean
  nothing of the kind, may a walk be all there is; then a simple cycle is searched for.
"""

from __future__ import annotations

import numpy as np

from checkers.columns import Bools, Ints
from checkers.cycles.core import Core
from checkers.cycles.graph import Edges, Kind, cyclic
from checkers.cycles.kinds import CLASSES, G_NONADJACENT, G_SINGLE, Class, allowed
from checkers.cycles.search import SIMPLE_MAX, shortest_cycle
from checkers.cycles.walks import (
    closed_by_one_rw,
    closed_without_adjacent_rw,
    closed_without_rw,
)
from checkers.txns import Transactions

SIMPLE_ALL_MAX = 20 * SIMPLE_MAX
"""States that searches for simple cycles of one kind look at, all components together."""


def classes_of(core: Core, txns: Transactions) -> dict[Class, Ints]:
    """For each kind the components (``Core.owner``) that hold it, ascending."""
    found: dict[Class, Ints] = {}
    for kind in CLASSES:
        open_ = np.ones(core.owners, dtype=np.bool_)
        for lesser in found:
            if kind.implied_by(lesser):
                open_[found[lesser]] = False
        holders = _holders(core, txns, kind, open_)
        if len(holders):
            found[kind] = holders
    return found


def _holders(core: Core, txns: Transactions, kind: Class, open_: Bools) -> Ints:
    """The components among ``open_`` with a simple cycle of ``kind``."""
    edges = core.edges.pick(allowed(core, kind) & open_[core.owner[core.edges.source]])
    if not len(edges.source):
        return edges.source
    edges = edges.pick(cyclic(edges, core.vertices))
    if kind.base == G_NONADJACENT:
        return _without_adjacent_rw(core, txns, kind, edges)
    if kind.base == G_SINGLE:
        vertices = closed_by_one_rw(edges, core.vertices, core.owner)
    elif kind.base > G_SINGLE:
        vertices = edges.source[edges.kind == Kind.RW]
    else:
        vertices = edges.source
    return np.unique(core.owner[vertices])


def _without_adjacent_rw(core: Core, txns: Transactions, kind: Class, edges: Edges) -> Ints:
    walked = np.unique(core.owner[closed_without_adjacent_rw(edges, core.vertices)])
    tangled = np.isin(walked, core.owner[closed_without_rw(edges, core.vertices)])
    holds = ~tangled
    left = SIMPLE_ALL_MAX
    for place in np.flatnonzero(tangled).tolist():
        search = shortest_cycle(core.only(int(walked[place])), txns, kind, min(left, SIMPLE_MAX))
        holds[place] = search.cycle is not None
        left -= search.states
    return walked[holds]
