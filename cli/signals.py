"""Ctrl-C and SIGTERM during a run: the first ends it in order, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from types import FrameType
from typing import Protocol

from harness.exit_codes import EXIT_INTERRUPTED
from harness.run.stop import Stop

WATCHED = (signal.SIGINT, signal.SIGTERM)
LEAST_BUDGET_S = 0.001  # a timer of zero seconds is one that is not set
_SHOW_CURSOR = "\x1b[?25h"  # the live display hides it, and won't get to undo that


STOPPING = "stopping: heal, collect, seal; once more to stop at once"
OVER = "the run is over, nothing of it is cut short: it is being sealed; once more to stop at once"


class Stoppable(Protocol):
    """An object that can be asked to end in order: see ``Stop``. ``over``: nothing is left that it
    could skip.
    """

    over: bool

    def ask(self) -> None:
        """Heal, collect, seal."""


@contextmanager
def stopping(stop: Stoppable, say: Callable[[str], None], hint: str) -> Iterator[None]:
    """Within the block the first signal asks ``stop`` to end the run and calls ``say`` with the
    notice.

    The second exits the process at once with exit code 130, ``hint`` on stderr: nothing of Python
    is unwound, since that would wait for the same nodes again. Everything recorded is already with
    the operating system.
    """
    asked = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            _leave(hint)
        asked = True
        _on_loop(stop.ask)
        if stop.over:  # sealing blocks the loop: what is said there would come when all is done
            with suppress(RuntimeError):  # interrupted in the middle of saying something else
                say(OVER)
        else:
            _on_loop(lambda: say(STOPPING))

    before = {number: signal.signal(number, handle) for number in WATCHED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending_in_time(stop: Stop) -> Iterator[None]:
    """Within the block the budget of ``stop`` is the machine's time, also where the loop's time is
    virtual: an alarm signal requests the end. For the main thread.
    """
    budget_s, stop.budget_s = stop.budget_s, None
    if budget_s is None:
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        _on_loop(lambda: stop.ask(stop.budget_text))

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, max(budget_s, LEAST_BUDGET_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def interrupt_on_terminate() -> None:
    """Make SIGTERM unwind as Ctrl-C does, outside of runs, so that children (a JVM) don't outlive
    this process.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handle)


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block SIGHUP and SIGQUIT, unless they are ignored, unwind as Ctrl-C does: what the
    block made is removed.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # In another thread, as in tests, no handler can be set.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # of nohup
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _on_loop(act: Callable[[], None]) -> None:
    """Have the running loop call ``act``: it may be asleep in ``select`` under this handler, and
    ``act`` may need a resource that the interrupted code holds. In a context of its own: in a
    simulation the interrupted code's context may be a node's, whose time stands still.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # before it started or after it ended
        act()
    else:
        loop.call_soon_threadsafe(act, context=Context())


def _leave(hint: str) -> None:
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    try:
        os.write(2, f"{cursor}\nstopped at once; {hint}\n".encode())
    finally:
        os._exit(EXIT_INTERRUPTED)
