"""A program that is killed, started, and killed again before it has recovered."""

from __future__ import annotations

import asyncio

from harness.api import Capability, Effect, FaultKind, NodeStatus, Proof, Provider
from nemesis.node_faults import NodeFault, down, start_stopped

TIMES = 2  # a recovery that is cut short, and one that has its remains to deal with
RECOVERS_S = 0.2  # far less than it takes

KIND = FaultKind(
    name="crashloop",
    effects=frozenset({Effect.ENDS_PROGRAM}),
    needs=frozenset({Capability.KILL}),
)


def crashloop() -> NodeFault:
    """Kill the program on the targets again and again while it recovers; healing starts it."""
    return NodeFault(kind=KIND, verbs=Crashloop())


class Crashloop:
    """The verbs of the kind; targets, proofs of silence and of recovery are ``NodeFault``'s."""

    async def inject(self, provider: Provider, node: str) -> object:
        """Kill it, and each time that it was started again."""
        for _ in range(TIMES):
            await provider.kill(node)
            await provider.start(node)
            await asyncio.sleep(RECOVERS_S)
        return await provider.kill(node)

    async def heal(self, provider: Provider, node: str) -> None:
        """Start it, unless it runs. Idempotent, as every heal."""
        await start_stopped(provider, node)

    def effective(self, look: NodeStatus) -> Proof:
        """Whether it is down, by a look that does not go through ``kill``."""
        return down(look)
