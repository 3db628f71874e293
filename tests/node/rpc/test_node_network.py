"""The real network over loopback, and what a node does with strangers."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Iterable

import pytest

from clusters.reference.client import ReferenceClient
from clusters.reference.node.raft.types import Append, Entry, Message
from clusters.reference.node.rpc.coalesced_heartbeats import Heartbeats
from clusters.reference.node.rpc.link import FRAME_BYTES, Link, Links, in_frames
from clusters.reference.node.rpc.peers import Peers
from clusters.reference.node.runtime import Connection, ConnectionLost, real
from clusters.reference.node.runtime.hybrid_clock import MAX_AHEAD_S, Hlc, span
from clusters.reference.node.runtime.real import TcpListener, TcpNetwork
from clusters.reference.node.storage.identity import member_of
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire import frames
from clusters.reference.node.wire.frames import encode
from clusters.reference.node.wire.messages import (
    BadMessage,
    Codec,
    Failed,
    Hello,
    PeerAnswer,
    PeerBody,
    PeerFrame,
    PeerReply,
    PeerRequest,
    Ping,
    ReadAt,
    Version,
    decode,
)
from clusters.reference.node.wire.messages import encode as encode_message
from harness.protocols.client import StoreError

Serve = Callable[[Connection], Awaitable[None]]


async def echo(connection: Connection) -> None:
    while True:
        connection.send(await connection.recv())


def with_server(serve: Serve, body: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = await TcpNetwork().listen("127.0.0.1", 0, serve)
        assert isinstance(listener, TcpListener)
        try:
            async with asyncio.timeout(20):
                await body(listener.port)
        finally:
            listener.close()

    asyncio.run(run())


def test_frames_come_back_whole_and_in_order() -> None:
    async def body(port: int) -> None:
        connection = await TcpNetwork().dial("127.0.0.1", port, 1.0)
        sent = [bytes([n % 256]) * (n * 37 % 5000) for n in range(3000)]
        received = []
        for payload in sent:
            connection.send(payload)
        for _ in sent:
            received.append(await connection.recv())
        assert received == sent
        connection.close()
        with pytest.raises(ConnectionLost, match="closed on this side"):
            connection.send(b"x")

    with_server(echo, body)


def test_a_peer_that_does_not_read_is_given_up_at_the_queue_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(real, "SEND_QUEUE_BYTES", 1_000_000)

    async def deaf(connection: Connection) -> None:
        await asyncio.Event().wait()

    async def body(port: int) -> None:
        connection = await TcpNetwork().dial("127.0.0.1", port, 1.0)
        for _ in range(9):
            connection.send(b"x" * 100_000)
        with pytest.raises(ConnectionLost, match="send queue over 1000000 bytes"):
            connection.send(b"x" * 100_000)
        with pytest.raises(ConnectionLost, match="send queue"):
            await connection.recv()

    with_server(deaf, body)


def test_a_receiver_that_is_slow_stops_the_sender_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(real, "RECEIVE_QUEUE_FRAMES", 8)

    async def body(port: int) -> None:
        connection = await TcpNetwork().dial("127.0.0.1", port, 1.0)
        for n in range(1000):
            connection.send(n.to_bytes(4, "big"))
        await asyncio.sleep(0)
        assert [int.from_bytes(await connection.recv(), "big") for _ in range(1000)] == list(
            range(1000)
        )

    with_server(echo, body)


def test_damage_on_the_stream_ends_the_connection() -> None:
    async def body(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frame = bytearray(encode(b"hello"))
        writer.write(frame)
        assert await reader.readexactly(len(frame)) == frame
        frame[-1] ^= 1
        writer.write(frame)
        assert await reader.read() == b""
        writer.close()

    with_server(echo, body)


def test_a_dial_that_is_refused_or_not_answered_is_a_lost_connection() -> None:
    async def run() -> None:
        with socket.socket() as silent, socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionLost, match="Connect call failed"):
                await TcpNetwork().dial("127.0.0.1", unused.getsockname()[1], 1.0)
            silent.bind(("127.0.0.1", 0))
            silent.listen(0)
            port = silent.getsockname()[1]
            fillers = [socket.socket() for _ in range(3)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            with pytest.raises(ConnectionLost, match=r"no answer within 0\.2 s"):
                await TcpNetwork().dial("127.0.0.1", port, 0.2)
            for filler in fillers:
                filler.close()

    asyncio.run(run())


class Talkative:
    """A node that answers every request at length."""

    founders: tuple[str, ...] = ()

    def observe_peer(self, peer: str, incarnation: str, founders: tuple[str, ...]) -> None:
        """Nothing that matters here."""

    def step(self, messages: Iterable[tuple[str, Message]]) -> None:
        raise AssertionError("nobody speaks of raft here")

    def request(self, body: PeerBody, reply: Callable[[PeerAnswer], None]) -> None:
        assert isinstance(body, ReadAt)
        reply(Version(b"x" * body.ts, 1))


def talkative(*peers: str) -> Peers:
    nowhere = ("127.0.0.1", 1)
    node, clock = Talkative(), Hlc(wall_ns=lambda: 0, monotonic_s=lambda: 0.0)
    return Peers(
        node="n1",
        incarnation="1",
        addresses=dict.fromkeys(peers or ("n2",), nowhere),  # type: ignore[arg-type]  # not dialed
        network=TcpNetwork(),
        rng=random.Random(1),
        clock=clock,
        links=Links(peers or ("n2",), clock),
        host=node,
        router=node,
        bootstrap=node,
        heartbeats=Heartbeats({}),
    )


def test_an_answer_that_fits_into_no_frame_costs_only_that_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1000)

    async def run() -> list[PeerFrame]:
        listener = await TcpNetwork().listen("127.0.0.1", 0, talkative().serve)
        assert isinstance(listener, TcpListener)
        link = await TcpNetwork().dial("127.0.0.1", listener.port, 1.0)
        answers = []
        async with asyncio.timeout(20):
            link.send(encode_message(Hello("n2", "1")))
            for number, size in enumerate((10, 2000, 20)):
                body = ReadAt(0, b"k", size, 0, 1000)
                link.send(encode_message(PeerRequest(number + 1, body, 0)))
            for _ in range(4):
                answers.append(decode(Codec.peer, await link.recv()))
        link.close()
        listener.close()
        return answers

    _, short, lost, next_one = asyncio.run(run())

    assert isinstance(short, PeerReply)
    assert isinstance(short.body, Version)
    assert isinstance(lost, PeerReply)
    assert isinstance(lost.body, Failed)
    assert lost.body.code == codes.PEER_LOST
    assert "at most 1000 bytes" in lost.body.message
    assert isinstance(next_one, PeerReply)
    assert isinstance(next_one.body, Version)


def test_a_request_that_fits_into_no_frame_is_refused_and_the_link_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 1000)

    async def body(port: int) -> None:
        link = Link("n2", Hlc(wall_ns=lambda: 0, monotonic_s=lambda: 0.0))
        connection = await TcpNetwork().dial("127.0.0.1", port, 1.0)
        link.up(connection, "1")
        answer = await link.request(ReadAt(0, b"k" * 2000, 1, 0, 1000), 1.0)
        assert isinstance(answer, Failed)
        assert (answer.code, link.connection) == (codes.TOO_LARGE, connection)

        client = ReferenceClient(connection)
        with pytest.raises(StoreError, match="TX-TOO-LARGE"):
            await client.one_shot([(1, tuple(range(1000)))], 1e9)

    with_server(echo, body)


def test_a_clock_that_can_not_be_followed_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        listener = await TcpNetwork().listen("127.0.0.1", 0, talkative().serve)
        assert isinstance(listener, TcpListener)
        link = await TcpNetwork().dial("127.0.0.1", listener.port, 1.0)
        async with asyncio.timeout(20):
            link.send(encode_message(Hello("n2", "1")))
            await link.recv()
            for ahead_s in (0, 20, 20, 0, 0):
                link.send(encode_message(Ping(span(ahead_s), None)))
                await link.recv()
        link.close()
        listener.close()

    asyncio.run(run())

    assert [r.getMessage() for r in caplog.records if "clock" in r.getMessage()] == [
        "the clock of n2 is more than 5 s ahead: its requests and answers are refused",
        "the clock of n2 can be followed again",
    ]


def append(size: int) -> Message:
    return Append("n1", 1, 0, 0, 0, 0, (Entry(1, 1, b"x" * size),))


def test_small_messages_share_a_frame_and_large_ones_do_not() -> None:
    small = tuple((f"p{n}", append(10)) for n in range(100))
    large = tuple((f"p{n}", append(FRAME_BYTES)) for n in range(3))

    assert list(in_frames(small)) == [small]
    assert list(in_frames(large)) == [(message,) for message in large]
    assert [m for frame in in_frames(small + large + small) for m in frame] == [
        *small,
        *large,
        *small,
    ]
    assert list(in_frames(())) == []


class Up:
    """A connection that leads somewhere."""

    def close(self) -> None:
        """Nothing is left of it."""


class Pinged(Up):
    """A connection over which ``node`` sends a ping of a clock that is far ahead, and goes."""

    def __init__(self, node: str) -> None:
        self.peer, self._node = "127.0.0.1:1", node

    async def recv(self) -> bytes:
        return encode_message(Hello(self._node, "life1"))

    def send(self, payload: bytes) -> None:
        """Nobody is there to take it."""

    async def each(self, take: Callable[[bytes], None]) -> None:
        take(encode_message(Ping(span(2 * MAX_AHEAD_S), None)))


def test_who_was_met_on_a_link_that_is_down_is_not_said_to_live() -> None:
    async def body() -> None:
        peers = talkative("n2", "n3")
        for link in peers.links.values():
            link.up(Up(), "life1")  # type: ignore[arg-type]  # it is only kept and closed
        peers.links["n2"].down("silent")

        assert peers.links.lives() == {"n3": member_of("n3", "life1")}

    asyncio.run(body())


@pytest.mark.parametrize(
    ("up", "refusing", "ahead", "why", "in_doubt"),
    [
        ("2345", "23", "", None, False),
        ("2345", "234", "", "ahead of n2, n3, n4", True),
        ("23", "2", "", "ahead of n2", False),  # who is not there does not count on its side
        ("2", "", "", None, False),
        ("", "", "", None, False),
        ("2", "2", "", "ahead of n2", True),
        ("2", "", "2", None, True),
        ("2345", "2", "35", None, True),
        ("2345", "", "345", "behind n3, n4, n5", True),
        ("234", "", "2", None, False),
        ("234", "2", "3", None, True),
        ("2", "", "3", None, False),
    ],
)
def test_a_clock_that_no_majority_follows_is_out_of_time(
    up: str, refusing: str, ahead: str, why: str | None, in_doubt: bool
) -> None:
    async def body() -> tuple[str | None, bool]:
        peers = talkative("n2", "n3", "n4", "n5")
        for number in up:
            peers.links[f"n{number}"].up(Up(), "life1")  # type: ignore[arg-type]
        for number in refusing:
            peers.links[f"n{number}"].refuses_clock = True
        for number in ahead:
            await peers.serve(Pinged(f"n{number}"))  # type: ignore[arg-type]
        return peers.out_of_time(), peers.clock_in_doubt()

    said, doubted = asyncio.run(body())
    assert said is None if why is None else why in (said or "")
    assert doubted is in_doubt


def test_what_is_sent_in_a_batch_leaves_together_at_its_end() -> None:
    async def body() -> None:
        network = TcpNetwork()
        with socket.create_server(("127.0.0.1", 0)) as server:
            host, port = server.getsockname()
            connection = await network.dial(host, port, 5.0)
            far, _ = server.accept()
            with far:
                far.setblocking(False)
                with network.batch:
                    connection.send(b"one")
                    connection.send(b"two")
                    with pytest.raises(BlockingIOError):
                        far.recv(100)
                far.settimeout(5.0)  # the loop does not turn meanwhile
                assert far.recv(100) == encode(b"one") + encode(b"two")
            connection.close()

    asyncio.run(body())


def test_who_takes_each_frame_gets_what_came_before_and_ends_it_by_an_error() -> None:
    taken = list[bytes]()

    def take(payload: bytes) -> None:
        if payload == b"bad":
            raise BadMessage("bad")
        taken.append(payload)

    async def serve(connection: Connection) -> None:
        assert await connection.recv() == b"hello"
        with pytest.raises(BadMessage):
            await connection.each(take)

    async def body(port: int) -> None:
        connection = await TcpNetwork().dial("127.0.0.1", port, 5.0)
        for payload in (b"hello", b"1", b"2", b"bad", b"3"):
            connection.send(payload)
        with pytest.raises(ConnectionLost):
            await connection.recv()
        assert taken == [b"1", b"2"]

    with_server(serve, body)
