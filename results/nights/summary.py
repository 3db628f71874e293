"""A night of a campaign as one value: ``night.json`` beside its table, what ``--notify`` sends, and
what every form for a CI is made of.

Names and texts in it come from nodes and runs; they are inert (``harness.text``) already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path

import msgspec

from harness.campaigns.cell_table import CampaignTable, CellRow
from harness.exit_codes import FAILED, Outcome
from harness.history.durable_files import write_atomically
from harness.history.regular_files import read_small
from harness.plan.plan import NAME_PATTERN
from harness.text import inert
from results.store.run_entry import RunEntry
from results.store.run_figures import VERSION
from results.store.run_tags import split_tag

NIGHT = "night.json"
RUNS = "runs.json"
SCHEMA_VERSION = 1
MAX_BYTES = 256 << 20  # of each file: as many cells as a matrix may have, all of them red
RUNS_NAMED = 20  # of one finding
PLACES_NAMED = 500
REASON_CHARS = 300
_DAY = re.compile(r"(?P<name>.+)-(?P<day>\d{8})")


class NightFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding over all runs of a night. ``known_since`` is the first night that had it: this one
    for a new one. ``places`` are those of the cells that had it, in the matrix, without seeds.
    ``quarantined``: only cells had it whose findings do not count.
    """

    fingerprint: str
    anomaly: str
    fault: str
    role: str
    system: str
    known_since: date
    count: int
    run_count: int
    runs: tuple[str, ...]
    places: tuple[str, ...] = ()
    example: str = ""
    quarantined: bool = False

    @property
    def cause(self) -> str:
        """The fault and the role of its target."""
        return f"{self.fault} of {self.role}" if self.role else self.fault


class NightSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``outcome`` is the worst of the ``campaign_outcome``, of the ``comparison`` with the night
    ``base``, the last before it that ran anything, and of what else went wrong (``trouble``);
    ``exit_code`` is that of the command. ``changes`` are the sentences of the comparison,
    ``compare_notes`` what a reader should know beside; ``counts`` has the cells by outcome.
    ``findings_gone`` were found in the night before, or earlier in this one by other code, and not
    again; ``findings_untried`` in the last night that tried them, and no cell that had them came to
    a verdict since. ``cells`` are those that are not valid; ``artifacts`` are files beside
    ``page``.
    """

    schema_version: int = SCHEMA_VERSION
    campaign: str
    night: date
    outcome: Outcome
    exit_code: int
    meaning: str
    campaign_outcome: Outcome
    comparison: Outcome | None = None
    base: date | None = None
    changes: tuple[str, ...] = ()
    compare_notes: tuple[str, ...] = ()
    begun: datetime
    took_s: float
    counts: dict[str, int]
    cell_count: int
    note: str = ""
    findings: tuple[NightFinding, ...] = ()
    findings_gone: tuple[NightFinding, ...] = ()
    findings_untried: tuple[NightFinding, ...] = ()
    cells: tuple[CellRow, ...] = ()
    page: str = ""
    artifacts: tuple[str, ...] = ()
    removed_runs: int = 0
    trouble: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def is_new(self, finding: NightFinding) -> bool:
        """Whether no night before had ``finding``."""
        return finding.known_since == self.night

    def status(self, finding: NightFinding) -> str:
        """Whether ``finding``, of this night, is new, or since when it is known."""
        return "new" if self.is_new(finding) else f"known since {finding.known_since}"

    def known_findings(self) -> tuple[NightFinding, ...]:
        """All that this night knows of, whether it met them or not."""
        return (*self.findings, *self.findings_gone, *self.findings_untried)

    def missed(self) -> Iterator[tuple[NightFinding, str]]:
        """Yield the findings that this night does not have and should, each counted as met in no
        run, and what that means.
        """
        for findings, status in (
            (self.findings_gone, "not found tonight"),
            (self.findings_untried, "not tried tonight: no cell that had it came to a verdict"),
        ):
            for finding in findings:
                yield msgspec.structs.replace(finding, count=0, run_count=0), status


def directory_name(campaign: str, night: date) -> str:
    """Return the name of the directory of a night, among the campaigns of a store."""
    return f"{campaign}-{night:%Y%m%d}"


def nights_before(campaigns: Path, campaign: str, night: date) -> list[tuple[date, Path]]:
    """Return the directories of the nights of ``campaign`` before ``night``, the oldest first."""
    found = []
    for path in campaigns.glob(f"{campaign}-*"):
        match = _DAY.fullmatch(path.name)
        if match is None or match["name"] != campaign or path.is_symlink() or not path.is_dir():
            continue
        try:
            day = date.fromisoformat(match["day"])
        except ValueError:
            continue
        if day < night:
            found.append((day, path))
    return sorted(found)


def known_before(campaigns: Path, entries: Iterable[RunEntry]) -> frozenset[str]:
    """Return the fingerprints of all that was known before the night that the runs ``entries`` are
    of, by their tags; none where they are not of one night.
    """
    named = [dict(map(split_tag, entry.tags)) for entry in entries]
    nights_of = {(tags.get("campaign", ""), tags.get("night", "")) for tags in named}
    campaign, day = nights_of.pop() if len(nights_of) == 1 else ("", "")
    # Of anyone's runs: a name that is none leads elsewhere.
    if not re.fullmatch(NAME_PATTERN, campaign):
        return frozenset()
    try:
        before = nights_before(campaigns, campaign, date.fromisoformat(day))
    except ValueError:
        return frozenset()
    nights = filter(None, (read_night(path) for _, path in before))
    return frozenset(each.fingerprint for night in nights for each in night.known_findings())


def read_night(directory: Path) -> NightSummary | None:
    """Return the summary in ``directory``; ``None`` where there is none that can be read."""
    try:
        text = read_small(directory / NIGHT, MAX_BYTES)
        return msgspec.json.decode(text, type=NightSummary)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_night(directory: Path, summary: NightSummary) -> None:
    """Write the summary for ``read_night``. Raises ``HarnessError``."""
    encoded = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    write_atomically(directory / NIGHT, encoded + b"\n")


class NightRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a night: its ``place`` in the matrix, and whether its cell is quarantined."""

    entry: RunEntry
    place: str = ""
    quarantined: bool = False


