"""Ctrl-C, SIGTERM and SIGHUP during a run: the first ends it in order, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from types import FrameType

from harness.exit_codes import EXIT_INTERRUPTED
from harness.plugins import exit_at_once
from harness.run.stop import Stop

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.05  # after an interruption that was lost
LEAST_BUDGET_S = 0.001  # a timer of zero seconds is one that is not set
_SHOW_CURSOR = "\x1b[?25h"  # the live display hides it, and won't get to undo that


STOPPING = "stopping: heal, collect, seal, and judge nothing; once more to stop at once"
OVER = "the run is over, nothing of it is cut short: it is being sealed; once more to stop at once"


@contextmanager
def stopping(stop: Stop, say: Callable[[str], None], hint: str) -> Iterator[None]:
    """Within the block the first signal interrupts ``stop`` and calls ``say`` with the notice. A
    signal that is ignored, as nohup has SIGHUP ignored, stays so.

    The second SIGINT or SIGTERM exits the process at once with exit code 130, ``hint`` on stderr:
    nothing of Python is unwound, since that would wait for the same nodes again. Everything
    recorded is already with the operating system. SIGHUP never counts as the second.
    """
    told = asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal told, asked
        # Of one terminal that is closed both the kernel and the shell tell.
        if number != signal.SIGHUP:
            if asked:
                _leave(hint)
            asked = True
        _on_loop(stop.interrupt)
        if told:
            return
        told = True
        if stop.over:  # sealing blocks the loop: what is said there would come when all is done
            with suppress(RuntimeError):  # interrupted in the middle of saying something else
                say(OVER)
        else:
            _on_loop(lambda: say(STOPPING))

    with _handled(WATCHED, handle):
        yield


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


def interrupt_on_signals() -> None:
    """Make SIGTERM and SIGHUP unwind as Ctrl-C does, outside of runs, so that children (a JVM)
    don't outlive this process. A signal that is ignored stays so. An interruption that Python could
    not pass on, raised within a finalizer or a callback of a weak reference, comes once more.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # The shell sends it as well as the kernel: what is unwound must not be struck again.
            signal.signal(number, signal.SIG_IGN)
        _interrupt(number, frame)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)

    def again(number: int, frame: FrameType | None) -> None:
        _interrupt(number, frame)

    shown = sys.unraisablehook

    def lost(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # Not from here: what is raised within this hook is lost as well.
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            shown(unraisable)

    signal.signal(signal.SIGALRM, again)
    sys.unraisablehook = lost


@contextmanager
def on_signals(call: Callable[[], None]) -> Iterator[None]:
    """Within the block each signal that is not ignored makes ``call``, and raises nothing."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        call()

    with _handled(WATCHED, handle):
        yield


def leave_on_signals(code: int) -> None:
    """Make each signal that is not ignored exit the process at once with ``code``, which the
    command has come to: only threads and caches are left to be ended.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        exit_at_once(code)

    for number in WATCHED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)


def ignore_signals() -> None:
    """Ignore the signals from here on: while Python ends itself it would let them end the process
    as by default, and a second one would show as that and not as the exit code.
    """
    for number in (*WATCHED, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def unwinding() -> Iterator[None]:
    """Within the block SIGQUIT, unless it is ignored, unwinds as Ctrl-C does: what the block made
    is removed.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        _interrupt(number, frame)

    # In another thread, as in tests, no handler can be set.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled((signal.SIGQUIT,), handle):
        yield


@contextmanager
def _handled(
    numbers: Iterable[signal.Signals], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Within the block those of ``numbers`` that are not ignored call ``handle``."""
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: was for number, was in before.items() if was is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, was in heard.items():
            signal.signal(number, was)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt`` as SIGINT does by default: what is raised by a ``raise`` counts
    as a plug-in's own (``harness.plugins``).
    """
    signal.default_int_handler(number, frame)


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
        exit_at_once(EXIT_INTERRUPTED)
