"""Whether the controller kept up: how late its loop ran, how much CPU and memory it used, and the
same of the driver processes.

A controller without enough CPU times operations out, injects faults late and records gaps that it
caused itself. The figures go into ``controller.parquet``, one row a second, so that an analysis can
reject the rest of the evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from harness.clock import NS_PER_S, RunClock, resident_bytes
from harness.history.parquet import read_summed, write_side_table
from harness.history.run_directory import RunDirectory
from harness.history.schema import with_later

BEAT_S = 0.05
ROW_NS = NS_PER_S
# ``late_ns``: how much later than asked for a loop woke up, at worst, in the ``length_ns`` from
# ``at_ns`` on; ``cpu_share``: seconds of CPU a second, of all threads and of the driver processes;
# ``resident_bytes``: memory of the controller alone, at the end of the row. Both are null where
# time is virtual.
SCHEMA = pa.schema(
    [
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("length_ns", pa.int64(), nullable=False),
        pa.field("late_ns", pa.int64(), nullable=False),
        pa.field("cpu_share", pa.float64(), nullable=True),
        pa.field("resident_bytes", pa.int64(), nullable=True),
    ]
)


class LoopStats(msgspec.Struct, frozen=True, kw_only=True):
    """The load of processes since the last sample: how late a loop of theirs ran at worst, and the
    seconds of CPU that they used together.
    """

    late_ns: int = 0
    cpu_s: float = 0.0

    def and_also(self, other: LoopStats) -> LoopStats:
        """The combined statistics: the worse lateness, the sum of the CPU seconds."""
        return LoopStats(late_ns=max(self.late_ns, other.late_ns), cpu_s=self.cpu_s + other.cpu_s)


class LoopSampler:
    """Measures lateness and CPU use of this process, while ``run`` goes on."""

    def __init__(self, clock: RunClock, cpu_s: Callable[[], float] | None) -> None:
        """``cpu_s`` returns the seconds of CPU that this process has used."""
        self._clock, self._cpu_s = clock, cpu_s
        self._late_ns, self._used_s = 0, self._now_used_s()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self.once()

    async def once(self) -> None:
        """Take one sample."""
        before_ns = self._clock.now_ns()
        await asyncio.sleep(BEAT_S)
        late_ns = self._clock.now_ns() - before_ns - int(BEAT_S * NS_PER_S)
        self._late_ns = max(self._late_ns, late_ns)

    def take(self) -> LoopStats:
        """The statistics since the last call."""
        used_s = self._now_used_s()
        stats = LoopStats(late_ns=self._late_ns, cpu_s=used_s - self._used_s)
        self._late_ns, self._used_s = 0, used_s
        return stats

    def _now_used_s(self) -> float:
        return 0.0 if self._cpu_s is None else self._cpu_s()


class ControllerHealth:
    """Measures while ``run`` goes on; ``close`` writes the measurements."""

    def __init__(self, clock: RunClock, cpu_s: Callable[[], float] | None) -> None:
        """``cpu_s`` returns the seconds of CPU that this process has used."""
        self._clock, self._measures_cpu = clock, cpu_s is not None
        self._beat = LoopSampler(clock, cpu_s)
        self._rows: list[dict[str, Any]] = []

    async def run(self, others: Callable[[], LoopStats] = LoopStats) -> None:
        """Sample until cancelled. ``others`` returns the statistics of the driver processes since
        its last call; those that arrive late are in a later row.
        """
        # What was used before the run is not the first row's.
        self._beat.take()
        begun_ns = self._clock.now_ns()
        while True:
            await self._beat.once()
            now_ns = self._clock.now_ns()
            length_ns = now_ns - begun_ns
            if length_ns < ROW_NS:
                continue
            stats = self._beat.take().and_also(others())
            share = stats.cpu_s * NS_PER_S / length_ns if self._measures_cpu else None
            self._rows.append(
                {
                    "at_ns": begun_ns,
                    "length_ns": length_ns,
                    "late_ns": stats.late_ns,
                    "cpu_share": share,
                    "resident_bytes": resident_bytes() if self._measures_cpu else None,
                }
            )
            begun_ns = now_ns

    def close(self, run: RunDirectory) -> dict[str, str]:
        """Write ``run.controller``; returns its checksum by name. Raises ``HarnessError``."""
        table = pa.Table.from_pylist(self._rows, schema=SCHEMA)
        missing = "whether the controller kept up is not known"
        return write_side_table(run.root, run.controller.name, table, missing)


def read_controller_health(run: RunDirectory, checksums: dict[str, str]) -> pa.Table:
    """The table ``run.controller``; empty where the run's manifest names none.

    Columns that an older version did not measure are null. Raises ``MalformedHistory`` for a file
    that the manifest names and that is missing or differs, or has other columns.
    """
    path = run.controller
    table = read_summed(run.root, checksums, {path.name: SCHEMA})[path.stem]
    return with_later(path.stem, table, SCHEMA).select(SCHEMA.names)
