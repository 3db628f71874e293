"""The same drill in several modes of a store, side by side: the price (latency), the benefit
(availability) and the loss of each, on one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import pyarrow as pa

from harness.exit_codes import Outcome
from harness.history.durable_files import write_atomically
from harness.history.load import load
from harness.history.records import OpType
from harness.history.run_directory import RunDirectory
from harness.history.store_events import resets_in
from harness.protocols.fault_spans import fault_spans, in_calm, touched
from harness.protocols.promise import REFUSED
from harness.protocols.verdict import FaultWindow, LimitState, Verdict
from results.drawing import series
from results.report.html import MARKS, rendered
from results.report.limit_rows import LIMITS_MAX, in_words
from results.report.tabulate import DASH, Grid, seconds

MODES_PAGE = "modes.html"
FAULTS_MAX = 30
PERCENT, MS_PER_S = 100, 1000


@attrs.frozen(kw_only=True)
class ModeRun:
    """One run: its mode, its directory, and what was found in it."""

    mode: str
    run: RunDirectory
    verdict: Verdict


@attrs.frozen(kw_only=True)
class Comparison:
    """The tables of the page; the first column of each row is what it is about, then one a mode."""

    outcomes: tuple[tuple[str, str, str, str], ...]
    grids: tuple[Grid, ...]


def compared(runs: Sequence[ModeRun]) -> Comparison:
    """Return what ``runs``, of one seed and schedule, tell of their modes. Raises
    ``MalformedHistory``.
    """
    modes = tuple(one.mode for one in runs)
    columns = ("", *modes)
    return Comparison(
        outcomes=tuple(_outcome(one) for one in runs),
        grids=(
            Grid(title="price: latency", columns=columns, rows=_across(map(_latency, runs))),
            Grid(title="benefit: availability", columns=columns, rows=_across(map(_served, runs))),
            Grid(
                title="faults: longest silence of a partition, and the store's next "
                "acknowledgement (s)",
                columns=columns,
                rows=_across(map(_faults, runs)),
            ),
            Grid(title="limits of the plan", columns=columns, rows=_across(map(_limits, runs))),
            Grid(title="loss", columns=columns, rows=_across(map(_loss, runs))),
            Grid(
                title="writes by fault, role of its target, and phase",
                columns=columns,
                rows=_across(map(_attributed, runs)),
            ),
        ),
    )


def write_comparison(found: Comparison, into: Path) -> Path:
    """Write the page beside the reports of its runs' directories: into the last run's. Raises
    ``HarnessError``.
    """
    page = rendered("modes.html", found=found)
    path = into / MODES_PAGE
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    return path


def lines(found: Comparison) -> tuple[str, ...]:
    """Return the tables as lines of a terminal, columns aligned."""
    told = []
    for grid in found.grids:
        if not grid.rows:
            continue
        rows = [(grid.title, *grid.columns[1:]), *grid.rows]
        widths = [max(len(row[at]) for row in rows) for at in range(len(grid.columns))]
        for row in rows:
            first, *others = row
            cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            told.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return tuple(told)


def _outcome(one: ModeRun) -> tuple[str, str, str, str]:
    outcome = one.verdict.outcome
    mark = MARKS.get(Outcome(outcome), "")
    report = f"../{one.run.root.name}/{one.run.report.name}" if one.run.report.is_file() else ""
    return one.mode, f"{mark} {outcome.value}", one.run.root.name, report


def _across(every: Iterable[dict[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Return a row for each name that any run tells, in the order of their first appearance."""
    told = list(every)
    names = dict.fromkeys(name for one in told for name in one)
    return tuple((name, *(one.get(name, DASH) for one in told)) for name in names)


