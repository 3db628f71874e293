"""Who no longer hears whom: pure functions over nodes that give grudges.

A grudge is a sorted tuple of directed links (source, destination) without repetition; a one-way
partition is simply a grudge that is not symmetric. The idea is Jepsen's, which maps each node to
those whose packets it drops.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.cluster import Grudge, Link


def grudge_of(links: Iterable[Link]) -> Grudge:
    """``links`` as a grudge: sorted, without repetition, without a node cut from itself."""
    return tuple(sorted({link for link in links if link[0] != link[1]}))


def one_way(sources: Iterable[str], destinations: Iterable[str]) -> Grudge:
    """What ``sources`` send no longer reaches ``destinations``; the way back stays open."""
    receivers = tuple(destinations)
    return grudge_of((source, receiver) for source in sources for receiver in receivers)


def complete(components: Iterable[Iterable[str]]) -> Grudge:
    """Nodes hear only their own component. Components must not overlap."""
    groups = tuple(tuple(component) for component in components)
    return grudge_of(
        (source, destination)
        for at, group in enumerate(groups)
        for other in (*groups[:at], *groups[at + 1 :])
        for source in group
        for destination in other
    )


def split(group: Iterable[str], nodes: Iterable[str]) -> Grudge:
    """``group`` and the rest of ``nodes`` no longer hear each other.

    Where there is no rest, nobody hears anybody: the whole cluster falls apart.
    """
    inside, everyone = tuple(group), tuple(nodes)
    rest = tuple(node for node in everyone if node not in inside)
    return complete((inside, rest)) if rest else complete((node,) for node in everyone)


def isolate(node: str, nodes: Iterable[str]) -> Grudge:
    """``node`` is alone."""
    return split((node,), nodes)


def halves(nodes: tuple[str, ...]) -> Grudge:
    """The first half of ``nodes`` (the smaller, where they are odd) against the second."""
    return split(nodes[: len(nodes) // 2], nodes) if len(nodes) > 1 else ()


def union(grudges: Iterable[Grudge]) -> Grudge:
    """Every link that any of ``grudges`` cuts."""
    return grudge_of(link for grudge in grudges for link in grudge)


def difference(grudge: Grudge, other: Grudge) -> Grudge:
    """The links of ``grudge`` that ``other`` does not cut."""
    return tuple(link for link in grudge if link not in other)
