"""Half of a conversation is lost: packets pass in one direction only."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links


class OneWay(links.LinkFault):
    """Nothing that the targets send reaches the rest; they still hear everybody."""

    kind: str = "one-way"
    needs: frozenset[Capability] = frozenset({Capability.ONE_WAY_PARTITION})

    def grudge(self, hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
        """The links from ``hit`` to the rest."""
        return grudges.one_way(hit, grudges.rest(hit, nodes))


class OneWayIn(links.LinkFault):
    """Nothing that the rest sends reaches the targets; everybody still hears them."""

    kind: str = "one-way-in"
    needs: frozenset[Capability] = frozenset({Capability.ONE_WAY_PARTITION})

    def grudge(self, hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
        """The links from the rest to ``hit``."""
        return grudges.one_way(grudges.rest(hit, nodes), hit)
