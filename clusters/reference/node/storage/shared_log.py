"""One log a node, shared by its raft groups: a group commit is one append and one sync.

Recovery replays the segments in order. Unreadable bytes at the very end are a torn tail and are
cut; any other damage refuses the start (``CorruptLog``). Segments in which nothing counts any more
are deleted from the front; where little counts in a log that is large, that little is written again
at the end first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import Lineage, decode
from clusters.reference.node.raft.types import Entry, HardState, Mark
from clusters.reference.node.runtime import Disk
from clusters.reference.node.storage.identity import FIRST_LIFE
from clusters.reference.node.storage.log_records import (
    Compaction,
    CorruptLog,
    SnapshotFile,
    Update,
    encode_record,
    scan,
    segment_header,
)

ENTRY_BYTES = 24  # about the size of an entry in the log beside its data
SEGMENT_BYTES = 8 * 1024 * 1024  # a segment over it is closed; only whole ones are deleted
MAX_WASTE = 2  # the log may be so many times what counts in it, and as many segments, before that
# little is written again so that the oldest segment can go
# One record; more is written as several, each synced, and so is one update that is larger. With one
# entry of the largest size it stays far below ``MAX_RECORD_BYTES``.
COMMIT_BYTES = 8 * 1024 * 1024
PREFIX = "log-"


class GroupState:
    """Hard state, base, snapshot, and the entries behind the base, of the replica number ``life``
    of the group in this directory.
    """

    def __init__(self, life: int = FIRST_LIFE, segment: int | None = None) -> None:
        """``segment`` tells of the ``life``."""
        self.life = life
        self.hard_state = HardState()
        self.base = Mark()
        self.saved: SnapshotFile | None = None
        # Cuts take from the front, a new leader's entries replace some at the end.
        self.entries: deque[Entry] = deque()
        self.live_bytes = 0
        self._runs: deque[tuple[int, int]] = deque()  # first index and segment of each stretch
        self._hard_segment: int | None = None
        self._cut_segment: int | None = None
        # Apart: a cut tells nothing of the life, and without it the next start would give the
        # replica the name of one that was destroyed.
        self._life_segment = segment

    @property
    def last_index(self) -> int:
        """Of the last entry, or of the base where none is behind it."""
        return self.entries[-1].index if self.entries else self.base.index

    @property
    def last_place(self) -> tuple[int, int, int]:
        """Where the log ends: the generation that it is of, and its last entry's term and index."""
        _, lineage = self.last_configuration
        term = self.entries[-1].term if self.entries else self.base.term
        return lineage[-1].number if lineage else 0, term, self.last_index

    @property
    def last_configuration(self) -> tuple[int, Lineage]:
        """The index of the log's last configuration, and its lineage."""
        newest = next((entry for entry in reversed(self.entries) if entry.config), None)
        if newest is None:
            return self.base.index, self.base.configuration.lineage
        return newest.index, decode(newest.data).lineage

    @property
    def is_whole(self) -> bool:
        """Whether the replica has a configuration with voters, and the log of the generation that
        it is in.
        """
        newest = next((entry for entry in reversed(self.entries) if entry.config), None)
        config = self.base.configuration if newest is None else decode(newest.data)
        return bool(config.voters) and config.generation == self.hard_state.generation

    @property
    def is_blank(self) -> bool:
        """Whether the replica has neither entries nor a snapshot, and has promised nothing."""
        return self.last_index == 0 and self.hard_state == HardState()

    @property
    def is_unfounded(self) -> bool:
        """Whether the replica has had neither founders nor anything from a leader."""
        known = self.base.configuration.voters
        return not known and self.last_index == 0 and self.saved is None

    def take(self, update: Update, segment: int) -> None:
        """``update`` is in ``segment``."""
        if update.hard_state is not None:
            self.hard_state, self._hard_segment = update.hard_state, segment
        # A snapshot that was saved while a later one was installed must not take the log back.
        if update.cut is not None and update.cut.base.index >= self.base.index:
            self._cut(update.cut, segment)
        if update.entries:
            self._write(update.entries, segment)

    def problem(self) -> str | None:
        """The gap in the state: entries that are neither here nor covered by the base."""
        if self.entries and self.entries[0].index > self.base.index + 1:
            return f"entries from {self.entries[0].index} on, after {self.base.index}"
        for before, entry in zip(self.entries, islice(self.entries, 1, None), strict=False):
            if entry.index != before.index + 1:
                return f"entries from {entry.index} on, after {before.index}"
        return None

    def oldest_segment(self) -> int | None:
        """The first segment that holds something of this group that counts."""
        run = self._runs[0][1] if self._runs else None
        held = [self._life_segment, self._hard_segment, self._cut_segment, run]
        return min((segment for segment in held if segment is not None), default=None)

    def whole(self, group: str) -> Update:
        """Everything that counts, in one update."""
        cut = Compaction(self.base, self.saved, whole=True)
        begins: bool | int = False if self.life == FIRST_LIFE else self.life
        return Update(group, self.hard_state, tuple(self.entries), cut, begins)

    def _cut(self, cut: Compaction, segment: int) -> None:
        self.base, self.saved, self._cut_segment = cut.base, cut.saved, segment
        while self.entries and (cut.whole or self.entries[0].index <= cut.base.index):
            self.live_bytes -= size_of(self.entries.popleft())
        if not self.entries:
            self._runs.clear()
        # The last run stays: its segment still holds entries behind the base.
        while len(self._runs) > 1 and self._runs[1][0] <= cut.base.index + 1:
            self._runs.popleft()

    def _write(self, entries: tuple[Entry, ...], segment: int) -> None:
        first = entries[0].index
        # A new leader's entries replace all from their first one on (Raft 5.3).
        while self.entries and self.entries[-1].index >= first:
            reached("logged entries replaced")
            self.live_bytes -= size_of(self.entries.pop())
        while self._runs and self._runs[-1][0] >= first:
            self._runs.pop()
        if not self._runs or self._runs[-1][1] != segment:
            self._runs.append((first, segment))
        self.entries.extend(entries)
        self.live_bytes += sum(map(size_of, entries))


