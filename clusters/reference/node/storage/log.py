"""One log a node, shared by its raft groups: a group commit is one append and one sync.

Recovery replays the segments in order. What it can't read at the very end is a torn tail and is
cut; any other damage refuses the start (``CorruptLog``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from clusters.reference.node.raft.types import Entry, HardState
from clusters.reference.node.runtime import Disk
from clusters.reference.node.storage.records import (
    CorruptLog,
    Update,
    encode_record,
    scan,
    segment_header,
)

SEGMENT_BYTES = 32 * 1024 * 1024  # a segment over it is closed; compaction will drop whole ones
COMMIT_BYTES = 8 * 1024 * 1024  # one record; more is written as several, each synced
PREFIX = "log-"


class Recovered:
    """A group's durable state as replayed: hard state, and entries from index 1 on."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.entries: list[Entry] = []

    def take(self, update: Update) -> None:
        """Apply one update. Raises ``ValueError`` on a gap in the log."""
        if update.hard_state is not None:
            self.hard_state = update.hard_state
        if update.entries:
            first = update.entries[0].index
            if not 1 <= first <= len(self.entries) + 1:
                raise ValueError(
                    f"group {update.group}: entries from {first} on, after {len(self.entries)}"
                )
            self.entries[first - 1 :] = update.entries


class TornTail(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery cut off: the file, from which byte on, how much, and why."""

    file: str
    offset: int
    cut_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"cut {self.cut_bytes} bytes of {self.file} from byte {self.offset}: {self.reason}"


class SharedLog:
    """The open log. One ``append`` at a time; ``recovered`` is what the start found."""

    def __init__(self, disk: Disk, *, fsync: bool = True) -> None:
        """``fsync=False`` is the planted bug ``no-fsync``."""
        self._disk, self._fsync = disk, fsync
        self._number, self._size = 1, 0
        self.recovered: dict[str, Recovered] = {}
        self.torn: TornTail | None = None
        self.size_bytes = 0

    async def open(self) -> None:
        """Replay what is there and cut a torn tail. Raises ``CorruptLog`` and ``DiskError``."""
        names = [name for name in await self._disk.names() if name.startswith(PREFIX)]
        for position, name in enumerate(names):
            self._number = position + 1
            if name != segment_name(self._number):
                raise CorruptLog(name, 0, f"segment {self._number} is missing")
            await self._replay(name, last=position == len(names) - 1)
        if names:
            # A killed process may have left this in the system's cache only. Who votes and answers
            # on the strength of it must not lose it to a power cut that comes later.
            await self._disk.append(names[-1], b"", sync=True)

    async def append(self, updates: Sequence[Update]) -> None:
        """Make ``updates`` durable, in order. Raises ``DiskError``: then the node must stop."""
        for commit in _commits(updates):
            if self._size >= SEGMENT_BYTES:
                self._number, self._size = self._number + 1, 0
            header = b"" if self._size else segment_header(self._number)
            record = encode_record(commit, self._number, self._size + len(header))
            await self._disk.append(segment_name(self._number), header + record, sync=self._fsync)
            self._size += len(header) + len(record)
            self.size_bytes += len(header) + len(record)

    async def _replay(self, name: str, *, last: bool) -> None:
        data = await self._disk.read(name)
        found = scan(name, data, self._number, last=last)
        for commit in found.commits:
            for update in commit:
                try:
                    self.recovered.setdefault(update.group, Recovered()).take(update)
                except ValueError as error:
                    raise CorruptLog(name, 0, str(error)) from error
        if found.torn is not None:
            self.torn = TornTail(
                file=name, offset=found.end, cut_bytes=len(data) - found.end, reason=found.torn
            )
            await self._disk.truncate(name, found.end)
        self._size = found.end
        self.size_bytes += found.end


def segment_name(number: int) -> str:
    """The file of segment ``number``; names sort as numbers do."""
    return f"{PREFIX}{number:08d}"


def _commits(updates: Sequence[Update]) -> Iterator[tuple[Update, ...]]:
    """``updates`` in order, in parts of about ``COMMIT_BYTES``."""
    part: list[Update] = []
    size = 0
    for update in updates:
        part.append(update)
        size += sum(len(entry.data) for entry in update.entries)
        if size >= COMMIT_BYTES:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)
