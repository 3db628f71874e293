"""The smaller parts of a page: coverage, what the nodes' logs said, how the controller fared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from harness.checking import Verdict
from harness.roles import ROLES
from results.tabulate import DASH, cell

CELLS_MAX = 60  # kinds of faults shown
LOG_ROWS_MAX = 200


@attrs.frozen(kw_only=True)
class CoverageRow:
    """A kind of fault, and how often it hit each role."""

    kind: str
    counts: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Coverage:
    """The cells of fault by role; ``empty`` names those that nothing hit."""

    roles: tuple[str, ...]
    rows: tuple[CoverageRow, ...]
    summary: str
    empty: str


@attrs.frozen(kw_only=True)
class LogRow:
    """What a node's log holds of one pattern: how many lines, and the first of them."""

    node: str
    kind: str
    lines: str
    first: str


def coverage(verdict: Verdict | None) -> Coverage | None:
    """What the verdict says of it; ``None`` where it says nothing."""
    told: Mapping[str, Any] = verdict.coverage if verdict else {}
    cells = told.get("cells")
    if not isinstance(cells, Mapping) or not cells:
        return None
    rows = tuple(
        CoverageRow(kind=str(kind), counts=tuple(_count(row.get(role)) for role in ROLES))
        for kind, row in list(cells.items())[:CELLS_MAX]
        if isinstance(row, Mapping)
    )
    never = [row.kind for row in rows if not any(row.counts)]
    partly = [
        f"{row.kind} of {'an' if role[0] in 'aeiou' else 'a'} {role}"
        for row in rows
        for role, count in zip(ROLES, row.counts, strict=True)
        if not count and row.kind not in never
    ]
    named = "; ".join([f"{kind} of any of these roles" for kind in never] + partly)
    return Coverage(
        roles=ROLES,
        rows=rows,
        summary=f"{told.get('hit', 0)} of {told.get('of', 0)} cells hit by a fault that was "
        "proven effective. A fault counts in every role that its targets held.",
        empty=named,
    )


def _count(told: object) -> int:
    """A number of a verdict, which anybody may have written."""
    return told if isinstance(told, int) else 0


def logs(verdict: Verdict | None) -> tuple[LogRow, ...]:
    """A row for each node and pattern that the logs matched."""
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
    """One sentence; empty where nothing was measured."""
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
