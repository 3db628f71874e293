"""Waits until a cluster is whole, and tells from its nodes' reports which of them it removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import attrs

from clusters.ignite3 import rest
from harness.errors import HarnessError

POLL_S = 0.25
MEND_EVERY_S = 5.0  # between two looks for such nodes while something is waited for
MEND_TAKES_S = 20.0  # the deadline would break off a later one after its kill of a node


def most_told(answers: Sequence[frozenset[str] | None]) -> frozenset[str]:
    """The answer that most nodes gave, of equally frequent ones the longest; empty for no
    answer.
    """
    told = [answer for answer in answers if answer is not None]
    return max(told, key=lambda answer: (told.count(answer), len(answer)), default=frozenset())


def is_out(
    node: str,
    state: str,
    members: frozenset[str],
    seen: frozenset[str],
    sees: frozenset[str] | None = None,
) -> bool:
    """Whether ``node``, which reports ``state``, was removed from the cluster, or has removed
    others. ``members`` are in the cluster, as the others report; ``seen`` are the nodes that they
    talk to; ``sees`` are those that ``node`` talks to itself.

    A started node that is no member is out. A node that still starts is out where the others don't
    see it, or where it does not see a member: it refuses that member for good.
    """
    if not members:
        return False
    if state == rest.STARTED and node not in members:
        return True
    blind = state != rest.STARTED and sees is not None and not members <= sees
    return blind or bool(seen and node not in seen)


def unseen_nodes(
    nodes: Sequence[str], sees: Mapping[str, frozenset[str] | None]
) -> tuple[str, ...]:
    """The nodes that must be restarted for all to see each other, before there is a cluster: those
    that an earlier node does not see, or that don't see it. A node that does not answer is not held
    against any.
    """
    met: list[str] = []
    for node in nodes:
        mine = sees.get(node)
        apart = [
            other
            for other in met
            if (mine is not None and other not in mine)
            or ((theirs := sees.get(other)) is not None and node not in theirs)
        ]
        if not apart:
            met.append(node)
    return tuple(node for node in nodes if node not in met)


@attrs.frozen
class Ends:
    """A deadline for a wait."""

    at_s: float

    def left_s(self, most_s: float) -> float:
        """How long a step may take that never needs more than ``most_s``."""
        return max(0.0, min(most_s, self.at_s - asyncio.get_running_loop().time()))

    async def until(
        self,
        look: Callable[[], Awaitable[list[str]]],
        mend: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Probe until nothing is lacking, and ``mend`` now and then meanwhile. Raises
        ``HarnessError`` with what is lacking at the deadline.
        """
        loop = asyncio.get_running_loop()
        mend_s = loop.time() + MEND_EVERY_S
        while lacking := await look():
            if loop.time() >= self.at_s:
                raise HarnessError(f"ignite3 is not whole: {'; '.join(lacking)}")
            if mend is not None and mend_s <= loop.time() <= self.at_s - MEND_TAKES_S:
                await mend()
                mend_s = loop.time() + MEND_EVERY_S
            await asyncio.sleep(POLL_S)
