"""A comparison as tables of texts: the same for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.exit_codes import Outcome
from harness.text import duration
from results.compare.comparison import (
    TOO_FEW,
    Comparison,
    FaultChange,
    FindingChange,
    HostPair,
    SideSummary,
)
from results.compare.figures import ALL_CELLS, FigureChange, percent, shown
from results.report.tabulate import DASH, Grid
from results.store.run_figures import Host

MEANINGS = {
    Outcome.VIOLATION: "a finding is new",
    Outcome.UNKNOWN: "the comparison can't tell",
    Outcome.REGRESSION: "every promise that the base kept was kept, but it got worse",
    Outcome.VALID: "nothing is new and nothing is worse than the base",
}
_NOTHING_NEW = "no finding is new; whether a figure is worse, these runs can't tell"
ROWS_MAX = 400  # of a table on the page; the JSON has all
CELL_WIDTH = 60  # of a terminal's column; the page has all


def meaning(found: Comparison) -> str:
    """The outcome of ``found`` in a sentence."""
    # All that is left open are figures: what was compared for certain is worth its words.
    return _NOTHING_NEW if found.reasons == (TOO_FEW,) else MEANINGS[found.outcome]


def tables(found: Comparison, *, every: bool) -> tuple[Grid, ...]:
    """Return the tables of ``found``; without ``every`` only rows of all cells, of a comparison of
    one cell, and those that are called.
    """
    figures = [each for each in found.figures if every or _notable(each, found)]
    faults = [each for each in found.faults if every or each.fell]
    return tuple(
        grid
        for grid in (
            _grid("sides", SIDE, (_side("new", found.new), _side("base", found.base))),
            _grid("findings", FINDING, tuple(_findings(found))),
            _grid("figures", FIGURE, tuple(map(_figure, figures))),
            _grid("faults that took effect", FAULT, tuple(map(_fault, faults))),
            _grid("hosts", HOST, tuple(_hosts(found.hosts, every=every))),
        )
        if grid.rows
    )


SIDE = ("", "runs", "builds", "begun (UTC)", "outcomes")
FINDING = ("", "finding", "new", "base", "p", "first run", "")
FIGURE = ("", "figure", "new", "base", "change", "p", "test", "cell")
FAULT = ("", "kind", "new", "base", "p", "cell")
HOST = ("", "cores", "CPU loop", "fsync", "cell")


def _grid(title: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Grid:
    return Grid(
        title=title, columns=columns, rows=rows[:ROWS_MAX], more=max(0, len(rows) - ROWS_MAX)
    )


def _notable(each: FigureChange, found: Comparison) -> bool:
    alone = len({figure.cell for figure in found.figures}) == 1
    return each.worse or each.better or each.cell == ALL_CELLS or alone


def _side(name: str, side: SideSummary) -> tuple[str, ...]:
    begun = side.first if side.first == side.last else f"{side.first} to {side.last}"
    outcomes = ", ".join(f"{outcome} {count}" for outcome, count in sorted(side.outcomes.items()))
    return name, str(side.runs), ", ".join(side.builds), begun, outcomes


def _findings(found: Comparison) -> Iterator[tuple[str, ...]]:
    changed = {each.fingerprint for each in found.findings_changed}
    for word, rows in (
        ("NEW", found.findings_new),
        ("gone", found.findings_gone),
        ("known", found.findings_known),
        ("not tried", found.findings_untried),
    ):
        for each in rows:
            yield _finding("changed" if each.fingerprint in changed else word, each)


def _finding(word: str, each: FindingChange) -> tuple[str, ...]:
    shares = (f"{each.new} of {each.of_new}", f"{each.base} of {each.of_base}")
    return word, each.words, *shares, _p(each.p_value), each.first_run, each.note or each.example


def _figure(each: FigureChange) -> tuple[str, ...]:
    word = "WORSE" if each.worse else "better" if each.better else each.untested
    over = f"{each.pairs} pairs" if each.pairs else f"{each.of_new}, {each.of_base} runs"
    return (
        word,
        each.words,
        shown(each.new, each.unit),
        shown(each.base, each.unit),
        percent(each.change),
        DASH if each.untested else _p(each.corrected),
        f"{each.test}, {over}",
        each.cell,
    )


def _fault(each: FaultChange) -> tuple[str, ...]:
    shares = (f"{each.new} of {each.of_new}", f"{each.base} of {each.of_base}")
    return "FELL" if each.fell else "", each.kind, *shares, _p(each.p_value), each.cell


def _hosts(hosts: Sequence[HostPair], *, every: bool) -> Iterator[tuple[str, ...]]:
    shown_already: set[tuple[Host, Host]] = set()
    for pair in hosts:
        if pair.simulated or (not every and (pair.new, pair.base) in shown_already):
            continue
        shown_already.add((pair.new, pair.base))
        for name, host in (("new", pair.new), ("base", pair.base)):
            yield name, str(host.cores or DASH), _ms(host.cpu_ms), _us(host.fsync_us), pair.cell


def _p(value: float) -> str:
    return f"{value:.2g}"


def _ms(value: float | None) -> str:
    return DASH if value is None else duration(value * 1e6)


def _us(value: float | None) -> str:
    return DASH if value is None else duration(value * 1e3)


def lines(found: Comparison, *, every: bool) -> Iterator[str]:
    """Yield the comparison as lines of a terminal."""
    for grid in tables(found, every=every):
        yield from aligned(grid)
        yield ""
    yield from found.notes
    yield from found.reasons


def aligned(grid: Grid) -> Iterator[str]:
    """Yield a table as lines of a terminal, its columns aligned."""
    rows = [(grid.title if not grid.columns[0] else grid.columns[0], *grid.columns[1:]), *grid.rows]
    widths = [min(CELL_WIDTH, max(len(row[at]) for row in rows)) for at in range(len(grid.columns))]
    for row in rows:
        yield "  ".join(
            _fitted(text, width).ljust(width) for text, width in zip(row, widths, strict=True)
        ).rstrip()
    if grid.more:
        yield f"and {grid.more} more"


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
