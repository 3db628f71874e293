"""A relay between clients and a node, which can lose answers and reset connections.

Every client address of one node leads through a listener of the relay on loopback, so that a check
sees a client's reaction to a lost answer: above all, whether the client dials again on its own. In
the same way a relay can stand on every link that leads out of a node, for the requests between
nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import attrs

from harness.protocols.cluster import Address, Cluster

LOOPBACK = "127.0.0.1"
DIAL_LIMIT_S = 2.0
CHUNK_BYTES = 1 << 16


@attrs.define(eq=False)
class Relay:
    """``cluster`` holds the relayed addresses, for the clients. ``accepted`` counts connections so
    far.
    """

    cluster: Cluster
    accepted: int = 0
    muted: bool = False
    _open: list[asyncio.StreamWriter] = attrs.field(factory=list)
    _work: list[asyncio.Task[None]] = attrs.field(factory=list)

    def mute(self) -> None:
        """Drop all answers to clients from now on; their requests still pass."""
        self.muted = True

    def cut(self) -> None:
        """Reset every open connection; new ones pass."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        self.muted = False

    def end(self) -> None:
        """Reset every connection and cancel the tasks."""
        self.cut()
        for task in self._work:
            task.cancel()

    def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Address
    ) -> None:
        """Accept one connection from a client."""
        self.accepted += 1
        self._open.append(writer)
        self._work.append(asyncio.get_running_loop().create_task(self._carry(reader, writer, to)))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Address
    ) -> None:
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                back, on = await asyncio.open_connection(to.host, to.port)
        except OSError:  # TimeoutError is one
            writer.transport.abort()
            return
        self._open.append(on)
        answers = asyncio.get_running_loop().create_task(self._pump(back, writer, answers=True))
        self._work.append(answers)
        await self._pump(reader, on, answers=False)

    async def _pump(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                if not (answers and self.muted):
                    to.write(data)
                    await to.drain()
        except OSError:
            return  # the other direction sees it as well
        finally:
            if not (answers and self.muted):  # silence is not to end as a reset
                to.transport.abort()


@asynccontextmanager
async def relayed(cluster: Cluster, node: str) -> AsyncIterator[Relay]:
    """A relay before every client address of ``node``."""
    relay = Relay(cluster)
    async with AsyncExitStack() as ends:
        ends.callback(relay.end)
        addresses = await _before(relay, cluster.client[node], ends)
        relay.cluster = attrs.evolve(cluster, client={**cluster.client, node: addresses})
        yield relay


@asynccontextmanager
async def relayed_links(cluster: Cluster, node: str) -> AsyncIterator[Relay]:
    """A relay on every link that ``node`` dials; the node's program has to be made for ``cluster``
    of the relay.
    """
    relay, peer = Relay(cluster), dict(cluster.peer)
    async with AsyncExitStack() as ends:
        ends.callback(relay.end)
        for link, ports in cluster.peer.items():
            if link[0] == node:
                peer[link] = await _before(relay, ports, ends)
        relay.cluster = attrs.evolve(cluster, peer=peer)
        yield relay


async def _before(
    relay: Relay, ports: Mapping[str, Address], ends: AsyncExitStack
) -> dict[str, Address]:
    """The addresses that reach ``ports`` through ``relay``, until ``ends``."""
    addresses = {}
    for name, to in ports.items():
        # ``to`` by default is bound now: the variable goes on to the next port.
        def take(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Address = to
        ) -> None:
            relay.carry(reader, writer, to)

        server = await asyncio.start_server(take, LOOPBACK, 0)
        ends.callback(server.close)
        addresses[name] = Address(host=LOOPBACK, port=server.sockets[0].getsockname()[1])
    return addresses
