"""Analysis in a process of its own: a hostile directory, a broken plugin or a long history ends
that process and not the command.

The child reads the run, judges it and draws its report. It has limits of memory and time, imports
nothing from the current directory, and dies with its command (``harness.supervisor``). It
reports its progress and its results over a pipe. If it dies, the command starts it again without
the kernel or checker that it died of, so that the findings of the others are reported. Of many runs
it judges one after another, in one session of Spark's, as long as it comes to the end of each.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cli.judging.child_messages import (
    FAMILIES,
    Drawing,
    Export,
    HistoryFile,
    JudgeOptions,
    Reply,
    Request,
)
from cli.judging.children import Children
from cli.judging.resource_limits import (
    MEMORY_VARIABLE,
    TIME_VARIABLE,
    LimitOptions,
    Limits,
    limits_of,
)
from harness.errors import (
    AnalysisLost,
    FiredrillError,
    HarnessBug,
    HarnessError,
    Interrupted,
    UsageError,
)
from harness.protocols.verdict import Verdict
from harness.supervisor import EXIT_OF_SIGNAL
from harness.text import inert, long_duration

if TYPE_CHECKING:
    from harness.history.run_directory import RunDirectory

# The limit of attempts: an analysis that dies of three kernels in turn is not worth a fifth one.
ATTEMPTS_MAX = 4
IDLE_S = 1.0  # between two looks whether to say that the analysis goes on
ALIVE_EVERY_S = 10.0
REPLY_MAX_BYTES = 256 << 20
GARBLED_MAX_BYTES = 60  # of a line that is no reply, in a sentence


class AnalysisResult(msgspec.Struct, kw_only=True):
    """The results of a child. ``death`` says how it ended before it was done, ``at`` in which
    kernel or checker: ``None`` before the first one, empty after the last one; ``several`` ran at
    the same time.
    """

    imported: bool = False
    verdict: Verdict | None = None
    findings: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    drawing: Drawing | None = None
    at: str | None = None
    several: bool = False
    progress: str = ""
    opening: str = ""
    death: str = ""
    error: Reply | None = None
    done: bool = False


def analyzed(
    run: RunDirectory,
    say: Callable[[str], None],
    judge: JudgeOptions | None,
    *,
    report: bool = True,
    history: HistoryFile | None = None,
    kept: bool = True,
    asked: LimitOptions | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    children: Children | None = None,
) -> AnalysisResult:
    """Have a child import ``history`` into ``run``, if it is given, judge it, if ``judge`` says
    how, and draw its report. No command is told for a run that is not ``kept``. ``children`` keep
    the child for the next run.

    ``verdict`` is ``None`` where the child died, exceeded its limits, or was not to judge. Raises
    the child's error, in the same family of errors, ``UsageError`` where the child died before the
    history was imported, and ``Interrupted`` within about a second of ``interrupted`` being true.
    """
    limits = limits_of(run.root if history is None else Path(history.path), asked)
    children = children or Children(lasting=False)
    ends_s = time.monotonic() + limits.time_s
    crashed: dict[str, str] = {}
    whole_again = one_by_one = False
    attempts = ATTEMPTS_MAX
    for attempt in itertools.count(1):
        request = Request(
            root=str(run.root),
            output=None if run.output is None else str(run.output),
            reply=-1,
            memory_bytes=limits.memory_bytes,
            history=history,
            judge=judge,
            report=report,
            kept=kept,
            crashed=crashed,
            one_by_one=one_by_one,
        )
        found = _once(request, limits, ends_s, say, children, interrupted)
        # The limit ended a kernel: taken for a death, so that the others are judged without it.
        if found.error is not None and found.error.error == MemoryError.__name__:
            found.death, found.error = _out_of_memory(limits.memory_bytes), None
        if history is not None and found.death and not found.imported:
            raise UsageError(f"{history.path}: it was not imported: {found.death}")
        # What is imported is in the run: a second child must not do it again.
        if found.imported:
            history = None
        if found.error is not None and found.error.error == AnalysisLost.__name__ and judge:
            found.death, found.error = found.error.text, None
            if judge.executor != "local" and time.monotonic() < ends_s:
                # In one process a crash is attributed to one kernel; the others' results stand.
                say(f"{found.death}; judging again in process")
                judge = msgspec.structs.replace(judge, executor="local")
                continue
        if found.error is not None:
            raise _raised(found.error)
        if not found.death or found.at is None or found.verdict is not None or judge is None:
            break
        # Dead of what was left out already: one more attempt would change nothing.
        if found.at in crashed or attempt >= attempts or time.monotonic() >= ends_s:
            break
        if found.several and not one_by_one:
            one_by_one = True
            attempts += 1  # it left nothing out
            say(f"{found.at}: {found.death}; judging again, one kernel at a time")
        elif found.at:
            crashed[found.at] = found.death
            say(f"{found.at}: {found.death}; judging goes on without it")
        elif whole_again:
            break
        else:
            whole_again = True
            say(f"after the last checker: {found.death}; judging again")
    return found


def exported(run: RunDirectory, say: Callable[[str], None], export: Export) -> None:
    """Have a child write ``export`` of ``run``. Its limit of time is one of processor time: a
    reader of stdout may take as long as it likes. Raises the child's error, in the same family of
    errors, ``BrokenPipeError`` where the reader is gone, and ``HarnessError`` where the child died.
    """
    limits = limits_of(run.root)
    request = Request(
        root=str(run.root),
        reply=-1,
        memory_bytes=limits.memory_bytes,
        judge=None,
        report=False,
        export=export,
        cpu_s=math.ceil(limits.time_s),
    )
    found = _once(request, limits, math.inf, say, Children(lasting=False))
    if found.error is not None:
        if found.error.error == BrokenPipeError.__name__:
            raise BrokenPipeError(found.error.text)
        if found.error.error == MemoryError.__name__:
            allowed = f"{limits.memory_bytes >> 20} MiB ({MEMORY_VARIABLE} sets the limit)"
            raise HarnessError(f"nothing, or not all, was exported: it needs more than {allowed}")
        raise _raised(found.error)
    if found.death:
        raise HarnessError(f"nothing, or not all, was exported: {found.death}")


def _once(
    request: Request,
    limits: Limits,
    ends_s: float,
    say: Callable[[str], None],
    children: Children,
    interrupted: Callable[[], bool] = lambda: False,
) -> AnalysisResult:
    """Have one child carry ``request`` out, to its end or the child's."""
    found = AnalysisResult()
    alive = None if request.export else _Alive(found, say, request)

    def idle() -> None:
        if interrupted():
            raise Interrupted("interrupted")
        if alive is not None:
            alive.tell()

    with children.asked(request) as child:
        try:
            for line in _lines(child.reader, ends_s, idle):
                _take(_reply(line), found, say)
                # A process that a plug-in has started may hold the pipe for ever.
                if found.done:
                    break
            else:
                found.death = _death(child.process.wait(), found.opening, request.cpu_s)
        except _Garbled as error:
            found.death = str(error)
        except TimeoutError:
            found.death = (
                f"it came to no end within {long_duration(limits.time_s)} "
                f"(--time-limit or {TIME_VARIABLE} sets the limit)"
            )
            found.at = None  # the time is over for all
        # Of one that failed it is not known what is left of it.
        child.sound = found.done and found.error is None and not found.death
    return found


