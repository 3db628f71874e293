"""Frames on a byte stream: length, version, CRC-32 and an opaque payload.

``u32 length of the payload | u8 version | u32 CRC-32 of the payload | payload``, big-endian. A
stream that breaks the format can't be trusted further: the reader gives the whole connection up.
"""

from __future__ import annotations

import struct
import zlib

VERSION = 1
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024  # a length beyond it is damage or a stranger, not a message
_HEADER = struct.Struct("!IBI")
HEADER_BYTES = _HEADER.size


class FrameError(Exception):
    """The stream is no stream of frames: wrong version, too long, or a CRC that does not match."""


def encode(payload: bytes) -> bytes:
    """One frame. Raises ``FrameError`` over ``MAX_PAYLOAD_BYTES``."""
    check_size(payload)
    return _HEADER.pack(len(payload), VERSION, zlib.crc32(payload)) + payload


def check_size(payload: bytes) -> None:
    """Raises ``FrameError`` where ``payload`` is no frame's."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"payload: at most {MAX_PAYLOAD_BYTES} bytes (got {len(payload)})")


class Decoder:
    """Cuts a byte stream into payloads; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by ``data``, in order. Raises ``FrameError``; then it is over."""
        self._buffer += data
        payloads: list[bytes] = []
        start = 0
        while (end := self._frame_end(start)) is not None:
            payloads.append(self._payload(start, end))
            start = end
        if start:
            del self._buffer[:start]
        return payloads

    def _frame_end(self, start: int) -> int | None:
        """Where the frame at ``start`` ends, or ``None`` while it is incomplete."""
        if len(self._buffer) - start < HEADER_BYTES:
            return None
        length, version, _ = _HEADER.unpack_from(self._buffer, start)
        if version != VERSION:
            raise FrameError(f"frame version: expected {VERSION} (got {version})")
        if length > MAX_PAYLOAD_BYTES:
            raise FrameError(f"frame length: at most {MAX_PAYLOAD_BYTES} bytes (got {length})")
        end = start + HEADER_BYTES + int(length)
        return end if len(self._buffer) >= end else None

    def _payload(self, start: int, end: int) -> bytes:
        payload = bytes(self._buffer[start + HEADER_BYTES : end])
        expected = _HEADER.unpack_from(self._buffer, start)[2]
        if (actual := zlib.crc32(payload)) != expected:
            raise FrameError(f"frame CRC: expected {expected:08x} (got {actual:08x})")
        return payload
