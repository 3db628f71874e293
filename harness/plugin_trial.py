"""Loads a plug-in in a child process first: a process that a signal ends while it imports a module,
or that the module ends by a call of C, has no chance to name the plug-in.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from harness.supervisor import die_with_parent

LIMIT_S = 60.0  # a module that takes longer would hold the command
GONE_S = 1.0  # from the end of a process's files to its own
LINE_BYTES = 4096

_OF_THE_USER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOADED = b"loaded"


def refusal(module: str, load: Callable[[], object]) -> str:
    """Why this process can't ``load``, which imports ``module``: ``SIGSEGV (boom/fault.py:3) ends a
    process that loads it``, with the line of the module's package that was run last. Empty where a
    child comes through, also by an exception: that is left to the load in this process.
    """
    if module in sys.modules:  # its code has run
        return ""
    package = module.partition(".")[0]
    lines = os.memfd_create("firedrill-trial")
    try:
        how = _tried(load, lambda: None)
        # To follow each line is slow, and sound plug-ins need none of it.
        if how and _tried(load, lambda: _follow(package, lines)):
            place = os.pread(lines, LINE_BYTES, 0).decode(errors="replace").rstrip("\n")
            how = f"{how} ({place})" if place else how
        return f"{how} ends a process that loads it" if how else ""
    except _Endless:
        return f"loading it takes more than {LIMIT_S:g} s"
    except OSError:  # of a machine without another process there is no trial
        return ""
    finally:
        os.close(lines)


class _Endless(Exception):
    """A child had not loaded the module in time."""


def _tried(load: Callable[[], object], prepare: Callable[[], None]) -> str:
    """How a child ends within ``load``; empty where it comes to its end. Raises ``_Endless``."""
    parent = os.getpid()
    told, mark = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            _live(parent, mark, load, prepare)
    except OSError:
        os.close(told)
        raise
    finally:
        os.close(mark)
    try:
        ended = os.pidfd_open(child)
        try:
            return _end(child, ended, told)
        finally:
            os.close(ended)
    except BaseException:
        _kill(child)
        raise
    finally:
        os.close(told)


def _live(
    parent: int, mark: int, load: Callable[[], object], prepare: Callable[[], None]
) -> NoReturn:
    """The whole life of the child."""
    child = os.getpid()
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
        prepare()
        with contextlib.suppress(BaseException):  # the parent meets it as well, and tells it
            load()
        if os.getpid() == child:  # and no copy that the plug-in made of it
            os.write(mark, _LOADED)
    finally:
        # Neither the parent's exit handlers nor its stack may run in the fork.
        os._exit(0)


def _end(child: int, ended: int, told: int) -> str:
    """See ``_tried``. Waits for the child."""
    either = select.poll()
    either.register(ended, select.POLLIN)
    either.register(told, select.POLLIN | select.POLLHUP)
    if not either.poll(LIMIT_S * 1000):
        raise _Endless
    last = select.poll()
    last.register(ended, select.POLLIN)
    gone = bool(last.poll(GONE_S * 1000))
    if not gone:  # its files are closed: of a loaded one by its end, of another by ``execve``
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    # Of a pipe that a process of the plug-in's own still holds there is no end to wait for.
    os.set_blocking(told, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(told, len(_LOADED)) == _LOADED:
            return ""
    if not gone:
        return "another program in its place"
    if os.WIFSIGNALED(status):
        return _name(os.WTERMSIG(status))
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"


def _follow(package: str, lines: int) -> None:
    """Keep the line of ``package`` that this process runs in the file ``lines``, which outlives it,
    in the form of ``plugins.where``: of a library that it calls no line.
    """

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:  # noqa: ANN401 (``sys``)
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] != package:
            return None
        within = str(frame.f_globals.get("__package__") or "").split(".")
        file = "/".join((*filter(None, within), Path(frame.f_code.co_filename).name))
        # One write, of one length: the next line leaves nothing of it.
        line = f"{file}:{frame.f_lineno}".encode()[: LINE_BYTES - 1]
        os.pwrite(lines, line.ljust(LINE_BYTES, b"\n"), 0)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
