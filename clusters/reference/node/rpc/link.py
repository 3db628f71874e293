"""The dialed side of one peer: the messages sent to it, and its answers to our requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from clusters.reference.node.markers import reached
from clusters.reference.node.raft.types import Append, Chunk, Message
from clusters.reference.node.rpc.coalesced_heartbeats import Sender
from clusters.reference.node.runtime import Connection, ConnectionLost, Rare, never
from clusters.reference.node.runtime.concurrency import within
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.identity import directory_of, member_of, name_of
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.frames import FrameError
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Failed,
    Heartbeat,
    PeerAnswer,
    PeerBody,
    PeerFrame,
    PeerReply,
    PeerRequest,
    Ping,
    RaftBatch,
    encode,
)

FRAME_BYTES = 4 * 1024 * 1024  # of entries in one frame; with the largest entry still half a frame
MAX_REQUESTS = 4096  # open on one link
SILENCE_S = 1.2  # a link without a sign of life for so long is dead
EARLY_S = 0.001  # where a simulation lets a question be given up before any peer can answer


class Link:
    """The dialed side of one peer, whether connected or not."""

    def __init__(self, peer: str, clock: Hlc, rare: Rare = never) -> None:
        self.peer, self._clock, self._rare = peer, clock, rare
        self.connection: Connection | None = None
        self.incarnation = ""  # of the node at the other end
        self.sender = Sender()
        self.heard_s = self.pinged_s = 0.0
        self.announced: tuple[str, ...] | None = None  # the founders that the peer was told
        self.refuses_clock = False  # ours, which is too far ahead for it
        self._next_id = 0
        self._open: dict[int, asyncio.Future[PeerAnswer | None]] = {}

    @property
    def directory(self) -> str:
        """The node at the other end, and the life of its directory that was last there."""
        return member_of(self.peer, self.incarnation)

    def drop_if_silent(self, now_s: float) -> None:
        """Close the connection once no sign of life came for ``SILENCE_S``: a peer that was cut off
        sends no reset.
        """
        if self.connection is not None and self.heard_s < now_s - SILENCE_S:
            reached("link dropped after silence")
            self.down(f"silent for {SILENCE_S:g} s")

    def up(self, connection: Connection, incarnation: str) -> None:
        """``connection`` leads to the peer in this life; nothing was announced on it yet."""
        self.connection, self.incarnation = connection, incarnation
        self.sender, self.announced, self.refuses_clock = Sender(), None, False
        self.heard_s = asyncio.get_running_loop().time()

    def ping(self, founders: tuple[str, ...], heartbeat: Heartbeat | None = None) -> None:
        """Send a ping, with the announcements that the peer has not received yet."""
        self.pinged_s = asyncio.get_running_loop().time()
        news = None if founders == self.announced else founders
        if self.send(Ping(self._clock.now(), news, heartbeat)):
            self.announced = founders

    def send(self, frame: PeerFrame) -> bool:
        """Whether it was queued; a link that is down drops it."""
        if self.connection is None:
            return False
        if self._rare("full-queue"):
            self.connection.close()
        try:
            self.connection.send(encode(frame))
        except ConnectionLost:
            return False
        return True

    async def request(self, body: PeerBody, limit_s: float) -> PeerAnswer:
        """The peer's answer. ``UNREACHABLE``, ``TOO_LARGE``: the request was not sent;
        ``PEER_LOST``: it was, and its outcome is unknown.
        """
        if len(self._open) >= MAX_REQUESTS:
            reached("too many requests on a link")
            return Failed(codes.OVERLOADED, f"{MAX_REQUESTS} requests to {self.peer} wait already")
        self._next_id += 1
        number = self._next_id
        try:
            sent = self.send(PeerRequest(number, body, self._clock.now()))
        except FrameError as error:
            return Failed(codes.TOO_LARGE, f"a request to {self.peer}: {error}")
        if not sent:
            reached("request without a link")
            return Failed(codes.UNREACHABLE, f"no connection to {self.peer}")
        future: asyncio.Future[PeerAnswer | None] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        timeout_s = EARLY_S if self._rare("early-timeout") else limit_s
        try:
            answer = await within(timeout_s, future, None)
        finally:
            # A late answer must find nothing to resolve, and the table must not grow by lost ones.
            self._open.pop(number, None)
        if answer is None:
            reached("question to a peer not answered in time")
            return Failed(codes.PEER_LOST, f"{self.peer} did not answer within {limit_s:g} s")
        return answer

    def notify(self, body: PeerBody) -> None:
        """Send ``body`` if the link is up, without an answer. It may arrive late, twice, or not at
        all.
        """
        self.send(PeerRequest(NO_ANSWER, body, self._clock.now()))

    def answered(self, reply: PeerReply) -> None:
        """Resolve the request that ``reply`` answers; a late one is dropped."""
        body = reply.body
        if not self._clock.receive(reply.ts):
            reached("answer refused for its clock")
            # In doubt even where it is definite: without its timestamp the answer must not be used.
            body = Failed(codes.PEER_LOST, f"{self.peer}: its clock is too far ahead to follow")
        future = self._open.pop(reply.id, None)
        if future is not None and not future.done():
            future.set_result(body)

    def down(self, reason: str) -> None:
        """The connection is gone, and with it every answer."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        for future in self._open.values():
            if not future.done():
                future.set_result(Failed(codes.PEER_LOST, f"{self.peer}: {reason}"))
        self._open.clear()


class Links(dict[str, Link]):
    """The dialed sides of all peers, by name."""

    def __init__(self, peers: Iterable[str], clock: Hlc, rare: Rare = never) -> None:
        super().__init__((peer, Link(peer, clock, rare)) for peer in peers)

    def send_raft(self, member: str, messages: tuple[tuple[str, Message], ...]) -> None:
        """One frame of raft messages, more only where they are large. They are lost if the link is
        down or leads to another life of that node, since raft repeats itself. A message may come
        late, or twice.
        """
        link = self.get(name_of(member))
        if link is not None and directory_of(member) == link.directory:
            for batch in in_frames(messages):
                link.send(RaftBatch(batch))

    def ping_all(self, founders: tuple[str, ...]) -> None:
        """Announce ``founders`` to every peer now."""
        for link in self.values():
            link.ping(founders)

    def lives(self) -> dict[str, str]:
        """The members at the other ends of the links that are up, by name. The directory of a node
        whose link is down may have been wiped since.
        """
        return {peer: link.directory for peer, link in self.items() if link.connection is not None}

    def reachable(self) -> tuple[str, ...]:
        """Peers with a live link."""
        return tuple(peer for peer, link in self.items() if link.connection is not None)


def in_frames(
    messages: tuple[tuple[str, Message], ...],
) -> Iterator[tuple[tuple[str, Message], ...]]:
    """``messages`` in order, cut so that none of the parts is much over ``FRAME_BYTES``."""
    # The usual case, without a look at sizes: one message always fits into a frame.
    if len(messages) == 1:
        yield messages
        return
    start = size = 0
    for position, (_, message) in enumerate(messages):
        if isinstance(message, Append):
            size += sum(len(entry.data) for entry in message.entries)
        elif isinstance(message, Chunk):
            size += len(message.data)
        if size >= FRAME_BYTES:
            yield messages[start : position + 1]
            start, size = position + 1, 0
    if start < len(messages):
        yield messages[start:]
