"""A network in memory: connections as TCP gives them, over links with latency that can be cut.

Within a connection frames keep their order. A cut link loses no frame of an open connection, it
holds them until it is mended, as retransmission does; who waits for them sees silence. A reset
travels like a frame, so that behind a cut nobody learns of a death.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable

from clusters.reference.node.runtime import Connection, ConnectionLost, Listener
from harness.clock import substream
from harness.cluster import Grudge, Link

LATENCY_S = (0.0002, 0.002)  # of a packet one way, evenly drawn: a data centre on a busy day
RETRANSMIT_S = (0.0, 0.2)  # from a link's mending until a sender tries again
PIPE_BYTES = 32 << 20  # sent and not yet taken by the receiver; a sender further ahead is cut off

log = logging.getLogger("sim.network")


class Fabric:
    """All links, by (source, destination); every pair of hosts has one each way."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[Link, random.Random] = {}
        self._cut: frozenset[Link] = frozenset()
        self._stalled: dict[Link, dict[Pipe, None]] = {}
        self.listeners: dict[tuple[str, int], SimListener] = {}

    def passes(self, link: Link) -> bool:
        """Whether packets get through now."""
        return link not in self._cut

    def draw_s(self, link: Link, span_s: tuple[float, float]) -> float:
        """A duration within ``span_s`` from the link's own stream."""
        if link not in self._streams:
            self._streams[link] = substream(self._seed, "sim-link", *link)
        return self._streams[link].uniform(*span_s)

    def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` all that is cut; what waited on the others is sent again."""
        self._cut = frozenset(grudge)
        loop = asyncio.get_running_loop()
        for link in [link for link in self._stalled if self.passes(link)]:
            for pipe in self._stalled.pop(link):
                loop.call_later(self.draw_s(link, RETRANSMIT_S), pipe.deliver)

    def stall(self, link: Link, pipe: Pipe) -> None:
        """``pipe`` waits for ``link``."""
        self._stalled.setdefault(link, {})[pipe] = None

    async def pass_over(self, link: Link) -> None:
        """Return when a packet sent now has arrived; that is never while the link is cut."""
        arrived = asyncio.get_running_loop().create_future()
        Pipe(self, link).push(lambda: None if arrived.done() else arrived.set_result(None))
        await arrived


class Pipe:
    """One direction of one connection: what was sent arrives in order, each after a latency."""

    def __init__(self, fabric: Fabric, link: Link) -> None:
        self._fabric, self._link = fabric, link
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Callable[[], None]] = deque()
        # How many of the queue have had their latency. Counted, not compared with the clock: a
        # timer may fire a rounding error early, and then nobody would come back for its frame.
        self._arrived = 0
        self._last_due_s = 0.0

    def push(self, deliver: Callable[[], None]) -> None:
        """Send; ``deliver`` is called when it arrives."""
        due_s = self._loop.time() + self._fabric.draw_s(self._link, LATENCY_S)
        self._last_due_s = max(self._last_due_s, due_s)
        self._queue.append(deliver)
        self._loop.call_at(self._last_due_s, self._arrive)

    def _arrive(self) -> None:
        self._arrived += 1
        self.deliver()

    def deliver(self) -> None:
        """Hand over what has arrived, or wait for the link to be mended."""
        while self._arrived:
            if not self._fabric.passes(self._link):
                self._fabric.stall(self._link, self)
                return
            self._arrived -= 1
            self._queue.popleft()()


class SimConnection:
    """One end of a connection: ``clusters.reference.node.runtime.Connection``."""

    def __init__(self, fabric: Fabric, here: str, there: str) -> None:
        self._pipe = Pipe(fabric, (here, there))
        self._there = there
        self._other: SimConnection | None = None
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._unread_bytes = 0

    def join(self, other: SimConnection) -> None:
        """Make ``other`` the far end."""
        self._other, other._other = other, self

    @property
    def peer(self) -> str:
        """The other host."""
        return self._there

    def send(self, payload: bytes) -> None:
        """Queue one frame."""
        other = self._other
        if self._lost is not None or other is None:
            raise ConnectionLost(f"{self._there}: {self._lost or 'not open'}")
        if self._unread_bytes + len(payload) > PIPE_BYTES:
            self.drop(f"send queue over {PIPE_BYTES} bytes")
            raise ConnectionLost(f"{self._there}: {self._lost}")
        self._unread_bytes += len(payload)
        self._pipe.push(lambda: other._arrive(payload))

    async def recv(self) -> bytes:
        """The next frame; for one receiver at a time."""
        while not self._inbox:
            if self._lost is not None:
                raise ConnectionLost(f"{self._there}: {self._lost}")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        payload = self._inbox.popleft()
        if self._other is not None:
            self._other._unread_bytes -= len(payload)
        return payload

    def close(self) -> None:
        """Drop it now; what was sent still arrives, and then its end."""
        self.drop("closed on this side")

    def drop(self, reason: str) -> None:
        """End this side for ``reason``; the other side learns that it was closed."""
        if self._lost is None:
            other = self._other
            self._end(reason)
            if other is not None:
                self._pipe.push(lambda: other._end("closed by the other side"))

    def _arrive(self, payload: bytes) -> None:
        if self._lost is None:
            self._inbox.append(payload)
            self._wake()

    def _end(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SimListener:
    """An open port of one host."""

    def __init__(
        self, network: HostNetwork, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> None:
        self._network, self._port, self._serve = network, port, serve
        # Whoever dials runs in its own context; what serves belongs to the listening node.
        self._context = contextvars.copy_context()
        self._open: dict[SimConnection, asyncio.Task[None]] = {}

    def accept(self, connection: SimConnection) -> None:
        """Serve ``connection`` in a task of its own."""
        loop = asyncio.get_running_loop()
        context = self._context.copy()
        self._open[connection] = loop.create_task(self._run(connection), context=context)

    def close(self) -> None:
        """Stop accepting and drop every accepted connection."""
        self._network.forget(self._port, self)
        for connection in list(self._open):
            connection.close()

    async def _run(self, connection: SimConnection) -> None:
        try:
            await self._serve(connection)
        except ConnectionLost as error:
            log.debug("connection over: %s", error)
        except Exception:
            log.exception("serving %s failed", connection.peer)
        finally:
            connection.close()
            del self._open[connection]


class HostNetwork:
    """The network as one process on one host sees it: ``runtime.Network``."""

    def __init__(self, fabric: Fabric, host: str) -> None:
        self._fabric, self._host = fabric, host
        self._connections: list[SimConnection] = []
        self._dead = False

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Accept on ``port`` of this host. Raises ``OSError`` where it is taken."""
        self._check_alive()
        if host != self._host or (host, port) in self._fabric.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} can't be had on {self._host}")
        listener = SimListener(self, port, serve)
        self._fabric.listeners[(host, port)] = listener
        return listener

    async def dial(self, host: str, port: int, limit_s: float) -> Connection:
        """Connect within ``limit_s``: there and back again."""
        self._check_alive()
        try:
            async with asyncio.timeout(limit_s):
                return await self._dial(host, port)
        except TimeoutError as error:
            raise ConnectionLost(f"{host}:{port}: no answer within {limit_s:g} s") from error

    async def _dial(self, host: str, port: int) -> Connection:
        await self._fabric.pass_over((self._host, host))
        listener = self._fabric.listeners.get((host, port))
        if listener is None:
            await self._fabric.pass_over((host, self._host))
            raise ConnectionLost(f"{host}:{port}: refused")
        here = self._open(host)
        there = listener._network._open(self._host)
        here.join(there)
        listener.accept(there)
        try:
            await self._fabric.pass_over((host, self._host))
        except BaseException:
            here.close()
            raise
        return here

    def _open(self, there: str) -> SimConnection:
        self._connections = [c for c in self._connections if c._lost is None]
        self._connections.append(SimConnection(self._fabric, self._host, there))
        return self._connections[-1]

    def forget(self, port: int, listener: SimListener) -> None:
        """Free ``port`` if it is still that listener's."""
        if self._fabric.listeners.get((self._host, port)) is listener:
            del self._fabric.listeners[(self._host, port)]

    def die(self) -> None:
        """The process is gone: its ports are free, and its peers will see resets."""
        self._dead = True
        for address, listener in list(self._fabric.listeners.items()):
            if listener._network is self:
                del self._fabric.listeners[address]
        for connection in self._connections:
            connection.drop("the process was killed")

    def _check_alive(self) -> None:
        if self._dead:
            raise ConnectionLost(f"{self._host}: the process was killed")
