"""Links to the other nodes: each node dials every peer and keeps that connection known to be alive.

The messages of a node to a peer, and the answers to its requests, travel on the connection that it
dialed. Pings show within ``SILENCE_S`` that a link is dead although it was not reset, so that a
healed cut is dialed anew instead of waiting for TCP's back-off.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeGuard

from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import majority
from clusters.reference.node.raft.types import Message
from clusters.reference.node.rpc.coalesced_heartbeats import Receiver
from clusters.reference.node.rpc.link import SILENCE_S, Link, Links
from clusters.reference.node.runtime import Connection, ConnectionLost, Network
from clusters.reference.node.runtime.concurrency import together
from clusters.reference.node.runtime.hybrid_clock import MAX_AHEAD_S, Hlc
from clusters.reference.node.storage.identity import member_of
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.frames import FrameError
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    PROTOCOL,
    BadMessage,
    Claim,
    Codec,
    Failed,
    HeartbeatAck,
    Hello,
    PeerAnswer,
    PeerBody,
    PeerFrame,
    PeerReply,
    PeerRequest,
    Ping,
    Pong,
    RaftBatch,
    decode,
    encode,
)

DIAL_LIMIT_S = 1.0
HELLO_LIMIT_S = 2.0
PING_EVERY_S = 0.3  # where no heartbeat does it
REDIAL_S = 0.1  # and up to twice that, so that restarting nodes do not dial in step

log = logging.getLogger("node.peers")


class Host(Protocol):
    """The raft groups of this node."""

    def step(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Take in messages by group."""


class Router(Protocol):
    """Answers the requests of peers."""

    def request(self, body: PeerBody, reply: Callable[[PeerAnswer], None]) -> None:
        """Call ``reply`` once, now or later."""


class Founders(Protocol):
    """This node's knowledge of the founding of its cluster."""

    @property
    def founders(self) -> tuple[str, ...]:
        """The members that founded the cluster; empty until that is known."""

    def observe_peer(self, peer: str, incarnation: str, founders: tuple[str, ...]) -> None:
        """Take in what ``peer``, in this life, reports of the founders."""


class HeartbeatGroups(Protocol):
    """The raft groups of this node, whose members' heartbeats travel together."""

    def led(self, directory: str) -> Mapping[str, int]:
        """The groups that this node leads and in which the member in ``directory`` has answered
        that it follows, with their terms.
        """

    def follows(self, directory: str, name: str, term: int) -> bool:
        """The member in ``directory`` leads group ``name`` in ``term``, its node reports; whether
        our member follows it.
        """

    def node_acked(self, directory: str, tick: int, claims: Iterable[Claim]) -> None:
        """The node of ``directory`` reports that it followed in these groups when the heartbeat of
        ``tick`` arrived.
        """

    def unpair(self, directory: str, names: Iterable[str] | None) -> None:
        """The node of ``directory`` no longer acknowledges for these groups, or for all."""


class Address(Protocol):
    """Where a peer listens."""

    @property
    def host(self) -> str:
        """A name or an address."""

    @property
    def port(self) -> int:
        """A TCP port."""


