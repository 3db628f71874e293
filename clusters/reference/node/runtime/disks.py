"""Files of the real runtime: one directory, one thread for blocking calls; and power-loss mode.

``kill -9`` leaves the operating system's cache as it was, so a process that forgets to sync loses
nothing by it. Behind a ``VolatileDisk`` a kill has the effect of a pulled plug.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from clusters.reference.node.runtime import Disk, DiskError

MAX_OPEN_FILES = 16  # appended to at the same time: the log, and a few snapshots

T = TypeVar("T")


class DiskThread:
    """Runs one call after the other. A commit waits for several of these in turn, so the way there
    and back is short: a ``ThreadPoolExecutor`` takes three times the CPU of the sync itself.
    """

    def __init__(self) -> None:
        self._primaries: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._thread.start()

    async def run(self, call: Callable[[], T]) -> T:
        """The result of ``call``, or its error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if done.done():  # the caller was cancelled
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # then there is a result
            else:
                done.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = call()
            except Exception as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        self._primaries.put(work)
        return await done

    def close(self) -> None:
        """Finish the queued calls."""
        self._primaries.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (call := self._primaries.get()) is not None:
            call()


class FileDisk:
    """A directory that belongs to one node at a time; ``OSError`` becomes ``DiskError``."""

    def __init__(self, directory: Path) -> None:
        """Make the directory if absent and lock it. Raises ``DiskError``."""
        self._directory = directory
        self._unsynced_names: dict[str, None] = {}  # files whose name may not be durable yet
        self._unsynced: dict[str, None] = {}  # files with bytes that were not synced
        self._open: dict[str, int] = {}  # files being appended to, least recently used first
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DiskError(f"{directory}: another node runs in this directory") from error
        except OSError as error:
            raise DiskError(f"{directory}: {error.strerror}") from error
        self._thread = DiskThread()

    def close(self) -> None:
        """Finish the queued calls and let the directory go."""
        self._thread.close()
        for name in list(self._open):
            self._forget(name)
        os.close(self._lock_fd)

    async def names(self) -> tuple[str, ...]:
        """Every file, sorted; hidden ones (the lock, unfinished replacements) excluded."""
        return await self._run("list", "", lambda: self._names())

    async def read(self, name: str) -> bytes:
        """The whole file; empty if absent."""
        return await self._run("read", name, lambda: self._read(name))

    async def read_at(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of the file."""
        return await self._run("read", name, lambda: self._read_at(name, offset, size_bytes))

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        """Append; durable on return with ``sync``."""
        await self._run("append to", name, lambda: self._append(name, data, sync))

    async def replace(self, name: str, data: bytes) -> None:
        """Write atomically and durably."""
        await self._run("replace", name, lambda: self._replace(name, data))

    async def truncate(self, name: str, size_bytes: int) -> None:
        """Cut, durably."""
        await self._run("truncate", name, lambda: self._truncate(name, size_bytes))

    async def delete(self, name: str) -> None:
        """Remove if present, durably."""
        await self._run("delete", name, lambda: self._delete(name))

    async def _run(self, verb: str, name: str, call: Callable[[], T]) -> T:
        if "/" in name or name.startswith("."):
            raise DiskError(f"{name!r} is not a flat, visible file name")
        try:
            return await self._thread.run(call)
        except OSError as error:
            path = self._directory / name
            raise DiskError(f"cannot {verb} {path}: {error.strerror or error}") from error

    # On the disk thread.

    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(p.name for p in self._directory.iterdir() if p.name[0] != "."))

    def _read(self, name: str) -> bytes:
        path = self._directory / name
        return path.read_bytes() if path.exists() else b""

    def _read_at(self, name: str, offset: int, size_bytes: int) -> bytes:
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(offset)
                return file.read(size_bytes)
        except FileNotFoundError:
            return b""

    def _append(self, name: str, data: bytes, sync: bool) -> None:
        opened = name not in self._open
        fd = self._open_append(name)
        if not sync:
            _write(fd, data)
            self._unsynced[name] = None
        elif opened or name in self._unsynced:
            # Of a file that was just opened it is not known what is durable.
            _write(fd, data)
            os.fdatasync(fd)
            self._unsynced.pop(name, None)
        else:
            _write_synced(fd, data)
        if sync:
            if opened or name in self._unsynced_names:
                # Not only when it is new: its maker may have been killed before this.
                self._sync_directory()
                self._unsynced_names.pop(name, None)
        elif opened:
            self._unsynced_names[name] = None

    def _open_append(self, name: str) -> int:
        fd = self._open.pop(name, -1)
        if fd < 0:
            if len(self._open) >= MAX_OPEN_FILES:
                self._forget(next(iter(self._open)))
            fd = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._open[name] = fd
        return fd

    def _forget(self, name: str) -> None:
        fd = self._open.pop(name, -1)
        if fd >= 0:
            os.close(fd)

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self._directory / f".{name}.new"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._directory / name)
        self._sync_directory()

    def _truncate(self, name: str, size_bytes: int) -> None:
        with (self._directory / name).open("r+b") as file:
            file.truncate(size_bytes)
            os.fsync(file.fileno())

    def _delete(self, name: str) -> None:
        self._forget(name)
        self._unsynced_names.pop(name, None)
        self._unsynced.pop(name, None)
        (self._directory / name).unlink(missing_ok=True)
        self._sync_directory()

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_synced(fd: int, data: bytes) -> None:
    """Append ``data`` durably, in one system call where the kernel takes all of it: each call
    releases the interpreter's lock, and has to wait to get it back.
    """
    view = memoryview(data)
    while view:
        # The file is open for appending, so the offset does not count.
        view = view[os.pwritev(fd, [view], 0, os.RWF_DSYNC) :]


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
        """Cut, durably, together with the appended bytes that remain."""
        await self.append(name, b"", sync=True)
        await self._disk.truncate(name, size_bytes)

    async def delete(self, name: str) -> None:
        """Remove if present, durably."""
        self._unsynced.pop(name, None)
        await self._disk.delete(name)
