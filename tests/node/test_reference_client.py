"""What the client sends, and which of it it waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import attrs
import pytest

from clusters.reference import client
from clusters.reference.client import ReferenceClient
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
    Put,
    ReplyBody,
    Started,
    Value,
    decode,
    encode,
)
from harness.protocols.client import READ_WRITE

ANSWERS: dict[type[object], ReplyBody] = {
    Begin: Started("n1~1-1"),
    Get: Value(None),
    Put: Ok(),
    Commit: Committed(7),
}
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
