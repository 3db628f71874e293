"""A whole machine stands still: the freezer of its cgroup stops every process on it.

Unlike a pause it takes the way to control the machine along, so it goes through the provider's
own interface and not over a session.
"""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import NodeStatus, Provider
from harness.faults import Proof
from nemesis import nodes


def freeze() -> nodes.NodeFault:
    """Freeze the targets' machines; healing lets them go on."""
    needs = frozenset({Capability.FREEZE})
    return nodes.NodeFault(kind="freeze", needs=needs, verbs=Freeze(), silences=True)


class Freeze:
    """``nemesis.nodes.Verbs``."""

    async def strike(self, provider: Provider, node: str) -> object:
        """Freeze the machine."""
        return await provider.freeze(node)

    async def undo(self, provider: Provider, node: str) -> None:
        """Let the machine go on."""
        await provider.thaw(node)

    def effect(self, look: NodeStatus) -> Proof:
        """Whether the machine stands still."""
        frozen = "is frozen" if look.frozen else "is not frozen"
        return Proof(holds=look.frozen, text=f"{look.node} {frozen}")