def size_of(entry: Entry) -> int:
    """The approximate size of ``entry`` in the log."""
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
    """Puts updates together again. Parts that a crash left without their last one never count: the
    next update of their group begins anew.
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
            reached("update written in parts")
            self._open[update.group] = segment, []
        first, parts = self._open.get(update.group, (segment, []))
        if first != segment:
            reached("parts of an update in several segments")
        if update.part == len(parts) + 1:
            parts.append(update)
        if len(parts) < update.parts:
            return None
        del self._open[update.group]
        # Term, vote and cut are in each part; those of the first count only with the last one here.
        entries = tuple(entry for part in parts for entry in part.entries)
        return msgspec.structs.replace(parts[0], entries=entries, part=1, parts=1), first


class TornTail(msgspec.Struct, frozen=True, kw_only=True):
    """The tail that recovery cut off: the file, from which byte on, how much, and why."""

    file: str
    offset: int
    cut_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"cut {self.cut_bytes} bytes of {self.file} from byte {self.offset}: {self.reason}"


class SharedLog:
    """The open log. One ``append`` at a time; ``groups`` is the logged state of each group."""

    def __init__(
        self,
        disk: Disk,
        *,
        fsync: bool = True,
        segment_bytes: int | None = None,
        record_bytes: int | None = None,
    ) -> None:
        """``fsync=False`` is the planted bug ``no-fsync``. By default ``SEGMENT_BYTES`` and
        ``COMMIT_BYTES`` hold.
        """
        self._disk, self._fsync = disk, fsync
        self._segment_bytes = segment_bytes or SEGMENT_BYTES
        self._record_bytes = record_bytes or COMMIT_BYTES
        self._number = 1
        self._sizes: dict[int, int] = {}  # segment -> bytes, oldest first
        self._parts = Parts()
        self._may_give_up = True  # something changed since the last look at the segments
        self.groups: dict[str, GroupState] = {}
        self.torn: TornTail | None = None

    @property
    def size_bytes(self) -> int:
        """Of all segments."""
        return sum(self._sizes.values())

    @property
    def live_bytes(self) -> int:
        """Of the entries that count."""
        return sum(state.live_bytes for state in self.groups.values())

    async def open(self) -> None:
        """Replay the segments and cut a torn tail. Raises ``CorruptLog`` and ``DiskError``."""
        names = [name for name in await self._disk.names() if name.startswith(PREFIX)]
        # Older segments were given up, from the front only: any gap behind is damage.
        first = number_of(names[0]) if names else 1
        for position, name in enumerate(names):
            self._number = first + position
            if name != segment_name(self._number):
                raise CorruptLog(name, 0, f"segment {self._number} is missing")
            await self._replay(name, last=position == len(names) - 1)
        for group, state in self.groups.items():
            # Asked once all is replayed: in between a state may lack what a later segment holds.
            if problem := state.problem():
                raise CorruptLog(segment_name(first), 0, f"group {group}: {problem}")
        if names:
            # A killed process may have left this in the system's cache only. A member that votes
            # and answers on the strength of it must not lose it to a power cut that comes later.
            await self._disk.append(names[-1], b"", sync=True)

    async def append(self, updates: Sequence[Update]) -> None:
        """Make ``updates`` durable, in order. Raises ``DiskError``: then the node must stop."""
        for commit in _commits(updates, self._record_bytes):
            await self._append(commit)
        await self._give_up_segments()

    async def _append(self, commit: tuple[Update, ...]) -> None:
        if self._sizes.get(self._number, 0) >= self._segment_bytes:
            self._number += 1
            reached("segment of the log closed")
            self._may_give_up = True
        size = self._sizes.get(self._number, 0)
        # In one write with the first record, so that no crash leaves a segment without content.
        header = b"" if size else segment_header(self._number)
        record = encode_record(commit, self._number, size + len(header))
        await self._disk.append(segment_name(self._number), header + record, sync=self._fsync)
        self._sizes[self._number] = size + len(header) + len(record)
        # After the sync: ``groups`` is never ahead of the disk.
        self._take(commit)

    async def _give_up_segments(self) -> None:
        """Delete segments without live state, from the front. Rewritten state is synced before
        that.
        """
        if not self._may_give_up:
            return
        self._may_give_up = False
        # The open segment stays, whatever counts in it: appends go on there.
        while len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            pinned = [g for g, state in self.groups.items() if state.oldest_segment() == oldest]
            if pinned:
                # To rewrite costs a sync; it pays only once most of the disk holds what counts no
                # more.
                if self.size_bytes <= MAX_WASTE * (self.live_bytes + self._segment_bytes):
                    return
                reached("live state written again to free a segment")
                whole = [self.groups[group].whole(group) for group in pinned]
                for commit in _commits(whole, self._record_bytes):
                    await self._append(commit)
            reached("segment of the log deleted")
            await self._disk.delete(segment_name(oldest))
            del self._sizes[oldest]

    def _take(self, commit: Sequence[Update]) -> None:
        for found in commit:
            complete = self._parts.whole(found, self._number)
            if complete is None:
                continue
            update, segment = complete
            self._may_give_up |= bool(update.dropped) or update.cut is not None
            if update.dropped:
                self.groups.pop(update.group, None)
                if update.dropped is True:
                    continue
                self.groups[update.group] = GroupState(update.dropped, segment)
            self.groups.setdefault(update.group, GroupState()).take(update, segment)

    async def _replay(self, name: str, *, last: bool) -> None:
        data = await self._disk.read(name)
        found = scan(name, data, self._number, last=last)
        for commit in found.commits:
            self._take(commit)
        if found.torn is not None:
            reached("torn tail cut")
            self.torn = TornTail(
                file=name, offset=found.end, cut_bytes=len(data) - found.end, reason=found.torn
            )
            await self._disk.truncate(name, found.end)
        # The next append goes on where the whole records end.
        self._sizes[self._number] = found.end


def segment_name(number: int) -> str:
    """The file of segment ``number``; names sort as numbers do."""
    return f"{PREFIX}{number:08d}"


def number_of(name: str) -> int:
    """The number of the segment ``name``. Raises ``CorruptLog`` where it is none."""
    digits = name.removeprefix(PREFIX)
    if not digits.isdecimal():
        raise CorruptLog(name, 0, "not the name of a segment")
    return int(digits)


def _commits(updates: Sequence[Update], record_bytes: int) -> Iterator[tuple[Update, ...]]:
    """``updates`` in order, in parts of about ``record_bytes``."""
    part: list[Update] = []
    size = 0
    for update in updates:
        for piece in in_parts(update, record_bytes):
            part.append(piece)
            size += sum(map(size_of, piece.entries))
            if size >= record_bytes:
                yield tuple(part)
                reached("group commit in several records")
                part, size = [], 0
    if part:
        yield tuple(part)
