"""Which classes of simple cycles relations between transactions have: by search, exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import product

import networkx as nx
import oracle_models as models

BASES = ("G0", "G1c", "G-single-item", "G-nonadjacent-item", "G2-item")
SUFFIXES = ("", "-process", "-realtime")
CYCLE_NAMES = tuple(base + suffix for base, suffix in product(BASES, SUFFIXES))
WRITES = ("ww", "wr")
ORDERS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "-process": ("process",),
    "-realtime": ("process", "realtime"),
}
SEARCH_LIMIT = 2_000_000
"""Steps of the one search that is exponential; a history that needs more is not small."""


CAUSAL_REVERSE = "causal-reverse"

Relation = set[tuple[int, int]]
Graph = Mapping[str, Relation]
Without = Mapping[str, frozenset[int]]
NOBODY: Without = {}


def told(graph: Graph, without: Without = NOBODY) -> Counter[str]:
    """For each cycle class the components that hold it and no other class that implies it; as
    causal reverse those that hold none. ``without``: see ``classes``.
    """
    counts: Counter[str] = Counter()
    for component in components(graph):
        counts.update(reported(classes(component, without)) or {CAUSAL_REVERSE})
    return counts


def reported(names: set[str]) -> set[str]:
    """``names`` without those cycle classes that another of the cycle classes in it implies."""
    cycles = names.intersection(CYCLE_NAMES)
    implied = {
        weaker for name in cycles for weaker in models.implied({name}) - {name} if weaker in cycles
    }
    return names - implied


def cycle_names(graph: Graph, without: Without = NOBODY) -> set[str]:
    """The classes of which ``graph`` has a simple cycle, and what these imply."""
    return set().union(*(classes(component, without) for component in components(graph)))


def components(graph: Graph) -> list[Graph]:
    """The parts that cycles lie in: strongly connected over all relations."""
    everything = nx.DiGraph(_union(graph, graph))
    return [
        {
            kind: {(a, b) for a, b in pairs if a in component and b in component}
            for kind, pairs in graph.items()
        }
        for component in nx.strongly_connected_components(everything)
        if len(component) > 1
    ]


def classes(component: Graph, without: Without = NOBODY) -> set[str]:
    """``cycle_names`` of one component. ``without``: by suffix the transactions that do not promise
    this order; a cycle that needs it is of no class where it passes one of them.

    Asked from the strongest claim to the weakest; what is implied is not asked. So when a class is
    asked for, the stronger ones are known to be absent, and that leaves simple questions: where
    there is no cycle of writes and orders alone, each cycle has the edge that is asked for.
    """
    names: set[str] = set()
    for suffix in SUFFIXES:
        for base in BASES:
            name = base + suffix
            part = _leaving(component, without.get(suffix, frozenset()))
            if name not in names and _has_cycle(part, base, ORDERS[suffix]):
                names |= {implied for implied in models.implied({name}) if implied in CYCLE_NAMES}
    return names


def _leaving(graph: Graph, out: frozenset[int]) -> Graph:
    return {
        kind: {(a, b) for a, b in pairs if a not in out and b not in out}
        for kind, pairs in graph.items()
    }


def _has_cycle(graph: Graph, base: str, orders: tuple[str, ...]) -> bool:
    """Whether there is a cycle of class ``base``, given that no stronger class has one."""
    anti = graph["rw"]
    if base == "G0":
        return _cyclic(_union(graph, ("ww", *orders)))
    calm = _union(graph, (*WRITES, *orders))
    if base == "G1c":
        return _cyclic(calm)
    if base == "G-single-item":
        return _closed_by(calm, anti)
    if base == "G-nonadjacent-item":
        return _alternates(calm, anti)
    return _closed_by(calm | anti, anti)


def _union(graph: Graph, kinds: Iterable[str]) -> Relation:
    return set().union(*(graph[kind] for kind in kinds))


def _cyclic(edges: Relation) -> bool:
    return not nx.is_directed_acyclic_graph(nx.DiGraph(edges))


def _closed_by(edges: Relation, needed: Relation) -> bool:
    """Whether a path over ``edges`` leads from the end of one of ``needed`` to its start."""
    graph = nx.DiGraph(edges | needed)
    graph.remove_edges_from(needed - edges)
    starts: dict[int, set[int]] = defaultdict(set)
    for start, end in needed:
        starts[end].add(start)
    return any(those & {end, *nx.descendants(graph, end)} for end, those in starts.items())


def _alternates(calm: Relation, anti: Relation) -> bool:
    """Whether a simple cycle has edges of ``anti``, and after each of them one of ``calm``.

    A closed walk of that kind is necessary. It is sufficient where ``calm`` has no cycle: cut in
    two where it meets itself, at least one part is of that kind again, and it has an ``anti`` edge.
    Otherwise a simple one is searched for.
    """
    step = {(a, d) for a, b in anti for c, d in calm if b == c}
    if not _closed_by(step | calm, step):
        return False
    return not _cyclic(calm) or _simple_alternation(calm, anti)


def _simple_alternation(calm: Relation, anti: Relation) -> bool:
    steps: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for edges, is_anti in ((calm, False), (anti, True)):
        for a, b in sorted(edges):
            steps[a].append((b, is_anti))
    budget = [SEARCH_LIMIT]
    return any(_closes(steps, start, first, (start,), True, budget) for start, first in anti)


def _closes(
    steps: Mapping[int, list[tuple[int, bool]]],
    start: int,
    here: int,
    path: tuple[int, ...],
    after_anti: bool,
    budget: list[int],
) -> bool:
    """Whether a simple path leads from ``here`` back to ``start``, whose first edge is ``anti``."""
    budget[0] -= 1
    if budget[0] < 0:
        raise RuntimeError(f"the search for a simple cycle took over {SEARCH_LIMIT} steps")
    for there, is_anti in steps[here]:
        if is_anti and after_anti:
            continue
        if there == start and not is_anti:
            return True
        fresh = there != start and there != here and there not in path
        if fresh and _closes(steps, start, there, (*path, here), is_anti, budget):
            return True
    return False
