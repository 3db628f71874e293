"""Two halves that no longer hear each other, and nodes between them that hear both."""

from __future__ import annotations

import random

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links


def bridge() -> links.LinkFault:
    """Split the rest into two random halves; the targets are the bridge and lose no link.

    Both halves find a quorum together with the bridge, so that two leaders compete for one voter.
    """
    needs = frozenset({Capability.PARTITION})
    return links.LinkFault(kind="bridge", needs=needs, cuts=beside)


def beside(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links between two halves of the rest; none where that is only one node."""
    others = sorted(grudges.rest(hit, nodes))
    random.Random(draw).shuffle(others)
    return grudges.halves(tuple(others))
