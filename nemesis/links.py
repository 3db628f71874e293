"""What faults on links have in common: they say what is cut, and prove it by sending."""

from __future__ import annotations

from harness.cluster import Grudge, Roles
from harness.faults import Proof, Scene, Victims
from nemesis import targets

# A proof names a few links; the grudge itself follows from the nodes and the kind.
_NAMED_LINKS = 4


class LinkFault:
    """A fault kind that cuts links. Each kind says which, in ``grudge``; the nemesis keeps the
    union of all grudges in force.
    """

    aims: tuple[str, ...] = ()

    def grudge(self, hit: tuple[str, ...], nodes: tuple[str, ...], draw: int) -> Grudge:
        """The links to cut when ``hit`` of ``nodes`` are the target."""
        raise NotImplementedError

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse what is no target here, and one with a strength: these kinds have none."""
        parsed = targets.parse(target, path)
        targets.check(parsed, nodes, partitions, path)
        targets.check_strength(parsed, "", path)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, and the links that are cut around them."""
        hit = targets.resolve(targets.parse(target), roles, nodes, draw)
        if hit is None:
            return None
        grudge = self.grudge(hit.nodes, nodes, draw)
        return Victims(nodes=hit.nodes, roles=hit.roles, grudge=grudge) if grudge else None

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis puts the union of all grudges in force."""

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Nothing that is sent over a cut link arrives."""
        if not victims.grudge:
            return Proof(holds=False, text="no cut link is between machines that can be asked")
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
