"""The files of a node as facts: what is durable in its log, and what each entry says.

The layout is that of ``node/storage/log_records.py``; nothing of the node's recovery is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.configuration import decode as decode_configuration
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.storage.identity import FILE, Identity, member_of, replica_of
from clusters.reference.node.storage.log_records import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    SEGMENT_HEADER_BYTES,
    Compaction,
    Update,
)
from clusters.reference.node.storage.shared_log import PREFIX
from harness.protocols.claims import (
    Base,
    Fact,
    LogEntry,
    LogUpdate,
    Member,
    Members,
    NewGeneration,
    mark_of,
)

_RECORD = struct.Struct("!4sII")
_PLACE = struct.Struct("!QQ")
_updates = msgspec.msgpack.Decoder(tuple[Update, ...])

_Place = tuple[int, int]  # segment, offset
# The facts of one command, asked for once an entry: (group, entry, its mark).
Says = Callable[[str, Entry, int], tuple[Fact, ...]]


class LogReader:
    """``harness.protocols.claims.DiskReader`` of one disk."""

    def __init__(self, says: Says) -> None:
        self._says, self._directory = says, ""
        self._parts: dict[str, list[Update]] = {}  # of updates that are larger than a record
        self._generations: dict[str, tuple[int, ...]] = {}  # of each group, those that were here
        # By group, where in the log they were so: what says so may be deleted before what it is
        # said of, and then stands at the end.
        self._since: dict[str, list[tuple[_Place, tuple[int, ...]]]] = {}
        self._before: Mapping[str, list[tuple[_Place, tuple[int, ...]]]] = {}
        self._place: _Place = (0, 0)
        self._replicas: dict[str, str] = {}  # group: its member, where that is not the disk's

    def read(self, name: str, start: int, data: bytes) -> tuple[int, list[Fact]]:
        """See ``DiskReader``."""
        if name == FILE:
            identity = msgspec.json.decode(data, type=Identity)
            self._directory = member_of(identity.node, identity.incarnation)
            return len(data), [Member(self._directory)]
        if not name.startswith(PREFIX):
            return start, []
        return self._records(int(name.removeprefix(PREFIX)), start, data)

    def again(self) -> LogReader:
        """See ``DiskReader``."""
        reader = LogReader(self._says)
        reader._before = self._since
        return reader

    def _records(self, segment: int, start: int, data: bytes) -> tuple[int, list[Fact]]:
        facts: list[Fact] = []
        at = begin = 0 if start else SEGMENT_HEADER_BYTES
        while (payload := _record(segment, start + at, data, at)) is not None:
            self._place = segment, start + at
            for update in _updates.decode(payload):
                complete = self._complete(update)
                if complete is not None:
                    facts += self._facts(complete)
            at += RECORD_HEADER_BYTES + len(payload)
        # Nothing at all, or no record yet behind the header: both are read again with what follows.
        # Never a record that is only a part of an update: read twice it would count twice.
        return (start + at if at > begin or start else 0), facts

    def _complete(self, update: Update) -> Update | None:
        if update.parts == 1:
            self._parts.pop(update.group, None)
            return update
        if update.part == 1:
            self._parts[update.group] = []
        parts = self._parts.get(update.group, [])
        if update.part == len(parts) + 1:
            parts.append(update)
        if len(parts) < update.parts:
            return None
        del self._parts[update.group]
        entries = tuple(entry for part in parts for entry in part.entries)
        return msgspec.structs.replace(parts[0], entries=entries)

    def _facts(self, update: Update) -> Iterator[Fact]:
        group, hard = update.group, update.hard_state
        if group not in self._generations:
            self._follow(group, self._known(group))
        if update.dropped:
            yield from self._dropped(group, update.dropped)
            if update.dropped is True:
                return
        if hard is not None and hard.generation != self._generation(group):
            yield from self._entered(group, hard.generation)
        generation = self._generation(group)
        yield LogUpdate(
            generation_name(group, generation),
            None if hard is None else hard.term,
            None if hard is None else hard.vote,
            tuple([self._logged(group, generation, entry) for entry in update.entries]),
            None if update.cut is None else _base(update.cut, generation),
        )

    def _generation(self, group: str) -> int:
        return self._generations[group][-1]

    def _known(self, group: str) -> tuple[int, ...]:
        """The generations that were here by now when the disk was read before."""
        known: tuple[int, ...] = (0,)
        for place, generations in self._before.get(group, ()):
            if place <= self._place:
                known = generations
        return known

    def _follow(self, group: str, generations: tuple[int, ...], *, told: bool = False) -> None:
        """The log is of ``generations`` from the record that is read on; of those that it has
        ``told`` itself from behind it on, since it tells of them again where it is read again.
        """
        segment, at = self._place
        self._generations[group] = generations
        self._since.setdefault(group, []).append(((segment, at + told), generations))

    def _dropped(self, group: str, dropped: bool | int) -> Iterator[Fact]:
        names = [generation_name(group, each) for each in self._generations[group]]
        self._follow(group, (0,), told=True)
        for name in names:
            yield LogUpdate(name, dropped=True)
        if dropped is True:
            return
        # The next replica here is another member, though of the same disk.
        self._replicas[group] = replica_of(self._directory, dropped)
        for name in names:
            yield Member(self._replicas[group], name)

    def _entered(self, group: str, generation: int) -> Iterator[Fact]:
        before = generation_name(group, self._generation(group))
        self._follow(group, (*self._generations[group], generation), told=True)
        name = generation_name(group, generation)
        if group in self._replicas:
            yield Member(self._replicas[group], name)
        yield NewGeneration(group, before, name)

    def _logged(self, group: str, generation: int, entry: Entry) -> LogEntry:
        mark = entry_mark(entry)
        if entry.config:
            members = _members(decode_configuration(entry.data), generation)
            return LogEntry(entry.index, mark, () if members is NOBODY else (members,))
        return LogEntry(entry.index, mark, self._says(group, entry, mark) if entry.data else ())


def generation_name(group: str, generation: int) -> str:
    """The name of a generation of ``group`` in facts."""
    return f"{group}@{generation}" if generation else group


def root_of(name: str) -> str:
    """The group that ``name`` is a generation of."""
    return name.partition("@")[0]


def entry_mark(entry: Entry) -> int:
    """The mark of ``entry``."""
    return mark_of(entry.term, zlib.crc32(entry.data))


def _record(segment: int, offset: int, data: bytes, at: int) -> bytes | None:
    """The payload of the record at ``at`` of ``data``, which is ``offset`` in its segment; ``None``
    where none is whole.
    """
    if len(data) - at < RECORD_HEADER_BYTES:
        return None
    magic, length, crc = _RECORD.unpack_from(data, at)
    payload = data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
    if magic != RECORD_MAGIC or len(payload) < length:
        return None
    return payload if zlib.crc32(payload, zlib.crc32(_PLACE.pack(segment, offset))) == crc else None


def _base(cut: Compaction, generation: int) -> Base:
    saved = cut.saved
    return Base(
        cut.base.index,
        cut.base.term,
        _members(cut.base.configuration, generation),
        "" if saved is None else saved.file,
        0 if saved is None else saved.size_bytes,
        cut.whole,
    )


NOBODY = Members(())


def _members(configuration: Configuration, generation: int) -> Members:
    """The members that decide by ``configuration``; none by that of another generation."""
    if configuration.generation != generation:
        return NOBODY
    return Members(configuration.voters, configuration.outgoing)
