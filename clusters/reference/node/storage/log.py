"""One log a node, shared by its raft groups: a group commit is one append and one sync.

Recovery replays the segments in order. What it can't read at the very end is a torn tail and is
cut; any other damage refuses the start (``CorruptLog``). Segments in which nothing counts any more
are deleted from the front; where little counts in a log that is large, that little is written again
at the end first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from clusters.reference.node.runtime import Disk
from clusters.reference.node.storage.records import (
    CorruptLog,
    Update,
    encode_record,
    scan,
    segment_header,
)
from clusters.reference.node.storage.state import GroupState, Parts, in_parts, size_of

SEGMENT_BYTES = 8 * 1024 * 1024  # a segment over it is closed; only whole ones are deleted
MAX_WASTE = 2  # the log may be so many times what counts in it, and as many segments, before that
# little is written again so that the oldest segment can go
# One record; more is written as several, each synced, and so is one update that is larger. With one
# entry of the largest size it stays far below ``MAX_RECORD_BYTES``.
COMMIT_BYTES = 8 * 1024 * 1024
PREFIX = "log-"


class TornTail(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery cut off: the file, from which byte on, how much, and why."""

    file: str
    offset: int
    cut_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"cut {self.cut_bytes} bytes of {self.file} from byte {self.offset}: {self.reason}"


class SharedLog:
    """The open log. One ``append`` at a time; ``groups`` is what it holds of each group."""

    def __init__(self, disk: Disk, *, fsync: bool = True) -> None:
        """``fsync=False`` is the planted bug ``no-fsync``."""
        self._disk, self._fsync = disk, fsync
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
        """Replay what is there and cut a torn tail. Raises ``CorruptLog`` and ``DiskError``."""
        names = [name for name in await self._disk.names() if name.startswith(PREFIX)]
        first = number_of(names[0]) if names else 1
        for position, name in enumerate(names):
            self._number = first + position
            if name != segment_name(self._number):
                raise CorruptLog(name, 0, f"segment {self._number} is missing")
            await self._replay(name, last=position == len(names) - 1)
        for group, state in self.groups.items():
            if problem := state.problem():
                raise CorruptLog(segment_name(first), 0, f"group {group}: {problem}")
        if names:
            # A killed process may have left this in the system's cache only. Who votes and answers
            # on the strength of it must not lose it to a power cut that comes later.
            await self._disk.append(names[-1], b"", sync=True)

    async def append(self, updates: Sequence[Update]) -> None:
        """Make ``updates`` durable, in order. Raises ``DiskError``: then the node must stop."""
        for commit in _commits(updates):
            await self._append(commit)
        await self._give_up_segments()

    async def _append(self, commit: tuple[Update, ...]) -> None:
        if self._sizes.get(self._number, 0) >= SEGMENT_BYTES:
            self._number += 1
            self._may_give_up = True
        size = self._sizes.get(self._number, 0)
        header = b"" if size else segment_header(self._number)
        record = encode_record(commit, self._number, size + len(header))
        await self._disk.append(segment_name(self._number), header + record, sync=self._fsync)
        self._sizes[self._number] = size + len(header) + len(record)
        self._take(commit)

    async def _give_up_segments(self) -> None:
        """Delete what does not count, from the front. What is rewritten is synced before that."""
        if not self._may_give_up:
            return
        self._may_give_up = False
        while len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            pinned = [g for g, state in self.groups.items() if state.oldest_segment() == oldest]
            if pinned:
                if self.size_bytes <= MAX_WASTE * (self.live_bytes + SEGMENT_BYTES):
                    return
                for commit in _commits([self.groups[group].whole(group) for group in pinned]):
                    await self._append(commit)
            await self._disk.delete(segment_name(oldest))
            del self._sizes[oldest]

    def _take(self, commit: Sequence[Update]) -> None:
        for found in commit:
            complete = self._parts.whole(found, self._number)
            if complete is None:
                continue
            update, segment = complete
            self._may_give_up |= update.dropped or update.cut is not None
            if update.dropped:
                self.groups.pop(update.group, None)
            else:
                self.groups.setdefault(update.group, GroupState()).take(update, segment)

    async def _replay(self, name: str, *, last: bool) -> None:
        data = await self._disk.read(name)
        found = scan(name, data, self._number, last=last)
        for commit in found.commits:
            self._take(commit)
        if found.torn is not None:
            self.torn = TornTail(
                file=name, offset=found.end, cut_bytes=len(data) - found.end, reason=found.torn
            )
            await self._disk.truncate(name, found.end)
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


def _commits(updates: Sequence[Update]) -> Iterator[tuple[Update, ...]]:
    """``updates`` in order, in parts of about ``COMMIT_BYTES``."""
    part: list[Update] = []
    size = 0
    for update in updates:
        for piece in in_parts(update, COMMIT_BYTES):
            part.append(piece)
            size += sum(map(size_of, piece.entries))
            if size >= COMMIT_BYTES:
                yield tuple(part)
                part, size = [], 0
    if part:
        yield tuple(part)
