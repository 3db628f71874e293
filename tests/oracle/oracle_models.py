"""The lattice of consistency models, what anomalies imply, and which models each rules out.

Written from the published tables by name: an anomaly is closed under implication; every model that
proscribes one of those is ruled out, and with it all stronger models; ``not`` are the weakest.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx

_IMPLIES: dict[str, tuple[str, ...]] = {
    "incompatible-order": ("G1a",),
    "dirty-update": ("G1a",),
    "future-read": ("G1c",),
    "lost-update": ("write-skew", "G2-item"),
    "write-skew": ("G2",),
    "G1a": ("G1",),
    "G1b": ("G1",),
}
_IMPLIES_AT_EVERY_LEVEL: dict[str, tuple[str, ...]] = {
    "G0": ("G1c",),
    "G1c": ("G1",),
    "G-single-item": ("G-single", "G-nonadjacent-item"),
    "G-single": ("G-nonadjacent",),
    "G-nonadjacent-item": ("G-nonadjacent", "G2-item"),
    "G-nonadjacent": ("G2",),
    "G2-item": ("G2",),
}
_LEVELS = ("", "-process", "-realtime")

_STRONGER_THAN: dict[str, tuple[str, ...]] = {
    "strict-serializable": (
        "serializable",
        "linearizable",
        "snapshot-isolation",
        "strong-snapshot-isolation",
        "strong-session-serializable",
        "session-serializable",
    ),
    "session-serializable": ("1SR",),
    "strong-session-serializable": ("serializable", "strong-session-snapshot-isolation"),
    "strong-snapshot-isolation": ("strong-session-snapshot-isolation", "strong-read-committed"),
    "strong-session-snapshot-isolation": ("snapshot-isolation", "strong-session-read-committed"),
    "strong-read-committed": ("strong-session-read-committed", "strong-read-uncommitted"),
    "strong-session-read-committed": ("read-committed", "strong-session-read-uncommitted"),
    "strong-read-uncommitted": ("strong-session-read-uncommitted",),
    "strong-session-read-uncommitted": ("read-uncommitted",),
    "serializable": (
        "repeatable-read",
        "snapshot-isolation",
        "view-serializable",
        "update-serializable",
    ),
    "update-serializable": ("forward-consistent-view",),
    "forward-consistent-view": ("consistent-view",),
    "consistent-view": ("cursor-stability", "monotonic-view"),
    "repeatable-read": ("cursor-stability", "monotonic-atomic-view"),
    "snapshot-isolation": (
        "forward-consistent-view",
        "monotonic-atomic-view",
        "monotonic-snapshot-read",
        "parallel-snapshot-isolation",
        "prefix",
    ),
    "parallel-snapshot-isolation": ("causal-cerone", "update-atomic"),
    "prefix": ("causal-cerone",),
    "causal-cerone": ("read-atomic",),
    "update-atomic": ("read-atomic",),
    "read-atomic": ("monotonic-atomic-view",),
    "monotonic-atomic-view": ("read-committed",),
    "cursor-stability": ("read-committed",),
    "monotonic-view": ("read-committed",),
    "monotonic-snapshot-read": ("read-committed",),
    "read-committed": ("read-uncommitted",),
    "linearizable": ("sequential",),
    "sequential": ("causal",),
    "causal": ("writes-follow-reads", "PRAM"),
    "PRAM": ("monotonic-reads", "monotonic-writes", "read-your-writes"),
}

_PROSCRIBES: dict[str, tuple[str, ...]] = {
    "read-uncommitted": ("G0", "duplicate-elements", "cyclic-versions", "garbage-read"),
    "read-committed": ("G1",),
    "cursor-stability": ("G1", "G-cursor", "lost-update"),
    "read-atomic": ("internal", "G1a", "future-read"),
    "causal-cerone": ("internal", "G1a"),
    "prefix": ("internal", "G1a"),
    "parallel-snapshot-isolation": ("internal", "G1a"),
    "update-atomic": ("lost-update",),
    "consistent-view": ("G1", "G-single"),
    "repeatable-read": ("G1", "G2-item", "lost-update"),
    "snapshot-isolation": ("internal", "G1", "G-SI", "G-nonadjacent"),
    "serializable": ("G1", "G2", "predicate-read-miss", "internal"),
    "strong-session-read-uncommitted": ("G0-process",),
    "strong-session-read-committed": ("G1c-process",),
    "strong-session-snapshot-isolation": ("internal", "G1-process", "G-nonadjacent-process"),
    "strong-session-serializable": ("G1-process", "G2-process"),
    "strong-read-uncommitted": ("G0-realtime",),
    "strong-read-committed": ("G1c-realtime",),
    "strong-snapshot-isolation": ("internal", "G1-realtime", "G-nonadjacent-realtime"),
    "strict-serializable": ("G1", "G1c-realtime", "G2-realtime"),
}


def _anomalies() -> nx.DiGraph[str]:
    """An edge from each anomaly to what it implies."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, implied_names in _IMPLIES.items():
        graph.add_edges_from((name, other) for other in implied_names)
    for name, implied_names in _IMPLIES_AT_EVERY_LEVEL.items():
        for level in _LEVELS:
            graph.add_edges_from((name + level, other + level) for other in implied_names)
    for base in (*_IMPLIES_AT_EVERY_LEVEL, "G1", "G2"):
        graph.add_edge(base, base + "-process")
        graph.add_edge(base + "-process", base + "-realtime")
    return graph


def _models() -> nx.DiGraph[str]:
    """An edge from each model to what it is stronger than."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for model, weaker in _STRONGER_THAN.items():
        graph.add_edges_from((model, other) for other in weaker)
    return graph


def implied(names: Iterable[str]) -> set[str]:
    """``names`` and everything that they imply."""
    graph = _anomalies()
    closed: set[str] = set()
    for name in names:
        closed |= {name} | (nx.descendants(graph, name) if name in graph else set())
    return closed


def ruled_out(names: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """(the weakest models that ``names`` rule out, all others that they rule out)."""
    there = implied(names)
    graph = _models()
    broken = {model for model, never in _PROSCRIBES.items() if there.intersection(never)}
    closed = broken.union(*(nx.ancestors(graph, model) for model in broken))
    weakest = {model for model in closed if not nx.descendants(graph, model) & closed}
    return frozenset(weakest), frozenset(closed - weakest)


def stronger_or_equal(model: str) -> set[str]:
    """``model`` and every model that implies it."""
    return {model, *nx.ancestors(_models(), model)}


def promises_real_time(model: str) -> bool:
    """Whether ``model`` orders what did not overlap."""
    return model == "strict-serializable" or (
        model.startswith("strong-") and not model.startswith("strong-session-")
    )
