"""Waiting for a time of the run's clock, or for something to happen before it."""

from __future__ import annotations

import asyncio

from harness.clock import RunClock


class Alarm:
    """For one task at a time that waits, and anybody on its loop who has news."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock
        self._news = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the wait; where nobody waits now, the next one ends at once."""
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until_ns: int | None) -> None:
        """Return at ``until_ns``, if that is a time, or as soon as it rang since the last wait."""
        if self._news:
            self._news = False
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = (
            None if until_ns is None else loop.call_at(self._clock.loop_time(until_ns), self.ring)
        )
        try:
            await self._waiter
        finally:
            self._waiter, self._news = None, False
            if timer is not None:
                timer.cancel()
