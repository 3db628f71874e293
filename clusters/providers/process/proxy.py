"""The network of a cluster of local processes: every link between two nodes passes through here.

For each ordered pair of nodes and each port between nodes there is one listener that the first
dials to reach the second, so that the controller knows both ends of every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Mapping

from clusters.providers.process.link_lanes import Lane, Splice, reset_on_close
from harness.errors import HarnessError, UsageError
from harness.protocols.cluster import Address, Grudge, Link, LinkQuality
from harness.tasks import together

LOOPBACK = "127.0.0.1"
# Enough for a burst of dials while the controller is busy.
_BACKLOG = 64
# Per link and port. A store keeps a handful; a node that leaks them meets a limit, not our files'.
CONNECTIONS_LIMIT = 128
# On loopback the kernel answers at once, unless the node is paused and its own backlog is full.
_DIAL_LIMIT_S = 10.0
_REST_S = 0.2
# A byte through two sockets of this process takes less than a millisecond; a busy loop, longer.
_PROBE_LIMIT_S = 1.0
_ROUND_TRIPS = 3  # the shortest counts: a busy loop makes any of them longer, none shorter
_PROBES_AT_ONCE = 256  # four descriptors each
_PROBE = b"firedrill"


class LinkProxy:
    """The listener that ``source`` dials to reach one port of ``destination``.

    While either direction is cut a handshake can't complete. The listener then takes no connection
    and keeps the shortest backlog there is, so that the kernel drops every packet that does not fit
    into it: dialers hang and retry as they would where packets vanish. Linux always queues one
    connection more; it is established, and silent, until the cut ends.
    """

    def __init__(
        self,
        there: Lane,
        back: Lane,
        destination: Address,
        listener: socket.socket | None = None,
    ) -> None:
        """``listener``: one that exists already, taken over from another process."""
        self._there, self._back, self._destination = there, back, destination
        self._loop = asyncio.get_running_loop()
        self._splices: dict[Splice, None] = {}
        self._dials: dict[asyncio.Task[None], None] = {}
        self._accepting = False
        self._listener = listener or socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.address = Address(host=LOOPBACK, port=self._listener.getsockname()[1])
        there.tell(self._update)
        back.tell(self._update)
        self._update()

    @property
    def listens(self) -> int:
        """The descriptor of its listener."""
        return self._listener.fileno()

    @property
    def destination(self) -> Address:
        """Where connections lead."""
        return self._destination

    @property
    def connections(self) -> int:
        """How many there are, those on their way included."""
        return len(self._splices) + len(self._dials)

    def close(self) -> None:
        """Stop listening and reset every connection."""
        self._there.untell(self._update)
        self._back.untell(self._update)
        if self._accepting:
            self._loop.remove_reader(self._listener)
        self._listener.close()
        for dial in tuple(self._dials):
            dial.cancel()
        for splice in tuple(self._splices):
            splice.close()

    def _update(self) -> None:
        """Accept exactly while a handshake could complete and there is room."""
        # Closed meanwhile: the lanes tell of changes until the last.
        if self._listener.fileno() < 0:
            return
        wanted = not (self._there.cut or self._back.cut) and self.connections < CONNECTIONS_LIMIT
        if wanted == self._accepting:
            return
        self._accepting = wanted
        self._listener.listen(_BACKLOG if wanted else 0)
        if wanted:
            self._loop.add_reader(self._listener, self._accept)
        else:
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the dialer gave up meanwhile
        except OSError:
            # No descriptors left: the dialer waits in the queue, and so do we, instead of spinning.
            self._rest()
            return
        accepted.setblocking(False)
        dial = self._loop.create_task(self._join(accepted))
        self._dials[dial] = None
        dial.add_done_callback(self._dialed)
        self._update()

    def _rest(self) -> None:
        """Accept nothing for a moment."""
        self._accepting = False
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_REST_S, self._update)

    def _dialed(self, dial: asyncio.Task[None]) -> None:
        self._dials.pop(dial, None)
        self._update()

    async def _join(self, accepted: socket.socket) -> None:
        """Dial the destination and splice; where it refuses, the dialer sees a reset."""
        splice = Splice(self._there, self._back, self._gone)
        self._splices[splice] = None
        try:
            async with asyncio.timeout(_DIAL_LIMIT_S):
                await self._loop.create_connection(
                    lambda: splice.right, self._destination.host, self._destination.port
                )
                # The dialer's side last: its bytes stay in the kernel until there is a way on.
                await self._loop.connect_accepted_socket(lambda: splice.left, accepted)
        except (OSError, TimeoutError):
            splice.close()
        finally:
            if splice.left.transport is None:
                splice.close()
                # An orderly end would say that somebody listened and had nothing to say.
                reset_on_close(accepted)
                accepted.close()

    def _gone(self, splice: Splice) -> None:
        self._splices.pop(splice, None)
        self._update()


class Mesh:
    """Every link between ``nodes``. Made on the running loop, used only there."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        links = [(a, b) for a in nodes for b in nodes if a != b]
        self._lanes: dict[Link, Lane] = {link: Lane() for link in links}
        self._proxies: list[LinkProxy] = []
        self._probing = asyncio.Semaphore(_PROBES_AT_ONCE)

    def serve(
        self, ports: Iterable[str], bind: Mapping[str, Mapping[str, Address]]
    ) -> dict[Link, dict[str, Address]]:
        """Open a listener per link and port; ``[(a, b)][port]`` is where ``a`` reaches ``b``.

        Raises ``HarnessError`` where the machine has no more sockets.
        """
        names = tuple(ports)
        peer: dict[Link, dict[str, Address]] = {}
        for (source, destination), lane in self._lanes.items():
            peer[source, destination] = {}
            for port in names:
                proxy = self._open(lane, (destination, source), bind[destination][port])
                peer[source, destination][port] = proxy.address
        return peer

    def _open(self, there: Lane, back: Link, destination: Address) -> LinkProxy:
        try:
            proxy = LinkProxy(there, self._lanes[back], destination)
        except OSError as error:
            raise HarnessError(f"no listener for {destination}: {error.strerror}") from error
        self._proxies.append(proxy)
        return proxy

    @property
    def proxies(self) -> tuple[LinkProxy, ...]:
        """Every listener with where it leads."""
        return tuple(self._proxies)

    def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` the whole set of cut links. Raises ``UsageError`` for a link that is
        not.
        """
        # Before any lane changes: a link that is not must not leave half a cut behind.
        for link in grudge:
            self._lane(link)
        wanted = frozenset(grudge)
        for link, lane in self._lanes.items():
            lane.change(cut=link in wanted)

    def delay(self, delays_s: Mapping[Link, float]) -> None:
        """Make ``delays_s`` the whole set of delayed links."""
        for link, delay_s in delays_s.items():
            self._lane(link)
            if delay_s < 0:
                raise UsageError(f"link {link}: needs a delay of at least 0 (got {delay_s:g} s)")
        for link, lane in self._lanes.items():
            lane.delay(delays_s.get(link, 0.0))

    async def measure(self, links: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """How long some bytes take over each link and back, through connections of their own. A
        stream loses nothing: a link that is cut either way counts as one that loses everything.
        """

        async def one(link: Link) -> LinkQuality:
            there, back = self._lane(link), self._lane((link[1], link[0]))
            tries = []
            for _ in range(_ROUND_TRIPS):
                async with self._probing:
                    tries.append(await _round_trip(there, back))
            answered = [seconds for seconds in tries if seconds is not None]
            return LinkQuality(
                loss=1 - len(answered) / _ROUND_TRIPS, round_trip_s=min(answered, default=None)
            )

        return dict(zip(links, await together(map(one, links)), strict=True))

    async def probe(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        """Whether bytes sent over each link arrive: some are sent, through a connection of its own
        that is spliced as those of the nodes are. One direction needs no answer of the other.

        Silence proves a cut only where bytes would have come through otherwise: a link that is
        never cut is tried beside the others. Raises ``HarnessError`` where that one is silent too.
        """
        # The control: without it a busy loop would look like a cut.
        tried = ((Lane(), Lane()), *((self._lane((a, b)), self._lane((b, a))) for a, b in links))
        control, *passed = await together(self._probe(there, back) for there, back in tried)
        if not control:
            raise HarnessError(
                f"links can't be probed: nothing arrives within {_PROBE_LIMIT_S:g} s even uncut"
            )
        return dict(zip(links, passed, strict=True))

    async def _probe(self, there: Lane, back: Lane) -> bool:
        async with self._probing:
            return await _passes(there, back)

    def close(self) -> None:
        """End every connection and listener. Idempotent."""
        while self._proxies:
            self._proxies.pop().close()

    def _lane(self, link: Link) -> Lane:
        if link not in self._lanes:
            raise UsageError(f"link {link[0]} to {link[1]}: there is no such link")
        return self._lanes[link]


async def _passes(there: Lane, back: Lane) -> bool:
    """Whether a few bytes get from one end to the other in time."""
    loop = asyncio.get_running_loop()
    async with _joined(there, back) as (sender, receiver):
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_PROBE_LIMIT_S + there.delay_s):
                await loop.sock_sendall(sender, _PROBE)
                return bool(await loop.sock_recv(receiver, len(_PROBE)))
    return False


async def _round_trip(there: Lane, back: Lane) -> float | None:
    """Seconds that a few bytes take from one end to the other and back; ``None`` if in vain."""
    loop = asyncio.get_running_loop()
    async with _joined(there, back) as (sender, receiver):
        began_s = loop.time()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_PROBE_LIMIT_S + there.delay_s + back.delay_s):
                await loop.sock_sendall(sender, _PROBE)
                await loop.sock_sendall(receiver, await loop.sock_recv(receiver, len(_PROBE)))
                if await loop.sock_recv(sender, len(_PROBE)):
                    return loop.time() - began_s
    return None


@contextlib.asynccontextmanager
async def _joined(there: Lane, back: Lane) -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection that is spliced under these lanes."""
    loop = asyncio.get_running_loop()
    sender, left = socket.socketpair()
    right, receiver = socket.socketpair()
    splice = Splice(there, back, lambda _: None)
    try:
        for end in (sender, left, right, receiver):
            end.setblocking(False)
        await loop.connect_accepted_socket(lambda: splice.right, right)
        await loop.connect_accepted_socket(lambda: splice.left, left)
        yield sender, receiver
    finally:
        splice.close()
        for end in (sender, left, right, receiver):
            end.close()
