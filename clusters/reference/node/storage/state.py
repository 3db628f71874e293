"""What the shared log holds of one group, and in which segments: replayed at the start, and kept
true with every append, so that a segment can be given up once nothing in it counts.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from clusters.reference.node.raft.types import Entry, HardState, Mark
from clusters.reference.node.storage.records import Cut, Saved, Update

ENTRY_BYTES = 24  # what an entry takes in the log beside its data, about


class GroupState:
    """Hard state, base, snapshot, and the entries behind the base."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.base = Mark()
        self.saved: Saved | None = None
        self.entries: deque[Entry] = deque()
        self.live_bytes = 0
        self._runs: deque[tuple[int, int]] = deque()  # first index and segment of each stretch
        self._hard_segment: int | None = None
        self._cut_segment: int | None = None

    def take(self, update: Update, segment: int) -> None:
        """``update`` is in ``segment``."""
        if update.hard_state is not None:
            self.hard_state, self._hard_segment = update.hard_state, segment
        if update.cut is not None and update.cut.base.index >= self.base.index:
            self._cut(update.cut, segment)
        if update.entries:
            self._write(update.entries, segment)

    def problem(self) -> str | None:
        """What is missing: entries that are neither here nor covered by the base."""
        if self.entries and self.entries[0].index > self.base.index + 1:
            return f"entries from {self.entries[0].index} on, after {self.base.index}"
        for before, entry in zip(self.entries, islice(self.entries, 1, None), strict=False):
            if entry.index != before.index + 1:
                return f"entries from {entry.index} on, after {before.index}"
        return None

    def oldest_segment(self) -> int | None:
        """The first segment that holds something of this group that counts."""
        held = [self._hard_segment, self._cut_segment, self._runs[0][1] if self._runs else None]
        return min((segment for segment in held if segment is not None), default=None)

    def whole(self, group: str) -> Update:
        """Everything that counts, in one update."""
        cut = Cut(self.base, self.saved, whole=True)
        return Update(group, self.hard_state, tuple(self.entries), cut)

    def _cut(self, cut: Cut, segment: int) -> None:
        self.base, self.saved, self._cut_segment = cut.base, cut.saved, segment
        while self.entries and (cut.whole or self.entries[0].index <= cut.base.index):
            self.live_bytes -= size_of(self.entries.popleft())
        if not self.entries:
            self._runs.clear()
        while len(self._runs) > 1 and self._runs[1][0] <= cut.base.index + 1:
            self._runs.popleft()

    def _write(self, entries: tuple[Entry, ...], segment: int) -> None:
        first = entries[0].index
        while self.entries and self.entries[-1].index >= first:
            self.live_bytes -= size_of(self.entries.pop())
        while self._runs and self._runs[-1][0] >= first:
            self._runs.pop()
        if not self._runs or self._runs[-1][1] != segment:
            self._runs.append((first, segment))
        self.entries.extend(entries)
        self.live_bytes += sum(map(size_of, entries))


def size_of(entry: Entry) -> int:
    """About what ``entry`` takes in the log."""
    return len(entry.data) + ENTRY_BYTES
