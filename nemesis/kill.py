"""kill -9 of the store's program, and its start. The machine stays, so peers see resets."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import NodeStatus, Provider
from harness.faults import Proof
from nemesis import nodes


def kill() -> nodes.NodeFault:
    """SIGKILL the program on the targets; healing starts it again."""
    needs = frozenset({Capability.KILL})
    return nodes.NodeFault(kind="kill", needs=needs, verbs=Kill(), ends=True)


class Kill:
    """``nemesis.nodes.Verbs``."""

    async def strike(self, provider: Provider, node: str) -> object:
        """SIGKILL."""
        return await provider.kill(node)

    async def undo(self, provider: Provider, node: str) -> None:
        """Start it."""
        await nodes.start_stopped(provider, node)

    def effect(self, look: NodeStatus) -> Proof:
        """Whether it is down."""
        return nodes.down(look)
