"""The network falls apart: the targets and the rest no longer hear each other."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Grudge
from nemesis import grudges, links


def partition() -> links.LinkFault:
    """Cut the targets off from the rest, in both directions; clients still reach every node.

    The target is the shape: ``one`` isolates a node, ``half`` makes random halves, ``first half``
    the same halves every time, ``minority`` and ``majority`` what they say, ``all`` takes every
    link.
    """
    needs = frozenset({Capability.PARTITION})
    return links.LinkFault(kind="partition", needs=needs, cuts=around)


def around(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """Every link between ``hit`` and the rest."""
    return grudges.split(hit, nodes)
