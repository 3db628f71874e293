"""Two displays of a run's progress: a live panel on a terminal, plain lines everywhere else.

Both go to stderr; stdout carries the results. Nothing here is part of the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.history.records import OpType
from harness.protocols.conflicts import Ends
from harness.protocols.promise import REFUSED
from harness.run.progress import Progress
from harness.text import inert

DRIVE = "drive"  # the phase whose length the plan fixes
LINE_EVERY_S = 5.0
TICK_S = 0.5
FRAMES_PER_S = 4
RATE_WINDOW_S = 3.0  # steady, and still alive
ERROR_CODES_LIMIT = 200  # distinct codes counted; the store may invent them
ERRORS_SHOWN = 4
NOTES_SHOWN = 3
FIELD_CHARS = 60
STYLES = {"ok": "blue", REFUSED: "", "fail": "magenta", "info": "yellow"}

Now = Callable[[], float]


class Display(Progress, Protocol):
    """A ``Progress`` that shows something between ``with`` and its end."""

    @property
    def tally(self) -> Tally:
        """What is shown."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Leave the screen as it was."""


class LoopTime:
    """The time of a simulation's loop as it was last seen from there; other threads ask for it,
    too, and the machine's clock says nothing of it.
    """

    def __init__(self) -> None:
        self._seen_s = 0.0

    def see(self) -> None:
        """Note the time, on the loop."""
        with contextlib.suppress(RuntimeError):  # before the loop, and after it
            self._seen_s = asyncio.get_running_loop().time()

    def __call__(self) -> float:
        return self._seen_s


def choose(
    stream: TextIO, drive_s: float, now: Now = time.monotonic, *, axis: LoopTime | None = None
) -> Display:
    """Return the live panel where ``stream`` is a terminal with a viewer, else plain lines;
    ``axis`` is the time of a simulation.
    """
    if stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb":
        return LiveDisplay(Console(file=cast(TextIO, _Lasting(stream))), drive_s, now, axis)
    return PlainDisplay(stream, drive_s, now, axis)


