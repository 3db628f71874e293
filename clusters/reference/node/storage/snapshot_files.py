"""Files of snapshots: chunks of a state machine, each with length and CRC.

A file counts from the moment that the shared log names it (``SnapshotFile``), which it does once
the file is whole and synced. So a snapshot replaces another at once or not at all, and a file that
a crash left unfinished is named nowhere and deleted at the next start.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator, Collection, Iterable

from clusters.reference.node.markers import reached
from clusters.reference.node.raft.types import Mark
from clusters.reference.node.runtime import Disk
from clusters.reference.node.storage.log_records import CorruptLog, SnapshotFile

PREFIX = "snap-"
PIECE_BYTES = 256 * 1024  # read, sent or written at once: small beside a frame and a tick
_CHUNK = struct.Struct("!II")


class SnapshotFiles:
    """The snapshot files of a node."""

    def __init__(self, disk: Disk, piece_bytes: int | None = None) -> None:
        """By default ``PIECE_BYTES`` are moved at once."""
        self._disk, self._piece_bytes = disk, piece_bytes or PIECE_BYTES
        self._number = 0

    async def sweep(self, live: Collection[str]) -> None:
        """Delete every file that is not ``live``; new names come after all that were seen."""
        for name in await self._disk.names():
            if name.startswith(PREFIX):
                self._number = max(self._number, int(name.split("-")[1]))
                if name not in live:
                    reached("snapshot file of no use swept")
                    await self._disk.delete(name)

    def new_file(self, group: str) -> str:
        """A name that was not used yet."""
        self._number += 1
        return f"{PREFIX}{self._number:08d}-{group}"

    async def write(self, group: str, mark: Mark, chunks: Iterable[bytes]) -> SnapshotFile:
        """Write ``chunks`` to a new file, whole and synced on return. Raises ``DiskError``."""
        file, size = self.new_file(group), 0
        for chunk in chunks:
            framed = _CHUNK.pack(len(chunk), zlib.crc32(chunk)) + chunk
            await self._disk.append(file, framed, sync=False)
            size += len(framed)
        # One sync for all chunks: the file counts only once the log names it.
        await self._disk.append(file, b"", sync=True)
        return SnapshotFile(mark, file, size)

    async def keep(self, file: str, data: bytes, *, last: bool) -> None:
        """Append a received piece; the ``last`` one is synced with all before it."""
        await self._disk.append(file, data, sync=last)

    async def piece(self, saved: SnapshotFile, offset: int) -> bytes:
        """The next bytes of the file from ``offset`` on."""
        size = min(self._piece_bytes, saved.size_bytes - offset)
        return await self._disk.read_at(saved.file, offset, size) if size > 0 else b""

    async def chunks(self, saved: SnapshotFile) -> AsyncIterator[bytes]:
        """The state machine's chunks. Raises ``CorruptLog`` where they differ from those
        written.
        """
        buffer, offset = bytearray(), 0
        while offset < saved.size_bytes:
            piece = await self.piece(saved, offset)
            if not piece:
                raise CorruptLog(saved.file, offset, f"{saved.size_bytes} bytes expected")
            offset += len(piece)
            buffer += piece
            for chunk in _cut_off(buffer, saved.file, offset):
                yield chunk
        if buffer:
            raise CorruptLog(saved.file, offset - len(buffer), "a chunk is incomplete")

    async def delete(self, file: str) -> None:
        """Remove a file that no longer counts."""
        await self._disk.delete(file)


def _cut_off(buffer: bytearray, file: str, offset: int) -> list[bytes]:
    """Take the complete chunks off the front of ``buffer``, which ends at ``offset``."""
    found: list[bytes] = []
    start = 0
    while len(buffer) - start >= _CHUNK.size:
        length, crc = _CHUNK.unpack_from(buffer, start)
        end = start + _CHUNK.size + length
        if end > len(buffer):
            break
        chunk = bytes(buffer[start + _CHUNK.size : end])
        if zlib.crc32(chunk) != crc:
            raise CorruptLog(file, offset - len(buffer) + start, "a chunk's CRC does not match")
        found.append(chunk)
        start = end
    # Once a piece instead of once a chunk: each cut moves the rest of the buffer.
    del buffer[:start]
    return found
