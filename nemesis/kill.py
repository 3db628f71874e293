"""kill -9 of the store's program, and its start. The machine stays, so peers see resets."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Provider
from nemesis import nodes


class Kill(nodes.NodeFault):
    """SIGKILL the program on the targets; healing starts it again."""

    kind: str = "kill"
    needs: frozenset[Capability] = frozenset({Capability.KILL})

    async def strike(self, provider: Provider, node: str) -> object:
        """SIGKILL."""
        return await provider.kill(node)
