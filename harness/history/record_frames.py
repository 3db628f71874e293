"""The bytes of a write-ahead chunk.

A writer's records form one stream, cut into chunks ``wW-NNNNNN.chunk`` (writer, sequence). All
numbers are little-endian::

    chunk   header frame* (more | end)?
    header  magic "FDCHUNK\\n", u16 version, u16 writer, u32 sequence, u32 chain, u32 crc
    frame   u32 length, u32 crc, payload: one record in msgpack
    more    u32 0xFFFFFFFE, u32 crc       the stream goes on in the next chunk
    end     u32 0xFFFFFFFF, u32 crc       the stream was closed

A frame's crc is the CRC-32 of its length and payload *continued from the crc of the frame before
it*, across chunks too (``chain`` in the header): a frame that was dropped, repeated or taken from
another stream breaks the chain as a flipped bit does. The header's crc covers the header alone.
A chunk that stops without a mark was being written when its writer died. The chain of a stream
begins with its run (``first_chain``), so that the stream of another run breaks it at its start.
"""

from __future__ import annotations

import re
import struct
import zlib

import attrs
import msgspec

from harness.history.records import Record

MAGIC = b"FDCHUNK\n"
VERSION = 1
HEADER = struct.Struct("<8sHHIII")
FRAME = struct.Struct("<II")
LENGTH = struct.Struct("<I")
MORE, END = 0xFFFFFFFE, 0xFFFFFFFF

_NAME = re.compile(r"w(\d{1,5})-(\d{6,9})\.chunk", re.ASCII)

# A record has some hundred bytes, a read of a long list some thousand; a larger one is a bug of
# firedrill.
MAX_RECORD_BYTES = 16 << 20

ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Record)


@attrs.frozen
class Header:
    """The header of a chunk. ``chain`` is the crc that its first frame continues."""

    version: int
    writer: int
    sequence: int
    chain: int

    def pack(self) -> bytes:
        """The header's bytes."""
        return _with_crc(self, zlib.crc32(_with_crc(self, 0)[:-4]))


def _with_crc(header: Header, crc: int) -> bytes:
    return HEADER.pack(MAGIC, header.version, header.writer, header.sequence, header.chain, crc)


def unpack_header(content: bytes) -> Header | str:
    """The header, or the reason why these bytes are none."""
    if len(content) < HEADER.size:
        return f"the header is cut off: expected {HEADER.size} bytes, found {len(content)}"
    magic, version, writer, sequence, chain, crc = HEADER.unpack(content)
    if magic != MAGIC:
        return f"expected a chunk's first bytes {MAGIC!r}, found {magic!r}"
    if crc != zlib.crc32(content[:-4]):
        return "the header's checksum does not match"
    return Header(version, writer, sequence, chain)


def chunk_place(name: str) -> tuple[int, int] | None:
    """The writer and the sequence of the chunk of this name; ``None`` where it names none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    writer, sequence = map(int, found.groups())
    return (writer, sequence) if chunk_name(writer, sequence) == name else None


def first_chain(run_id: str) -> int:
    """The chain with which every stream of run ``run_id`` begins."""
    return zlib.crc32(run_id.encode())


def frame_crc(length: int, payload: bytes, chain: int) -> int:
    """The crc of a frame that follows one whose crc is ``chain``."""
    # With the length: a bit flipped in it would move the borders of all frames behind.
    return zlib.crc32(payload, zlib.crc32(LENGTH.pack(length), chain))


def pack_mark(mark: int, chain: int) -> tuple[bytes, int]:
    """The bytes of a ``MORE`` or ``END`` mark, and the chain after it."""
    crc = frame_crc(mark, b"", chain)
    return FRAME.pack(mark, crc), crc


def chunk_name(writer: int, sequence: int) -> str:
    """The file name of a chunk."""
    return f"w{writer}-{sequence:06d}.chunk"