def _latency(one: ModeRun) -> dict[str, str]:
    """Latency of what was acknowledged: in calm, and while faults were in force."""
    history = load(one.run)
    table = history.transactions()
    begun, ended = (table[name].to_numpy() for name in ("invoke_ns", "complete_ns"))
    spans = fault_spans(history.faults().to_pylist())
    calm = in_calm(begun, ended, spans, dict(history.manifest.phases))
    under = touched(begun, ended, spans, int(ended.max(initial=0)))
    found = {}
    for name, mask in (("in calm", calm), ("under faults", under)):
        took = series.by_type(table.filter(pa.array(mask)))[OpType.OK]
        for quantile, value in series.overall(took).items():
            of = "longest" if quantile == 1 else f"p{quantile * PERCENT:g}"
            found[f"{of} {name} (ms)"] = f"{value * MS_PER_S:,.1f}"
    return found


def _served(one: ModeRun) -> dict[str, str]:
    counts = one.verdict.statistics.get("transactions", {})
    total = sum(counts.values())
    found = {"acknowledged": f"{counts.get('ok', 0):,}"}
    if total:
        for name, type_ in (
            (REFUSED, "conflict"),
            ("failed", "fail"),
            ("outcome unknown", "info"),
        ):
            found[f"{name} (%)"] = f"{PERCENT * counts.get(type_, 0) / total:.2f}"
    drive = one.verdict.availability.drive
    if drive is not None:
        found["longest silence (s)"] = seconds(drive.longest_gap_ns)
    return found


def _faults(one: ModeRun) -> dict[str, str]:
    availability = one.verdict.availability
    gaps = availability.partitions
    longest = {
        window.fault: max((gap for gap in window.longest_gap_ns if gap is not None), default=None)
        for window in (gaps.windows if gaps else ())
    }
    found = {}
    windows = availability.windows or ()
    for window in windows[:FAULTS_MAX]:
        silent = longest.get(window.fault)
        parts = [DASH if silent is None else seconds(silent), _first_ok(window)]
        found[f"{window.fault} {window.kind} {window.target}"] = " / ".join(parts)
    if len(windows) > FAULTS_MAX:
        found["more faults, told in the report alone"] = f"{len(windows) - FAULTS_MAX:,}"
    return found


def _first_ok(window: FaultWindow) -> str:
    after_ns = window.first_ok_after_inject_ns
    return DASH if after_ns is None else seconds(after_ns)


def _limits(one: ModeRun) -> dict[str, str]:
    """Each limit with what was measured; one that only another mode promises is told by that one's
    run.
    """
    return {
        limit.name: in_words(limit)
        for limit in one.verdict.limits[:LIMITS_MAX]
        if limit.state is not LimitState.NOT_PROMISED
    }


def _loss(one: ModeRun) -> dict[str, str]:
    """Every anomaly with its count, whether it decides or not; how many acknowledged writes were
    lost, as far as the workload tells, and the resets that were told.
    """
    writes = one.verdict.statistics.get("lost_writes", {})
    found = {"acknowledged writes lost": f"{writes['lost']:,}"} if "lost" in writes else {}
    found["resets told"] = f"{_resets(one.run):,}"
    for meaning, anomalies in (
        ("violation", one.verdict.anomalies),
        ("permitted, or observed", one.verdict.observed),
    ):
        for name, anomaly in sorted(anomalies.items()):
            found[f"{name} ({meaning})"] = f"{anomaly.count:,}"
    return found


def _attributed(one: ModeRun) -> dict[str, str]:
    """What became of writes, by what explains it."""
    rows = one.verdict.statistics.get("attribution", [])
    found: dict[str, int] = {}
    for row in rows if isinstance(rows, list) else []:
        fault = row["kind"] if row["fault"] is None else f"{row['fault']} {row['kind']}"
        phase = "" if row["phase"] is None else f", {row['phase']}"
        reset = ", a reset" if row["reset"] else ""
        name = f"{row['write']}: {fault} of {row['role']}{phase}{reset}"
        found[name] = found.get(name, 0) + row["count"]
    return {name: f"{count:,}" for name, count in found.items()}


def _resets(run: RunDirectory) -> int:
    return len(resets_in(load(run).events()))
