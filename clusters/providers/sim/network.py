"""The simulated network: connections over its links as TCP gives them, and the ports of hosts.

Connections are streams (see ``simulated_links``): a copy of a packet is thrown away, and only a
reset loses data that was sent. Within a connection frames keep their order. A cut link holds the
frames of an open connection: the receiver sees silence. A reset travels like a frame, so that no
node behind a cut learns of a death.

Only a message whose sender asks for no answer may come twice: its sender relies neither on order
nor on a single delivery, as with any transport that repeats a send of unknown outcome. The copy
comes by itself, late, behind newer messages, even by a later connection of the same two processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, Protocol

from clusters.providers.sim.loop import true_loop
from clusters.providers.sim.simulated_links import Links, Pipe, Weather, nothing
from clusters.providers.sim.trace import Row, Trace
from clusters.reference.node.runtime import Connection, ConnectionLost, Listener
from clusters.reference.node.wire.frames import check_size
from harness.clock import substream
from harness.protocols.cluster import Link

COPY_LATE_S = (0.0, 1.0)  # how much later the copy of a message comes: most of an election
PIPE_BYTES = 32 << 20  # sent and not yet taken by the receiver; a sender further ahead is cut off
log = logging.getLogger("sim.network")


class Watcher(Protocol):
    """Is told of every frame that is sent, on the connection of that number, and of its ends."""

    def sent(self, link: Link, connection: int, payload: bytes) -> None:
        """``payload`` leaves for the far end of ``link``."""

    def ended(self, link: Link, connection: int) -> None:
        """The program at the near end of ``link`` can see now that the connection is over."""


class Gate(Protocol):
    """Sees every frame, and may stop it."""

    @property
    def idle(self) -> bool:
        """Whether it lets everything pass now."""

    def sending(self, connection: SimConnection, payload: bytes) -> bytes | None:
        """Return what of ``payload`` goes on from this end of ``connection``."""

    def receiving(self, connection: SimConnection, payload: bytes) -> bool:
        """Return whether ``payload`` comes to the program at this end of ``connection``."""


class Fabric:
    """The network of one simulation: its links, its ports, and the connections that are open."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        self._seed, self.links = seed, Links(seed, weather or Weather())
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.open: dict[SimConnection, None] = {}
        self.trace: Trace | None = None
        self.watcher: Watcher | None = None
        self.connections = 0  # that were made: each has a number
        self.gate: Gate | None = None
        self.arrivals: Callable[[Link, bytes], None] | None = None
        """Is told of every frame that comes to a program, and the way it took."""
        self._copies = substream(seed, "sim-copies")
        self.repeatable: Callable[[bytes], bool] = lambda payload: False
        """Whether a message may come twice."""

    def copy_after_s(self, payload: bytes) -> float | None:
        """How much later a copy of a message sent now comes, ``None`` where there is none."""
        share = self.links.weather.duplicate
        # The draw before the question: which messages may repeat must not shift the others' draws.
        if not share or self._copies.random() >= share or not self.repeatable(payload):
            return None
        return self._copies.uniform(*COPY_LATE_S)

    async def break_connections(self) -> None:
        """Reset open connections at the weather's rate, until cancelled. Only connections whose
        ends can both hear of it: a reset is a packet, too.
        """
        stream = substream(self._seed, "sim-resets")
        while self.links.weather.resets_per_s > 0:
            await asyncio.sleep(stream.expovariate(self.links.weather.resets_per_s))
            # In the order of opening: a choice from a set would differ between two processes.
            if heard := [one for one in self.open if self.links.passes_both_ways(one.link)]:
                stream.choice(heard).reset()


