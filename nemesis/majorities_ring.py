"""Every node hears a majority, and no two nodes hear the same one."""

from __future__ import annotations

import random

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links

NODES_MIN = 4  # of three in a ring everybody hears everybody


def majorities_ring() -> links.LinkFault:
    """Put all nodes in a ring at random; each hears only its neighbours, a majority with itself."""
    needs = frozenset({Capability.PARTITION})
    return links.LinkFault(kind="majorities-ring", needs=needs, cuts=far_apart, ring_of=NODES_MIN)


def far_apart(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links between nodes that are not near each other in the ring."""
    ring = sorted(nodes)
    random.Random(draw).shuffle(ring)
    return grudges.majorities_ring(tuple(ring))
