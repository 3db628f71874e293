"""kill -9 of the store's program, and its start. The machine stays, so peers see resets."""

from __future__ import annotations

from harness.capability import Capability
from harness.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import nodes


class Kill(nodes.NodeFault):
    """SIGKILL the program on the targets; healing starts it again."""

    kind: str = "kill"
    needs: frozenset[Capability] = frozenset({Capability.KILL})

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Kill all at once: one after the other would let the store react in between."""
        await together(scene.provider.kill(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe shows no running program on any target."""
        return await nodes.prove_down(scene, victims)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Start what does not run."""
        await nodes.start_stopped(scene, victims)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs, as another boot than the one that was seen dead, and answers."""
        return await nodes.prove_serving(scene, victims)
