"""What the verdict says about availability, one row a fault window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.tabulate import DASH, Grid, cell
from results.tabulate import grids as any_grids

_COLUMNS = (
    "window", "hit", "from (s)", "to (s)", "ok", "longest gap (s)", "gap at (s)",
    "first ok after injection (s)", "after healing (s)",
)  # fmt: skip
_FIELDS = (
    "start_ns", "end_ns", "ok", "longest_gap_ns", "longest_gap_at_ns",
    "first_ok_after_inject_ns", "first_ok_after_heal_ns",
)  # fmt: skip
ROWS_MAX = 100
SHOWN_MAX = 16  # partitions side by side


def grids(data: Mapping[str, Any]) -> tuple[Grid, ...]:
    """One table: the whole drive phase, then every fault window. What a checker said in another
    shape is shown as it is.
    """
    windows = data.get("windows")
    if not isinstance(windows, list | tuple) or not all(isinstance(w, Mapping) for w in windows):
        return any_grids(data)
    rows = [
        _row(f"{window.get('fault', '')} {window.get('kind', '')}", window) for window in windows
    ]
    if isinstance(drive := data.get("drive"), Mapping):
        rows.insert(0, _row("whole drive phase", drive))
    more = max(0, len(rows) - ROWS_MAX)
    told = ("windows", "drive", "partitions")
    rest = {name: value for name, value in data.items() if name not in told}
    table = Grid(title="", columns=_COLUMNS, rows=tuple(rows[:ROWS_MAX]), more=more)
    return (table, *_by_partition(data.get("partitions")), *any_grids(rest))


def _by_partition(data: object) -> tuple[Grid, ...]:
    """The longest gap of each partition in every fault window, where a checker tells of them."""
    if not isinstance(data, Mapping):
        return ()
    numbers, windows = data.get("partition"), data.get("windows")
    if not isinstance(numbers, list) or not isinstance(windows, list):
        return ()
    rows = tuple(
        (
            f"{window.get('fault', '')} {window.get('kind', '')}".strip(),
            *(cell("gap_ns", gap) for gap in list(window.get("longest_gap_ns", ()))[:SHOWN_MAX]),
        )
        for window in windows[:ROWS_MAX]
        if isinstance(window, Mapping)
    )
    if all(told == DASH for _, *gaps in rows for told in gaps):
        return ()  # of too few writes nothing is said of any partition
    columns = ("window", *(f"partition {number}" for number in numbers[:SHOWN_MAX]))
    title = "Longest time without an acknowledged write, by partition (s)"
    more = max(0, len(windows) - ROWS_MAX)
    return (Grid(title=title, columns=columns, rows=rows, more=more),)


def _row(name: str, window: Mapping[str, Any]) -> tuple[str, ...]:
    hit = ", ".join(window.get("nodes") or ()) or window.get("target") or DASH
    return (name.strip(), str(hit), *(cell(field, window.get(field)) for field in _FIELDS))
