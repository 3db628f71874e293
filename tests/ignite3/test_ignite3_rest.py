"""Questions over REST: each within its limit, none held up by another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clusters.ignite3 import rest
from harness.protocols.cluster import Address

STARTED = b'{"name": "n1", "state": "STARTED"}'


@asynccontextmanager
async def answering(*pieces: bytes, pause_s: float = 0.0) -> AsyncIterator[Address]:
    """A server that says ``pieces`` to whoever asks, and keeps the connection without any."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if not pieces:
                await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "LOOK_LIMIT_S", 0.2)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + STARTED, "STARTED"),
        (b"HTTP/1.0 404 Not Found\r\n\r\n" + STARTED, None),
        (b"HTTP/1.1 200 OK\r\n\r\nno json", None),
        (b"SSH-2.0-OpenSSH_9.2\r\n", None),
        (b"", None),
    ],
)
def test_only_a_whole_answer_of_http_is_one(answer: bytes, state: str | None) -> None:
    async def ask() -> str | None:
        async with answering(answer) as at:
            return await rest.node_state(at)

    assert asyncio.run(ask()) == state


def test_an_answer_that_trickles_is_over_at_its_limit() -> None:
    async def ask() -> float:
        loop = asyncio.get_running_loop()
        async with answering(*[b"HTTP/1.1 200 OK\r\nX: 1\r\n"] * 100, pause_s=0.05) as at:
            began_s = loop.time()
            assert await rest.node_state(at) is None
            return loop.time() - began_s

    assert asyncio.run(ask()) < 2.0


def test_silent_nodes_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "LOOK_LIMIT_S", 60.0)

    async def ask() -> None:
        async with answering() as silent, answering(b"HTTP/1.1 200 OK\r\n\r\n" + STARTED) as at:
            others = [asyncio.ensure_future(rest.node_state(silent)) for _ in range(40)]
            assert await rest.node_state(at) == "STARTED"
            assert not any(other.done() for other in others)
            for other in others:
                other.cancel()
            await asyncio.wait(others)

    asyncio.run(ask())


def test_an_answer_that_would_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "ANSWER_LIMIT_BYTES", 1024)

    async def ask() -> str:
        async with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000) as at:
            return await rest.initialise(at, ("n1",), "", 5.0)

    assert "more than 1024 bytes" in asyncio.run(ask())


def test_a_cluster_that_is_not_made_in_time_says_so() -> None:
    async def ask() -> str:
        async with answering() as at:
            return await rest.initialise(at, ("n1",), "", 0.05)

    assert asyncio.run(ask()) == "no answer within 0.1 s"
