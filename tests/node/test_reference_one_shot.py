"""Transactions of one request, and values with padding beside them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import attrs
import pytest

from clusters.reference.client import ONE_SHOT, OneShotTx, ReferenceClient, encode_value
from clusters.reference.node.wire.messages import (
    ClientReply,
    ClientRequest,
    Codec,
    OneShot,
    OneShotReply,
    decode,
    encode,
)
from harness.errors import HarnessBug
from harness.protocols.client import Committed, read_all


@attrs.define
class Node:
    """The connection to a node that holds ``values`` and carries out one-shots."""

    peer: str = "n1"
    values: dict[bytes, bytes] = attrs.field(factory=dict)
    asked: list[OneShot] = attrs.field(factory=list)
    answers: deque[bytes] = attrs.field(factory=deque)

    def send(self, payload: bytes) -> None:
        request: ClientRequest = decode(Codec.request, payload)
        assert isinstance(request.body, OneShot)
        self.asked.append(request.body)
        puts = {key: value for key, value in request.body.steps if value is not None}
        gets = [key for key, value in request.body.steps if value is None]
        held = tuple(self.values.get(key) for key in gets)
        self.values |= puts
        self.answers.append(encode(ClientReply(request.id, OneShotReply(held, 7))))

    async def recv(self) -> bytes:
        return self.answers.popleft()

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        raise AssertionError("a client waits for what it asked")

    def close(self) -> None:
        """Nothing is held."""


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


async def begun(node: Node, padding_bytes: int = 0) -> OneShotTx:
    deadline_s = asyncio.get_running_loop().time() + 9
    tx = await ReferenceClient(node, padding_bytes).begin(ONE_SHOT, deadline_s)
    assert isinstance(tx, OneShotTx)
    return tx


def test_writes_leave_together_with_the_commit_and_not_before() -> None:
    node = Node()

    async def scenario() -> None:
        tx = await begun(node)
        await tx.write(1, 10)
        await tx.write(2, 20)
        assert node.asked == []
        assert await tx.commit() == Committed(commit_ts=7)

    run(scenario)
    (asked,) = node.asked
    assert [value is not None for _, value in asked.steps] == [True, True]


def test_reads_of_several_keys_are_one_request_and_the_commit_is_none() -> None:
    node = Node()

    async def scenario() -> None:
        writer = await begun(node)
        await writer.write(1, 10)
        await writer.commit()
        reader = await begun(node)
        assert await read_all(reader, (1, 2)) == (10, None)
        assert await reader.commit() == Committed(commit_ts=7)

    run(scenario)
    assert len(node.asked) == 2


def test_writes_that_are_rolled_back_were_never_sent() -> None:
    node = Node()

    async def scenario() -> None:
        tx = await begun(node)
        await tx.write(1, 10)
        await tx.rollback()

    run(scenario)
    assert node.asked == []


def test_what_can_not_be_one_request_is_a_mistake_of_the_workload() -> None:
    async def scenario() -> None:
        appends = await begun(Node())
        with pytest.raises(HarnessBug, match="append"):
            await appends.append(1, 10)
        reads = await begun(Node())
        await reads.read(1)
        with pytest.raises(HarnessBug, match="reads once, or writes"):
            await reads.write(1, 10)
        with pytest.raises(HarnessBug, match="reads once, or writes"):
            await reads.read(2)

    run(scenario)


def test_a_padded_value_is_read_as_it_was_written_and_equal_values_are_equal_bytes() -> None:
    node = Node()

    async def scenario() -> None:
        for number in range(20):
            tx = await begun(node, padding_bytes=1000)
            await tx.write(number, number)
            await tx.commit()
        tx = await begun(node)
        assert await tx.read_together(tuple(range(20))) == tuple(range(20))

    run(scenario)
    sizes = {len(value) for value in node.values.values()}
    assert len(sizes) > 10
    assert max(sizes) <= 1000 + 16
    assert encode_value((1, 2), 500) == encode_value((1, 2), 500)
    assert len(encode_value((1, 2))) < 8
