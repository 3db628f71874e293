"""The smaller parts of a page: coverage, findings in the nodes' logs, the controller's load."""

from __future__ import annotations

from itertools import islice

import attrs

from harness.protocols.roles import COVERED, cell_name
from harness.protocols.verdict import Memory, Verdict
from harness.text import duration
from results.report.tabulate import cell

CELLS_MAX = 60  # kinds of faults shown
LOG_ROWS_MAX = 200


@attrs.frozen(kw_only=True)
class CoverageRow:
    """A kind of fault, and how often it hit each role."""

    kind: str
    counts: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Coverage:
    """The cells of fault by role, a row for each kind that hit any; ``empty`` names the roles that
    these missed, ``never`` the other kinds, ``more`` counts the rows that are not shown.
    """

    roles: tuple[str, ...]
    rows: tuple[CoverageRow, ...]
    more: int
    summary: str
    empty: str
    never: str


@attrs.frozen(kw_only=True)
class LogRow:
    """The matches of one pattern in a node's log: the number of lines, and the first of them."""

    node: str
    kind: str
    lines: str
    first: str


def coverage(verdict: Verdict | None) -> Coverage | None:
    """Return the verdict's coverage; ``None`` where it has none."""
    if verdict is None or not verdict.coverage.cells:
        return None
    told = verdict.coverage
    every = [
        CoverageRow(kind=kind, counts=tuple(row.get(role, 0) for role in COVERED))
        for kind, row in told.cells.items()
    ]
    hit = [row for row in every if any(row.counts)]
    rows, never = tuple(hit[:CELLS_MAX]), [row.kind for row in every if not any(row.counts)]
    partly = [
        cell_name(row.kind, role)
        for row in rows
        for role, count in zip(COVERED, row.counts, strict=True)
        if not count
    ]
    return Coverage(
        roles=COVERED,
        rows=rows,
        more=len(hit) - len(rows),
        summary=f"{told.hit or 0} of {told.of or 0} cells hit by a fault that was "
        "proven effective. A fault counts in every role that its targets held.",
        empty="; ".join(partly),
        never=f"{', '.join(never[:CELLS_MAX])}{_and_more(len(never) - CELLS_MAX)}",
    )


def _and_more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def logs(verdict: Verdict | None) -> tuple[tuple[LogRow, ...], int]:
    """Return a row for each node and pattern with matching log lines, ``LOG_ROWS_MAX`` at most, and
    how many more there are.
    """
    nodes = verdict.node_logs if verdict else {}
    found = (
        LogRow(node=node, kind=kind, lines=cell("", here.lines), first=here.first)
        for node, kinds in nodes.items()
        for kind, here in kinds.items()
    )
    rows = tuple(islice(found, LOG_ROWS_MAX))
    return rows, sum(map(len, nodes.values())) - len(rows)


def controller(verdict: Verdict | None) -> str:
    """Describe the controller's load in one sentence; empty where nothing was measured."""
    load = verdict.controller if verdict else None
    if load is None or load.longest_stall_ns is None:
        return ""
    cpu = "" if load.cpu_share is None else f" It used {load.cpu_share:.0%} of a core."
    stall = duration(load.longest_stall_ns)
    at = cell("at_ns", load.longest_stall_at_ns)
    return (
        f"The controller's loop was late by {stall} at worst (at about {at} s), and by more than "
        f"250 ms in {load.late_share or 0.0:.1%} of the drive phase.{cpu}"
        f"{_memory(load.resident_bytes)}"
    )


def _memory(resident: Memory | None) -> str:
    if resident is None:
        return ""
    first, most, last = (n / 2**20 for n in (resident.first, resident.most, resident.last))
    return f" Its memory went from {first:,.0f} to {last:,.0f} MiB, {most:,.0f} at most."
