"""Delays a proposal without a waiter by up to 10 ms, so that it shares an append and a sync with
the next proposal of its partition (``groups.group_commit``).
"""

from __future__ import annotations

import asyncio

from clusters.reference.node.runtime.concurrency import settle

# An append and a sync on every member cost the same for one entry as for several. A partition that
# is busy enough for that to matter has another proposal within this time.
MAX_DELAY_S = 0.01


class LazyProposals:
    """The proposals of one primary that may wait for another one."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def wait_for_batch(self) -> None:
        """Return at the next ``flush``, or ``MAX_DELAY_S`` after the oldest waiter came."""
        loop = asyncio.get_running_loop()
        flushed: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            self._timer = loop.call_later(MAX_DELAY_S, self.flush)
        self._waiting.append(flushed)
        await flushed

    def flush(self) -> None:
        """Let every waiter go on now."""
        if not self._waiting:
            return
        if self._timer is not None:
            # It is of this batch, and would cut the wait of the next one short.
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for flushed in waiting:
            # Not ``set_result``: the waiter may have been cancelled meanwhile.
            settle(flushed, None)
