"""When each fault of a run's plan was due: the drive's start and the fault's offset.

The record of a fault says when its plan was recorded, which is the same moment for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.clock import NS_PER_S
from harness.history.run_directory import Manifest


def schedule_rows(plan: Mapping[str, Any]) -> list[Any]:
    """Return the rows of the schedule in ``plan``, as its file has them; none of a file without."""
    nemesis = plan.get("nemesis")
    schedule = nemesis.get("schedule") if isinstance(nemesis, dict) else None
    return schedule if isinstance(schedule, list) else []


def due_ns(manifest: Manifest, schedule: Sequence[Any], number: int) -> int | None:
    """Return when the fault ``number`` was due, on the run's axis; ``None`` of one that no plan
    has, as a directory from elsewhere may hold another plan, and of one whose moment never came.
    """
    drive_ns = dict(manifest.phases).get("drive")
    if drive_ns is None or not 0 <= number < len(schedule):
        return None
    row = schedule[number]
    at_s = row.get("at_s", 0.0) if isinstance(row, dict) else None
    if not isinstance(at_s, int | float) or not math.isfinite(at_s):
        return None
    waits = "on" in row and "aimed" not in row
    return None if waits else drive_ns + int(at_s * NS_PER_S)
