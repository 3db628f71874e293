"""SIGSTOP of the store's program: it lives, keeps what it holds, and says nothing.

The machine's kernel goes on: it still acknowledges packets and completes handshakes, so that peers
see a slow node and not a dead one.
"""

from __future__ import annotations

from harness.capability import Capability
from harness.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import nodes


class Pause(nodes.NodeFault):
    """SIGSTOP the program on the targets; healing sends SIGCONT."""

    kind: str = "pause"
    needs: frozenset[Capability] = frozenset({Capability.PAUSE})

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Pause all at once."""
        await together(scene.provider.pause(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe shows every target stopped by a signal, and none answers a call."""
        looks = await nodes.probe(scene, victims)
        moving = [look.node for look in looks if not look.paused]
        if moving:
            return Proof(holds=False, text=f"{', '.join(moving)} is not paused")
        silent = await nodes.prove_silent(scene, victims)
        if not silent.holds:
            return silent
        paused = "; ".join(f"{look.node} is paused (pid {look.pid})" for look in looks)
        return Proof(holds=True, text=f"{paused}; {silent.text}")

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Resume what is paused."""
        looks = await nodes.probe(scene, victims)
        paused = [look.node for look in looks if look.paused]
        await together(scene.provider.resume(node) for node in paused)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs and answers."""
        return await nodes.prove_serving(scene, victims)
