"""What the shared log holds of one group, and in which segments: replayed at the start, and kept
true with every append, so that a segment can be given up once nothing in it counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

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


def in_parts(update: Update, size_bytes: int) -> Iterator[Update]:
    """``update`` itself, or cut into parts of about ``size_bytes`` of entries."""
    if sum(map(size_of, update.entries)) < size_bytes:
        yield update
        return
    pieces: list[list[Entry]] = [[]]
    size = 0
    for entry in update.entries:
        if size >= size_bytes:
            pieces.append([])
            size = 0
        pieces[-1].append(entry)
        size += size_of(entry)
    for number, entries in enumerate(pieces, 1):
        yield msgspec.structs.replace(
            update, entries=tuple(entries), part=number, parts=len(pieces)
        )


class Parts:
    """Puts updates together again. What a crash left without its last part never counts: the next
    update of its group begins anew.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, list[Update]]] = {}

    def whole(self, update: Update, segment: int) -> tuple[Update, int] | None:
        """The update that ``update``, in ``segment``, completes, and the segment that it is held to
        be in: that of its first part, which must stay with the others.
        """
        if update.parts == 1:
            self._open.pop(update.group, None)
            return update, segment
        if update.part == 1:
            self._open[update.group] = segment, []
        first, parts = self._open.get(update.group, (segment, []))
        if update.part == len(parts) + 1:
            parts.append(update)
        if len(parts) < update.parts:
            return None
        del self._open[update.group]
        entries = tuple(entry for part in parts for entry in part.entries)
        return msgspec.structs.replace(parts[0], entries=entries, part=1, parts=1), first
