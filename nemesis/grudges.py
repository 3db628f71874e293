"""Network partitions as grudges: pure functions from nodes to the directed links to cut.

A grudge is a sorted tuple of directed links (source, destination) without repetition; a one-way
partition is a grudge that is not symmetric. The idea is Jepsen's, which maps each node to the nodes
whose packets it drops.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.protocols.cluster import Grudge, Link, LinkShape


def grudge_of(links: Iterable[Link]) -> Grudge:
    """``links`` as a grudge: sorted, without repetition, without a node cut from itself."""
    return tuple(sorted({link for link in links if link[0] != link[1]}))


def one_way(sources: Iterable[str], destinations: Iterable[str]) -> Grudge:
    """Nothing that ``sources`` send reaches ``destinations`` any more; the way back stays open."""
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
    """The grudge that cuts ``group`` off from the rest of ``nodes``, in both directions.

    Where there is no rest, it cuts every link of the cluster.
    """
    inside, everyone = tuple(group), tuple(nodes)
    outside = rest(inside, everyone)
    return complete((inside, outside)) if outside else complete((node,) for node in everyone)


def rest(group: Iterable[str], nodes: Iterable[str]) -> tuple[str, ...]:
    """Those of ``nodes`` that are not in ``group``."""
    inside = tuple(group)
    return tuple(node for node in nodes if node not in inside)


def isolate(node: str, nodes: Iterable[str]) -> Grudge:
    """``node`` is alone."""
    return split((node,), nodes)


def halves(nodes: tuple[str, ...]) -> Grudge:
    """The first half of ``nodes`` (the smaller, where they are odd) against the second."""
    return split(nodes[: len(nodes) // 2], nodes) if len(nodes) > 1 else ()


def majorities_ring(ring: tuple[str, ...]) -> Grudge:
    """Every node of ``ring`` hears only as many neighbours on either side as make a majority with
    itself: no two nodes hear the same set, and each link is whole or cut in both directions.
    """
    count = len(ring)
    # A majority without the node itself, shared between both sides: the odd one rounds up.
    reach = (count // 2 + 1) // 2
    return grudge_of(
        (ring[source], ring[destination])
        for source in range(count)
        for destination in range(count)
        if min((source - destination) % count, (destination - source) % count) > reach
    )


def union(grudges: Iterable[Grudge]) -> Grudge:
    """Every link that any of ``grudges`` cuts."""
    return grudge_of(link for grudge in grudges for link in grudge)


def difference(grudge: Grudge, other: Grudge) -> Grudge:
    """The links of ``grudge`` that ``other`` does not cut."""
    return tuple(link for link in grudge if link not in other)


def strongest(shapes: Iterable[LinkShape]) -> tuple[LinkShape, ...]:
    """At most one shape a link, sorted by link: of several shapes of a link the worst of each
    property.
    """
    worst: dict[Link, LinkShape] = {}
    for shape in shapes:
        other = worst.get(shape.link, shape)
        worst[shape.link] = LinkShape(
            link=shape.link,
            loss=max(shape.loss, other.loss),
            delay_s=max(shape.delay_s, other.delay_s),
        )
    return tuple(worst[link] for link in sorted(worst))