class _Alive:
    """Says from time to time that an analysis goes on, and how far it is."""

    def __init__(self, found: AnalysisResult, say: Callable[[str], None], request: Request) -> None:
        self._found, self._say, self._request = found, say, request
        self._begun_s = self._told_s = time.monotonic()

    def tell(self) -> None:
        """Say it, if the last time is long enough ago."""
        now_s = time.monotonic()
        if now_s - self._told_s < ALIVE_EVERY_S:
            return
        self._told_s = now_s
        self._say(f"still {self._doing()} ({now_s - self._begun_s:.0f} s)")

    def _doing(self) -> str:
        found, request = self._found, self._request
        if request.history is not None and not found.imported:
            return f"importing {request.history.path}"
        if request.judge is not None and found.verdict is None:
            return f"judging: {found.progress or found.at or 'starting'}"
        if request.report and found.drawing is None:
            return "drawing the report"
        return "summing it up for comparisons"


def _lines(reader: int, ends_s: float, idle: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines from the pipe up to its end; call ``idle`` every second or sooner. Raises
    ``TimeoutError``, and ``HarnessError`` for a line that has no end.
    """
    pending: list[bytes] = []
    length = 0
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    while True:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        idle()
        if not waiting.poll(min(left_s, IDLE_S) * 1000):
            continue
        block = os.read(reader, 1 << 20)
        if not block:
            return
        # Each block is looked at once: a long line comes in many.
        *lines, rest = block.split(b"\n")
        if lines:
            yield b"".join([*pending, lines[0]])
            yield from lines[1:]
            pending, length = [], 0
        pending.append(rest)
        length += len(rest)
        # A child that is out of control must not fill this process's memory as well.
        if length > REPLY_MAX_BYTES:
            raise HarnessError(f"an analysis said more than {REPLY_MAX_BYTES} bytes at once")


class _Garbled(Exception):
    """The child's pipe told what is no reply: code of a plug-in wrote there as well."""


def _reply(line: bytes) -> Reply:
    try:
        return msgspec.json.decode(line, type=Reply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:GARBLED_MAX_BYTES].decode("utf-8", "backslashreplace")
        raise _Garbled(f"its process said what is no reply ({inert(shown)!r})") from error


def _take(reply: Reply, found: AnalysisResult, say: Callable[[str], None]) -> None:
    if reply.note:
        say(reply.note)
    if reply.at is not None:
        found.at, found.several, found.progress = reply.at, reply.several, ""
    if reply.progress:
        found.progress = reply.progress
    if reply.opening is not None:
        found.opening = reply.opening
    if reply.verdict is not None:
        # No kernel is to blame for what comes after the verdict: drawing.
        found.verdict, found.at = reply.verdict, None
        found.findings, found.following = reply.findings, reply.following
    if reply.error:
        found.error = reply
    found.drawing = reply.drawing or found.drawing
    found.imported |= reply.imported
    found.done |= reply.done


def _death(code: int, opening: str, cpu_s: int | None) -> str:
    """Describe the end of a child that did not report that it was done, as it was ``opening`` a
    file, if it was, and might use ``cpu_s`` seconds of processor time, if that was limited.
    """
    if code == 0:  # a plug-in's: with no error it would look like an analysis with no findings
        return "its process ended before it was done"
    if code <= EXIT_OF_SIGNAL:
        return f"its process ended with exit code {code}"
    number = code - EXIT_OF_SIGNAL
    if number == signal.SIGXCPU and cpu_s is not None:
        allowed = f"{long_duration(cpu_s)} of processor time that it may use"
        return f"it needs more than the {allowed} ({TIME_VARIABLE} sets the limit)"
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    why = " (the machine may have run out of memory)" if number == signal.SIGKILL else ""
    at = f" as it opened {opening}" if opening else ""
    return f"its process was ended by {name}{at}{why}"


def _raised(reply: Reply) -> FiredrillError:
    """Return the child's error, to be raised here."""
    family = FAMILIES.get(reply.error)
    if family is not None:
        return family(reply.text)
    # Not one of ours: it is told, and its traceback kept, under the name that it had there.
    unexpected: FiredrillError = type(reply.error, (HarnessBug,), {})(reply.text)
    unexpected.add_note(reply.trace)
    return unexpected


def _out_of_memory(limit_bytes: int) -> str:
    return (
        f"it needs more memory than the {limit_bytes >> 20} MiB that it may use "
        f"(--memory-mib or {MEMORY_VARIABLE} sets the limit)"
    )
