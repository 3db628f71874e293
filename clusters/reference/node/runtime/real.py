"""The real runtime: asyncio TCP, files behind one disk thread, the machine's clock and entropy."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from clusters.reference.node.runtime import (
    Connection,
    ConnectionLost,
    Disk,
    DiskError,
    Listener,
    Network,
)
from clusters.reference.node.runtime.rare import Rare, never
from clusters.reference.node.wire.frames import MAX_PAYLOAD_BYTES, Decoder, FrameError, encode

# Room for two frames of the largest size; a peer that is further behind is gone for us.
SEND_QUEUE_BYTES = 2 * MAX_PAYLOAD_BYTES
# Frames received but not yet taken; beyond it the socket is not read, and TCP slows the sender.
RECEIVE_QUEUE_FRAMES = 1024
MAX_OPEN_FILES = 16  # appended to at the same time: the log, and a few snapshots

T = TypeVar("T")
log = logging.getLogger("node.network")


class TcpConnection(asyncio.Protocol):
    """A ``Connection`` over TCP. Frames sent in one turn of the loop leave in one system call."""

    def __init__(self, opened: Callable[[TcpConnection], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder()
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._lost: str | None = None
        self._paused = False
        self._peer = "?"

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return self._peer

    def send(self, payload: bytes) -> None:
        """Queue one frame."""
        if self._transport is None or self._lost is not None:
            raise ConnectionLost(f"{self._peer}: {self._lost or 'not open'}")
        frame = encode(payload)
        queued = self._outbox_bytes + self._transport.get_write_buffer_size()
        if queued + len(frame) > SEND_QUEUE_BYTES:
            self._fail(f"send queue over {SEND_QUEUE_BYTES} bytes")
            raise ConnectionLost(f"{self._peer}: {self._lost}")
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)

    async def recv(self) -> bytes:
        """The next payload; for one receiver at a time."""
        while not self._inbox:
            if self._lost is not None:
                raise ConnectionLost(f"{self._peer}: {self._lost}")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        payload = self._inbox.popleft()
        if self._paused and len(self._inbox) < RECEIVE_QUEUE_FRAMES // 2:
            self._pause_reading(False)
        return payload

    def close(self) -> None:
        """Send what is queued if the socket takes it at once, and drop the connection."""
        self._flush()
        self._fail("closed on this side")

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # TCP transports are Transports
        name = transport.get_extra_info("peername")
        self._peer = f"{name[0]}:{name[1]}" if name else "?"
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._inbox.extend(self._decoder.feed(data))
        except FrameError as error:
            log.warning("dropping %s: %s", self._peer, error)
            self._fail(str(error))
            return
        if self._inbox:
            self._wake()
        if len(self._inbox) > RECEIVE_QUEUE_FRAMES and not self._paused:
            self._pause_reading(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "closed by the other side")

    def _flush(self) -> None:
        if self._outbox and self._transport is not None and self._lost is None:
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()
        self._outbox_bytes = 0

    def _fail(self, reason: str) -> None:
        """Over, the first reason counts. Unsent bytes go with it, so nothing lingers."""
        if self._lost is None:
            self._lost = reason
            self._outbox.clear()
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._transport.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause_reading(self, pause: bool) -> None:
        self._paused = pause
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if pause else self._transport.resume_reading)()


class TcpListener:
    """An open port; ``port`` is the real one where 0 was asked for."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._open: dict[TcpConnection, asyncio.Task[None]] = {}
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Raises ``OSError`` where the port can't be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: TcpConnection(self._accepted), host, port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop accepting and drop every accepted connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()

    def _accepted(self, connection: TcpConnection) -> None:
        self._open[connection] = asyncio.get_running_loop().create_task(self._run(connection))

    async def _run(self, connection: TcpConnection) -> None:
        try:
            await self._serve(connection)
        except ConnectionLost as error:
            log.debug("connection over: %s", error)
        except Exception:
            log.exception("serving %s failed", connection.peer)
        finally:
            connection.close()
            del self._open[connection]


class TcpNetwork:
    """Dial and listen over TCP."""

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Accept on (host, port). Raises ``OSError`` where the port can't be had."""
        listener = TcpListener(serve)
        await listener.start(host, port)
        return listener

    async def dial(self, host: str, port: int, limit_s: float) -> Connection:
        """Connect within ``limit_s``."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit_s):
                _, connection = await loop.create_connection(TcpConnection, host, port)
        except TimeoutError as error:
            raise ConnectionLost(f"{host}:{port}: no answer within {limit_s:g} s") from error
        except OSError as error:
            raise ConnectionLost(f"{host}:{port}: {error}") from error
        return connection


class FileDisk:
    """A directory that belongs to one node at a time; ``OSError`` becomes ``DiskError``."""

    def __init__(self, directory: Path) -> None:
        """Make the directory if absent and lock it. Raises ``DiskError``."""
        self._directory = directory
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self._unsynced_names: dict[str, None] = {}  # files whose name may not be durable yet
        self._open: dict[str, int] = {}  # files being appended to, least recently used first
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DiskError(f"{directory}: another node runs in this directory") from error
        except OSError as error:
            raise DiskError(f"{directory}: {error.strerror}") from error

    def close(self) -> None:
        """Finish what is queued and let the directory go."""
        self._thread.shutdown()
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
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
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
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fdatasync(fd)
            if opened or name in self._unsynced_names:
                # Not only when it is new: whoever made it may have been killed before this.
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
        (self._directory / name).unlink(missing_ok=True)
        self._sync_directory()

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class RealRuntime:
    """What a node on a real machine is handed."""

    def __init__(self, directory: Path) -> None:
        """Raises ``DiskError`` where the directory can't be had."""
        self.random = random.Random(os.urandom(16))
        self.boot = f"{self.random.getrandbits(64):016x}"
        self.network: Network = TcpNetwork()
        self._files = FileDisk(directory)
        self.disk: Disk = self._files
        self.rare: Rare = never

    def wall_ns(self) -> int:
        """The machine's wall clock."""
        return time.time_ns()

    def close(self) -> None:
        """Finish the disk's work and let the directory go."""
        self._files.close()
