"""The links between simulated hosts: how long a packet takes, and whether it gets through.

Each directed link has a latency of its own. The weather, which applies to all links all the time,
and the faults of the nemesis add to it. Connections are streams, as TCP gives them: a packet that
is lost is sent again, one that is overtaken holds back those behind it, a copy of a packet is
thrown away; so loss, reordering and slowness all show as delay, and only a reset loses data that
was sent.

Only a message whose sender asks for no answer may come twice: its sender relies neither on order
nor on a single delivery, as with any transport that repeats a send of unknown outcome. The copy
comes by itself, late, behind newer messages, even by a later connection of the same two processes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
from msgspec import Meta

from clusters.providers.sim.loop import SimLoop
from clusters.providers.sim.trace import Trace
from harness.clock import substream
from harness.protocols.cluster import Grudge, Link, LinkQuality, LinkShape

if TYPE_CHECKING:
    from clusters.providers.sim.network import Pipe, SimConnection, SimListener

BASE_S = (0.0001, 0.001)  # of a link one way, drawn once: near and far racks of a data centre
JITTER_S = (0.0001, 0.001)  # of a packet, on top
SLOW_S = (0.005, 0.02)  # the extra latency of a slow link, drawn once
OVERTAKEN_S = (0.0005, 0.01)  # how much later a packet comes that others overtake
RESEND_S = 0.2  # until a lost packet is sent again; doubled each time, as TCP does
MAX_RESENDS = 5  # a packet that was lost so often gets through: links are cut, not lossy, for ever
MENDED_S = (0.0, 0.2)  # from a link's mending until a sender tries again
COPY_LATE_S = (0.0, 1.0)  # how much later the copy of a message comes: most of an election
PINGS = 400  # of a measurement of one link
ROUND_TRIP_LIMIT_S = 10.0  # a measurement waits no longer for an answer


MAX_RESETS_PER_S = 1_000.0  # many more than connections that any cluster of ours opens

Share = Annotated[float, Meta(ge=0, le=1)]


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of all links, all the time, as shares of packets; ``duplicate`` is a share of
    the messages that want no answer, ``slow`` one of the links; ``resets_per_s`` is the rate at
    which open connections break, in the whole network.
    """

    loss: Share = 0.0
    duplicate: Share = 0.0
    reorder: Share = 0.0
    slow: Share = 0.0
    resets_per_s: Annotated[float, Meta(ge=0, le=MAX_RESETS_PER_S)] = 0.0


