"""An orderly stop of the store's program, and its start: what an operator does on a good day."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Provider
from nemesis import nodes


class Restart(nodes.NodeFault):
    """SIGTERM the program on the targets and wait for its end; healing starts it again.

    It stays down for as long as the fault holds.
    """

    kind: str = "restart"
    needs: frozenset[Capability] = frozenset({Capability.KILL})

    async def strike(self, provider: Provider, node: str) -> object:
        """SIGTERM, and the end."""
        return await provider.stop(node)
