"""Which kinds of cycles each component holds.

A kind is a base (what the dependencies do) and an order (what else closes the cycle):

================== ===================================================== =====
base               dependencies on the cycle                             level
================== ===================================================== =====
G0                 ww                                                    0
G1c                ww and wr, some wr                                    1
G-single-item      exactly one rw                                        2
G-nonadjacent-item several rw, never two in a row                        3
G2-item            several rw, some two in a row                         4
================== ===================================================== =====

and nothing, ``-process`` or ``-realtime``. Both are ordered, and a kind implies every kind whose
base and order are not less: a component is said to hold a kind only where it holds no lesser one.
That is what makes the question easy. Asked for in the order of the kinds, "is there any closed walk
of these edges" is enough: every walk splits into simple cycles of the kind or of a lesser one, and
there are no lesser ones.
"""

from __future__ import annotations

import attrs
import numpy as np

from checkers.columns import Bools, Ints
from checkers.cycles.core import Core
from checkers.cycles.graph import Edges, Kind, cyclic
from harness.errors import InvariantError

G0, G1C, G_SINGLE, G_NONADJACENT, G2 = range(5)
BASES = ("G0", "G1c", "G-single-item", "G-nonadjacent-item", "G2-item")
NO_ORDER, PROCESS, REALTIME = range(3)
ORDERS = ("", "-process", "-realtime")
WAVE = 8192
"""Pairs whose reachability is asked at once, a bit each; 1 kB a vertex."""


@attrs.frozen(order=True)
class Class:
    """A kind of cycle: positions in ``BASES`` and ``ORDERS``."""

    base: int
    order: int

    @property
    def name(self) -> str:
        """As verdicts call it."""
        return BASES[self.base] + ORDERS[self.order]

    def implied_by(self, other: Class) -> bool:
        """Whether ``other`` is this or a lesser kind."""
        return other.base <= self.base and other.order <= self.order


CLASSES = tuple(Class(base, order) for order in range(3) for base in range(5))


def classes_of(core: Core) -> dict[Class, Ints]:
    """For each kind the components (``Core.owner``) that hold it and no lesser one, ascending."""
    found: dict[Class, Ints] = {}
    for kind in CLASSES:
        open_ = np.ones(core.owners, dtype=np.bool_)
        for lesser in found:
            if kind.implied_by(lesser):
                open_[found[lesser]] = False
        holders = _holders(core, kind, open_)
        if len(holders):
            found[kind] = holders
    return found


def allowed(core: Core, kind: Class) -> Bools:
    """The edges that a cycle of ``kind`` may use."""
    kinds = [(Kind.WW,), (Kind.WW, Kind.WR)][kind.base > G0]
    if kind.base > G1C:
        kinds += (Kind.RW, Kind.GATE)
    if kind.order >= PROCESS:
        kinds += (Kind.PROCESS,)
    if kind.order >= REALTIME:
        kinds += (Kind.REALTIME, Kind.TIME)
    return np.isin(core.edges.kind, kinds)


def _holders(core: Core, kind: Class, open_: Bools) -> Ints:
    """The components among ``open_`` with a closed walk of ``kind``."""
    edges = core.edges.pick(allowed(core, kind) & open_[core.owner[core.edges.source]])
    if not len(edges.source):
        return edges.source
    edges = edges.pick(cyclic(edges, core.vertices))
    if kind.base == G_SINGLE:
        vertices = closed_by_one_rw(edges, core)
    elif kind.base == G_NONADJACENT:
        vertices = closed_without_adjacent_rw(edges, core.vertices)
    else:
        vertices = edges.source
    return np.unique(core.owner[vertices])


def closed_without_adjacent_rw(edges: Edges, vertices: int) -> Ints:
    """Vertices on closed walks without two rw in a row.

    Every vertex is split into its begin and its commit (as Viper does): whatever is no rw leads
    from a commit to a begin, rw from a begin to a commit, and a begin to its own commit. After
    an rw there is only the commit to go on from, and no rw leaves that.
    """
    own = np.arange(vertices)
    rw, gate = edges.kind == Kind.RW, edges.kind == Kind.GATE
    source = np.where(rw, edges.source, edges.source + vertices)
    target = np.where(rw | gate, edges.target + vertices, edges.target)
    split = Edges.of(
        np.concatenate([source, own]), np.concatenate([target, own + vertices]), Kind.WW
    )
    inside = cyclic(split, 2 * vertices)
    found: Ints = split.source[inside] % vertices
    return found


def closed_by_one_rw(edges: Edges, core: Core) -> Ints:
    """Readers from which an rw step and then steps that are no rw lead back.

    Without rw the edges have no cycles here (those would be a lesser kind), so reachability goes
    in one sweep over a topological order, a bit for each reader.
    """
    rw = edges.kind == Kind.RW
    steps = edges.pick(~rw)
    following = adjacency(steps)
    order = _topological(steps, following)
    entries = adjacency(edges.pick(rw))
    waiting = sorted(entries)
    found: list[int] = []
    settled: set[int] = set()
    for start in range(0, len(waiting), WAVE):
        wave = [u for u in waiting[start : start + WAVE] if int(core.owner[u]) not in settled]
        news = _reaching_themselves(wave, entries, following, order)
        found += news
        settled.update(int(core.owner[u]) for u in news)
    return np.asarray(found, dtype=np.int64)


def adjacency(edges: Edges) -> dict[int, list[int]]:
    """Targets by source, in the order of the edges."""
    following: dict[int, list[int]] = {}
    for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
        following.setdefault(source, []).append(target)
    return following


def _topological(edges: Edges, following: dict[int, list[int]]) -> list[int]:
    """The sources and targets of ``edges``, which are acyclic, each before what follows it."""
    missing: dict[int, int] = dict.fromkeys(edges.source.tolist(), 0)
    for target in edges.target.tolist():
        missing[target] = missing.get(target, 0) + 1
    ready = [vertex for vertex, count in missing.items() if not count]
    order = []
    while ready:
        vertex = ready.pop()
        order.append(vertex)
        for target in following.get(vertex, ()):
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    if len(order) != len(missing):
        raise InvariantError("a component without lesser cycles holds one all the same")
    return order


def _reaching_themselves(
    wave: list[int],
    entries: dict[int, list[int]],
    following: dict[int, list[int]],
    order: list[int],
) -> list[int]:
    """Those of ``wave`` that are reached from the targets of their own rw steps."""
    reached: dict[int, int] = {}
    for number, reader in enumerate(wave):
        for target in entries[reader]:
            reached[target] = reached.get(target, 0) | 1 << number
    bit = {reader: 1 << number for number, reader in enumerate(wave)}
    found = []
    for vertex in order:
        bits = reached.pop(vertex, 0)  # popped: only the frontier's bits are in memory
        if not bits:
            continue
        if bits & bit.get(vertex, 0):
            found.append(vertex)
        for target in following.get(vertex, ()):
            reached[target] = reached.get(target, 0) | bits
    return sorted(found)
