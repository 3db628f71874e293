"""The three standard streams, where a shell closed one, filled its disk or stopped reading."""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import sys
from collections import Counter
from contextlib import suppress
from typing import Any, TextIO, cast

from harness.text import inert

REPEATS_MAX = 10
KINDS_MAX = 1000
LINE_CHARS = 2000  # of a warning
_STANDARD = (0, 1, 2)


class _Watched(io.FileIO):
    """A descriptor that remembers why it refused: data too large for a buffer leaves no trace in
    it.
    """

    reason = ""

    def write(self, content: Any, /) -> int:  # noqa: ANN401 (any buffer)
        """As ``FileIO.write``."""
        try:
            return super().write(content)
        except OSError as error:
            self.reason = error.strerror or str(error)
            raise


def complete() -> None:
    """Open /dev/null in place of closed streams: else a standard stream's number would go to the
    next file that is opened, by this process or by a child. From here on ``refusal`` reports a
    refused write to stdout.
    """
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    if sys.stdout is not None:
        before = cast(io.TextIOWrapper, sys.stdout)
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]
            io.BufferedWriter(_Watched(before.fileno(), "w", closefd=False)),
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=before.line_buffering,
        )


class Repeats(logging.Filter):
    """Lets a warning through ``REPEATS_MAX`` times, and then notes that more of its kind are left
    out: a store's answers to every dial of a client would fill terminals and disks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to show ``record``. Its text without its arguments is its kind."""
        kind = (record.name, str(record.msg))
        # A store may word each warning anew, so the kinds have a limit as well.
        if kind not in self._seen and len(self._seen) >= KINDS_MAX:
            return False
        self._seen[kind] += 1
        if self._seen[kind] == REPEATS_MAX:
            record.msg = f"{record.getMessage()} (more of this kind are left out)"
            record.args = ()
        return self._seen[kind] <= REPEATS_MAX


class _Inert(logging.Formatter):
    """Words a warning, which may hold what a node said, as text and nothing else, line by line."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(inert(line, LINE_CHARS) for line in super().format(record).split("\n"))


def bound_warnings() -> None:
    """Limit every warning of this process to ``REPEATS_MAX`` times, and leave nothing in it that a
    terminal or a CI would act on. Idempotent.
    """
    last = logging.lastResort  # the handler of loggers without one: stderr
    if last is not None and not any(isinstance(one, Repeats) for one in last.filters):
        last.addFilter(Repeats())
        last.setFormatter(_Inert())


def refusal(stream: TextIO) -> str:
    """Return why ``stream`` refused a write; empty where it took everything."""
    try:
        stream.flush()
    except OSError as error:
        return error.strerror or str(error)
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.reason if isinstance(raw, _Watched) else ""


def unread() -> bool:
    """Return whether the reader of stdout or of stderr is gone, or the terminal."""
    watched = select.poll()
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):  # closed, or no file
            if stream is not None:
                watched.register(stream.fileno(), 0)
    # Of a pipe's writing end, and of a terminal, the kernel tells this alone, requested or not.
    return bool(watched.poll(0))


def hung_up(error: OSError) -> bool:
    """Return whether ``error`` tells of a terminal that is closed: SIGHUP, which tells of it as
    well, may come later.
    """
    return error.errno == errno.EIO and unread()


def settle() -> None:
    """Drop the data that a stream refused: Python would fail on it once more at its exit."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and refusal(stream):
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