class Fabric:
    """All links, by (source, destination); every pair of hosts has one each way."""

    def __init__(self, seed: int, weather: Weather | None = None) -> None:
        self._seed, self.weather = seed, weather or Weather()
        self._streams: dict[Link, random.Random] = {}
        self._base_s: dict[Link, float] = {}
        self._cut: frozenset[Link] = frozenset()
        self._silent: dict[str, None] = {}
        self._shapes: dict[Link, LinkShape] = {}
        self._stalled: dict[Link, dict[Pipe, None]] = {}
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.open: dict[SimConnection, None] = {}
        self.trace: Trace | None = None
        self._copies = substream(seed, "sim-copies")
        self.repeatable: Callable[[bytes], bool] = lambda payload: False
        """Whether a message may come twice."""

    # What is cut.

    def passes(self, link: Link) -> bool:
        """Whether packets get through now."""
        if link in self._cut:
            return False
        return not self._silent or not (link[0] in self._silent or link[1] in self._silent)

    def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` the whole set of cut links; messages that waited on the others are sent
        again.
        """
        self._cut = frozenset(grudge)
        self._resend()

    def present(self, host: str) -> bool:
        """Whether anything leaves ``host`` and arrives there."""
        return host not in self._silent

    def silence(self, host: str) -> None:
        """From now on nothing leaves ``host`` and nothing arrives there."""
        self._silent[host] = None

    def unsilence(self, host: str) -> None:
        """Undo ``silence``. Idempotent."""
        self._silent.pop(host, None)
        self._resend()

    def shape(self, shapes: Iterable[LinkShape]) -> None:
        """Make ``shapes`` the whole set of shapes beside the weather."""
        self._shapes = {shape.link: shape for shape in shapes}

    def stall(self, link: Link, pipe: Pipe) -> None:
        """``pipe`` waits for ``link``."""
        self._stalled.setdefault(link, {})[pipe] = None

    def _resend(self) -> None:
        loop = true_loop()
        for link in [link for link in self._stalled if self.passes(link)]:
            for pipe in self._stalled.pop(link):
                loop.call_truly(self._stream(link).uniform(*MENDED_S), pipe.deliver)

    # How long a packet takes.

    def latency_s(self, link: Link) -> float:
        """How long a packet of a stream takes, sent now, until all before it could be read."""
        stream, weather = self._streams.get(link) or self._stream(link), self.weather
        shape = self._shapes.get(link) if self._shapes else None
        least_s, most_s = JITTER_S
        # As ``uniform`` does, without the call: this is every frame.
        took_s = self._base_s[link] + (least_s + (most_s - least_s) * stream.random())
        loss = weather.loss
        if shape is not None:
            took_s += shape.delay_s
            loss = 1 - (1 - loss) * (1 - shape.loss)
        if weather.reorder and stream.random() < weather.reorder:
            took_s += stream.uniform(*OVERTAKEN_S)
        wait_s = RESEND_S
        for _ in range(MAX_RESENDS if loss else 0):
            if stream.random() >= loss:
                break
            took_s += wait_s
            wait_s *= 2
        return took_s

    def copy_after_s(self, payload: bytes) -> float | None:
        """How much later a copy of a message sent now comes, ``None`` where there is none."""
        share = self.weather.duplicate
        if not share or self._copies.random() >= share or not self.repeatable(payload):
            return None
        return self._copies.uniform(*COPY_LATE_S)

    def _stream(self, link: Link) -> random.Random:
        if link not in self._streams:
            stream = substream(self._seed, "sim-link", *link)
            base_s = stream.uniform(*BASE_S)
            if stream.random() < self.weather.slow:
                base_s += stream.uniform(*SLOW_S)
            self._streams[link], self._base_s[link] = stream, base_s
        return self._streams[link]

    # Packets of their own: what connects, and what proves.

    async def pass_over(self, link: Link) -> None:
        """Return when a packet sent now has arrived; that is never while the link is cut."""
        from clusters.providers.sim.network import Pipe

        arrived = asyncio.get_running_loop().create_future()
        Pipe(self, link).push(lambda: None if arrived.done() else arrived.set_result(None))
        await arrived

    async def measure(self, link: Link) -> LinkQuality:
        """Send many packets over ``link`` and back, and count."""
        source, destination = link
        stream = substream(self._seed, "sim-ping", source, destination, repr(true_loop().time()))
        back = (destination, source)
        lost, best_s = 0, None
        for _ in range(PINGS):
            there_s, again_s = self._ping_s(link, stream), self._ping_s(back, stream)
            lost += there_s is None
            if there_s is not None and again_s is not None:
                best_s = min(there_s + again_s, ROUND_TRIP_LIMIT_S if best_s is None else best_s)
        await asyncio.sleep(min(2 * (best_s or RESEND_S), ROUND_TRIP_LIMIT_S))
        return LinkQuality(loss=lost / PINGS, round_trip_s=best_s)

    def _ping_s(self, link: Link, stream: random.Random) -> float | None:
        """How long a single packet takes that is never sent again, ``None`` where it is lost."""
        if not self.passes(link):
            return None
        self._stream(link)
        shape = self._shapes.get(link)
        loss = self.weather.loss if shape is None else max(self.weather.loss, shape.loss)
        if stream.random() < loss:
            return None
        delay_s = 0.0 if shape is None else shape.delay_s
        return self._base_s[link] + stream.uniform(*JITTER_S) + delay_s

    # Resets.

    async def break_connections(self) -> None:
        """Reset open connections at the weather's rate, until cancelled. Only connections whose
        ends can both hear of it: a reset is a packet, too.
        """
        stream = substream(self._seed, "sim-resets")
        while self.weather.resets_per_s > 0:
            await asyncio.sleep(stream.expovariate(self.weather.resets_per_s))
            if heard := [one for one in self.open if self._both_ways(one.link)]:
                stream.choice(heard).reset()

    def _both_ways(self, link: Link) -> bool:
        return self.passes(link) and self.passes((link[1], link[0]))


def true_loop() -> SimLoop:
    """The running loop."""
    return cast(SimLoop, asyncio.get_running_loop())


def later(delay_s: float, callback: Callable[[], object]) -> None:
    """Call ``callback`` after ``delay_s``, as an event of the world and of no process."""
    true_loop().call_truly(delay_s, callback)