def read_runs(directory: Path) -> dict[str, RunEntry]:
    """Return the runs that ``write_runs`` recorded in ``directory``, by their names; none where
    that can't be read. Figures of another version are left out.
    """
    try:
        text = read_small(directory / RUNS, MAX_BYTES)
        found = msgspec.json.decode(text, type=list[RunEntry])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {each.run: _of_this_version(each) for each in found}


def _of_this_version(entry: RunEntry) -> RunEntry:
    if entry.figures is None or entry.figures.version == VERSION:
        return entry
    return msgspec.structs.replace(entry, figures=None)


def write_runs(directory: Path, entries: Iterable[RunEntry]) -> None:
    """Record what the night after this one compares with, since the runs themselves may be gone by
    then: retention removes them, and those of shards were on other machines. Raises
    ``HarnessError``.
    """
    write_atomically(directory / RUNS, msgspec.json.encode(list(entries)) + b"\n")


def findings_of(
    night: date,
    runs: Iterable[NightRun],
    earlier: Iterable[NightFinding] = (),
) -> tuple[NightFinding, ...]:
    """Return the findings of ``runs``: one a fingerprint, the new ones first. Those of ``earlier``
    nights say since when each is known, and so do those of this one where it was closed before.
    """
    since: dict[str, date] = {}
    for finding in earlier:
        first = since.get(finding.fingerprint, finding.known_since)
        since[finding.fingerprint] = min(first, finding.known_since)
    found: dict[str, NightFinding] = {}
    for run in runs:
        for each in run.entry.findings:
            known = found.get(each.fingerprint)
            if known is None:
                known = NightFinding(
                    fingerprint=each.fingerprint,
                    anomaly=each.anomaly,
                    fault=each.fault,
                    role=each.role,
                    system=run.entry.system,
                    known_since=since.get(each.fingerprint, night),
                    count=0,
                    run_count=0,
                    runs=(),
                    example=each.example,
                    quarantined=True,
                )
            places = dict.fromkeys((*known.places, run.place))
            found[each.fingerprint] = msgspec.structs.replace(
                known,
                count=known.count + each.count,
                run_count=known.run_count + 1,
                runs=(*known.runs, run.entry.run)[:RUNS_NAMED],
                places=tuple(places)[:PLACES_NAMED],
                quarantined=known.quarantined and run.quarantined,
            )
    # What is new first, then by how often.
    order = sorted(found.values(), key=lambda each: (-each.run_count, each.fingerprint))
    order.sort(key=lambda each: each.known_since, reverse=True)
    return tuple(order)


def missed_of(
    findings: Iterable[NightFinding],
    *,
    base: NightSummary | None = None,
    same: NightSummary | None = None,
) -> tuple[NightFinding, ...]:
    """Return what is not among ``findings`` of what the night ``base`` found or had not tried again
    either, and of what this night knew when it was closed before (``same``): other code may have
    run it then.
    """
    candidates = [] if base is None else [*base.findings, *base.findings_untried]
    candidates += [] if same is None else same.known_findings()
    missed = {each.fingerprint: each for each in candidates}
    for finding in findings:
        missed.pop(finding.fingerprint, None)
    return tuple(missed.values())


def tried_again(finding: NightFinding, table: CampaignTable) -> bool:
    """Whether a cell of ``table`` came to a verdict that is, but for its seed, one of those that
    had ``finding``. Where none of those is known, it counts as tried.
    """
    nothing = (None, Outcome.HARNESS_ERROR)
    run = {axes_of(row) for row in table.cells if row.outcome not in nothing}
    return not finding.places or not run.isdisjoint(finding.places)


def counts_of(table: CampaignTable) -> dict[str, int]:
    """Return how many cells came to what; quarantined ones and those not run apart."""
    counts: dict[str, int] = {}
    for row in table.cells:
        if row.outcome is None:
            name = "not run"
        else:
            name = "quarantined" if row.quarantine else row.outcome.value
        counts[name] = counts.get(name, 0) + 1
    return counts


def red_cells(table: CampaignTable) -> tuple[CellRow, ...]:
    """Return the cells that were run and are not valid, the worst first, without what may be active
    in their texts.
    """
    red = [row for row in table.cells if row.outcome not in (None, Outcome.VALID)]
    red.sort(
        key=lambda row: (bool(row.quarantine), list(Outcome).index(row.outcome or Outcome.VALID))
    )
    return tuple(map(_inert, red))


def failed(row: CellRow) -> bool:
    """Whether the cell failed, and counts."""
    return row.counts and row.outcome in FAILED


def axes_of(row: CellRow) -> str:
    """The values of the axes in words."""
    return inert(row.place)


def why(row: CellRow) -> str:
    """What was found in a cell, or why nothing could be said."""
    return inert(row.found or "no reason was recorded")


def _inert(row: CellRow) -> CellRow:
    anomalies: Mapping[str, int] = row.anomalies
    return msgspec.structs.replace(
        row,
        anomalies={inert(name): count for name, count in anomalies.items()},
        reasons=tuple(inert(each, REASON_CHARS) for each in row.reasons),
    )
