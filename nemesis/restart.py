"""An orderly stop of the store's program, and its start: what an operator does on a good day."""

from __future__ import annotations

from harness.capability import Capability
from harness.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import nodes


class Restart(nodes.NodeFault):
    """SIGTERM the program on the targets and wait for its end; healing starts it again.

    It stays down for as long as the fault holds.
    """

    kind: str = "restart"
    needs: frozenset[Capability] = frozenset({Capability.KILL})

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Stop all at once."""
        await together(scene.provider.stop(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe shows no running program on any target."""
        return await nodes.prove_down(scene, victims)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Start what does not run."""
        await nodes.start_stopped(scene, victims)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs and answers."""
        return await nodes.prove_serving(scene, victims)
