"""A night as a page of Markdown: the summary of a job of GitHub (``$GITHUB_STEP_SUMMARY``), a
comment, a mail.

What comes from nodes and runs stands in code spans alone, where neither Markdown nor HTML, no
mention and no link is anything but text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from harness.exit_codes import Outcome
from harness.text import inert
from results.nights.summary import NightFinding, NightSummary, axes_of, why

SUMMARY = "summary.md"
ROWS_MAX = 50  # of each table
CELL_CHARS = 300
MARKS = {
    Outcome.VIOLATION: "\N{CROSS MARK}",
    Outcome.HARNESS_ERROR: "\N{HEAVY EXCLAMATION MARK SYMBOL}",
    Outcome.UNKNOWN: "\N{WHITE QUESTION MARK ORNAMENT}",
    Outcome.REGRESSION: "\N{CHART WITH DOWNWARDS TREND}",
    Outcome.VALID: "\N{WHITE HEAVY CHECK MARK}",
}
_TICKS = re.compile("`+")


def markdown(summary: NightSummary) -> str:
    """Return the summary of a night: at most some 100 KiB, of 1 MiB that GitHub takes."""
    return "\n".join(_lines(summary)) + "\n"


def code(text: str) -> str:
    """Return ``text`` as a code span that also a cell of a table may hold. A bar, which no span can
    keep in a table, is shown as a broken one.
    """
    shown = inert(text, CELL_CHARS).replace("|", "¦")
    if not shown.strip():
        return ""
    longest = max((len(run) for run in _TICKS.findall(shown)), default=0)
    fence = "`" * (longest + 1)
    # Blanks apart from a tick at either end; one on each side is not shown.
    return f"{fence} {shown} {fence}"


def _lines(summary: NightSummary) -> Iterator[str]:
    mark = MARKS[summary.outcome]
    yield f"## {mark} {summary.outcome.value}: {code(summary.campaign)}, night of {summary.night}"
    yield ""
    yield f"{summary.meaning} (exit code {summary.exit_code}; {summary.took_s / 60:.0f} min)."
    yield ""
    counts = ", ".join(f"{count} {name}" for name, count in summary.counts.items())
    yield f"{summary.cell_count} cells: {counts}."
    if summary.note:
        yield f"{code(summary.note)}"
    yield ""
    for text in summary.trouble:
        yield f"- {code(text)}"
    yield from _findings(summary)
    yield from _compared(summary)
    yield from _cells(summary)
    if summary.artifacts:
        yield ""
        yield "Runs as files, for `firedrill check FILE` and `firedrill report FILE`:"
        yield ""
        for name in summary.artifacts:
            yield f"- {code(name)}"


def _findings(summary: NightSummary) -> Iterator[str]:
    rows = [(each, _status(summary, each)) for each in summary.findings]
    rows += summary.missed()
    if not rows:
        return
    yield ""
    yield "| finding | fault, role | known | runs | example | fingerprint |"
    yield "|---|---|---|---:|---|---|"
    for each, status in islice(rows, ROWS_MAX):
        cells = (code(each.anomaly), code(each.cause), status, str(each.run_count))
        yield f"| {' | '.join(cells)} | {code(each.example)} | {code(each.fingerprint)} |"
    yield from _more(len(rows))


def _status(summary: NightSummary, finding: NightFinding) -> str:
    status = "**new**" if summary.is_new(finding) else summary.status(finding)
    return f"{status}, quarantined" if finding.quarantined else status


def _compared(summary: NightSummary) -> Iterator[str]:
    if summary.comparison is not None:
        yield ""
        mark = MARKS[summary.comparison]
        yield f"Against the night of {summary.base}: {mark} {summary.comparison.value}"
    if summary.changes or summary.compare_notes:
        yield ""
    for text in summary.changes[:ROWS_MAX]:
        yield f"- {code(text)}"
    yield from _more(len(summary.changes))
    for text in summary.compare_notes[:ROWS_MAX]:
        yield f"- note: {code(text)}"


def _cells(summary: NightSummary) -> Iterator[str]:
    if not summary.cells:
        return
    yield ""
    yield "| outcome | cell | seed | found | again | run |"
    yield "|---|---|---:|---|---|---|"
    for row in summary.cells[:ROWS_MAX]:
        outcome = f"{MARKS[row.outcome]} {row.outcome.value}" if row.outcome else "not run"
        if row.quarantine:
            outcome += " (quarantined)"
        cells = (code(axes_of(row)), str(row.seed), code(why(row)), code(row.label))
        yield f"| {outcome} | {' | '.join(cells)} | {code(Path(row.run).name)} |"
    yield from _more(len(summary.cells))


def _more(count: int) -> Iterator[str]:
    if count > ROWS_MAX:
        yield ""
        yield f"and {count - ROWS_MAX} more"
