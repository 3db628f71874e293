"""Reading write-ahead chunks back, as far as they are whole.

The reader trusts no file: the first bytes that do not match their checksum, their chain or their
place end the stream, and ``TornChunk`` says where and why.
"""

from __future__ import annotations

import errno
import heapq
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import attrs
import msgspec

from harness.errors import HarnessError, MalformedHistory
from harness.history import record_frames
from harness.history.records import Complete, Heartbeat, Invoke, PhaseMark, Record
from harness.history.regular_files import open_regular
from harness.plan.plan import MAX_DRIVERS

# The controller's and its driver processes'. All are open at once while they are merged.
MAX_STREAMS = 1 + MAX_DRIVERS
_BUFFER_BYTES = 1 << 20
_TIMED = (Invoke, Complete, PhaseMark, Heartbeat)
# Errors that say nothing of the file: it can be read by others, or later.
_OF_THE_READER = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
# The phase before which no client invokes anything; every stream has begun when it begins.
DRIVE = "drive"


@attrs.frozen
class TornChunk:
    """The place where a stream stops being readable.

    ``cut_off``: as a writer that died leaves it; otherwise the bytes are damaged. ``first``: in the
    stream's first chunk. ``unread``: the stream may hold records behind that place.
    """

    file: Path
    offset: int
    reason: str
    cut_off: bool
    first: bool = False
    unread: bool = False

    def __str__(self) -> str:
        return f"{self.file.name} at byte {self.offset}: {self.reason}"


class Stream:
    """One writer's records, in the order of writing. Iterate once.

    ``file`` and ``offset`` are the place of the record last yielded. After the iteration, ``torn``
    is the place where the stream stopped short, if it did, ``last_ns`` the time of its last write,
    ``drove`` whether its writer invoked anything, ``marked_drive`` whether it marked the phase in
    which clients drive, and ``absent`` whether the stream has no chunk at all.
    """

    def __init__(self, directory: Path, writer: int, chain: int = 0, *, last: int = 0) -> None:
        """``chain`` is the crc with which the stream begins, ``last`` the highest sequence of its
        chunks.
        """
        self.writer = writer
        self.file = directory / record_frames.chunk_name(writer, 0)
        self.offset = 0
        self.torn: TornChunk | None = None
        self.last_ns = 0
        self.records = 0
        self.drove = self.marked_drive = self.absent = False
        self._directory = directory
        self._chain = chain
        self._last = last

    def __iter__(self) -> Iterator[Record]:
        """Raises ``MalformedHistory`` for a chunk of a version that is not known here."""
        sequence = 0
        while (yield from self._chunk(sequence)):
            sequence += 1
        if sequence < self._last:
            self._leave_unread()

    def _chunk(self, sequence: int) -> Generator[Record, None, bool]:
        """The records of one chunk; returns whether the stream goes on."""
        self.file = self._directory / record_frames.chunk_name(self.writer, sequence)
        self.offset = 0
        try:
            with open_regular(self.file, _BUFFER_BYTES) as source:
                if self._header_is_good(source, sequence):
                    return (yield from self._frames(source))
        except FileNotFoundError:
            self.absent = sequence == 0
            self._tear("the chunk is missing", unread=False)
        except OSError as error:
            if error.errno in _OF_THE_READER:
                reason = error.strerror or str(error)
                kept = "nothing was made of the chunks, and they are kept"
                raise HarnessError(f"cannot read {self.file}: {reason}: {kept}") from error
            self._tear(f"it can't be read: {error.strerror}")
        return False

    def _header_is_good(self, source: BinaryIO, sequence: int) -> bool:
        content = source.read(record_frames.HEADER.size)
        header = record_frames.unpack_header(content)
        if isinstance(header, str):
            self._tear(header, cut_off=len(content) < record_frames.HEADER.size)
            return False
        if header.version != record_frames.VERSION:
            reason = f"expected chunk format {record_frames.VERSION}, found {header.version}"
            raise MalformedHistory(str(self.file), "byte 8", reason)
        # The chain ties a chunk to the one before it: a chunk of another run can't slip in.
        if (header.writer, header.sequence, header.chain) != (self.writer, sequence, self._chain):
            before = "the successor of the one before it" if sequence else "of this stream and run"
            self._tear(f"the chunk is not {before}")
            return False
        return True

    def _frames(self, source: BinaryIO) -> Generator[Record, None, bool]:
        # A run has a million frames, so attribute lookups stand before the loop.
        offset, head_size, unpack = (
            record_frames.HEADER.size,
            record_frames.FRAME.size,
            record_frames.FRAME.unpack,
        )
        while True:
            self.offset = offset
            head = source.read(head_size)
            if len(head) < head_size:
                self._tear("the stream stops without a mark of its end", cut_off=True)
                return False
            length, crc = unpack(head)
            # Lengths that no record can have are the marks.
            if length >= record_frames.MORE:
                return self._mark(source, length, crc)
            record = self._record(source, length, crc)
            if record is None:
                return False
            kind = type(record)
            # The last time counts up to where this stream is known whole; events are mapped, not
            # timed.
            if kind in _TIMED and record.at_ns > self.last_ns:
                self.last_ns = record.at_ns
            self.records += 1
            if kind is Invoke:
                self.drove = True
            elif kind is PhaseMark:
                self.marked_drive |= cast(PhaseMark, record).name == DRIVE
            yield record
            offset += head_size + length

    def _record(self, source: BinaryIO, length: int, crc: int) -> Record | None:
        """The record of a frame, or ``None`` after tearing the stream."""
        # Before reading: damage may claim more than there is memory.
        if length > record_frames.MAX_RECORD_BYTES:
            self._tear(f"a record claims {length} bytes (at most {record_frames.MAX_RECORD_BYTES})")
            return None
        payload = source.read(length)
        if len(payload) < length:
            reason = f"a record is cut off: expected {length} bytes, found {len(payload)}"
            self._tear(reason, cut_off=True)
            return None
        if record_frames.frame_crc(length, payload, self._chain) != crc:
            self._tear("a record's checksum does not match")
            return None
        self._chain = crc
        try:
            record: Record = record_frames.DECODER.decode(payload)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            self._tear(f"a record does not decode: {error}")
            return None
        return record

    def _mark(self, source: BinaryIO, mark: int, crc: int) -> bool:
        """Whether the stream continues after a mark."""
        if record_frames.frame_crc(mark, b"", self._chain) != crc:
            self._tear("a mark's checksum does not match")
            return False
        self._chain = crc
        # Whatever stands behind a mark was not written by this stream.
        if source.read(1):
            self.offset += record_frames.FRAME.size
            self._tear("there are bytes after the mark of the end")
            return False
        return mark == record_frames.MORE

    def _leave_unread(self) -> None:
        last = record_frames.chunk_name(self.writer, self._last)
        unread = f"the chunks behind it, up to {last}, were not read"
        if self.torn is None:
            self._tear(f"the stream ends here: {unread}", unread=True)
        else:
            self.torn = attrs.evolve(self.torn, reason=f"{self.torn.reason}; {unread}", unread=True)

    def _tear(self, reason: str, *, cut_off: bool = False, unread: bool | None = None) -> None:
        """``unread``: unless it is given, only a stream that was cut off ends there."""
        first = self.file.name == record_frames.chunk_name(self.writer, 0)
        behind = not cut_off if unread is None else unread
        self.torn = TornChunk(self.file, self.offset, reason, cut_off, first, behind)


