"""The smaller parts of a page: coverage, findings in the nodes' logs, the controller's load."""

from __future__ import annotations

from itertools import islice

import attrs

from harness.protocols.roles import COVERED
from harness.protocols.verdict import (
    Availability,
    FaultWindow,
    Memory,
    PartitionGaps,
    Verdict,
    Window,
)
from results.report import tabulate
from results.report.fault_recovery import Recovery, Stretch
from results.report.tabulate import DASH, Grid, cell

RECOVERIES_MAX = 60
CELLS_MAX = 60  # kinds of faults shown
LOG_ROWS_MAX = 200
_COLUMNS = (
    "window", "hit", "from (s)", "to (s)", "ok", "longest gap (s)", "gap at (s)",
    "first ok after injection (s)", "after healing (s)",
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
        f"{row.kind} of {'an' if role[0] in 'aeiou' else 'a'} {role}"
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
    stall = f"{load.longest_stall_ns / 1e6:,.0f} ms"
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


@attrs.frozen(kw_only=True)
class RecoveryRow:
    """A fault's recovery as text: its stretches as (name, from, to, ok/s, p99, errors, conflicts),
    and the times to 90 % of the rate before.
    """

    name: str
    hit: str
    stretches: tuple[tuple[str, ...], ...]
    lowest: str
    from_begin: str
    from_end: str
    bad: bool


def recovery_rows(found: tuple[Recovery, ...]) -> tuple[RecoveryRow, ...]:
    """Return the rows of the first faults."""
    return tuple(_recovery(each) for each in found[:RECOVERIES_MAX])


def _recovery(each: Recovery) -> RecoveryRow:
    told = (("before", each.before), ("during", each.during), ("after", each.after))
    never = "never lower" if each.begin_known and not each.fell else DASH
    not_yet = "not in this time"
    return RecoveryRow(
        name=f"{each.fault} {each.kind}",
        hit=each.hit,
        stretches=tuple(_stretch(name, stretch) for name, stretch in told),
        lowest=DASH if each.lowest is None else f"{each.lowest:,}",
        from_begin=_again(each.from_begin_ns, not_yet if each.fell else never),
        # Of a stretch that is too short to count a rate in, nothing is known.
        from_end=_again(each.from_end_ns, not_yet if each.end_known else DASH),
        bad=each.end_known and each.from_end_ns is None,
    )


def _again(time_ns: int | None, otherwise: str) -> str:
    return otherwise if time_ns is None else f"{time_ns / 1e9:.1f}"


def _stretch(name: str, stretch: Stretch | None) -> tuple[str, ...]:
    if stretch is None:
        return (name, *[DASH] * 6)
    return (
        name,
        cell("at_ns", stretch.start_ns),
        cell("at_ns", stretch.end_ns),
        f"{stretch.ok_per_s:,.1f}",
        DASH if stretch.p99_ns is None else f"{stretch.p99_ns / 1e6:,.1f}",
        f"{stretch.errors:,}",
        f"{stretch.conflicts:,}",
    )


def availability(part: Availability) -> tuple[Grid, ...]:
    """Return one table of the whole drive phase and every fault window, then those of partitions
    and of the faults' effects.
    """
    if part.windows is None:
        return ()
    rows = [
        _row(f"{window.fault} {window.kind}", window)
        for window in part.windows[: ROWS_MAX - (part.drive is not None)]
    ]
    count = len(part.windows)
    if part.drive is not None:
        rows.insert(0, _row("whole drive phase", part.drive))
        count += 1
    table = Grid(title="", columns=_COLUMNS, rows=tuple(rows), more=count - len(rows))
    effects = tabulate.grids({"effects": part.effects} if part.effects else {})
    return (table, *_by_partition(part.partitions), *effects)


def _by_partition(gaps: PartitionGaps | None) -> tuple[Grid, ...]:
    """Return the longest gap of each partition in every fault window, where they are known."""
    if gaps is None:
        return ()
    rows = tuple(
        (
            f"{window.fault} {window.kind}",
            *(cell("gap_ns", gap) for gap in window.longest_gap_ns[:SHOWN_MAX]),
        )
        for window in gaps.windows[:ROWS_MAX]
    )
    if all(gap == DASH for _, *row in rows for gap in row):
        return ()  # with too few writes no partition has a figure
    columns = ("window", *(f"partition {number}" for number in gaps.partition[:SHOWN_MAX]))
    title = "Longest time without an acknowledged write, by partition (s)"
    if (unseen := len(gaps.partition) - SHOWN_MAX) > 0:
        title += f", without {unseen} more that analysis/verdict.json has"
    more = len(gaps.windows) - len(rows)
    return (Grid(title=title, columns=columns, rows=rows, more=more),)


def _row(name: str, window: Window | FaultWindow) -> tuple[str, ...]:
    hit, first_ns, healed_ns = DASH, None, None
    if isinstance(window, FaultWindow):
        hit = ", ".join(window.nodes or ()) or window.target or DASH
        first_ns, healed_ns = window.first_ok_after_inject_ns, window.first_ok_after_heal_ns
    return (
        name,
        hit,
        cell("at_ns", window.start_ns),
        cell("at_ns", window.end_ns),
        cell("ok", window.ok),
        cell("gap_ns", window.longest_gap_ns),
        cell("at_ns", window.longest_gap_at_ns),
        cell("first_ns", first_ns),
        cell("first_ns", healed_ns),
    )
