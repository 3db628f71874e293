"""A guard against adapters that block the loop: no timeout of asyncio fires while its loop stands
still.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sysconfig
from collections.abc import Iterator
from types import FrameType

from harness.conform.bench import CheckFailure

BLOCKED_S = 15.0
TICK_S = 1.0
PYTHONS_OWN = sysconfig.get_path("stdlib")


class Blocked(CheckFailure):
    """The adapter blocked the loop that all clients share."""

    def __init__(self, limit_s: float, frame: FrameType | None) -> None:
        # The adapter's call, not the lock or the socket of the library that it waits in.
        while frame and frame.f_back and _pythons_own(frame.f_code.co_filename):
            frame = frame.f_back
        code = frame.f_code if frame else None
        where = (
            f" in {code.co_name} ({code.co_filename}:{frame.f_lineno})" if code and frame else ""
        )
        super().__init__(
            f"the loop of all clients stood still for {limit_s:g} s{where}: what blocks belongs "
            "into a thread or a process of its own"
        )


def _pythons_own(path: str) -> bool:
    # ``site-packages`` and ``dist-packages`` may lie within it.
    return path.startswith(PYTHONS_OWN) and "-packages" not in path


@contextlib.contextmanager
def watched(loop: asyncio.AbstractEventLoop, limit_s: float = BLOCKED_S) -> Iterator[None]:
    """Raises ``Blocked`` out of the code that blocks ``loop`` for ``limit_s``. Only in the main
    thread: a signal arrives each second, and its handler's exception also ends a waiting call of
    the standard library.
    """
    ticked_s = loop.time()
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal ticked_s, timer
        ticked_s = loop.time()
        timer = loop.call_later(TICK_S, tick)

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal ticked_s
        if loop.time() - ticked_s > limit_s:
            # Anew: what handles this exception must not be struck by the next signal.
            ticked_s = loop.time()
            raise Blocked(limit_s, frame)

    before = signal.signal(signal.SIGALRM, look)
    tick()
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
    try:
        yield
    finally:
        # First: the handler from before may be the default one, which ends the process.
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if timer is not None:
            timer.cancel()