class SimConnection:
    """One end of a connection: ``clusters.reference.node.runtime.Connection``."""

    def __init__(self, fabric: Fabric, home: HostNetwork, there: str, *, dialed: bool) -> None:
        """``home``: of the process at this end; ``dialed``: by it."""
        here = home.host
        self._fabric, self._link = fabric, (here, there)
        self.home, self.dialed = home, dialed
        self._greeted = False
        self._links = fabric.links
        self._pipe = Pipe(fabric.links, self._link)
        self._there = there
        self._other: SimConnection | None = None
        self._inbox: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._unread_bytes = 0
        self._number = 0
        fabric.open[self] = None

    def join(self, other: SimConnection) -> None:
        """Make ``other`` the far end."""
        self._other, other._other = other, self
        self._fabric.connections += 1
        self._number = other._number = self._fabric.connections

    @property
    def alive(self) -> bool:
        """Whether this end takes frames."""
        return self._lost is None

    @property
    def link(self) -> Link:
        """From here to there."""
        return self._link

    @property
    def peer(self) -> str:
        """The other host."""
        return self._there

    def send(self, payload: bytes) -> None:
        """Queue one frame. Raises ``FrameError`` for one that a real network would not take."""
        check_size(payload)
        other = self._other
        if self._lost is not None or other is None:
            raise ConnectionLost(f"{self._there}: {self._lost or 'not open'}")
        if self._unread_bytes + len(payload) > PIPE_BYTES:
            self.drop(f"send queue over {PIPE_BYTES} bytes")
            raise ConnectionLost(f"{self._there}: {self._lost}")
        kept: bytes | None = payload
        if (gate := self._fabric.gate) is not None and not gate.idle:
            kept = gate.sending(self, payload)
            if self._lost is not None:
                raise ConnectionLost(f"{self._there}: {self._lost}")
        if self._fabric.watcher is not None:
            # Of all that its sender let go, whatever becomes of it on its way.
            self._fabric.watcher.sent(self._link, self._number, payload)
        if kept is None:
            return
        payload = kept
        self._unread_bytes += len(payload)
        if (trace := self._fabric.trace) is None:
            self._pipe.push(partial(other._arrive, payload))
        else:
            number = trace.sent(self._link, true_loop().true_time(), payload)
            self._pipe.push(partial(other._arrive_traced, payload, trace, number))
        if not self._links.weather.duplicate:
            return
        if (after_s := self._fabric.copy_after_s(payload)) is not None:
            true_loop().call_truly(
                self._links.latency_s(self._link) + after_s,
                partial(self._copied, payload, other.home, true_loop().true_time()),
            )

    async def recv(self) -> bytes:
        """The next frame; for one receiver at a time."""
        while not self._inbox:
            await self._more()
        return self._next()

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        """Call ``take`` with every frame."""
        while True:
            # What is there needs no coroutine of its own: most frames of a run pass here.
            while not self._inbox:
                await self._more()
            take(self._next())

    async def _more(self) -> None:
        """Return once something came. Raises ``ConnectionLost`` where nothing will."""
        if self._lost is not None:
            raise ConnectionLost(f"{self._there}: {self._lost}")
        self._waiter = self._pipe.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _next(self) -> bytes:
        payload = self._inbox.popleft()
        self._greeted = True
        if self._other is not None:
            self._other._unread_bytes -= len(payload)
        return payload

    def close(self) -> None:
        """Drop it now; frames that were sent still arrive, and then its end."""
        self.drop("closed on this side")

    def drop(self, reason: str) -> None:
        """End this side for ``reason``; the other side learns that it was closed."""
        if self._lost is None:
            other = self._other
            self._end(reason)
            if other is not None:
                self._pipe.push(lambda: other._end("closed by the other side"))

    def reset(self) -> None:
        """Break the connection: both ends lose it now, and the frames under way with it."""
        for end in (self, self._other):
            if end is not None:
                end._end("reset")
        if trace := self._fabric.trace:
            at_s = true_loop().true_time()
            here, there = self._link
            trace.add(Row(at_s=at_s, from_s=at_s, node=here, to=there, did="reset"))

    def mark(self) -> None:
        """The process at this end has come to a moment (``node.moments``)."""
        self._pipe.mark()

    def die(self) -> None:
        """The process at this end is killed: what it sent arrives, and then its end."""
        self._pipe.unsend()
        self.drop("the process was killed")

    def vanish(self) -> None:
        """This end is gone, and the other end is not told."""
        self._end("the machine is gone")
        self._pipe.drop()

    def refuse(self) -> None:
        """The machine of this end is back and knows nothing of the connection: a reset."""
        other = self._other
        if other is not None and other.alive:
            Pipe(self._links, self._link).push(lambda: other._end("reset"))

    def leads(self, to: HostNetwork, *, dialed: bool) -> bool:
        """Whether frames sent here now reach the process of ``to``, past introductions."""
        other = self._other
        known = other is not None and other.home is to and other._greeted
        return known and self.alive and self.dialed == dialed

    def by_itself(self, payload: bytes) -> Callable[[], None]:
        """The delivery of a message apart from the others of this connection, as a datagram comes,
        to the process that is at the other end now.
        """
        if self._other is None:
            return nothing
        return partial(self._copied, payload, self._other.home, true_loop().true_time())

    def block(self) -> None:
        """Hold what is sent from now on, in its order, until ``unblock``."""
        self._pipe.block()

    def unblock(self) -> None:
        """Let go what ``block`` holds. Idempotent."""
        self._pipe.unblock()

    def _copied(self, payload: bytes, to: HostNetwork, sent_s: float) -> None:
        """The copy of a message to the process of ``to`` comes, if a way still leads there."""
        way = self.home.way(to, dialed=self.dialed)
        if way is None or way._other is None or not self._links.passes(self._link):
            return
        way._unread_bytes += len(payload)
        way._other._arrive(payload)
        if self._fabric.trace is not None:
            at_s = true_loop().true_time()
            self._fabric.trace.message("copy", self._link, sent_s, at_s, payload)

    def _arrive(self, payload: bytes) -> None:
        if self._lost is not None:
            return
        gate = self._fabric.gate
        if gate is not None and not gate.idle and not gate.receiving(self, payload):
            return
        # The gate may have ended the program here.
        if self._lost is None:
            if (arrivals := self._fabric.arrivals) is not None:
                arrivals((self._there, self._link[0]), payload)
            self._inbox.append(payload)
            if self._waiter is not None:
                self._wake()

    def _arrive_traced(self, payload: bytes, trace: Trace, number: int) -> None:
        trace.came(number, lost=self._lost is not None, at_s=true_loop().true_time())
        self._arrive(payload)

    def _end(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            self._fabric.open.pop(self, None)
            if self._fabric.watcher is not None:
                self._fabric.watcher.ended(self._link, self._number)
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
        # The dialer runs in its own context; the serving task belongs to the listening node.
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
        self._fabric, self.host = fabric, host
        self._connections: list[SimConnection] = []
        self._dead = False
        # Frames travel one by one.
        self.batch: contextlib.AbstractContextManager[None] = contextlib.nullcontext()

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Accept on ``port`` of this host. Raises ``OSError`` where it is taken."""
        self._check_alive()
        if host != self.host or (host, port) in self._fabric.listeners:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} can't be had on {self.host}")
        listener = SimListener(self, port, serve)
        self._fabric.listeners[(host, port)] = listener
        return listener

    async def dial(self, host: str, port: int, limit_s: float, source: str = "") -> Connection:
        """Connect within ``limit_s``: there and back again. A machine has one address here."""
        self._check_alive()
        try:
            async with asyncio.timeout(limit_s):
                return await self._dial(host, port)
        except TimeoutError as error:
            raise ConnectionLost(f"{host}:{port}: no answer within {limit_s:g} s") from error

    async def _dial(self, host: str, port: int) -> Connection:
        await self._fabric.links.pass_over((self.host, host))
        listener = self._fabric.listeners.get((host, port))
        if listener is None:
            await self._fabric.links.pass_over((host, self.host))
            raise ConnectionLost(f"{host}:{port}: refused")
        here = self._open(host, dialed=True)
        there = listener._network._open(self.host, dialed=False)
        here.join(there)
        listener.accept(there)
        try:
            await self._fabric.links.pass_over((host, self.host))
        # Given up: the far end must not go on serving a connection without a dialer.
        except BaseException:
            here.close()
            raise
        return here

    def _open(self, there: str, *, dialed: bool) -> SimConnection:
        self._connections = [c for c in self._connections if c._lost is None]
        self._connections.append(SimConnection(self._fabric, self, there, dialed=dialed))
        return self._connections[-1]

    def way(self, to: HostNetwork, *, dialed: bool) -> SimConnection | None:
        """The newest connection that leads to the process of ``to``, ``dialed`` here or there."""
        ways = (one for one in reversed(self._connections) if one.leads(to, dialed=dialed))
        return next(ways, None)

    def forget(self, port: int, listener: SimListener) -> None:
        """Free ``port`` if it is still that listener's."""
        if self._fabric.listeners.get((self.host, port)) is listener:
            del self._fabric.listeners[(self.host, port)]

    def die(self) -> None:
        """The process is gone: its ports are free, and its peers will see resets."""
        self._leave()
        for connection in self._connections:
            connection.die()

    def mark(self) -> None:
        """The process has come to a moment (``node.moments``)."""
        for connection in self._connections:
            connection.mark()

    def vanish(self) -> None:
        """The machine is gone, and no peer is told."""
        self._leave()
        for connection in self._connections:
            connection.vanish()

    def refuse_old(self) -> None:
        """The machine is back: every peer that still holds a connection to its former processes
        gets a reset.
        """
        for connection in self._connections:
            connection.refuse()

    def _leave(self) -> None:
        self._dead = True
        for address, listener in list(self._fabric.listeners.items()):
            if listener._network is self:
                del self._fabric.listeners[address]

    def _check_alive(self) -> None:
        if self._dead:
            raise ConnectionLost(f"{self.host}: the process was killed")
