"""The network falls apart: the targets and the rest no longer hear each other."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links


class Partition(links.LinkFault):
    """Cut the targets off from the rest, in both directions; clients still reach every node.

    The target is the shape: ``one`` isolates a node, ``half`` makes random halves, ``first half``
    the same halves every time, ``minority`` and ``majority`` what they say, ``all`` takes every
    link.
    """

    kind: str = "partition"
    needs: frozenset[Capability] = frozenset({Capability.PARTITION})

    def grudge(self, hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
        """Every link between ``hit`` and the rest."""
        return grudges.split(hit, nodes)
