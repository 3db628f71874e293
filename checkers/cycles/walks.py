"""Which vertices lie on closed walks of a kind: polynomial questions, for whole graphs at once."""

from __future__ import annotations

import numpy as np

from checkers.cycles.components import components, cyclic
from checkers.cycles.graph import Edges, Kind
from checkers.engine.arrays import Bools, Ints
from harness.errors import InvariantError

# The number of pairs whose reachability is computed in one sweep, a bit each; 1 kB a vertex.
WAVE = 8192


def calm(edges: Edges) -> Bools:
    """Return the edges that are no rw, nor part of one."""
    return ~np.isin(edges.kind, (Kind.RW, Kind.GATE))


def closed_without_rw(edges: Edges, vertices: int) -> Ints:
    """Return the vertices on cycles without any rw."""
    some = edges.pick(calm(edges))
    found: Ints = np.unique(some.source[cyclic(some, vertices)])
    return found


def closed_without_adjacent_rw(edges: Edges, vertices: int) -> Ints:
    """Return the vertices on closed walks with some rw, but never two in a row.

    Every vertex is split into its begin and its commit (as Viper does): edges other than rw lead
    from a commit to a begin, rw from a begin to a commit, and a begin to its own commit. After an
    rw the walk can continue only from a commit, and no rw leaves a commit.
    """
    own = np.arange(vertices)
    rw, gate = edges.kind == Kind.RW, edges.kind == Kind.GATE
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
    found: Ints = np.unique(split.source[inside & alive[label[split.source]]] % vertices)
    return found


def closed_by_one_rw(edges: Edges, vertices: int, owner: Ints) -> Ints:
    """Return readers from which an rw step and then steps other than rw lead back: in every
    component (by ``owner``) that has such readers, some of them.

    The edges other than rw may have cycles of their own, so reachability goes in one sweep over a
    topological order of their components, a bit for each reader.
    """
    rw = edges.kind == Kind.RW
    steps = edges.pick(~rw)
    part = components(steps, vertices)
    crossing = part[steps.source] != part[steps.target]
    following = adjacency(part[steps.source[crossing]], part[steps.target[crossing]])
    # The target of an rw needs a place in the order even where no other step leads on from it.
    ends = np.concatenate([part[steps.source[crossing]], part[edges.target]])
    order = _topological(following, np.unique(ends).tolist())
    entries = adjacency(edges.source[rw], part[edges.target[rw]])
    waiting = sorted(entries)
    found: list[int] = []
    settled: set[int] = set()
    for start in range(0, len(waiting), WAVE):
        wave = [u for u in waiting[start : start + WAVE] if int(owner[u]) not in settled]
        news = _reaching_themselves(wave, part, entries, following, order)
        found += news
        settled.update(int(owner[u]) for u in news)
    return np.asarray(found, dtype=np.int64)


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
    wave: list[int],
    part: Ints,
    entries: dict[int, list[int]],
    following: dict[int, list[int]],
    order: list[int],
) -> list[int]:
    """Return the vertices of ``wave`` that are reached from the targets of their own rw steps."""
    reached: dict[int, int] = {}
    at: dict[int, int] = {}
    for number, reader in enumerate(wave):
        home = int(part[reader])
        at[home] = at.get(home, 0) | 1 << number
        for target in entries[reader]:
            reached[target] = reached.get(target, 0) | 1 << number
    back = 0
    # In this order a vertex has all its bits before it passes them on.
    for vertex in order:
        bits = reached.pop(vertex, 0)  # popped: only the frontier's bits are in memory
        if not bits:
            continue
        back |= bits & at.get(vertex, 0)
        for target in following.get(vertex, ()):
            reached[target] = reached.get(target, 0) | bits
    return [reader for number, reader in enumerate(wave) if back >> number & 1]
