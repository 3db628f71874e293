"""One time axis per run: the controller's monotonic nanoseconds since the run began.

The core takes time only from the running loop, and wall clock and entropy only from the objects
passed in, so that the same code runs on a virtual-time loop (``docs/design.md``, "One loop"). This
module is the only one of the core that reads the machine's clocks.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

NS_PER_S = 1_000_000_000
MS_PER_S = 1000


class RunClock:
    """Nanoseconds since ``begin`` on the axis of the loop that it was made on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wall_ns: Callable[[], int] = time.time_ns,
        *,
        origin_s: float | None = None,
    ) -> None:
        """``wall_ns`` is injected where wall time must be virtual too. ``origin_s`` is the loop's
        time at which the axis begins, where another process began it: the loops of all processes of
        a host read one clock, CLOCK_MONOTONIC.
        """
        self._loop = loop
        self._origin_s = loop.time() if origin_s is None else origin_s
        self.wall_ns = wall_ns

    def now_ns(self) -> int:
        """Nanoseconds since the run began; never goes back."""
        return int((self._loop.time() - self._origin_s) * NS_PER_S)

    def at_ns(self, loop_s: float) -> int:
        """The reading of the axis at the loop's time ``loop_s``."""
        return int((loop_s - self._origin_s) * NS_PER_S)

    def loop_time(self, at_ns: int) -> float:
        """The loop's time (seconds) at which the axis reads ``at_ns``: for
        ``asyncio.timeout_at``.
        """
        return self._origin_s + at_ns / NS_PER_S

    async def sleep_until(self, at_ns: int) -> None:
        """Return when the axis reads at least ``at_ns``."""
        delay_s = self.loop_time(at_ns) - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


def machine_s() -> float:
    """Seconds on the machine's monotonic clock, for what lies around runs and outside of loops."""
    return time.monotonic()


def pause(length_s: float) -> None:
    """Stop this thread for so long, where ``machine_s`` is the time."""
    time.sleep(length_s)


def cpu_s() -> float:
    """Seconds of CPU that this process has used, all of its threads, in user and kernel mode."""
    return time.process_time()


def resident_bytes() -> int:
    """Memory of this process that is in RAM now (Linux; elsewhere its peak)."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(pages) * resource.getpagesize()


def substream(seed: int, purpose: str, *parts: int | str) -> random.Random:
    """A random stream of its own for (seed, purpose, parts), equal on every machine and hash seed.

    Streams are independent: drawing more from one leaves the others as they were.
    """
    # A separator that no part contains: parts (1, 12) and (11, 2) are different streams.
    label = f"{seed}\x1f{purpose}"
    for part in parts:
        label = f"{label}\x1f{part}"
    # SHA-256, since ``hash`` of a text is another one in each process.
    return random.Random(int.from_bytes(hashlib.sha256(label.encode()).digest()[:16], "big"))


def below(draw: random.Random, count: int) -> int:
    """A uniform number from 0 to ``count`` - 1: the same draw as ``randrange``, in a third of its
    time.
    """
    bits = count.bit_length()
    number = draw.getrandbits(bits)
    # Rejected and drawn again, as ``randrange`` does: a modulo would favour the small numbers.
    while number >= count:
        number = draw.getrandbits(bits)
    return number


class Alarm:
    """Wakes one task at a time that waits; any task or callback on the same loop may ring it."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock
        self._news = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the wait; without a waiting task, the next wait ends at once."""
        self._news = True
        # Two rings may come before the task that waits has its turn.
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until_ns: int | None) -> None:
        """Return at ``until_ns``, unless that is ``None``, or as soon as the alarm rang since the
        last wait.
        """
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
            # The ring that ended this wait is spent: kept, it would end the next one at once.
            self._waiter, self._news = None, False
            if timer is not None:
                timer.cancel()
