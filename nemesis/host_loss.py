"""A machine is gone from one moment to the next: no reset, no end of a stream reaches anyone."""

from __future__ import annotations

from harness.capability import Capability
from harness.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import nodes


class HostLoss(nodes.NodeFault):
    """Take the targets' machines away; healing brings them back, disks as they were, and starts the
    program.
    """

    kind: str = "host-loss"
    needs: frozenset[Capability] = frozenset({Capability.HOST_LOSS})

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Lose all at once."""
        await together(scene.provider.lose(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """No program runs on any target, and none answers a call."""
        down = await nodes.prove_down(scene, victims)
        if not down.holds:
            return down
        silent = await nodes.prove_silent(scene, victims)
        return Proof(holds=silent.holds, text=f"{down.text}; {silent.text}")

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Bring the machines back, then start what does not run on them."""
        await together(scene.provider.restore(node) for node in victims.nodes)
        await nodes.start_stopped(scene, victims)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs and answers."""
        return await nodes.prove_serving(scene, victims)
