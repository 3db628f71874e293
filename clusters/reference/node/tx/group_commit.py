"""Proposals that nobody waits for, until there is company for them."""

from __future__ import annotations

import asyncio

from clusters.reference.node.runtime.tasks import settle

# An append and a sync on every member cost the same for one entry as for several. A partition that
# is busy enough for that to matter has another proposal within this time.
MAX_DELAY_S = 0.01


class LazyProposals:
    """The proposals of one primary that may wait: they leave with the next one that can't."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def join(self) -> None:
        """Return at the next ``leave``, or ``MAX_DELAY_S`` after the first one who waits came."""
        loop = asyncio.get_running_loop()
        leaves: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            self._timer = loop.call_later(MAX_DELAY_S, self.leave)
        self._waiting.append(leaves)
        await leaves

    def leave(self) -> None:
        """Everyone who waits goes on now."""
        if not self._waiting:
            return
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for leaves in waiting:
            settle(leaves, None)
