"""What a run's command tells other commands while it drives: a small file in the run directory,
written every second and removed with the end of the drive.
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

import msgspec

from cli.display import Rate, Tally
from harness.errors import FiredrillError
from harness.history.durable_files import begin
from harness.history.regular_files import read_small
from harness.history.run_directory import RunDirectory

FILE = "status.json"
EVERY_S = 1.0
WINDOW_S = 5.0
MAX_BYTES = 64 << 10
ERRORS_TOLD = 5


class LiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is going on. ``left_s`` is the rest of the drive phase, ``counts`` the completed
    transactions by how they ended (``Ends.counts``), ``errors`` the commonest codes, ``faults``
    those in force. ``unit`` is that of ``left_s`` and of rates: a simulation has a time of its own,
    while ``elapsed_s`` is always the machine's.
    """

    phase: str
    elapsed_s: float
    left_s: float | None
    rate_per_s: float
    counts: dict[str, int]
    errors: dict[str, int]
    faults: tuple[str, ...]
    unit: str = "s"


class StatusFile:
    """Writes the state of ``tally`` between ``with`` and its end, once ``run`` is set and records.
    A disk that refuses costs the status alone.
    """

    def __init__(self, tally: Tally) -> None:
        self.run: RunDirectory | None = None
        self._tally = tally
        self._rate = Rate(WINDOW_S)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join(timeout=2 * EVERY_S)
        if self.run is not None:
            with contextlib.suppress(OSError):
                (self.run.root / FILE).unlink(missing_ok=True)

    def _work(self) -> None:
        while not self._closed.wait(EVERY_S):
            # A run that may still be refused leaves no directory, if nothing was written into it.
            if self.run is not None and self.run.chunks.exists():
                with contextlib.suppress(OSError):
                    self._write(self.run)

    def _write(self, run: RunDirectory) -> None:
        tally = self._tally
        ended = tally.ended()
        told = LiveStatus(
            phase=tally.phase,
            elapsed_s=tally.elapsed_s,
            left_s=tally.left_s,
            rate_per_s=self._rate.of(tally.axis_s, ended.ok),
            counts=ended.counts,
            errors=ended.commonest(ERRORS_TOLD),
            faults=tally.active,
            unit=tally.unit,
        )
        # Not synced: what a reader sees a second late is no evidence.
        unfinished = begin(run.root / FILE)
        try:
            unfinished.write_bytes(msgspec.json.encode(told))
            unfinished.replace(run.root / FILE)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


def read_status(run: RunDirectory) -> LiveStatus | None:
    """Return what the run's command wrote last; ``None`` where it wrote nothing readable."""
    try:
        return msgspec.json.decode(read_small(run.root / FILE, MAX_BYTES), type=LiveStatus)
    except (OSError, FiredrillError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
