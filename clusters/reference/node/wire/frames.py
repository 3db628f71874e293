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
        self._rest = b""
        self._wanted_bytes = 0  # of the unfinished frame; until it is whole nothing is looked at
        self._more: list[bytes] = []  # of it, behind the rest
        self._more_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by ``data``, in order. Raises ``FrameError``; then it is over."""
        if self._rest:
            self._more.append(data)
            self._more_bytes += len(data)
            if len(self._rest) + self._more_bytes < self._wanted_bytes:
                return []
            data = b"".join((self._rest, *self._more))
            self._more.clear()
            self._more_bytes = 0
        payloads: list[bytes] = []
        start, size = 0, len(data)
        self._wanted_bytes = HEADER_BYTES
        while size - start >= HEADER_BYTES:
            length, version, expected = _HEADER.unpack_from(data, start)
            _check(version, length)
            end = start + HEADER_BYTES + length
            if end > size:
                self._wanted_bytes = end - start
                break
            payload = data[start + HEADER_BYTES : end]
            if (actual := zlib.crc32(payload)) != expected:
                raise FrameError(f"frame CRC: expected {expected:08x} (got {actual:08x})")
            payloads.append(payload)
            start = end
        self._rest = data[start:]
        return payloads


def _check(version: int, length: int) -> None:
    if version != VERSION:
        raise FrameError(f"frame version: expected {VERSION} (got {version})")
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError(f"frame length: at most {MAX_PAYLOAD_BYTES} bytes (got {length})")
