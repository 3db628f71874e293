"""The smaller parts of a page: coverage, findings in the nodes' logs, the controller's load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from harness.protocols.roles import COVERED
from harness.protocols.verdict import Verdict
from results.report.tabulate import DASH, Grid, cell
from results.report.tabulate import grids as any_grids

CELLS_MAX = 60  # kinds of faults shown
LOG_ROWS_MAX = 200
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


@attrs.frozen(kw_only=True)
class CoverageRow:
    """A kind of fault, and how often it hit each role."""

    kind: str
    counts: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Coverage:
    """The cells of fault by role; ``empty`` names those without a hit."""

    roles: tuple[str, ...]
    rows: tuple[CoverageRow, ...]
    summary: str
    empty: str


@attrs.frozen(kw_only=True)
class LogRow:
    """The matches of one pattern in a node's log: the number of lines, and the first of them."""

    node: str
    kind: str
    lines: str
    first: str


def coverage(verdict: Verdict | None) -> Coverage | None:
    """Return the verdict's coverage; ``None`` where it has none."""
    told: Mapping[str, Any] = verdict.coverage if verdict else {}
    cells = told.get("cells")
    if not isinstance(cells, Mapping) or not cells:
        return None
    rows = tuple(
        CoverageRow(kind=str(kind), counts=tuple(_count(row.get(role)) for role in COVERED))
        for kind, row in list(cells.items())[:CELLS_MAX]
        if isinstance(row, Mapping)
    )
    never = [row.kind for row in rows if not any(row.counts)]
    partly = [
        f"{row.kind} of {'an' if role[0] in 'aeiou' else 'a'} {role}"
        for row in rows
        for role, count in zip(COVERED, row.counts, strict=True)
        if not count and row.kind not in never
    ]
    named = "; ".join([f"{kind} of any of these roles" for kind in never] + partly)
    return Coverage(
        roles=COVERED,
        rows=rows,
        summary=f"{told.get('hit', 0)} of {told.get('of', 0)} cells hit by a fault that was "
        "proven effective. A fault counts in every role that its targets held.",
        empty=named,
    )


def _count(told: object) -> int:
    """Return a number of a verdict, or a default: any program may have written the verdict."""
    return told if isinstance(told, int) else 0


def logs(verdict: Verdict | None) -> tuple[LogRow, ...]:
    """Return a row for each node and pattern with matching log lines."""
    told: Mapping[str, Any] = verdict.node_logs if verdict else {}
    found = [
        LogRow(
            node=str(node),
            kind=str(kind),
            lines=cell("", here.get("lines")),
            first=str(here.get("first", "")),
        )
        for node, kinds in told.items()
        if isinstance(kinds, Mapping)
        for kind, here in kinds.items()
        if isinstance(here, Mapping)
    ]
    return tuple(found[:LOG_ROWS_MAX])


def controller(verdict: Verdict | None) -> str:
    """Describe the controller's load in one sentence; empty where nothing was measured."""
    told: Mapping[str, Any] = verdict.controller if verdict else {}
    if "longest_stall_ns" not in told:
        return ""
    used = told.get("cpu_share")
    cpu = f" It used {used:.0%} of a core." if isinstance(used, float) else ""
    stall = f"{told['longest_stall_ns'] / 1e6:,.0f} ms"
    at = cell("at_ns", told.get("longest_stall_at_ns")) or DASH
    late = told.get("late_share", 0.0)
    return (
        f"The controller's loop was late by {stall} at worst (at about {at} s), and by more than "
        f"250 ms in {late:.1%} of the drive phase.{cpu}{_memory(told)}"
    )


def _memory(told: Mapping[str, Any]) -> str:
    resident = told.get("resident_bytes")
    if not isinstance(resident, Mapping):
        return ""
    first, most, last = (resident.get(key, 0) / 2**20 for key in ("first", "most", "last"))
    return f" Its memory went from {first:,.0f} to {last:,.0f} MiB, {most:,.0f} at most."


def grids(data: Mapping[str, Any]) -> tuple[Grid, ...]:
    """Return one table: the whole drive phase, then every fault window. A checker's data of another
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
    """Return the longest gap of each partition in every fault window, where a
    checker reports them.
    """
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
        return ()  # with too few writes no partition has a figure
    columns = ("window", *(f"partition {number}" for number in numbers[:SHOWN_MAX]))
    title = "Longest time without an acknowledged write, by partition (s)"
    more = max(0, len(windows) - ROWS_MAX)
    return (Grid(title=title, columns=columns, rows=rows, more=more),)


def _row(name: str, window: Mapping[str, Any]) -> tuple[str, ...]:
    hit = ", ".join(window.get("nodes") or ()) or window.get("target") or DASH
    return (name.strip(), str(hit), *(cell(field, window.get(field)) for field in _FIELDS))
