"""A machine is gone from one moment to the next: no reset, no end of a stream reaches anyone."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import NodeStatus, Provider
from harness.faults import Proof
from nemesis import nodes


def host_loss() -> nodes.NodeFault:
    """Take the targets' machines away; healing brings them back, disks as they were, and starts the
    program.
    """
    needs = frozenset({Capability.HOST_LOSS})
    return nodes.NodeFault(
        kind="host-loss", needs=needs, verbs=HostLoss(), silences=True, ends=True
    )


class HostLoss:
    """``nemesis.nodes.Verbs``."""

    async def strike(self, provider: Provider, node: str) -> object:
        """Take the machine away."""
        return await provider.lose(node)

    async def undo(self, provider: Provider, node: str) -> None:
        """Bring the machine back, then start what does not run on it."""
        await provider.restore(node)
        await nodes.start_stopped(provider, node)

    def effect(self, look: NodeStatus) -> Proof:
        """Whether nothing runs there."""
        return nodes.down(look)
