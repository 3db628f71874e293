"""Requests to the primary of a partition, on the node that has the role now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from clusters.reference.node.markers import reached
from clusters.reference.node.tx.limits import answer_timeout_s
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    Failed,
    Finish,
    Lock,
    PeerAnswer,
    PeerBody,
    PrimaryBody,
    ReadAt,
    Resolve,
    ResolveReply,
)

ROUTE_POLL_S = 0.02  # a primary that is handed over serves again within some 50 ms

Ask = Callable[[str, PeerBody, float], Awaitable[PeerAnswer]]
Notify = Callable[[str, PeerBody], None]


class PrimaryClient:
    """Asks primaries. ``route`` names the node that was granted a partition, if one was."""

    def __init__(
        self,
        *,
        route: Callable[[int], str | None],
        ask: Ask,
        notify: Notify,
        removed: Callable[[int], bool] = lambda number: False,
        refused: Callable[[int], Failed | None] | None = None,
    ) -> None:
        """``removed``: see ``Routes``; ``refused``: why nothing can be asked of a partition now,
        where that is known.
        """
        self._route, self._ask, self._notify, self._removed = route, ask, notify, removed
        self._refused = refused

    async def ask(
        self, partition: int, body: PrimaryBody, timeout_s: float, limit_s: float | None = None
    ) -> PeerAnswer:
        """The primary's answer to ``body`` within ``limit_s`` of each request, by default within
        ``timeout_s``.

        While it is certain that a request had no effect, it is sent again for ``timeout_s``: that
        covers a change of primaries. So is an unanswered request that may be repeated without harm.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + timeout_s
        # To repeat these does no harm; a second Validate or CommitTx
        # would meet the first one's effect.
        again = isinstance(body, Lock | ReadAt | Resolve | Finish)
        while True:
            if (known := self._known(body)) is not None:
                return known
            # No primary that it could wait for would come.
            if self._refused and (refusal := self._refused(partition)) is not None:
                return refusal
            node = self._route(partition)
            if node is None:
                answer: PeerAnswer = Failed(
                    codes.NO_PRIMARY, f"partition {partition} has no primary"
                )
            else:
                left_s = give_up_s - loop.time() if limit_s is None else limit_s
                if again:
                    # One lost answer must not use up the time in which it could be asked for again.
                    left_s = min(left_s, answer_timeout_s(body))
                answer = await self._ask(node, body, left_s)
            if not isinstance(answer, Failed):
                return answer
            repeat = answer.code in codes.NOT_SERVED or (again and answer.code == codes.PEER_LOST)
            if not repeat or loop.time() + ROUTE_POLL_S >= give_up_s:
                return answer
            reached("request sent again to a primary")
            await asyncio.sleep(ROUTE_POLL_S)

    def _known(self, body: PrimaryBody) -> PeerAnswer | None:
        """The answer of a partition that is gone with its table, and has no primary to give it."""
        if not isinstance(body, Finish | Resolve) or not self._removed(body.partition):
            return None
        reached("partition gone with its table answered for")
        # Its outcomes were kept until every participant had them: one that still asks is of a
        # transaction that did not commit.
        return Ack() if isinstance(body, Finish) else ResolveReply(0)

    def notify(self, partition: int, body: PrimaryBody) -> None:
        """Send ``body`` to the primary if it can be reached, without an answer."""
        node = self._route(partition)
        if node is not None:
            self._notify(node, body)