class Peers:
    """All links of a node, dialed and accepted."""

    def __init__(
        self,
        *,
        node: str,
        incarnation: str,
        addresses: Mapping[str, Address],
        network: Network,
        rng: random.Random,
        clock: Hlc,
        links: Links,
        host: Host,
        router: Router,
        bootstrap: Founders,
        heartbeats: HeartbeatGroups,
    ) -> None:
        """``addresses``: how each other node is dialed, of which ``links`` has the links. A
        received message goes to ``host``, ``router``, ``bootstrap`` or ``heartbeats``, by its type.
        """
        self._hello = Hello(node, incarnation)
        self._addresses, self._network, self._rng = dict(addresses), network, rng
        self._clock, self.links = clock, links
        self._host, self._router, self._bootstrap = host, router, bootstrap
        self._groups = heartbeats
        self._accepted: dict[Connection, float] = {}
        self._ahead: dict[str, None] = {}  # peers whose clocks are too far ahead to follow

    async def run(self) -> None:
        """Keep every link dialed until cancelled."""
        await together(self._watch(), *(self._keep(link) for link in self.links.values()))

    def heartbeat(self, tick: int) -> None:
        """Send a heartbeat to every peer; once a tick."""
        founders = self._bootstrap.founders
        for link in self.links.values():
            if link.connection is not None:
                link.ping(founders, link.sender.heartbeat(tick, self._groups.led(link.directory)))

    def out_of_time(self) -> str | None:
        """Why the clocks of this node and of most others are too far apart to work together;
        ``None`` while they are not. Nodes that it can't reach don't count on its side.
        """
        needed = majority((*self.links, "this node"))
        up = [link for link in self.links.values() if link.connection is not None]
        refusing = [link.peer for link in up if link.refuses_clock]
        if refusing and 1 + len(up) - len(refusing) < needed:
            reached("node ahead of most others")
            return f"its clock is over {MAX_AHEAD_S:g} s ahead of {', '.join(refusing)}"
        if len(self._ahead) >= needed:
            reached("node behind most others")
            return f"its clock is over {MAX_AHEAD_S:g} s behind {', '.join(self._ahead)}"
        return None

    def clock_in_doubt(self) -> bool:
        """Whether the clocks of half of the nodes in reach, or of more, are too far from this one's
        for one of both to follow: then this one may be the wrong one.
        """
        up = [link for link in self.links.values() if link.connection is not None]
        apart = [link for link in up if link.refuses_clock or link.peer in self._ahead]
        return 2 * len(apart) >= 1 + len(up)

    async def serve(self, connection: Connection) -> None:
        """Serve one accepted connection until it ends."""
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                hello = decode(Codec.peer, await connection.recv())
        except (BadMessage, TimeoutError) as error:
            log.warning("refused %s: no introduction: %s", connection.peer, error or "too slow")
            return
        if not self._known(hello):
            log.warning("refused %s: %s is no member that is known here", connection.peer, hello)
            return
        connection.send(encode(self._hello))
        loop = asyncio.get_running_loop()
        self._accepted[connection] = loop.time()
        receiver = Receiver()

        def take(payload: bytes) -> None:
            self._take(hello, connection, receiver, decode(Codec.peer, payload))
            self._accepted[connection] = loop.time()

        try:
            await connection.each(take)
        except BadMessage as error:
            log.warning("dropping %s: %s", hello.node, error)
        finally:
            del self._accepted[connection]

    def _known(self, hello: PeerFrame) -> TypeGuard[Hello]:
        """Whether the introduction is of a node of this cluster that speaks this protocol."""
        return isinstance(hello, Hello) and hello.node in self.links and hello.protocol == PROTOCOL

    def _take(
        self, hello: Hello, connection: Connection, receiver: Receiver, frame: PeerFrame
    ) -> None:
        if isinstance(frame, RaftBatch):
            self._host.step(frame.messages)
        elif isinstance(frame, PeerRequest):
            self._serve_request(connection, frame)
        elif isinstance(frame, Ping):
            followed = self._follow_clock(hello.node, frame.ts)
            if frame.founders is not None:
                self._bootstrap.observe_peer(hello.node, hello.incarnation, frame.founders)
            pong = Pong(self._heartbeat_ack(hello, receiver, frame), not followed)
            connection.send(encode(pong))

    def _follow_clock(self, peer: str, ts: int) -> bool:
        """Follow a peer's clock, unless it is too far ahead. Report when it is, and when it no
        longer is.
        """
        followed = self._clock.receive(ts)
        if followed:
            if peer in self._ahead:
                reached("clock of a peer followed again")
                del self._ahead[peer]
                log.warning("the clock of %s can be followed again", peer)
        elif peer not in self._ahead:
            reached("clock of a peer too far ahead")
            self._ahead[peer] = None
            text = "the clock of %s is more than %g s ahead: its requests and answers are refused"
            log.warning(text, peer, MAX_AHEAD_S)
        return followed

    def _heartbeat_ack(self, hello: Hello, receiver: Receiver, ping: Ping) -> HeartbeatAck | None:
        """The answer to the heartbeat in ``ping``, if there is one."""
        if ping.heartbeat is None:
            return None
        directory = member_of(hello.node, hello.incarnation)
        return receiver.take(
            ping.heartbeat, lambda group, term: self._groups.follows(directory, group, term)
        )

    def _serve_request(self, connection: Connection, frame: PeerRequest) -> None:
        def reply(body: PeerAnswer) -> None:
            if frame.id == NO_ANSWER:
                return
            try:
                try:
                    connection.send(encode(PeerReply(frame.id, body, self._clock.now())))
                except FrameError as error:
                    # The request may have been carried out: one answer is lost, no more than that.
                    log.error("no answer to %s: %s", connection.peer, error)
                    failed = Failed(codes.PEER_LOST, f"its answer: {error}")
                    connection.send(encode(PeerReply(frame.id, failed, self._clock.now())))
            except ConnectionLost:
                log.debug("%s is gone before its answer", connection.peer)

        if self._clock.receive(frame.ts):
            self._router.request(frame.body, reply)
        else:
            text = f"the clock of {connection.peer} is more than {MAX_AHEAD_S:g} s ahead"
            reached("request refused for its clock")
            reply(Failed(codes.CLOCK_DRIFT, text))

    async def _keep(self, link: Link) -> None:
        """Dial, read answers until the link is dead, and repeat."""
        while True:
            reason = "closed"
            try:
                await self._connect(link)
                await self._read_answers(link)
            except (ConnectionLost, BadMessage) as error:
                reason = str(error)
            except TimeoutError:
                reason = "no introduction in time"
            finally:
                link.down(reason)
                # Claims live with one connection: on the next one
                # members first answer for themselves.
                self._groups.unpair(link.directory, None)
            log.debug("link to %s: %s", link.peer, reason)
            await asyncio.sleep(REDIAL_S * (1 + self._rng.random()))

    async def _connect(self, link: Link) -> None:
        address = self._addresses[link.peer]
        connection = await self._network.dial(address.host, address.port, DIAL_LIMIT_S)
        try:
            connection.send(encode(self._hello))
            async with asyncio.timeout(HELLO_LIMIT_S):
                hello = decode(Codec.peer, await connection.recv())
            if not self._known(hello) or hello.node != link.peer:
                raise ConnectionLost(f"{address.host}:{address.port} is not {link.peer}: {hello}")
        # Also when cancelled: the link does not have it yet, so nothing else would close it.
        except BaseException:
            connection.close()
            raise
        link.up(connection, hello.incarnation)
        # At once: the founding of a cluster waits for a ping of every node.
        link.ping(self._bootstrap.founders)

    async def _read_answers(self, link: Link) -> None:
        loop = asyncio.get_running_loop()

        def take(payload: bytes) -> None:
            if link.connection is None:
                return  # it was given up, and earlier answers count no more
            frame = decode(Codec.peer, payload)
            link.heard_s = loop.time()
            if isinstance(frame, PeerReply):
                link.answered(frame)
            elif isinstance(frame, Pong):
                link.refuses_clock = frame.refused
                if frame.ack is not None:
                    self._node_acked(link, frame.ack)

        if link.connection is not None:
            await link.connection.each(take)

    def _node_acked(self, link: Link, answer: HeartbeatAck) -> None:
        claims, refused = link.sender.answered(answer)
        self._groups.node_acked(link.directory, answer.tick, claims)
        if refused:
            reached("claim refused by a follower")
            self._groups.unpair(link.directory, refused)

    async def _watch(self) -> None:
        """Ping, and close the link once it has been silent for too long."""
        while True:
            await asyncio.sleep(PING_EVERY_S)
            now_s = asyncio.get_running_loop().time()
            for link in self.links.values():
                if link.pinged_s <= now_s - PING_EVERY_S:
                    link.ping(self._bootstrap.founders)
                link.drop_if_silent(now_s)
            # The accepted side, too.
            since_s = now_s - SILENCE_S
            for connection in [c for c, heard_s in self._accepted.items() if heard_s < since_s]:
                connection.close()
