"""Two halves that no longer hear each other, and nodes between them that hear both."""

from __future__ import annotations

import random

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links


class Bridge(links.LinkFault):
    """Split the rest into two random halves; the targets are the bridge and lose no link.

    Both halves find a quorum together with the bridge, so that two leaders compete for one voter.
    """

    kind: str = "bridge"
    needs: frozenset[Capability] = frozenset({Capability.PARTITION})

    def grudge(self, hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
        """The links between the halves; none where there is only one node beside the bridge."""
        others = sorted(grudges.rest(hit, nodes))
        random.Random(draw).shuffle(others)
        return grudges.halves(tuple(others))
