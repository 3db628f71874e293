"""What the client sends, and which of it it waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import attrs
import pytest

from clusters.reference import client
from clusters.reference.client import ONE_SHOT, ReferenceClient
from clusters.reference.node.runtime import ConnectionLost
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
