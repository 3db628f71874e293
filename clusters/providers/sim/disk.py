"""A disk in memory that keeps what was synced, and of the rest a piece, as a power loss does.

That is harsher than ``kill -9``, which leaves the operating system's cache alone: a node that
acknowledges before it syncs is found out here, not only by pulling a plug.
"""

from __future__ import annotations

import asyncio
import random

from clusters.reference.node.runtime import DiskError

CALL_S = (0.00002, 0.0001)  # a call that needs no sync
SYNC_S = (0.0003, 0.003)  # a sync: a good drive, now and then a busy one


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable_bytes = len(data)


class Platter:
    """What a machine's disk holds; outlives the processes on it."""

    def __init__(self, stream: random.Random) -> None:
        """``stream`` decides durations and what a crash leaves."""
        self.files: dict[str, _File] = {}
        self.stream = stream
        self.turn = asyncio.Lock()

    def crash(self) -> None:
        """Lose what was not synced: of each file's tail some prefix, maybe all, maybe none stays.

        A new turn, too: whoever held the old one is gone.
        """
        for name, file in sorted(self.files.items()):
            unsynced = len(file.data) - file.durable_bytes
            del file.data[file.durable_bytes + self.stream.randint(0, unsynced) :]
            file.durable_bytes = len(file.data)
            if not file.data:
                del self.files[name]
        self.turn = asyncio.Lock()


class SimDisk:
    """A process's hold on its machine's disk: ``clusters.reference.node.runtime.Disk``."""

    def __init__(self, platter: Platter) -> None:
        self._platter = platter
        self._dead = False

    def die(self) -> None:
        """The process is gone; nothing more of it reaches the disk."""
        self._dead = True

    async def names(self) -> tuple[str, ...]:
        """Every file, sorted."""
        await self._spend(CALL_S)
        return tuple(sorted(self._platter.files))

    async def read(self, name: str) -> bytes:
        """The whole file; empty if absent."""
        await self._spend(CALL_S)
        file = self._platter.files.get(name)
        return bytes(file.data) if file else b""

    async def read_at(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of the file."""
        await self._spend(CALL_S)
        file = self._platter.files.get(name)
        return bytes(file.data[offset : offset + size_bytes]) if file else b""

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        """Append; durable on return with ``sync``."""
        async with self._platter.turn:
            self._check_alive()
            file = self._platter.files.setdefault(name, _File())
            file.data += data
            await self._pass(SYNC_S if sync else CALL_S)
            if sync:
                file.durable_bytes = len(file.data)

    async def replace(self, name: str, data: bytes) -> None:
        """Write atomically and durably."""
        await self._spend(SYNC_S)
        self._platter.files[name] = _File(data)

    async def truncate(self, name: str, size_bytes: int) -> None:
        """Cut, durably. Raises ``DiskError`` where there is no such file."""
        await self._spend(SYNC_S)
        if name not in self._platter.files:
            raise DiskError(f"cannot truncate {name}: no such file")
        file = self._platter.files[name]
        del file.data[size_bytes:]
        file.durable_bytes = len(file.data)

    async def delete(self, name: str) -> None:
        """Remove if present, durably."""
        await self._spend(SYNC_S)
        self._platter.files.pop(name, None)

    async def _spend(self, span_s: tuple[float, float]) -> None:
        """Take a turn at the disk and the time that a call needs."""
        async with self._platter.turn:
            self._check_alive()
            await self._pass(span_s)

    async def _pass(self, span_s: tuple[float, float]) -> None:
        await asyncio.sleep(self._platter.stream.uniform(*span_s))
        self._check_alive()

    def _check_alive(self) -> None:
        if self._dead:
            raise DiskError("the process was killed")
