"""Every node hears a majority, and no two nodes hear the same one."""

from __future__ import annotations

import random

from harness.capability import Capability
from harness.cluster import Grudge
from harness.errors import PlanError
from nemesis import grudges, links

TARGET = "all"
NODES_MIN = 4  # of three in a ring everybody hears everybody


class MajoritiesRing(links.LinkFault):
    """Put all nodes in a ring at random; each hears only its neighbours, a majority with itself."""

    kind: str = "majorities-ring"
    needs: frozenset[Capability] = frozenset({Capability.PARTITION})
    aims: tuple[str, ...] = (TARGET,)

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse any target but all nodes, and a cluster that is too small for a ring."""
        if " ".join(target.split()) != TARGET:
            raise PlanError(path, f"fault {self.kind!r} takes target 'all' only (got {target!r})")
        if len(nodes) < NODES_MIN:
            raise PlanError(
                path, f"fault {self.kind!r} needs at least {NODES_MIN} nodes (got {len(nodes)})"
            )

    def grudge(self, hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
        """The links between nodes that are not near each other in the ring."""
        ring = sorted(nodes)
        random.Random(draw).shuffle(ring)
        return grudges.majorities_ring(tuple(ring))
