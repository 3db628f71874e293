"""The network falls apart: the targets and the rest no longer hear each other."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Roles
from harness.faults import Proof, Scene, Victims
from nemesis import grudges, targets

# A proof names a few links; the grudge itself is in the records of the fault.
_NAMED_LINKS = 4


class Partition:
    """Cut the targets off from the rest, in both directions; clients still reach every node."""

    kind: str = "partition"
    needs: frozenset[Capability] = frozenset({Capability.PARTITION})

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, and the links between them and the rest."""
        hit = targets.resolve(targets.parse(target), roles, nodes, draw)
        if hit is None:
            return None
        grudge = grudges.split(hit.nodes, nodes)
        return Victims(nodes=hit.nodes, roles=hit.roles, grudge=grudge) if grudge else None

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis puts the union of all grudges in force."""

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Nothing that is sent over a cut link arrives."""
        return await _every_link(scene, victims, carries=False)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis takes the grudge out of the union."""

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """What is sent over every link that was cut arrives again."""
        return await _every_link(scene, victims, carries=True)


async def _every_link(scene: Scene, victims: Victims, *, carries: bool) -> Proof:
    """Whether all links of the grudge carry what is sent, or all don't, by sending."""
    seen = await scene.provider.probe_links(victims.grudge)
    wrong = [link for link in victims.grudge if seen.get(link, not carries) is not carries]
    verb = "carry" if carries else "drop"
    if not wrong:
        return Proof(holds=True, text=f"all {len(victims.grudge)} links {verb} what is sent")
    named = ", ".join(f"{source} to {destination}" for source, destination in wrong[:_NAMED_LINKS])
    more = f" and {len(wrong) - _NAMED_LINKS} more" if len(wrong) > _NAMED_LINKS else ""
    opposite = "does not carry" if carries else "still carries"
    return Proof(holds=False, text=f"{opposite} what is sent: {named}{more}")
