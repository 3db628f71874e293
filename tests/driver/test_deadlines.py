"""One timer for the deadlines of all operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from driver_store import JumpingLoop

from harness.driving.in_flight import Deadlines, Flight
from harness.driving.process_slots import Slot
from harness.history.records import Invoke


class Watched:
    """What expired, and when."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.expired: list[tuple[int, float]] = []
        self.react: Callable[[Flight], None] = lambda _: None
        self.deadlines = Deadlines(self.loop, self._expire)

    def _expire(self, flight: Flight) -> None:
        self.expired.append((flight.invoke.index, round(self.loop.time() - self.begun_s, 6)))
        flight.over = True
        self.react(flight)

    def add(self, *deadlines_s: float) -> list[Flight]:
        self.begun_s = self.loop.time()
        flights = [self.flight(index, after_s) for index, after_s in enumerate(deadlines_s)]
        for flight in flights:
            self.deadlines.add(flight)
        return flights

    def flight(self, index: int, after_s: float) -> Flight:
        invoke = Invoke(
            index=index,
            process=index,
            kind="rw",
            node="n1",
            intended_ns=0,
            at_ns=0,
            wall_ns=0,
            ops=(),
        )
        slot = Slot(number=index, process=index)
        return Flight(invoke=invoke, slot=slot, deadline_s=self.begun_s + after_s)


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main)


def test_each_expires_at_its_deadline_and_what_is_over_never_does() -> None:
    async def main() -> None:
        watched = Watched()
        flights = watched.add(1.0, 2.0, 2.0, 3.5)
        flights[1].over = True
        await asyncio.sleep(10)

        assert watched.expired == [(0, 1.0), (2, 2.0), (3, 3.5)]

    run(main())


def test_one_that_begins_while_another_expires_is_watched_too() -> None:
    async def main() -> None:
        watched = Watched()
        watched.add(1.0)
        watched.react = lambda old: (
            watched.deadlines.add(watched.flight(7, 2.5)) if old.invoke.index == 0 else None
        )
        await asyncio.sleep(10)

        assert watched.expired == [(0, 1.0), (7, 2.5)]

    run(main())


def test_after_clear_nothing_expires_until_something_is_added() -> None:
    async def main() -> None:
        watched = Watched()
        watched.add(1.0, 2.0)
        watched.deadlines.clear()
        await asyncio.sleep(5)
        assert watched.expired == []

        watched.add(1.0)
        await asyncio.sleep(5)
        assert watched.expired == [(0, 1.0)]

    run(main())


def test_what_is_over_is_let_go_when_the_next_begins() -> None:
    async def main() -> None:
        watched = Watched()
        for flight in watched.add(*[100.0] * 1000):
            flight.over = True
        watched.deadlines.add(watched.flight(1000, 100.0))

        assert len(watched.deadlines) == 1

    run(main())
