"""What the web view shows, kept true to a store: the index of its runs in memory, the findings over
all of them, and its campaigns.

Pages are made from what is in memory; a refresh, which looks at every run directory, goes on in a
thread beside them.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import attrs
import msgspec

from harness.campaigns.cell_table import CampaignTable
from harness.errors import FiredrillError
from harness.history.files import read_small
from harness.plan.plan import NAME_PATTERN
from results.nights.summary import NightSummary, nights_before, read_night
from results.store.index import Query, RunIndex, opened
from results.store.run_entry import RunEntry
from results.store.store import RunStore

CAMPAIGNS = "campaigns"
TABLE = "campaign.json"
MAX_TABLE_BYTES = 64 << 20
REFRESH_S = 5.0  # between two looks at all runs, at least
REFRESH_SHARE = 0.1  # of the time at most that is spent on looking
_NAME = re.compile(NAME_PATTERN)


@attrs.frozen(kw_only=True)
class FindingHistory:
    """A finding over all runs of a store, which are named from the first to the last."""

    fingerprint: str
    anomaly: str
    fault: str
    role: str
    system: str
    example: str
    runs: tuple[str, ...]
    first_seen: datetime | None
    last_seen: datetime | None
    by_month: tuple[tuple[str, int, int], ...]
    """Month, runs with the finding, runs of its system."""


@attrs.frozen(kw_only=True)
class CampaignLine:
    """A campaign in a list; ``changed`` is when its table was written, in seconds since 1970."""

    name: str
    outcome: str
    cells: int
    not_run: int
    changed: float


@attrs.frozen(kw_only=True)
class Snapshot:
    """What was true of a store at one moment."""

    index: RunIndex
    findings: dict[str, FindingHistory]
    run_count: int


@attrs.define
class Catalog:
    """The runs, findings and campaigns of ``store``. ``load`` has to come first."""

    store: RunStore
    _snapshot: Snapshot | None = attrs.field(init=False, default=None)
    _refreshed_s: float = attrs.field(init=False, default=0.0)
    _rest_s: float = attrs.field(init=False, default=REFRESH_S)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    trouble: str = attrs.field(init=False, default="")

    def load(self) -> None:
        """Look at every run now. Raises ``HarnessError``."""
        began_s = time.monotonic()
        with opened(self.store) as index:
            self._snapshot = _snapshot(index.in_memory())
        self._refreshed_s = time.monotonic()
        self._rest_s = max(REFRESH_S, (self._refreshed_s - began_s) / REFRESH_SHARE)

    def current(self) -> Snapshot:
        """Return what is known, and begin a look at the runs where that is old."""
        if self._snapshot is None:
            self.load()
        idle = self._thread is None or not self._thread.is_alive()
        if idle and time.monotonic() - self._refreshed_s > self._rest_s:
            self._refreshed_s = time.monotonic()
            self._thread = threading.Thread(target=self._refresh, daemon=True, name="refresh")
            self._thread.start()
        found = self._snapshot
        if found is None:
            raise RuntimeError("there is no snapshot after a load: this should never happen")
        return found

    def _refresh(self) -> None:
        try:
            self.load()
            self.trouble = ""
        except FiredrillError as error:
            self.trouble = str(error)

    def campaigns(self) -> list[CampaignLine]:
        """Return the campaigns whose tables can be read, the newest first."""
        found = []
        for path in sorted((self.store.root / CAMPAIGNS).glob(f"*/{TABLE}")):
            table = self.campaign(path.parent.name)
            if table is not None:
                line = CampaignLine(
                    name=path.parent.name,
                    outcome=table.outcome.value,
                    cells=len(table.cells),
                    not_run=sum(row.outcome is None for row in table.cells),
                    changed=path.lstat().st_mtime,
                )
                found.append(line)
        return sorted(found, key=lambda line: line.changed, reverse=True)

    def campaign(self, name: str) -> CampaignTable | None:
        """Return the table of the campaign ``name``; ``None`` where there is none to be read."""
        directory = self._campaign_directory(name)
        if directory is None:
            return None
        try:
            text = read_small(directory / TABLE, MAX_TABLE_BYTES)
            return msgspec.json.decode(text, type=CampaignTable)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def campaign_before(self, name: str) -> str:
        """Return the name of the night before the campaign ``name``; empty where there is none."""
        night = self.night(name)
        if night is None:
            return ""
        before = nights_before(self.store.root / CAMPAIGNS, night.campaign, night.night)
        return before[-1][1].name if before else ""

    def night(self, name: str) -> NightSummary | None:
        """Return the night that the campaign ``name`` is; ``None`` where it is none."""
        directory = self._campaign_directory(name)
        return None if directory is None else read_night(directory)

    def _campaign_directory(self, name: str) -> Path | None:
        root = self.store.root / CAMPAIGNS
        path = root / name
        # A name that is none leads elsewhere, and so may a link.
        if not _NAME.fullmatch(name) or root.is_symlink() or path.is_symlink():
            return None
        return path if path.is_dir() else None


def _snapshot(index: RunIndex) -> Snapshot:
    entries = index.entries(Query())
    return Snapshot(index=index, findings=histories(entries), run_count=len(entries))


def histories(entries: Sequence[RunEntry]) -> dict[str, FindingHistory]:
    """Return the findings of ``entries``, oldest first, by fingerprint."""
    runs_of: dict[tuple[str, str], int] = {}
    having: dict[str, list[RunEntry]] = {}
    for entry in entries:
        place = (entry.system, _month(entry))
        runs_of[place] = runs_of.get(place, 0) + 1
        for fingerprint in dict.fromkeys(finding.fingerprint for finding in entry.findings):
            having.setdefault(fingerprint, []).append(entry)
    return {
        fingerprint: _history(fingerprint, found, runs_of) for fingerprint, found in having.items()
    }


def _history(
    fingerprint: str, entries: Sequence[RunEntry], runs_of: dict[tuple[str, str], int]
) -> FindingHistory:
    first = next(each for each in entries[0].findings if each.fingerprint == fingerprint)
    system = entries[0].system
    counts: dict[str, int] = {}
    for entry in entries:
        counts[_month(entry)] = counts.get(_month(entry), 0) + 1
    begun = [entry.begun for entry in entries if entry.begun is not None]
    months = sorted(month for name, month in runs_of if name == system)
    since = min(counts)
    return FindingHistory(
        fingerprint=fingerprint,
        anomaly=first.anomaly,
        fault=first.fault,
        role=first.role,
        system=system,
        example=first.example,
        runs=tuple(entry.run for entry in entries),
        first_seen=min(begun, default=None),
        last_seen=max(begun, default=None),
        by_month=tuple(
            (month, counts.get(month, 0), runs_of[system, month])
            for month in months
            if month >= since
        ),
    )


def _month(entry: RunEntry) -> str:
    return f"{entry.begun:%Y-%m}" if entry.begun else ""
