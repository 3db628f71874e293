"""What an analysis costs, stage by stage, and what one of ten times the history would."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.compute as pc

COST_TABLE = "engine.costs"
# A row a task: rows and bytes that it read, its seconds, and the memory that its process had before
# it read any history, and at most.
COSTS = pa.schema(
    [
        ("rows", pa.int64()),
        ("read_bytes", pa.int64()),
        ("seconds", pa.float64()),
        ("begun_bytes", pa.int64()),
        ("peak_bytes", pa.int64()),
    ]
)
TENFOLD = 10


@attrs.frozen(kw_only=True)
class StageCost:
    """``seconds`` of the stage as a whole, of its tasks together, and what each of them read and
    held at most, and of that before any history. ``grows``: a task of a longer history holds more,
    since there are as many as before.
    """

    name: str
    tasks: int
    rows: int
    read_bytes: int
    seconds: float
    task_seconds: float
    begun_bytes: int
    peak_bytes: int
    grows: bool

    def sentence(self) -> str:
        """Say it in a line, with what ten times the history would take."""
        # What a process has before any history does not grow with it.
        own = max(self.peak_bytes - self.begun_bytes, 0)
        held = self.begun_bytes + own * (TENFOLD if self.grows else 1)
        return (
            f"cost of {self.name}: {self.tasks} tasks, {self.rows:,} rows, "
            f"{self.read_bytes / 1e6:,.1f} MB read, {self.seconds:.2f} s "
            f"({self.task_seconds:.2f} s of tasks), {self.peak_bytes / 1e6:,.0f} MB at most in a "
            f"process; ten times the history: about {self.seconds * TENFOLD:,.0f} s and "
            f"{held / 1e6:,.0f} MB on the same cores"
        )


# A callback with the cost of each stage once it is over; without one nothing is told.
EXPLAIN: ContextVar[Callable[[StageCost], None]] = ContextVar("EXPLAIN", default=lambda _cost: None)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


BEGUN_BYTES = _resident_bytes()


@attrs.define
class Meter:
    """The cost of a task under way."""

    rows: int = 0
    read_bytes: int = 0
    _begun_s: float = attrs.field(factory=time.perf_counter)

    def table(self) -> pa.Table:
        """Return the row of the task, which is over."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        took_s = time.perf_counter() - self._begun_s
        row = (self.rows, self.read_bytes, took_s, BEGUN_BYTES, peak)
        columns = [pa.array([value], field.type) for value, field in zip(row, COSTS, strict=True)]
        return pa.Table.from_arrays(columns, schema=COSTS)


def stage_cost(name: str, costs: pa.Table, seconds: float, *, grows: bool) -> StageCost:
    """Return the cost of a stage from the rows of its tasks."""
    return StageCost(
        name=name,
        tasks=costs.num_rows,
        rows=pc.sum(costs["rows"]).as_py() or 0,
        read_bytes=pc.sum(costs["read_bytes"]).as_py() or 0,
        seconds=seconds,
        task_seconds=pc.sum(costs["seconds"]).as_py() or 0.0,
        begun_bytes=pc.min(costs["begun_bytes"]).as_py() or 0,
        peak_bytes=pc.max(costs["peak_bytes"]).as_py() or 0,
        grows=grows,
    )
