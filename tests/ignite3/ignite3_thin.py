"""As much of a node as a client meets when it dials: the handshake of the thin protocol, and
transactions that are begun and ended. And what the tests of the real driver need of a machine.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import msgspec
from capabilities import lacking

from clusters.ignite3.artifacts import Artifacts
from harness.protocols.cluster import Address

HEARTBEAT, TX_BEGIN, TX_COMMIT, TX_ROLLBACK = 1, 43, 44, 45
FAR_TIME = 1 << 40


def needs_java() -> None:
    """Skips, or fails in CI, where the driver can't be built; builds it."""
    if missing := Artifacts().lacking:
        lacking(f"needs a JDK and Maven, lacks {', '.join(missing)}")
    Artifacts().driver()


@attrs.define(eq=False)
class Thin:
    """A listener on loopback. While ``welcoming`` is not set nobody who dials is answered. ``open``
    counts the connections that there are; ``changed`` tells of the next change of that.
    """

    address: Address
    welcoming: asyncio.Event = attrs.field(factory=asyncio.Event)
    open: int = 0
    changed: asyncio.Condition = attrs.field(factory=asyncio.Condition)

    async def count(self, wanted: int) -> None:
        """Return once so many connections are open."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.open == wanted)

    async def _note(self, change: int) -> None:
        async with self.changed:
            self.open += change
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._note(1)
        try:
            await reader.readexactly(4)
            await _frame(reader)
            ended = asyncio.ensure_future(reader.read(1))
            await asyncio.wait(
                {ended, welcome := asyncio.ensure_future(self.welcoming.wait())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not welcome.done():
                welcome.cancel()
                return
            writer.write(b"IGNI" + _framed(_handshake()))
            first = await ended
            while first:
                (size,) = struct.unpack(">I", first + await reader.readexactly(3))
                writer.write(_framed(_answer(await reader.readexactly(size))))
                first = await reader.read(1)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.transport.abort()
            await self._note(-1)


@asynccontextmanager
async def thin() -> AsyncIterator[Thin]:
    """A listener that welcomes nobody yet."""
    node = Thin(Address(host="127.0.0.1", port=0))
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    node.address = Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    try:
        yield node
    finally:
        server.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(size)


def _framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _packed(*values: object) -> bytes:
    return b"".join(
        b"\xd8\x03" + value.bytes  # an extension of the protocol's own
        if isinstance(value, uuid.UUID)
        else msgspec.msgpack.encode(value)
        for value in values
    )


def _handshake() -> bytes:
    node, cluster = uuid.UUID(int=1), uuid.UUID(int=2)
    idle_ms, version = 0, (3, 1, 0, None, None)
    said = (node, "n1", 1, cluster, "drill", FAR_TIME, *version, b"", 0)
    return _packed(3, 0, 0, None, idle_ms, *said)


def _answer(request: bytes) -> bytes:
    op, at = _number(request, 0)
    number, _ = _number(request, at)
    extra = {HEARTBEAT: (), TX_BEGIN: (7,), TX_COMMIT: (), TX_ROLLBACK: ()}[op]
    return _packed(number, 0, FAR_TIME, *extra)


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A small MessagePack integer, and where it ends."""
    if content[at] < 0x80:
        return content[at], at + 1
    size = {0xCC: 1, 0xCD: 2}[content[at]]
    return int.from_bytes(content[at + 1 : at + 1 + size], "big"), at + 1 + size
