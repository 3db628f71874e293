"""The bytes of the shared log: segments of CRC records, and the meaning of a damaged one.

A segment is ``magic | u32 version | u64 number`` and then records, ``magic | u32 length | u32 CRC |
payload``. One record holds one group commit, and each is synced before the next is written: so at
most the last record of the last segment can be torn. The CRC also covers the record's place
(segment, offset), so that a copy of a record inside a user's value never counts as one.

A record that is damaged with nothing readable behind it is taken for torn, since a tear and a flip
in the last record look alike; damage anywhere else means that synced data is gone.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.raft.types import Entry, HardState, Mark

FORMAT_VERSION = 1
SEGMENT_MAGIC = b"FDLG"
RECORD_MAGIC = b"\xf1REC"
MAX_RECORD_BYTES = 64 * 1024 * 1024
_SEGMENT = struct.Struct("!4sIQ")
_RECORD = struct.Struct("!4sII")
_PLACE = struct.Struct("!QQ")
SEGMENT_HEADER_BYTES = _SEGMENT.size
RECORD_HEADER_BYTES = _RECORD.size


class CorruptLog(Exception):
    """Synced data is damaged: the node must not start, since it would break promises that it
    made.
    """

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} at byte {offset}: {reason}")
        self.file, self.offset, self.reason = file, offset, reason


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of a group's state machine at ``mark``: ``size_bytes`` of ``file``."""

    mark: Mark
    file: str
    size_bytes: int


class Compaction(msgspec.Struct, frozen=True, array_like=True):
    """The group's log begins behind ``base``, and ``saved``, at or after it, stands for the entries
    before. With ``whole`` no entry from before this update counts any more.
    """

    base: Mark
    saved: SnapshotFile | None = None
    whole: bool = False


class Update(msgspec.Struct, frozen=True, array_like=True):
    """The state that one group wants durable: its hard state, a cut, and entries that replace all
    from the first of them on. With ``dropped`` the replica is destroyed and the group no more; a
    number is that of the replica that begins in its place, with nothing but this update.

    One that is too large for a record is written as ``parts``, of which only the last one makes all
    of them count: until then the group is as it was before.
    """

    group: str
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    cut: Compaction | None = None
    dropped: bool | int = False
    part: int = 1
    parts: int = 1


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a segment: its group commits, where the good part ends, and why no
    further.
    """

    commits: tuple[tuple[Update, ...], ...]
    end: int
    torn: str | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Update, ...])


def segment_header(number: int) -> bytes:
    """The first bytes of segment ``number``."""
    return _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, number)


def encode_record(updates: tuple[Update, ...], number: int, offset: int) -> bytes:
    """One group commit as a record at ``offset`` of segment ``number``."""
    payload = _encoder.encode(updates)
    if len(payload) > MAX_RECORD_BYTES:
        raise ValueError(f"log record: at most {MAX_RECORD_BYTES} bytes (got {len(payload)})")
    crc = zlib.crc32(payload, _seed(number, offset))
    return _RECORD.pack(RECORD_MAGIC, len(payload), crc) + payload


def scan(file: str, data: bytes, number: int, *, last: bool) -> Scan:
    """Read segment ``number``. Raises ``CorruptLog`` unless it is whole, or torn and the last."""
    header = segment_header(number)
    if len(data) < len(header) and last:
        return Scan(commits=(), end=0, torn="the segment's header is incomplete" if data else None)
    if data[: len(header)] != header:
        if any(data[: len(header)]):
            raise CorruptLog(file, 0, f"not segment {number} of a version {FORMAT_VERSION} log")
        # A power cut in the first write may leave the file's size, and later sectors of it.
        reason = "the segment has a size and no header"
        _refuse_unless_tail(file, data, number, 0, reason, last)
        return Scan(commits=(), end=0, torn=reason)
    commits: list[tuple[Update, ...]] = []
    offset = len(header)
    while offset < len(data):
        payload, problem = _record_at(data, number, offset)
        if payload is None:
            _refuse_unless_tail(file, data, number, offset, problem, last)
            return Scan(commits=tuple(commits), end=offset, torn=problem)
        try:
            commits.append(_decoder.decode(payload))
        except msgspec.DecodeError as error:
            # No tear: bytes with their CRC were written as they are, so
            # cutting them off would lose them.
            raise CorruptLog(file, offset, f"CRC holds, content does not: {error}") from error
        offset += RECORD_HEADER_BYTES + len(payload)
    return Scan(commits=tuple(commits), end=offset, torn=None)


def _seed(number: int, offset: int) -> int:
    return zlib.crc32(_PLACE.pack(number, offset))


def _record_at(data: bytes, number: int, offset: int) -> tuple[bytes | None, str]:
    """The payload of the record at ``offset``, or ``None`` and the damage of it."""
    if len(data) - offset < RECORD_HEADER_BYTES:
        return None, "a record's header is incomplete"
    magic, length, crc = _RECORD.unpack_from(data, offset)
    if magic != RECORD_MAGIC:
        return None, "no record begins here"
    if length > MAX_RECORD_BYTES:
        return None, f"a record of {length} bytes can't be"
    start = offset + RECORD_HEADER_BYTES
    payload = data[start : start + length]
    if len(payload) < length:
        return None, f"a record has {len(payload)} of its {length} bytes"
    if zlib.crc32(payload, _seed(number, offset)) != crc:
        return None, "a record's CRC does not match"
    return payload, ""


def _refuse_unless_tail(
    file: str, data: bytes, number: int, offset: int, problem: str, last: bool
) -> None:
    """Damage is a torn tail only in the last segment, with no good record anywhere behind it."""
    if planted("torn-tail-accepted"):
        return
    if not last:
        raise CorruptLog(file, offset, f"{problem}, in a segment that was closed")
    later = data.find(RECORD_MAGIC, offset + 1)
    while later >= 0:
        if _record_at(data, number, later)[0] is not None:
            raise CorruptLog(file, offset, f"{problem}, and a good record follows at byte {later}")
        later = data.find(RECORD_MAGIC, later + 1)
