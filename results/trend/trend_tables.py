"""A trend as tables of texts and pictures: for a terminal, a page and JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from markupsafe import Markup

from harness.history.durable_files import write_atomically
from harness.text import inert_json
from results.compare.comparison_page import make_directory
from results.compare.comparison_tables import aligned
from results.compare.figures import percent, shown
from results.drawing.trend_line import trend_line
from results.report.html import rendered
from results.report.tabulate import Grid
from results.store.store import RunStore
from results.trend.change_points import Shape
from results.trend.trends import RECENT_DAYS, FindingHistory, Series, Trend, Turn

PAGE = "trend.html"  # beside the index of the runs
PICTURES_MAX = 80  # each has some kilobytes
ROWS_MAX = 300
TURN = (
    "",
    "since",
    "figure",
    "before",
    "after",
    "change",
    "cell",
    "first bad run",
    "last good run",
)
FINDING = ("finding", "first seen", "last seen", "met", f"last {RECENT_DAYS} days", "last run")


def tables(found: Trend, between: Mapping[str, Sequence[str]] | None = None) -> tuple[Grid, ...]:
    """Return the tables of ``found``. ``between`` are the commits of a change by its first bad
    run, where somebody asked a repository for them.
    """
    turns = [_turn(series, turn) for series, turn in found.turns()]
    commits = [(run, "\n".join(lines)) for run, lines in (between or {}).items() if lines]
    grids = (
        Grid(title="changes", columns=TURN, rows=tuple(turns[:ROWS_MAX])),
        Grid(title="commits between", columns=("first bad run", "commits"), rows=tuple(commits)),
        Grid(
            title="findings", columns=FINDING, rows=tuple(map(_finding, found.findings))[:ROWS_MAX]
        ),
    )
    return tuple(grid for grid in grids if grid.rows)


def lines(found: Trend, between: Mapping[str, Sequence[str]] | None = None) -> Iterator[str]:
    """Yield the trend as lines of a terminal."""
    yield f"{found.runs} runs from {found.first} to {found.last}, {len(found.series)} series"
    for grid in tables(found, between):
        yield ""
        yield from aligned(grid)
    yield from found.notes


def write_trend(
    found: Trend, store: RunStore, path: Path, between: Mapping[str, Sequence[str]] | None = None
) -> Path:
    """Write the page to ``path``, and the JSON beside it; return ``path``. Raises
    ``HarnessError``.
    """
    drawn = drawn_first(found)[:PICTURES_MAX]
    page = rendered(
        "trend.html",
        found=found,
        grids=tables(found, between),
        pictures=[picture(series) for series in drawn],
        more=len(found.series) - len(drawn),
        links=_links(found, store, path),
    )
    make_directory(path.parent)
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    write_atomically(path.with_suffix(".json"), encoded(found))
    return path


def drawn_first(found: Trend) -> list[Series]:
    """Return the series, those with a change first."""
    return sorted(found.series, key=lambda each: not each.turns)


def encoded(found: Trend) -> bytes:
    """The trend as JSON."""
    return inert_json(msgspec.json.format(msgspec.json.encode(found, order="sorted"))) + b"\n"


def _turn(series: Series, turn: Turn) -> tuple[str, ...]:
    word = "WORSE" if turn.worse else "another host" if turn.host else "better"
    drift = turn.shape is Shape.DRIFT
    since = f"about {turn.at}, until {turn.until}" if drift else str(turn.at)
    builds = [_build(turn, 1), _build(turn, 0)]
    return (
        f"{word}, {turn.shape.value}",
        since,
        series.words,
        shown(turn.before, series.unit),
        shown(turn.after, series.unit),
        percent(turn.change),
        series.cell,
        f"{turn.first_bad}{builds[0]}",
        f"{turn.last_good}{builds[1]}",
    )


def _build(turn: Turn, side: int) -> str:
    told = " ".join(part for part in (turn.releases[side], turn.commits[side]) if part)
    return f" ({told})" if told else ""


def _finding(each: FindingHistory) -> tuple[str, ...]:
    return (
        each.words,
        f"{each.first_seen} ({each.first_run})",
        str(each.last_seen),
        f"{each.met} of {each.judged}",
        f"{each.met_lately} of {each.judged_lately}",
        each.last_run,
    )


def picture(series: Series) -> Markup:
    """Draw a series with its changes."""
    turns = [(t.at, t.until, t.before, t.after, t.worse) for t in series.turns]
    title = f"{series.words}, {series.cell}"
    return trend_line(title, series.nights, series.values, turns, series.unit)


def _links(found: Trend, store: RunStore, path: Path) -> dict[str, str]:
    named = {turn.first_bad for _, turn in found.turns()}
    named |= {each.last_run for each in found.findings}
    reports = {run: store.root / run / "report.html" for run in named}
    here = path.resolve().parent
    return {
        run: os.path.relpath(report.resolve(), here)
        for run, report in reports.items()
        if report.is_file()
    }
