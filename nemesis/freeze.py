"""A whole machine stands still: the freezer of its cgroup stops every process on it.

Unlike a pause it takes the way to control the machine along, so it goes through the provider's
own interface and not over a session.
"""

from __future__ import annotations

from harness.capability import Capability
from harness.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import nodes


class Freeze(nodes.NodeFault):
    """Freeze the targets' machines; healing lets them go on."""

    kind: str = "freeze"
    needs: frozenset[Capability] = frozenset({Capability.FREEZE})

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Freeze all at once."""
        await together(scene.provider.freeze(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe shows every machine frozen, and none answers a call."""
        looks = await nodes.probe(scene, victims)
        moving = [look.node for look in looks if not look.frozen]
        if moving:
            return Proof(holds=False, text=f"{', '.join(moving)} is not frozen")
        silent = await nodes.prove_silent(scene, victims)
        if not silent.holds:
            return silent
        return Proof(holds=True, text=f"{', '.join(victims.nodes)} frozen; {silent.text}")

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Let every machine go on."""
        await together(scene.provider.thaw(node) for node in victims.nodes)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs and answers."""
        return await nodes.prove_serving(scene, victims)