class Scan:
    """The records of every writer of a run, merged by the time of writing. Iterate once."""

    def __init__(self, streams: tuple[Stream, ...], *, counted: bool = False) -> None:
        """``counted``: the number of streams is recorded, and the controller's has heartbeats."""
        self.streams, self.counted = streams, counted

    def __iter__(self) -> Iterator[Record]:
        return (record for _, record in self.placed())

    @property
    def driven(self) -> bool:
        """Whether clients may have invoked anything; known once the iteration is over."""
        return any(stream.drove or stream.marked_drive for stream in self.streams)

    @property
    def torn(self) -> tuple[TornChunk, ...]:
        """The places where streams stopped short; complete once the iteration is over. An absent
        stream does not count where the run ended before clients drove.
        """
        return tuple(
            stream.torn
            for stream in self.streams
            if stream.torn is not None and (self.driven or not stream.absent)
        )

    def placed(self) -> Iterator[tuple[Stream, Record]]:
        """Every record with its stream.

        Between writers the order is (time, invocations first, writer); within one it is the order
        of writing.
        """
        if len(self.streams) == 1:
            only = self.streams[0]
            return ((only, record) for record in only)
        merged = heapq.merge(*map(_ranked, self.streams))  # no two streams have one rank
        return ((stream, record) for _, stream, record in merged)


Rank = tuple[int, int, int]


def _ranked(stream: Stream) -> Iterator[tuple[Rank, Stream, Record]]:
    for record in stream:
        # Touching is concurrent: at one time every invocation comes before every completion.
        later = 0 if type(record) is Invoke else 1
        # Not by the record's own time, which goes back at mapped events: ranks have to ascend.
        yield (stream.last_ns, later, stream.writer), stream, record


def scan(directory: Path, *, count: int | None = None, run_id: str = "") -> Scan:
    """The records of the chunks in ``directory``, read lazily.

    ``count`` is the number of streams of run ``run_id``, where that was recorded: a stream without
    a chunk then counts as torn at its start. Memory is bounded by a record a writer. Raises
    ``MalformedHistory`` where there is no chunk, one of a writer that the run did not have, or
    where there would be more than ``MAX_STREAMS``.
    """
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        reason = f"expected the chunks of a run, found none ({error.strerror})"
        raise MalformedHistory(str(directory), "", reason) from error
    places = {name: record_frames.chunk_place(name) for name in names if name.endswith(".chunk")}
    last: dict[int, int] = {}
    for name, place in places.items():
        if place is None:
            reason = "expected chunks under the names that a writer gives them, found another"
            raise MalformedHistory(str(directory / name), "", reason)
        writer, sequence = place
        last[writer] = max(sequence, last.get(writer, 0))
    writers = last.keys()
    if not writers:
        raise MalformedHistory(str(directory), "", "expected the chunks of a run, found none")
    claimed = len(writers) if count is None else count
    if not 1 <= claimed <= MAX_STREAMS:
        reason = f"expected the chunks of 1 to {MAX_STREAMS} writers, found {claimed}"
        raise MalformedHistory(str(directory), "", reason)
    # As of versions that recorded no number: all chains begin at 0 there.
    if count is None:
        return Scan(tuple(Stream(directory, w, last=last[w]) for w in sorted(writers)))
    if strangers := sorted(writers - set(range(count))):
        name = record_frames.chunk_name(strangers[0], 0)
        reason = f"expected chunks of {count} writers, found those of writer {strangers[0]}"
        raise MalformedHistory(str(directory / name), "", reason)
    chain = record_frames.first_chain(run_id)
    streams = (Stream(directory, w, chain, last=last.get(w, 0)) for w in range(count))
    return Scan(tuple(streams), counted=True)
