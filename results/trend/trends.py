"""A store's runs over months: a series for each cell and figure with its changes, and each finding
from when it was first seen to the last.

A night is a UTC day; of several runs of a cell in one the middle counts. A change is called where
it is as large as the smallest effect that matters (``results.compare.effect_thresholds``): for the
worse, for the better, or for neither where the host changed with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

import attrs
import msgspec
import pandas as pd

from harness.errors import InvariantError
from harness.exit_codes import Outcome
from results.compare.comparable_cells import SIMULATED, host_of_side, hosts_differ, labels
from results.compare.effect_thresholds import FIGURES, Figure, Scale
from results.compare.figures import LEAST_VALUE
from results.store.run_entry import RunEntry, cell_key
from results.trend.change_points import MIN_SEGMENT, Change, Shape, changes

RECENT_DAYS = 30  # of a finding's present rate
HOST_RUNS = 20  # on each side of a change, by whose hosts it is judged


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a series: the first night of the new level, of a drift its begin, about, and its
    end. ``change`` is the share by which the level rose, ``None`` from zero. ``last_good`` and
    ``first_bad`` are the runs before and behind its begin, ``commits`` and ``releases`` those of
    both (from their tags), as far as known: before a drift from the first night on there is none.
    ``host`` says what else changed, if the host did.
    """

    shape: Shape
    at: date
    until: date
    before: float
    after: float
    change: float | None
    worse: bool
    last_good: str
    first_bad: str
    commits: tuple[str, str] = ("", "")
    releases: tuple[str, str] = ("", "")
    host: str = ""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a cell, night by night."""

    cell: str
    figure: str
    words: str
    unit: str
    nights: tuple[date, ...]
    values: tuple[float, ...]
    turns: tuple[Turn, ...] = ()


class FindingHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A finding over all runs: in ``met`` of ``judged`` runs of the cells that have it, and in
    ``met_lately`` of ``judged_lately`` of the last ``RECENT_DAYS`` days.
    """

    fingerprint: str
    words: str
    system: str
    first_seen: date
    first_run: str
    last_seen: date
    last_run: str
    met: int
    judged: int
    met_lately: int
    judged_lately: int
    example: str = ""


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """The trend of ``runs`` runs from ``first`` to ``last``; findings by when they were last seen,
    the newest first.
    """

    runs: int
    first: date | None
    last: date | None
    series: tuple[Series, ...]
    findings: tuple[FindingHistory, ...]
    notes: tuple[str, ...] = ()

    def turns(self) -> Iterator[tuple[Series, Turn]]:
        """Yield every change with its series, the newest first."""
        every = [(series, turn) for series in self.series for turn in series.turns]
        yield from sorted(every, key=lambda each: each[1].at, reverse=True)


@attrs.frozen(kw_only=True)
class _Night:
    """The runs of one cell in one night, oldest first."""

    day: date
    entries: tuple[RunEntry, ...]


def trend(
    entries: Iterable[RunEntry],
    figures: Sequence[Figure] = FIGURES,
    across: Iterable[str] = (),
) -> Trend:
    """Return the trend of runs, in any order. Those without a time in their name are left out."""
    dated = sorted((e for e in entries if e.begun is not None), key=lambda e: e.run)
    keys = {id(entry): cell_key(entry, across) for entry in dated}
    names = labels(keys.values())
    by_cell: dict[str, list[RunEntry]] = {}
    for entry in dated:
        by_cell.setdefault(names[keys[id(entry)]], []).append(entry)
    series = [
        found
        for cell, runs in sorted(by_cell.items())
        for found in _series_of(cell, _nights(runs), figures)
    ]
    unmeasured = sum(entry.figures is None for entry in dated)
    notes = [f"{unmeasured} runs have no figures (check makes them)"] if unmeasured else []
    return Trend(
        runs=len(dated),
        first=_day(dated[0]) if dated else None,
        last=_day(dated[-1]) if dated else None,
        series=tuple(series),
        findings=_findings(by_cell, dated),
        notes=tuple(notes),
    )


def _day(entry: RunEntry) -> date:
    if entry.begun is None:
        raise InvariantError(f"run {entry.run}: a run of no day in a trend")
    return entry.begun.date()


def _nights(runs: Sequence[RunEntry]) -> list[_Night]:
    nights: dict[date, list[RunEntry]] = {}
    for entry in runs:
        if entry.figures is not None:
            nights.setdefault(_day(entry), []).append(entry)
    return [_Night(day=day, entries=tuple(found)) for day, found in sorted(nights.items())]


