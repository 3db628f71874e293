"""SIGSTOP of the store's program: it lives, keeps what it holds, and says nothing.

The machine's kernel goes on: it still acknowledges packets and completes handshakes, so that peers
see a slow node and not a dead one.
"""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import NodeStatus, Provider
from harness.faults import Proof
from nemesis import nodes


def pause() -> nodes.NodeFault:
    """SIGSTOP the program on the targets; healing sends SIGCONT."""
    needs = frozenset({Capability.PAUSE})
    return nodes.NodeFault(kind="pause", needs=needs, verbs=Pause(), silences=True)


class Pause:
    """``nemesis.nodes.Verbs``."""

    async def strike(self, provider: Provider, node: str) -> object:
        """SIGSTOP."""
        return await provider.pause(node)

    async def undo(self, provider: Provider, node: str) -> None:
        """SIGCONT, where it is paused."""
        if (await provider.probe(node)).paused:
            await provider.resume(node)

    def effect(self, look: NodeStatus) -> Proof:
        """Whether the program is stopped by a signal."""
        paused = f"is paused (pid {look.pid})" if look.paused else "is not paused"
        return Proof(holds=look.paused, text=f"{look.node} {paused}")
