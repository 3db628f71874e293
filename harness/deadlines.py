"""Deadlines of operations: one timer for all of them, since they end in the order they began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from harness.flight import Flight


class Deadlines:
    """Calls ``expire`` for each flight whose deadline comes before it is over.

    Each operation with a timer of its own would cost as much as recording it: nearly all of them
    end long before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Flight], None]) -> None:
        self._loop, self._expire = loop, expire
        self._flights: deque[Flight] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = 0.0

    def __len__(self) -> int:
        """How many flights are watched."""
        return len(self._flights)

    def add(self, flight: Flight) -> None:
        """Watch ``flight``, whose deadline is not before those that were added before."""
        flights = self._flights
        while flights and flights[0].over:
            flights.popleft()
        flights.append(flight)
        if self._timer is None:
            self._set()

    def clear(self) -> None:
        """Watch nothing any more."""
        self._flights.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._rings_s = self._flights[0].deadline_s
        self._timer = self._loop.call_at(self._rings_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        # A loop may wake up a little early: what the timer was set for has come all the same.
        now_s = max(self._loop.time(), self._rings_s)
        flights = self._flights
        while flights and (flights[0].over or flights[0].deadline_s <= now_s):
            flight = flights.popleft()
            if not flight.over:
                self._expire(flight)
        if flights and self._timer is None:
            self._set()