class Rate:
    """Acknowledged transactions a second, over the last ``window_s``; each reader has its own."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._marks: deque[tuple[float, int]] = deque()

    def of(self, now_s: float, done: int) -> float:
        """Take a count at a time; return the rate since the oldest one kept."""
        self._marks.append((now_s, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now_s - self._window_s:
            self._marks.popleft()
        then_s, before = self._marks[0]
        return (done - before) / (now_s - then_s) if now_s > then_s else 0.0


class Tally:
    """The state that both displays show: the phase, counts by type and error, the
    faults in force. What is left of the drive, and rates, are of the time ``axis`` of a simulation
    where there is one.
    """

    def __init__(self, drive_s: float, now: Now, axis: LoopTime | None = None) -> None:
        self._drive_s, self._now, self._axis = drive_s, now, axis
        self.started_s, self._entered_s = now(), self.axis_s
        self.phase = "start"
        self.counts = dict.fromkeys(OpType, 0)
        self.conflicts = 0
        self.errors: dict[str, int] = {}
        self.active: tuple[str, ...] = ()
        self._rate = Rate(RATE_WINDOW_S)

    def enter(self, phase: str) -> None:
        """Begin a new phase now."""
        self._see()
        self.phase, self._entered_s = phase, self.axis_s
        self._rate = Rate(RATE_WINDOW_S)
        self._rate.of(self._entered_s, self.counts[OpType.OK])

    def count(self, kind: OpType, error: str | None, *, conflict: bool = False) -> None:
        """Count one completion, a conflict neither by its type nor by its code; an error code past
        the limit of distinct ones counts as ``other``.
        """
        self._see()
        if conflict:
            self.conflicts += 1
            return
        self.counts[kind] += 1
        if error is not None:
            known = error in self.errors or len(self.errors) < ERROR_CODES_LIMIT
            code = error if known else "other"
            self.errors[code] = self.errors.get(code, 0) + 1

    @property
    def elapsed_s(self) -> float:
        """Return the time since the display began."""
        return self._now() - self.started_s

    @property
    def axis_s(self) -> float:
        """Return the time on the axis of the drive."""
        return self._now() if self._axis is None else self._axis()

    @property
    def unit(self) -> str:
        """Return the unit of that time."""
        return "s" if self._axis is None else "simulated s"

    def _see(self) -> None:
        if self._axis is not None:
            self._axis.see()

    @property
    def left_s(self) -> float | None:
        """Return the time until the drive phase ends; ``None`` in phases of unknown length."""
        if self.phase != DRIVE:
            return None
        return max(0.0, self._drive_s - (self.axis_s - self._entered_s))

    def ended(self) -> Ends:
        """Return how the completed transactions ended."""
        return Ends(
            ok=self.counts[OpType.OK],
            conflicts=self.conflicts,
            fail=self.counts[OpType.FAIL],
            info=self.counts[OpType.INFO],
            # A copy, since the panel is drawn on another thread than the one that counts.
            errors=dict(self.errors),
        )

    def rate_per_s(self) -> float:
        """Return ok operations a second, since the last call that is at least a window old or since
        the phase began.
        """
        return self._rate.of(self.axis_s, self.counts[OpType.OK])

    def faults(self) -> str:
        """Return the faults in force."""
        return ", ".join(inert(name, FIELD_CHARS) for name in self.active)


class PlainDisplay:
    """One line a phase and one every few seconds: for logs."""

    def __init__(
        self,
        stream: TextIO,
        drive_s: float,
        now: Now = time.monotonic,
        axis: LoopTime | None = None,
    ) -> None:
        self._stream, self._now = stream, now
        self._tally = Tally(drive_s, now, axis)
        self._summed_s = now()
        self._lock = threading.RLock()  # a signal handler may speak while we do
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="display", daemon=True)

    @property
    def tally(self) -> Tally:
        """See ``Display``."""
        return self._tally

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._closed.set()
        # A ticker that is stuck in a write to stderr must not hold up the end of the run.
        self._ticker.join(timeout=2 * TICK_S)

    def phase(self, name: str) -> None:
        """See ``Progress``."""
        self._tally.enter(name)
        self._summed_s = self._now()
        left_s = self._tally.left_s
        self._say(
            inert(name, FIELD_CHARS)
            + ("" if left_s is None else f" for {round(left_s, 1):g} {self._tally.unit}")
        )

    def completed(self, type: OpType, error: str | None, *, conflict: bool = False) -> None:
        """See ``Progress``."""
        self._tally.count(type, error, conflict=conflict)

    def faults(self, active: tuple[str, ...]) -> None:
        """See ``Progress``."""
        if active == self._tally.active:
            return
        self._tally.active = active
        self._say(f"faults in force: {self._tally.faults() or 'none'}")

    def note(self, text: str) -> None:
        """See ``Progress``."""
        self._say(inert(text))

    def tick(self) -> None:
        """Print the progress, if the last line is old enough."""
        if self._now() - self._summed_s >= LINE_EVERY_S:
            self._summed_s = self._now()
            self._say(self._summary())

    def _summary(self) -> str:
        tally = self._tally
        ended = tally.ended()
        if not any(ended.counts.values()):
            return f"{tally.phase}: still at it"
        counts = ", ".join(f"{count} {name}" for name, count in ended.counts.items())
        errors, faults = ended.commonest_text(ERRORS_SHOWN), tally.faults()
        return "; ".join(
            part
            for part in (
                f"{tally.phase}: {tally.rate_per_s():.0f} ok/{tally.unit}",
                counts,
                f"errors: {errors}" if errors else "",
                f"faults: {faults}" if faults else "",
            )
            if part
        )

    def _say(self, text: str) -> None:
        with self._lock:
            try:
                self._stream.write(f"[{self._tally.elapsed_s:6.1f} s] {text}\n")
                self._stream.flush()
            except (OSError, ValueError):  # stderr has lost its reader; the run goes on
                self._closed.set()

    def _tick(self) -> None:
        while not self._closed.wait(TICK_S):
            self.tick()


class _Lasting:
    """A terminal whose end ends no work: what is written after it is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (as the stream's)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As ``TextIO.write``."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As ``TextIO.flush``."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class LiveDisplay:
    """A panel that is redrawn in place, and removed at the end."""

    def __init__(
        self,
        console: Console,
        drive_s: float,
        now: Now = time.monotonic,
        axis: LoopTime | None = None,
    ) -> None:
        self._tally = Tally(drive_s, now, axis)
        self._notes: deque[str] = deque(maxlen=NOTES_SHOWN)
        self._live = Live(
            console=console,
            get_renderable=self.render,
            refresh_per_second=FRAMES_PER_S,
            transient=True,
            # rich would send the command's own output through the panel; stdout carries the
            # results.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @property
    def tally(self) -> Tally:
        """See ``Display``."""
        return self._tally

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._live.stop()

    def phase(self, name: str) -> None:
        """See ``Progress``."""
        self._tally.enter(name)

    def completed(self, type: OpType, error: str | None, *, conflict: bool = False) -> None:
        """See ``Progress``."""
        self._tally.count(type, error, conflict=conflict)

    def faults(self, active: tuple[str, ...]) -> None:
        """See ``Progress``."""
        self._tally.active = active

    def note(self, text: str) -> None:
        """See ``Progress``."""
        self._notes.append(inert(text))

    def render(self) -> Group:
        """Return the panel in its present state."""
        tally = self._tally
        left_s = tally.left_s
        time_text = f"{tally.elapsed_s:.0f} s" + (
            "" if left_s is None else f", {left_s:.0f} {tally.unit} left"
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right")
        grid.add_column()
        grid.add_row("phase", Text(inert(tally.phase, FIELD_CHARS), style="bold"))
        grid.add_row("time", time_text)
        grid.add_row("rate", f"{tally.rate_per_s():,.0f} ok/{tally.unit}")
        ended = tally.ended()
        for name, count in ended.counts.items():
            grid.add_row(name, Text(f"{count:,}", style=STYLES[name]))
        # Text, never markup: a store's "[red]" is shown, not obeyed.
        grid.add_row("errors", Text(ended.commonest_text(ERRORS_SHOWN) or "none"))
        grid.add_row("faults", Text(tally.faults() or "none", style="bold" if tally.active else ""))
        return Group(grid, *(Text(note, style="dim") for note in self._notes))
