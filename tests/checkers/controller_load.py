"""A controller's load, a row a second, with one stall."""

from __future__ import annotations

import pyarrow as pa

from harness.run import controller_health

S = 1_000_000_000


def stalled(stall_s: float, at_s: float, end_s: float) -> pa.Table:
    """A loop that stood still once, for ``stall_s`` in the second of ``at_s``."""
    rows, begun_s = [], 0.0
    while begun_s < end_s:
        late_s = stall_s if begun_s <= at_s < begun_s + 1 else 0.0
        row = {"at_ns": begun_s, "length_ns": 1 + late_s, "late_ns": late_s}
        rows.append({name: round(value * S) for name, value in row.items()})
        begun_s += 1 + late_s
    return pa.Table.from_pylist(rows, schema=controller_health.SCHEMA)
