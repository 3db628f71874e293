"""Power-loss mode: a disk that keeps what was not synced in the process's memory alone.

``kill -9`` leaves the operating system's cache as it was, so a process that forgets to sync loses
nothing by it. Behind this disk a kill does what a pulled plug does.
"""

from __future__ import annotations

from clusters.reference.node.runtime import Disk


class VolatileDisk:
    """A ``Disk`` over another one: appended bytes reach it with the next sync of their file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._unsynced: dict[str, bytearray] = {}

    async def names(self) -> tuple[str, ...]:
        """Every file, sorted."""
        return tuple(sorted({**dict.fromkeys(await self._disk.names()), **self._unsynced}))

    async def read(self, name: str) -> bytes:
        """The whole file, as this process sees it."""
        return await self._disk.read(name) + self._unsynced.get(name, b"")

    async def read_at(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of the file, as this process sees it."""
        if name not in self._unsynced:
            return await self._disk.read_at(name, offset, size_bytes)
        return (await self.read(name))[offset : offset + size_bytes]

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        """Append; durable on return with ``sync``, with all that was appended before."""
        if not sync:
            self._unsynced.setdefault(name, bytearray()).extend(data)
            return
        held = bytes(self._unsynced.pop(name, b""))
        await self._disk.append(name, held + data, sync=True)

    async def replace(self, name: str, data: bytes) -> None:
        """Write atomically and durably."""
        self._unsynced.pop(name, None)
        await self._disk.replace(name, data)

    async def truncate(self, name: str, size_bytes: int) -> None:
        """Cut, durably, with what remains of the appended."""
        await self.append(name, b"", sync=True)
        await self._disk.truncate(name, size_bytes)

    async def delete(self, name: str) -> None:
        """Remove if present, durably."""
        self._unsynced.pop(name, None)
        await self._disk.delete(name)
