"""Which vertices lie on closed walks of a kind: polynomial questions, for whole graphs at once."""

from __future__ import annotations

import attrs
import numpy as np

from checkers.cycles.components import components, cyclic
from checkers.cycles.graph import GATES, Edges, Kind
from checkers.engine.arrays import Bools, Ints, distinct, group_starts
from harness.errors import InvariantError

# The number of pairs whose reachability is computed in one sweep, a bit each; 1 kB a vertex.
WAVE = 8192


def calm(edges: Edges) -> Bools:
    """Return the edges that are no rw, nor part of one."""
    return ~np.isin(edges.kind, (Kind.RW, *GATES))


def closed_without_rw(edges: Edges, vertices: int) -> Ints:
    """Return the vertices on cycles without any rw."""
    some = edges.pick(calm(edges))
    return distinct(some.source[cyclic(some, vertices)], vertices)


def closed_without_adjacent_rw(edges: Edges, vertices: int) -> Ints:
    """Return the vertices on closed walks with some rw, but never two in a row.

    Every vertex is split into its begin and its commit (as Viper does): edges other than rw lead
    from a commit to a begin, rw from a begin to a commit, and a begin to its own commit. After an
    rw the walk can continue only from a commit, and no rw leaves a commit.
    """
    own = np.arange(vertices)
    rw, gate = edges.kind == Kind.RW, np.isin(edges.kind, GATES)
    source = np.where(rw, edges.source, edges.source + vertices)
    target = np.where(rw | gate, edges.target + vertices, edges.target)
    split = Edges.of(
        np.concatenate([source, own]), np.concatenate([target, own + vertices]), Kind.WW
    )
    label = components(split, 2 * vertices)
    inside = label[split.source] == label[split.target]
    is_rw = np.concatenate([rw, np.zeros(vertices, dtype=np.bool_)])
    alive = np.zeros(2 * vertices, dtype=np.bool_)
    alive[label[split.source[inside & is_rw]]] = True
    return distinct(split.source[inside & alive[label[split.source]]] % vertices, vertices)


def closed_by_one_rw(edges: Edges, vertices: int, owner: Ints) -> Ints:
    """Return readers from which an rw step and then steps other than rw lead back: in every
    component (by ``owner``) that has such readers, some of them.

    The edges other than rw may have cycles of their own, so reachability goes in one sweep over a
    topological order of their components, a bit for each reader. An rw that leads onward in that
    order has no way back; the others are taken in waves by their readers' places, and each wave's
    sweep goes from the first of its targets to the last of its readers alone.
    """
    rw = edges.kind == Kind.RW
    steps = edges.pick(~rw)
    place = _places(steps, vertices)
    readers, targets = edges.source[rw], edges.target[rw]
    back = place[targets] <= place[readers]
    readers, targets = readers[back], targets[back]
    order = np.lexsort((targets, readers, place[readers]))
    readers, targets = readers[order], targets[order]
    following = _Following.of(place[steps.source], place[steps.target], vertices)
    found: list[int] = []
    settled = np.zeros(int(owner.max(initial=0)) + 1, dtype=np.bool_)
    at = 0
    while at < len(readers):
        wave = readers[at : at + WAVE]
        open_ = ~settled[owner[wave]]
        news = _reaching_themselves(wave[open_], targets[at : at + WAVE][open_], place, following)
        found += news
        settled[owner[news]] = True
        at += WAVE
    return np.unique(np.asarray(found, dtype=np.int64))


def _places(steps: Edges, vertices: int) -> Ints:
    """Return the place of each vertex's component in a topological order; equal within one."""
    part = components(steps, vertices)
    source, target = part[steps.source], part[steps.target]
    crossing = source != target
    source, target = source[crossing], target[crossing]
    # The compiled library numbers the last of an order first; that it did costs a look.
    if np.all(source > target):
        found: Ints = int(part.max(initial=0)) - part
        return found
    order = _topological(adjacency(source, target), distinct(part, vertices).tolist())
    place = np.empty(vertices, dtype=np.int64)
    place[order] = np.arange(len(order))
    return place[part]


@attrs.frozen
class _Following:
    """The targets of edges between different places, by the place that they lead from."""

    begin: Ints
    target: Ints

    @classmethod
    def of(cls, source: Ints, target: Ints, places: int) -> _Following:
        """Of edges from ``source`` to ``target``, each once."""
        crossing = source != target
        code = np.sort(source[crossing] * places + target[crossing])
        code = code[group_starts(code)]
        return cls(np.searchsorted(code, np.arange(places + 1) * places), code % places)


def adjacency(source: Ints, target: Ints) -> dict[int, list[int]]:
    """Return targets by source, in the order of the edges."""
    following: dict[int, list[int]] = {}
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        following.setdefault(one, []).append(other)
    return following


def _topological(following: dict[int, list[int]], vertices: list[int]) -> list[int]:
    """Return ``vertices``, each before its successors."""
    missing: dict[int, int] = dict.fromkeys(vertices, 0)
    for targets in following.values():
        for target in targets:
            missing[target] += 1
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
        raise InvariantError("there is a cycle between components")
    return order


def _reaching_themselves(
    readers: Ints, targets: Ints, place: Ints, following: _Following
) -> list[int]:
    """Return the ``readers`` that are reached from the targets of their own rw steps, of which each
    has a bit.
    """
    if not len(readers):
        return []
    reached: dict[int, int] = {}
    at: dict[int, int] = {}
    for number, (home, target) in enumerate(
        zip(place[readers].tolist(), place[targets].tolist(), strict=True)
    ):
        at[home] = at.get(home, 0) | 1 << number
        reached[target] = reached.get(target, 0) | 1 << number
    low, high = int(place[targets].min()), int(place[readers].max())
    bounds = following.begin[low : high + 2].tolist()
    onward = following.target[bounds[0] : bounds[-1]].tolist()
    first = bounds[0]
    back = 0
    # In this order a place has all its bits before it passes them on.
    for vertex in range(low, high + 1):
        bits = reached.pop(vertex, 0)  # popped: only the frontier's bits are in memory
        if not bits:
            continue
        back |= bits & at.get(vertex, 0)
        for target in onward[bounds[vertex - low] - first : bounds[vertex - low + 1] - first]:
            if target <= high:
                reached[target] = reached.get(target, 0) | bits
    return sorted({reader for number, reader in enumerate(readers.tolist()) if back >> number & 1})
