"""An orderly stop of the store's program, and its start: what an operator does on a good day."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import NodeStatus, Provider
from harness.faults import Proof
from nemesis import nodes


def restart() -> nodes.NodeFault:
    """SIGTERM the program on the targets and wait for its end; healing starts it again.

    It stays down for as long as the fault holds.
    """
    needs = frozenset({Capability.KILL})
    return nodes.NodeFault(kind="restart", needs=needs, verbs=Restart(), ends=True)


class Restart:
    """``nemesis.nodes.Verbs``."""

    async def strike(self, provider: Provider, node: str) -> object:
        """SIGTERM, and the end."""
        return await provider.stop(node)

    async def undo(self, provider: Provider, node: str) -> None:
        """Start it."""
        await nodes.start_stopped(provider, node)

    def effect(self, look: NodeStatus) -> Proof:
        """Whether it is down."""
        return nodes.down(look)
