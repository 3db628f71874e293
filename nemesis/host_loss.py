"""A machine is gone from one moment to the next: no reset, no end of a stream reaches anyone."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Provider
from nemesis import nodes


class HostLoss(nodes.NodeFault):
    """Take the targets' machines away; healing brings them back, disks as they were, and starts the
    program.
    """

    kind: str = "host-loss"
    needs: frozenset[Capability] = frozenset({Capability.HOST_LOSS})
    silences: bool = True

    async def strike(self, provider: Provider, node: str) -> object:
        """Take the machine away."""
        return await provider.lose(node)

    async def undo(self, provider: Provider, node: str) -> None:
        """Bring the machine back, then start what does not run on it."""
        await provider.restore(node)
        await nodes.start_stopped(provider, node)
