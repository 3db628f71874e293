"""What the client sends, and which of it it waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

import attrs
import pytest
from reference_kit import loopback_cluster

from clusters.reference import client
from clusters.reference.client import ONE_SHOT, ReferenceClient
from clusters.reference.node.runtime import Connection, ConnectionLost, Listener
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Begin,
    ClientReply,
    ClientRequest,
    Codec,
    Commit,
    Committed,
    Get,
    Ok,
    OneShot,
    OneShotReply,
    Put,
    ReplyBody,
    Started,
    Value,
    decode,
    encode,
)
from clusters.reference.system import build
from harness.protocols.client import READ_WRITE, StoreError

ANSWERS: dict[type[object], ReplyBody] = {
    Begin: Started("n1~1-1"),
    Get: Value(None),
    Put: Ok(),
    Commit: Committed(7),
    OneShot: OneShotReply((None,), 7),
}
READ_ONLY = "snapshot"
NINE_BYTES = 2**40  # so long is its msgpack


@attrs.define
class Node:
    """The connection to a node that says yes to everything, where an answer is wanted."""

    peer: str = "n1"
    asked: list[ClientRequest] = attrs.field(factory=list)
    answers: deque[bytes] = attrs.field(factory=deque)

    def send(self, payload: bytes) -> None:
        request = decode(Codec.request, payload)
        self.asked.append(request)
        if request.id != NO_ANSWER:
            self.answers.append(encode(ClientReply(request.id, ANSWERS[type(request.body)])))

    async def recv(self) -> bytes:
        if not self.answers:
            raise ConnectionLost("nothing was asked that wants an answer")
        return self.answers.popleft()

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        raise AssertionError("a client waits for what it asked")

    def close(self) -> None:
        """Nothing is held."""


def test_puts_are_waited_for_where_too_much_was_sent_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "UNANSWERED_BYTES", 5 * 9)
    node = Node()

    async def scenario() -> None:
        tx = await ReferenceClient(node).begin(READ_WRITE, asyncio.get_running_loop().time() + 9)
        assert await tx.read(1) is None
        for key in range(12):
            await tx.write(key, NINE_BYTES)
        await tx.commit()

    asyncio.run(scenario())

    answered = [request.id != NO_ANSWER for request in node.asked if isinstance(request.body, Put)]
    assert answered == [False] * 5 + [True] + [False] * 5 + [True]
    assert node.answers == deque()


@attrs.define
class Killable(Node):
    """A node that may be killed, and then takes nothing more."""

    killed: bool = False
    silent: bool = False  # it is killed once it was asked

    def send(self, payload: bytes) -> None:
        if self.killed:
            raise ConnectionLost(f"{self.peer}: the connection was reset")
        super().send(payload)
        if self.silent:
            self.killed = True
            self.answers.clear()


@attrs.define
class Cluster:
    """Two nodes, and where the client went."""

    first: Killable = attrs.field(factory=Killable)
    second: Killable = attrs.field(factory=lambda: Killable(peer="n2"))
    moves: list[str] = attrs.field(factory=list)

    def client(self) -> ReferenceClient:
        return ReferenceClient(self.first, node="n1", elsewhere=self._elsewhere)

    async def _elsewhere(self, node: str) -> tuple[str, Node]:
        self.moves.append(node)
        return self.second.peer, self.second


@pytest.mark.parametrize("kind", [READ_WRITE, READ_ONLY, ONE_SHOT])
def test_a_transaction_begins_at_another_node_where_the_connection_was_gone_before(
    kind: str,
) -> None:
    cluster = Cluster()

    async def scenario() -> str:
        client = cluster.client()
        await one(client, kind)
        cluster.first.killed = True
        await one(client, kind)
        return client.node

    assert asyncio.run(scenario()) == "n2"
    assert cluster.moves == ["n1"]
    assert [type(r.body) for r in cluster.second.asked] == [
        type(r.body) for r in cluster.first.asked
    ]


@pytest.mark.parametrize("kind", [READ_WRITE, READ_ONLY, ONE_SHOT])
def test_what_was_sent_is_asked_of_no_other_node(kind: str) -> None:
    cluster = Cluster()
    cluster.first.silent = True

    with pytest.raises(StoreError, match="CONNECTION-LOST"):
        asyncio.run(one(cluster.client(), kind))
    assert cluster.moves == []
    assert cluster.second.asked == []


def test_a_transaction_that_was_begun_goes_on_at_no_other_node() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        tx = await cluster.client().begin(READ_WRITE, asyncio.get_running_loop().time() + 9)
        await tx.read(1)
        cluster.first.killed = True
        await tx.commit()

    with pytest.raises(StoreError, match="CONNECTION-LOST"):
        asyncio.run(scenario())
    assert cluster.moves == []


async def one(client: ReferenceClient, kind: str) -> None:
    tx = await client.begin(kind, asyncio.get_running_loop().time() + 9)
    await tx.read(1)
    if kind != ONE_SHOT:
        await tx.commit()


@attrs.frozen
class LostMidway:
    """What a transaction sends that is killed with its node, and how far it comes."""

    kind: str
    commits: bool

    async def run(self, client: ReferenceClient, node: Killable) -> None:
        """Lose the connection in the midst of it; roll it back as a driver does, or not, where the
        commit was sent.
        """
        tx = await client.begin(self.kind, asyncio.get_running_loop().time() + 9)
        await tx.write(1, 5)
        if self.kind == READ_WRITE:
            await tx.read(2)
        node.silent = True
        with pytest.raises(StoreError, match="CONNECTION-LOST"):
            await (tx.commit() if self.commits else tx.read(3))
        if not self.commits:
            await tx.rollback()


@pytest.mark.parametrize(
    "lost",
    [LostMidway(READ_WRITE, commits=False), LostMidway(READ_WRITE, commits=True)],
    ids=["at a step", "at its commit"],
)
def test_what_follows_a_transaction_that_was_lost_with_its_node_begins_at_another(
    lost: LostMidway,
) -> None:
    cluster = Cluster()

    async def scenario() -> ReferenceClient:
        client = cluster.client()
        await one(client, READ_WRITE)  # committed at 7
        await lost.run(client, cluster.first)
        # The driver records the next transaction with the node that the client tells now.
        assert client.node == ("n1" if lost.commits else "n2")
        await one(client, READ_WRITE)
        return client

    client = asyncio.run(scenario())
    assert (client.node, cluster.moves) == ("n2", ["n1"])
    # Of the lost transaction nothing came here; and what its process has seen is not forgotten.
    begin, *rest = [request.body for request in cluster.second.asked]
    assert isinstance(begin, Begin)
    assert begin.after == 7
    assert [type(body) for body in rest] == [Get, Commit]


def test_a_one_shot_that_was_lost_with_its_node_is_sent_to_no_other() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = cluster.client()
        cluster.first.silent = True
        tx = await client.begin(ONE_SHOT, asyncio.get_running_loop().time() + 9)
        with pytest.raises(StoreError, match="CONNECTION-LOST"):
            await tx.read(1)
        await tx.rollback()
        assert client.node == "n2"

    asyncio.run(scenario())
    assert cluster.second.asked == []


def test_a_client_of_one_node_alone_tells_that_its_connection_is_lost() -> None:
    node = Killable(silent=True)

    async def scenario() -> None:
        client = ReferenceClient(node)
        tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + 9)
        for call in (tx.read(1), tx.rollback(), client.begin(READ_WRITE, 9.0)):
            with pytest.raises(StoreError, match="CONNECTION-LOST"):
                await call

    asyncio.run(scenario())


def test_an_answer_that_can_not_be_read_sends_its_client_to_no_other_node() -> None:
    cluster = Cluster()

    async def scenario() -> None:
        client = cluster.client()
        tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + 9)
        await tx.read(1)
        cluster.first.answers.append(b"what is this")
        with pytest.raises(StoreError, match="BAD-ANSWER"):
            await tx.read(2)
        with pytest.raises(StoreError, match="CONNECTION-LOST"):
            await client.begin(READ_WRITE, 9.0)

    asyncio.run(scenario())
    assert cluster.moves == []


@attrs.define
class Dialed:
    """A network of nodes by their ports; those that are gone refuse."""

    ports: dict[int, str]
    gone: set[str] = attrs.field(factory=set)
    nodes: list[Killable] = attrs.field(factory=list)
    batch: AbstractContextManager[None] = attrs.field(factory=nullcontext)

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        raise AssertionError("a client listens to nobody")

    async def dial(self, host: str, port: int, limit_s: float, source: str = "") -> Connection:
        node = self.ports[port]
        if node in self.gone:
            raise ConnectionLost(f"{node} refuses")
        self.nodes.append(Killable(peer=node))
        return self.nodes[-1]


def test_the_clients_of_a_node_that_is_gone_do_not_all_meet_at_the_next(tmp_path: Path) -> None:
    names = ("n1", "n2", "n3", "n4", "n5")
    cluster = loopback_cluster(tmp_path, names)
    network = Dialed({cluster.client[node]["client"].port: node for node in names})
    system = build({}, names, 1, network=network)

    async def moved(process: int, *gone: str) -> str:
        """Where the client of ``process``, which was at n2, is once these are gone."""
        client = await system.connect(cluster, "n2", process)
        for node in network.nodes:
            node.killed = True
        network.gone = set(gone)
        await one(client, READ_WRITE)
        network.gone = set()
        return client.node

    async def scenario() -> None:
        # Of 20 slots these four have n2.
        assert {await moved(each, "n2") for each in (1, 6, 11, 16)} == {"n1", "n3", "n4", "n5"}
        assert {await moved(each, "n2", "n3", "n4", "n5") for each in (1, 6, 11, 16)} == {"n1"}
        with pytest.raises(StoreError, match="CONNECT-FAILED"):
            await moved(1, *names)

    asyncio.run(scenario())


def test_a_client_returns_to_its_own_node_between_two_transactions_once_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETURN_S", 0.0)
    names = ("n1", "n2", "n3")
    cluster = loopback_cluster(tmp_path, names)
    network = Dialed({cluster.client[node]["client"].port: node for node in names})
    system = build({}, names, 1, network=network)

    async def scenario() -> None:
        own = await system.connect(cluster, "n2", 0)
        network.nodes[0].killed = True
        network.gone = {"n2"}
        await one(own, READ_WRITE)
        for _ in range(9):  # it has looked for its node by then, and it is not there
            await asyncio.sleep(0)
        assert own.node == "n3"
        tx = await own.begin(READ_WRITE, asyncio.get_running_loop().time() + 9)
        await tx.read(1)
        network.gone = set()
        for _ in range(9):
            await asyncio.sleep(0)
        # What is open goes on where it began.
        await tx.commit()
        assert own.node == "n2"
        assert network.nodes[-1].asked == []
        await one(own, READ_WRITE)
        await own.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
    begin, *rest = [request.body for request in network.nodes[-1].asked]
    assert (network.nodes[-1].peer, [node.peer for node in network.nodes]) == (
        "n2",
        ["n2", "n3", "n2"],
    )
    assert isinstance(begin, Begin)
    assert begin.after == 7
    assert [type(body) for body in rest] == [Get, Commit]
