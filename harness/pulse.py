"""Whether the controller itself kept up: how late its loop ran, and how much CPU it used.

A controller that gets no CPU times operations out, injects faults late and sees gaps that were its
own. The figures go into ``controller.parquet``, one row a second, so that an analysis can refuse to
believe the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.clock import NS_PER_S, RunClock
from harness.history.files import disk_failure, sha256
from harness.rundir import RunDirectory

BEAT_S = 0.05
ROW_NS = NS_PER_S
SCHEMA = pa.schema(
    [
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("length_ns", pa.int64(), nullable=False),
        pa.field("late_ns", pa.int64(), nullable=False),
        pa.field("cpu_share", pa.float64(), nullable=True),
    ]
)
"""``late_ns``: how much later than asked for the loop woke up, at worst, in the ``length_ns`` from
``at_ns`` on; ``cpu_share``: seconds of CPU a second, of all threads; null where time is virtual."""


class Pulse:
    """Measures while it runs; ``close`` writes what was measured."""

    def __init__(self, clock: RunClock, cpu_s: Callable[[], float] | None) -> None:
        """``cpu_s`` tells the seconds of CPU that this process has used."""
        self._clock, self._cpu_s = clock, cpu_s
        self._rows: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Beat until cancelled."""
        begun_ns, late_ns, used_s = self._clock.now_ns(), 0, self._used_s()
        while True:
            before_ns = self._clock.now_ns()
            await asyncio.sleep(BEAT_S)
            now_ns = self._clock.now_ns()
            late_ns = max(late_ns, now_ns - before_ns - int(BEAT_S * NS_PER_S), 0)
            length_ns = now_ns - begun_ns
            if length_ns < ROW_NS:
                continue
            share = None if self._cpu_s is None else (self._used_s() - used_s) * 1e9 / length_ns
            self._rows.append(
                {"at_ns": begun_ns, "length_ns": length_ns, "late_ns": late_ns, "cpu_share": share}
            )
            begun_ns, late_ns, used_s = now_ns, 0, self._used_s()

    def close(self, run: RunDirectory) -> dict[str, str]:
        """Write ``run.controller``; its checksum by name. Raises ``HarnessError``."""
        path = run.controller
        try:
            table = pa.Table.from_pylist(self._rows, schema=SCHEMA)
            pq.write_table(table, path, compression="zstd")
            return {path.name: sha256(path)}
        except OSError as error:
            missing = "nobody can say whether the controller kept up"
            raise disk_failure("write", path, error, missing) from error

    def _used_s(self) -> float:
        return 0.0 if self._cpu_s is None else self._cpu_s()


def read_pulse(run: RunDirectory, checksums: dict[str, str]) -> pa.Table:
    """``run.controller`` as far as the run's manifest vouches for it; else empty."""
    path = run.controller
    expected = checksums.get(path.name)
    if expected is None or not path.exists() or sha256(path) != expected:
        return SCHEMA.empty_table()
    return pq.read_table(path)
