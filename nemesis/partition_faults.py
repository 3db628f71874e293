"""The common part of faults on links: each states the links that it cuts, and proves the cut by
sending.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from harness.errors import PlanError
from harness.protocols import targets
from harness.protocols.cluster import Grudge, Link, Roles
from harness.protocols.fault_kinds import (
    BRIDGE,
    MAJORITIES_RING,
    ONE_WAY,
    ONE_WAY_IN,
    PARTITION,
    FaultKind,
)
from harness.protocols.faults import Proof, Scene, Victims
from nemesis import grudges, resolution

# A proof names a few links; the grudge itself follows from the nodes and the kind.
_NAMED_LINKS = 4


# The links to cut when the first are the target among the second; the number decides what is
# random. No links where there is nothing to cut.
Cut = Callable[[tuple[str, ...], tuple[str, ...], int], Grudge]


@attrs.frozen(kw_only=True)
class LinkFault:
    """A ``Fault`` that cuts the links that ``cuts`` returns; the nemesis keeps the union of all
    grudges in force. ``nodes_min``: in a smaller cluster there is nothing to cut.
    """

    kind: FaultKind
    cuts: Cut
    nodes_min: int = 0

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here, and one with a strength: these kinds have none."""
        name = self.kind.name
        if not self.kind.of_nodes and " ".join(target.split()) not in self.kind.aims:
            raise PlanError(path, f"fault {name!r} takes target 'all' only (got {target!r})")
        if len(nodes) < self.nodes_min:
            at_least = f"needs at least {self.nodes_min} nodes (got {len(nodes)})"
            raise PlanError(path, f"fault {name!r} {at_least}")
        parsed = targets.checked(target, self.kind.strength, nodes, partitions, path)
        # Of the largest cluster that there may be; a role is one node's at least.
        hit = targets.certain(parsed, nodes) or nodes[:1]
        if not self.cuts(hit, nodes, 0):
            count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
            raise PlanError(path, f"fault {name!r} of {target!r} has no link to cut among {count}")

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, and the links that are cut around them."""
        hit = resolution.resolve(targets.parse(target), roles, nodes, draw)
        if hit is None:
            return None
        grudge = self.cuts(hit.nodes, nodes, draw)
        # Without a link to cut the row is skipped, not recorded as a fault that had no effect.
        return Victims(nodes=hit.nodes, roles=hit.roles, grudge=grudge) if grudge else None

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis puts the union of all grudges in force."""

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Nothing that is sent over a cut link arrives."""
        return await _every_link(scene, victims, carries=False)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis takes the grudge out of the union."""

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Datagrams over every link that was cut arrive again."""
        if not victims.grudge:
            return Proof(holds=True, text="other faults hold all of its links")
        return await _every_link(scene, victims, carries=True)


async def _every_link(scene: Scene, victims: Victims, *, carries: bool) -> Proof:
    """Whether all links of the grudge carry datagrams, or none does, by sending.

    The links that can be probed show an effect; only every link shows a heal.
    """
    seen = await scene.provider.probe_links(victims.grudge)
    asked = [link for link in victims.grudge if link in seen]
    unasked = [link for link in victims.grudge if link not in seen]
    wrong = [link for link in asked if seen[link] is not carries]
    if wrong:
        opposite = "does not carry" if carries else "still carries"
        return Proof(holds=False, text=f"{opposite} what is sent: {_named(wrong)}")
    if not asked:
        return Proof(holds=None, text="no cut link is between machines that can be asked")
    if unasked and carries:
        return Proof(holds=None, text=f"can't be asked: {_named(unasked)}")
    share = f"{len(asked)} of {len(victims.grudge)}" if unasked else f"all {len(asked)}"
    return Proof(holds=True, text=f"{share} links {'carry' if carries else 'drop'} what is sent")


def _named(links: list[Link]) -> str:
    named = ", ".join(f"{source} to {destination}" for source, destination in links[:_NAMED_LINKS])
    return named + (f" and {len(links) - _NAMED_LINKS} more" if len(links) > _NAMED_LINKS else "")


def partition() -> LinkFault:
    """Cut the targets off from the rest, in both directions; clients still reach every node.

    The target is the shape: ``one`` isolates a node, ``half`` makes random halves, ``first half``
    the same halves every time, ``minority`` and ``majority`` cut off so many nodes, ``all`` takes
    every link.
    """
    return LinkFault(kind=PARTITION, cuts=around)


def around(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """Every link between ``hit`` and the rest."""
    return grudges.split(hit, nodes)


def bridge() -> LinkFault:
    """Split the rest into two random halves; the targets are the bridge and lose no link.

    Both halves find a quorum together with the bridge, so that two leaders compete for one voter.
    """
    return LinkFault(kind=BRIDGE, cuts=beside)


def beside(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links between two halves of the rest; none where that is only one node."""
    # Sorted: the halves depend on the draw alone, not on the order of nodes in the plan.
    others = sorted(grudges.rest(hit, nodes))
    random.Random(draw).shuffle(others)
    return grudges.halves(tuple(others))


NODES_MIN = 4  # of three in a ring everybody hears everybody


def majorities_ring() -> LinkFault:
    """Put all nodes in a ring at random; each hears only its neighbours, a majority with itself."""
    return LinkFault(kind=MAJORITIES_RING, cuts=far_apart, nodes_min=NODES_MIN)


def far_apart(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links between nodes that are not near each other in the ring."""
    ring = sorted(nodes)
    random.Random(draw).shuffle(ring)
    return grudges.majorities_ring(tuple(ring))


def one_way() -> LinkFault:
    """Nothing that the targets send reaches the rest; they still hear every node."""
    return LinkFault(kind=ONE_WAY, cuts=out_of)


def one_way_in() -> LinkFault:
    """Nothing that the rest sends reaches the targets; every node still hears them."""
    return LinkFault(kind=ONE_WAY_IN, cuts=into)


def out_of(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links from ``hit`` to the rest."""
    return grudges.one_way(hit, grudges.rest(hit, nodes))


def into(hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
    """The links from the rest to ``hit``."""
    return grudges.one_way(grudges.rest(hit, nodes), hit)