def _series_of(cell: str, nights: Sequence[_Night], figures: Sequence[Figure]) -> Iterator[Series]:
    rows = [
        {"night": number} | {f.name: entry.figures.value(f.name) for f in figures}
        for number, night in enumerate(nights)
        for entry in night.entries
        if entry.figures is not None
    ]
    if not rows:
        return
    table = pd.DataFrame(rows).astype({figure.name: "float64" for figure in figures})
    for figure in figures:
        grouped = table.dropna(subset=[figure.name]).groupby("night")[figure.name]
        # A time that is mostly zero has no middle that says anything.
        middle = grouped.median() if figure.scale is Scale.RATIO else grouped.mean()
        if middle.empty:
            continue
        there = [nights[number] for number in middle.index]
        yield Series(
            cell=cell,
            figure=figure.name,
            words=figure.words,
            unit=figure.unit,
            nights=tuple(night.day for night in there),
            values=tuple(round(float(value), 9) for value in middle),
            turns=tuple(_turns(figure, there, middle.tolist())),
        )


def _turns(figure: Figure, nights: Sequence[_Night], values: Sequence[float]) -> Iterator[Turn]:
    if len(values) < 2 * MIN_SEGMENT:
        return
    ratio = figure.scale is Scale.RATIO
    series = [math.log(max(value, LEAST_VALUE)) for value in values] if ratio else list(values)
    for found in changes(series):
        before, after = (
            (math.exp(found.before), math.exp(found.after))
            if ratio
            else (found.before, found.after)
        )
        change = (after - before) / before if before > 0 else None
        if _matters(figure, before, after, change):
            yield _turn(figure, nights, found, before, after, change)


def _matters(figure: Figure, before: float, after: float, change: float | None) -> bool:
    if abs(after - before) < figure.absolute:
        return False
    return change is None or abs(change) >= figure.relative


def _turn(
    figure: Figure,
    nights: Sequence[_Night],
    found: Change,
    before: float,
    after: float,
    change: float | None,
) -> Turn:
    good = nights[found.at - 1].entries[-1] if found.at else None
    bad = nights[found.at].entries[0]
    host = ""
    if bad.provider != SIMULATED:
        earlier = [entry for night in nights[: max(1, found.at)] for entry in night.entries]
        later = [entry for night in nights[found.until :] for entry in night.entries]
        host = hosts_differ(host_of_side(later[:HOST_RUNS]), host_of_side(earlier[-HOST_RUNS:]))
    return Turn(
        shape=found.shape,
        at=nights[found.at].day,
        until=nights[found.until].day,
        before=before,
        after=after,
        change=change,
        worse=(after > before) == figure.more_is_worse and not host,
        last_good=good.run if good else "",
        first_bad=bad.run,
        commits=(good.commit if good else "", bad.commit),
        releases=(good.release if good else "", bad.release),
        host=host,
    )


@attrs.define
class _Sightings:
    """The runs in which a finding was met, oldest first, and the cells that they are of."""

    words: str
    system: str
    example: str
    runs: list[RunEntry] = attrs.field(factory=list)
    cells: set[str] = attrs.field(factory=set)


def _findings(
    by_cell: dict[str, list[RunEntry]], dated: Sequence[RunEntry]
) -> tuple[FindingHistory, ...]:
    cell_of = {entry.run: cell for cell, runs in by_cell.items() for entry in runs}
    met: dict[str, _Sightings] = {}
    for entry in dated:
        for finding in entry.findings:
            role = f" of {finding.role}" if finding.role else ""
            words = f"{finding.anomaly} ({finding.promise}), {finding.fault}{role}"
            seen = met.setdefault(
                finding.fingerprint, _Sightings(words, entry.system, finding.example)
            )
            if not seen.runs or seen.runs[-1].run != entry.run:
                seen.runs.append(entry)
            seen.cells.add(cell_of[entry.run])
    judged = {
        cell: [entry for entry in runs if entry.outcome not in (None, Outcome.HARNESS_ERROR)]
        for cell, runs in by_cell.items()
    }
    newest = _day(dated[-1]) if dated else date.min
    found = [_history(print_, seen, judged, newest) for print_, seen in met.items()]
    return tuple(sorted(found, key=lambda each: (each.last_seen, each.words), reverse=True))


def _history(
    fingerprint: str, seen: _Sightings, judged: dict[str, list[RunEntry]], newest: date
) -> FindingHistory:
    could = [entry for cell in seen.cells for entry in judged[cell]]
    first, last = seen.runs[0], seen.runs[-1]

    def lately(runs: Iterable[RunEntry]) -> int:
        return sum((newest - _day(entry)).days < RECENT_DAYS for entry in runs)

    return FindingHistory(
        fingerprint=fingerprint,
        words=seen.words,
        system=seen.system,
        first_seen=_day(first),
        first_run=first.run,
        last_seen=_day(last),
        last_run=last.run,
        met=len(seen.runs),
        judged=len(could),
        met_lately=lately(seen.runs),
        judged_lately=lately(could),
        example=seen.example,
    )
