"""Half of a conversation is lost: packets pass in one direction only."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links

_NEEDS = frozenset({Capability.ONE_WAY_PARTITION})


def one_way() -> links.LinkFault:
    """Nothing that the targets send reaches the rest; they still hear everybody."""
    return links.LinkFault(kind="one-way", needs=_NEEDS, cuts=out_of)


def one_way_in() -> links.LinkFault:
    """Nothing that the rest sends reaches the targets; everybody still hears them."""
    return links.LinkFault(kind="one-way-in", needs=_NEEDS, cuts=into)


def out_of(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links from ``hit`` to the rest."""
    return grudges.one_way(hit, grudges.rest(hit, nodes))


def into(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links from the rest to ``hit``."""
    return grudges.one_way(grudges.rest(hit, nodes), hit)
