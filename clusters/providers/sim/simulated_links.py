"""The links of a simulated network: which packets pass, how long each takes, and pipes of frames
over them.

Each directed link has a latency of its own. The weather, which applies to all links all the time,
and the faults of the nemesis add to it. A pipe is one direction of a stream: a packet that is lost
is sent again, one that is overtaken holds back those behind it; so loss, reordering and slowness
all show as delay. A cut link loses no frame, it holds them until it is mended, as retransmission
does.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from clusters.providers.sim.loop import true_loop
from harness.clock import substream
from harness.protocols.cluster import Grudge, Link, LinkQuality, LinkShape

BASE_S = (0.0001, 0.001)  # of a link one way, drawn once: near and far racks of a data centre
JITTER_S = (0.0001, 0.001)  # of a packet, on top
SLOW_S = (0.005, 0.02)  # the extra latency of a slow link, drawn once
OVERTAKEN_S = (0.0005, 0.01)  # how much later a packet comes that others overtake
RESEND_S = 0.2  # until a lost packet is sent again; doubled each time, as TCP does
MAX_RESENDS = 5  # a packet that was lost so often gets through: links are cut, not lossy, for ever
MENDED_S = (0.0, 0.2)  # from a link's mending until a sender tries again
PINGS = 400  # of a measurement of one link
ROUND_TRIP_LIMIT_S = 10.0  # a measurement waits no longer for an answer
# A fault that is aimed at a moment of a node strikes at the next microsecond. What the node sent in
# the rest of that step would have left after its end.
AIMED_S = 2e-6
MAX_RESETS_PER_S = 1_000.0  # many more than connections that any cluster of ours opens

Share = Annotated[float, Meta(ge=0, le=1)]


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of all links, all the time."""

    loss: Annotated[Share, Meta(description="The share of packets that are lost.")] = 0.0
    duplicate: Annotated[
        Share, Meta(description="The share of the messages without an answer that come twice.")
    ] = 0.0
    reorder: Annotated[Share, Meta(description="The share of packets that overtake others.")] = 0.0
    slow: Annotated[Share, Meta(description="The share of links that are slow.")] = 0.0
    resets_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_RESETS_PER_S,
            description="How many open connections break in a second, in the whole network.",
        ),
    ] = 0.0


class Links:
    """All links, by (source, destination); every pair of hosts has one each way."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self._seed, self.weather = seed, weather
        self._streams: dict[Link, random.Random] = {}
        self._base_s: dict[Link, float] = {}
        self._cut: frozenset[Link] = frozenset()
        self._silent: dict[str, None] = {}
        self._shapes: dict[Link, LinkShape] = {}
        self._stalled: dict[Link, dict[Pipe, None]] = {}

    # What is cut.

    def passes(self, link: Link) -> bool:
        """Whether packets get through now."""
        if link in self._cut:
            return False
        return not self._silent or not (link[0] in self._silent or link[1] in self._silent)

    def passes_both_ways(self, link: Link) -> bool:
        """Whether packets and their answers get through now."""
        return self.passes(link) and self.passes((link[1], link[0]))

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
        # A list: to deliver may stall a pipe on the same link again.
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

    def _stream(self, link: Link) -> random.Random:
        if link not in self._streams:
            stream = substream(self._seed, "sim-link", *link)
            base_s = stream.uniform(*BASE_S)
            # Drawn with the link, from its own stream: other links keep their latencies.
            if stream.random() < self.weather.slow:
                base_s += stream.uniform(*SLOW_S)
            self._streams[link], self._base_s[link] = stream, base_s
        return self._streams[link]

    # Packets of their own: what connects, and what proves.

    async def pass_over(self, link: Link) -> None:
        """Return when a packet sent now has arrived; that is never while the link is cut."""
        arrived = asyncio.get_running_loop().create_future()
        # The dial may be given up by then; its packet arrives all the same.
        Pipe(self, link).push(lambda: None if arrived.done() else arrived.set_result(None))
        await arrived

    async def measure(self, link: Link) -> LinkQuality:
        """Send many packets over ``link`` and back, and count."""
        source, destination = link
        # Keyed by the moment: a measurement takes no draw from the link's own stream.
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


def nothing() -> None:
    """The delivery of a frame that never arrives."""


class Pipe:
    """One direction of one connection: frames arrive in the order of sending, each after a
    latency.
    """

    def __init__(self, links: Links, link: Link) -> None:
        self._links, self._link = links, link
        self.loop = true_loop()
        self._queue: deque[Callable[[], None]] = deque()
        # How many of the queue have had their latency. Counted, not compared with the clock: a
        # timer may fire a rounding error early, and then no timer would come back for its frame.
        self._arrived = 0
        self._last_due_s = 0.0
        self._dropped = False
        self._marked_s, self._since_mark = -1.0, 0
        self._pushed = self._delivered = 0
        self._blocked_at: int | None = None  # the number of the first frame that is held

    def push(self, deliver: Callable[[], None]) -> None:
        """Send; ``deliver`` is called when it arrives."""
        now_s = self.loop._now_s
        due_s = now_s + self._links.latency_s(self._link)
        # A stream keeps its order: a frame that is overtaken holds back those behind it.
        if due_s > self._last_due_s:
            self._last_due_s = due_s
        self._queue.append(deliver)
        self._pushed += 1
        if now_s == self._marked_s:
            self._since_mark += 1
        self.loop.call_truly(self._last_due_s - now_s, self._arrive)

    def drop(self) -> None:
        """Forget the frames under way: no sender is left to send them again."""
        self._dropped = True

    def mark(self) -> None:
        """The sender has come to a moment: what it sends at this very instant is behind it."""
        self._marked_s, self._since_mark = self.loop.true_time(), 0

    def unsend(self) -> None:
        """Lose what was sent behind a moment that the sender has just come to."""
        if self.loop.true_time() - self._marked_s <= AIMED_S:
            # Their places stay, since each place has a timer.
            for back in range(1, self._since_mark + 1):
                self._queue[-back] = nothing

    def _arrive(self) -> None:
        self._arrived += 1
        self.deliver()

    def deliver(self) -> None:
        """Hand over the frames that have arrived, or wait for the link to be mended."""
        links, link = self._links, self._link
        while self._arrived and not self._dropped:
            # Nothing is cut in most of a run: then no frame asks for its link.
            if (links._cut or links._silent) and not links.passes(link):
                links.stall(link, self)
                return
            if self._delivered == self._blocked_at:
                return
            self._arrived -= 1
            self._delivered += 1
            self._queue.popleft()()

    def block(self) -> None:
        """Hold the frames that are pushed from now on."""
        if self._blocked_at is None:
            self._blocked_at = self._pushed

    def unblock(self) -> None:
        """Deliver those that were held and have arrived. Idempotent."""
        self._blocked_at = None
        self.deliver()
