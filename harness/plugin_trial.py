"""Loads a plug-in in a child process first: a process that a signal ends while it imports a module,
as a compiled one may, has no chance to name the plug-in.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import select
import signal
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn

from harness.supervisor import die_with_parent

LIMIT_S = 30.0  # a module that takes longer is loaded without the trial's end
TRACE_MAX_BYTES = 1 << 16

# Of ``faulthandler``, whose first line of a stack is the innermost.
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in ', re.MULTILINE)
_OF_THE_USER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def fatal_signal(point: EntryPoint) -> str:
    """The signal that ends a process which loads ``point``, as ``SIGSEGV (boom/fault.py:3)``; empty
    where none does. What else goes wrong is left to the load in this process.
    """
    if point.module in sys.modules:  # its code has run
        return ""
    trace, parent = os.memfd_create("firedrill-trial"), os.getpid()
    try:
        child = os.fork()
        if child == 0:
            _load(point, trace, parent)
        number = _signal_of(child)
        if number is None:
            return ""
        stack = os.pread(trace, TRACE_MAX_BYTES, 0).decode(errors="replace")
        place = _place(stack, point.module.partition(".")[0])
        return f"{_name(number)} ({place})" if place else _name(number)
    except OSError:  # of a machine without another process there is no trial
        return ""
    finally:
        os.close(trace)


def _load(point: EntryPoint, trace: int, parent: int) -> NoReturn:
    """The whole life of the child."""
    try:
        # What it sends to its process group is for this process alone.
        os.setpgid(0, 0)
        die_with_parent(parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Handlers of the parent would make an exception of what is to end this process.
        for number in _OF_THE_USER:
            signal.signal(number, signal.SIG_DFL)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        faulthandler.enable(trace, all_threads=False)
        with contextlib.suppress(BaseException):  # the parent meets it as well, and tells it
            point.load()
    finally:
        # Neither the parent's exit handlers nor its stack may run in the fork.
        os._exit(0)


def _signal_of(child: int) -> int | None:
    """The signal that ended ``child``; ``None`` where it ended by itself, or not in time."""
    try:
        ended = os.pidfd_open(child)
        try:
            waiting = select.poll()
            waiting.register(ended, select.POLLIN)
            in_time = bool(waiting.poll(LIMIT_S * 1000))
        finally:
            os.close(ended)
    except BaseException:
        _kill(child)
        raise
    if not in_time:
        _kill(child)
        return None
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


def _place(stack: str, package: str) -> str:
    """The innermost line of ``package`` in ``stack``, in the form of ``plugins.where``; of a
    library that it called no line.
    """
    for frame in _FRAME.finditer(stack):
        file = Path(frame["file"])
        if file.stem == package:
            return f"{file.name}:{frame['line']}"
        if package in file.parts:
            within = file.parts[file.parts.index(package) :]
            return f"{'/'.join(within)}:{frame['line']}"
    return ""
