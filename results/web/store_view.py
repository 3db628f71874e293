"""What the web view shows, kept true to a store: an index of its runs in memory, its campaigns.

Pages are made from what is in memory; a refresh, which looks at every run directory, goes on in a
thread beside them. Where no run changed it leaves what there is.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import attrs

from harness.campaigns.cell_table import CAMPAIGNS, TABLE, CampaignTable, read_table
from harness.clock import NS_PER_S
from harness.errors import FiredrillError, UsageError
from harness.plan.plan import NAME_PATTERN
from results.nights.summary import (
    NIGHT,
    NightSummary,
    directory_name,
    nights_before,
    read_night,
)
from results.store.index import RunIndex, opened
from results.store.store import RunStore

REFRESH_S = 5.0  # between two looks at all runs, at least
REFRESH_SHARE = 0.1  # of the time at most that is spent on looking
_NAME = re.compile(NAME_PATTERN)
_Stamps = tuple[tuple[int, int], tuple[int, int]]  # of the table, and of the night


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
    mark: str


@attrs.define
class Catalog:
    """The runs, findings and campaigns of ``store``. ``load`` has to come first."""

    store: RunStore
    _snapshot: Snapshot | None = attrs.field(init=False, default=None)
    _refreshed_s: float = attrs.field(init=False, default=0.0)
    _rest_s: float = attrs.field(init=False, default=REFRESH_S)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    trouble: str = attrs.field(init=False, default="")
    _lines: dict[str, tuple[_Stamps, CampaignLine]] = attrs.field(init=False, factory=dict)

    def load(self) -> None:
        """Look at every run now. Raises ``HarnessError``."""
        began_s = time.monotonic()
        with opened(self.store) as index:
            mark = index.mark()
            if self._snapshot is None or self._snapshot.mark != mark:
                self._snapshot = Snapshot(index=index.in_memory(), mark=mark)
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
        lines: dict[str, tuple[_Stamps, CampaignLine]] = {}
        for path in sorted((self.store.root / CAMPAIGNS).glob(f"*/{TABLE}")):
            name = path.parent.name
            stamp = (_stamp(path), _stamp(path.with_name(NIGHT)))
            known = self._lines.get(name)
            if known is not None and known[0] == stamp:
                lines[name] = known
            elif (table := self.campaign(name)) is not None:
                lines[name] = (stamp, _line(name, table, self.night(name), stamp[0][0] / NS_PER_S))
        self._lines = lines
        found = [line for _, line in lines.values()]
        return sorted(found, key=lambda line: line.changed, reverse=True)

    def campaign(self, name: str) -> CampaignTable | None:
        """Return the table of the campaign ``name``; ``None`` where there is none to be read."""
        directory = self._campaign_directory(name)
        if directory is None:
            return None
        try:
            return read_table(directory / TABLE)
        except UsageError:
            return None

    def campaign_before(self, name: str) -> str:
        """Return the name of the night that the campaign ``name`` was compared with, else of that
        before it; empty where there is none.
        """
        night = self.night(name)
        if night is None:
            return ""
        if night.base is not None:
            return directory_name(night.campaign, night.base)
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


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.lstat()
    except OSError:  # there is none, or it went this moment
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _line(
    name: str, table: CampaignTable, night: NightSummary | None, changed: float
) -> CampaignLine:
    return CampaignLine(
        name=name,
        # A night may end otherwise than its cells: it was compared with the one before.
        outcome=(table if night is None else night).outcome.value,
        cells=len(table.cells),
        not_run=sum(row.outcome is None for row in table.cells),
        changed=changed,
    )
