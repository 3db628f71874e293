"""The real runtime: asyncio TCP, files (``disks``), the machine's clock and entropy."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn

from clusters.reference.node.runtime import (
    Connection,
    ConnectionLost,
    Disk,
    Listener,
    Network,
    Rare,
    never,
)
from clusters.reference.node.runtime.disks import FileDisk
from clusters.reference.node.wire.frames import MAX_PAYLOAD_BYTES, Decoder, FrameError, encode

# Room for two frames of the largest size; a peer that is further behind is gone for us.
SEND_QUEUE_BYTES = 2 * MAX_PAYLOAD_BYTES
# Frames received but not yet taken; beyond it the socket is not read, and TCP slows the sender.
RECEIVE_QUEUE_FRAMES = 1024

log = logging.getLogger("node.network")


class Batch:
    """The frames that leave together: those sent within the batch, and those of one turn of the
    loop.
    """

    def __init__(self) -> None:
        self._due: dict[TcpConnection, None] = {}
        self._open = 0
        self._scheduled = False

    def add(self, connection: TcpConnection) -> None:
        """``connection`` has something to send."""
        self._due[connection] = None
        if not self._open and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def __enter__(self) -> None:
        self._open += 1

    def __exit__(self, *error: object) -> None:
        self._open -= 1
        if not self._open:
            self._flush()

    def _turn(self) -> None:
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        due, self._due = self._due, {}
        for connection in due:
            connection.flush()


class TcpConnection(asyncio.Protocol):
    """A ``Connection`` over TCP. Frames that are in one ``batch`` leave in one system call."""

    def __init__(self, batch: Batch, opened: Callable[[TcpConnection], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._batch, self._opened = batch, opened
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder()
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], None] | None = None
        self._outbox: list[bytes] = []
        self._queued_bytes = 0  # to be sent, here and in the transport
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
        if not self._outbox:
            self._queued_bytes = self._transport.get_write_buffer_size()
            self._batch.add(self)
        self._outbox.append(frame)
        self._queued_bytes += len(frame)
        if self._queued_bytes > SEND_QUEUE_BYTES:
            self._fail(f"send queue over {SEND_QUEUE_BYTES} bytes")
            raise ConnectionLost(f"{self._peer}: {self._lost}")

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

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        """Call ``take`` with every frame as it comes, from within ``data_received``."""
        while self._inbox:
            take(await self.recv())
        while self._lost is None:
            self._take, self._waiter = take, self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._take = self._waiter = None
        raise ConnectionLost(f"{self._peer}: {self._lost}")

    def close(self) -> None:
        """Send the queued frames if the socket takes them at once, and drop the connection."""
        self.flush()
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
            payloads = self._decoder.feed(data)
        except FrameError as error:
            log.warning("dropping %s: %s", self._peer, error)
            self._fail(str(error))
            return
        if self._take is not None:
            self._hand_over(payloads, self._take)
            return
        self._inbox.extend(payloads)
        if self._inbox:
            self._wake()
        if len(self._inbox) > RECEIVE_QUEUE_FRAMES and not self._paused:
            self._pause_reading(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc) if exc else "closed by the other side")

    def _hand_over(self, payloads: list[bytes], take: Callable[[bytes], None]) -> None:
        try:
            with self._batch:
                for payload in payloads:
                    take(payload)
        except Exception as error:
            self._take = None
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)

    def flush(self) -> None:
        """Give the queued frames to the socket."""
        if self._outbox and self._transport is not None and self._lost is None:
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()

    def _fail(self, reason: str) -> None:
        """End the connection; the first reason counts. Unsent bytes go with it, so nothing
        lingers.
        """
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

    def __init__(self, serve: Callable[[Connection], Awaitable[None]], batch: Batch) -> None:
        self._serve, self._batch = serve, batch
        self._server: asyncio.Server | None = None
        self._open: dict[TcpConnection, asyncio.Task[None]] = {}
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Raises ``OSError`` where the port can't be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: TcpConnection(self._batch, self._accepted), host, port, reuse_address=True
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

    def __init__(self) -> None:
        self._batch = Batch()
        self.batch: AbstractContextManager[None] = self._batch

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Accept on (host, port). Raises ``OSError`` where the port can't be had."""
        listener = TcpListener(serve, self._batch)
        await listener.start(host, port)
        return listener

    async def dial(self, host: str, port: int, limit_s: float, source: str = "") -> Connection:
        """Connect within ``limit_s``, from ``source`` where it is given."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit_s):
                _, connection = await loop.create_connection(
                    lambda: TcpConnection(self._batch),
                    host,
                    port,
                    local_addr=(source, 0) if source else None,
                )
        except TimeoutError as error:
            raise ConnectionLost(f"{host}:{port}: no answer within {limit_s:g} s") from error
        except OSError as error:
            raise ConnectionLost(f"{host}:{port}: {error}") from error
        return connection


class RealRuntime:
    """The runtime of a node on a real machine."""

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
