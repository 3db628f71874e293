"""A program for nodes of local processes, and what tests need to talk to it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

from clusters.providers.process.provider import ProcessProvider, build
from harness.protocols.cluster import Address, Cluster, PortSpec, Program

PORTS = (
    PortSpec(name="peer", between_nodes=True),
    PortSpec(name="client", between_nodes=False),
)

ECHO = b"""
import asyncio, json, os, signal, sys

async def serve(reader, writer):
    try:
        while line := await reader.readline():
            writer.write(os.environ["NODE"].encode() + b":" + line)
            await writer.drain()
        writer.write(b"bye\\n")
        writer.close()
    except ConnectionError:
        pass

async def main():
    if os.environ.get("DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open("started", "a") as log:
        log.write("x")
    servers = [await asyncio.start_server(serve, "127.0.0.1", int(p)) for p in sys.argv[1:]]
    print("serving", os.getpid(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Echo:
    """The echo program on every node: it answers each line with its own name before it."""

    def program(self, node: str, cluster: Cluster, **env: str) -> Program:
        ports = [str(address.port) for address in cluster.bind[node].values()]
        return Program(
            argv=("python3", "echo.py", *ports), env={"NODE": node, **env}, files={"echo.py": ECHO}
        )


async def bring_up(
    root: Path, *nodes: str, options: dict[str, object] | None = None, **env: str
) -> tuple[ProcessProvider, Cluster]:
    """Nodes that serve; the run's directory is ``root``."""
    provider = build(root.name, options or {}, root / "undo")
    cluster = await provider.provision(nodes, PORTS)
    for node in nodes:
        await provider.install(node, Echo().program(node, cluster, **env))
    await asyncio.gather(*(provider.start(node) for node in nodes))
    for node in nodes:
        await serving(cluster.client[node]["client"])
    return provider, cluster


async def serving(address: Address, limit_s: float = 20.0) -> None:
    """Return when somebody accepts connections there."""
    async with asyncio.timeout(limit_s):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(address.host, address.port)
                writer.close()
                return
            await asyncio.sleep(0.02)


async def ended(provider: ProcessProvider, node: str, how: str, limit_s: float = 10.0) -> None:
    """Return when the program on ``node`` has ended as ``how`` says."""
    async with asyncio.timeout(limit_s):
        while True:
            status = await provider.probe(node)
            if not status.running and status.exit_text == how:
                return
            assert status.running or status.exit_text == "ended", status
            await asyncio.sleep(0.01)


class Line:
    """A connection that speaks in lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, address: Address) -> Line:
        return cls(*await asyncio.open_connection(address.host, address.port))

    def say(self, text: str) -> None:
        self.writer.write(text.encode() + b"\n")

    async def hear(self, limit_s: float = 5.0) -> str:
        async with asyncio.timeout(limit_s):
            return (await self.reader.readline()).decode().strip()

    async def ask(self, text: str) -> str:
        self.say(text)
        return await self.hear()

    async def silent(self, for_s: float = 0.2) -> bool:
        """Whether nothing arrives, not even an end."""
        try:
            await self.hear(for_s)
        except TimeoutError:
            return True
        return False

    async def end(self, limit_s: float = 5.0) -> str:
        """How the stream ends: ``end`` or ``reset``."""
        try:
            async with asyncio.timeout(limit_s):
                await self.reader.read(-1)
        except ConnectionError:
            return "reset"
        return "end"

    def close(self) -> None:
        self.writer.close()


def recorded(root: Path) -> dict[str, dict[str, int]]:
    content = msgspec.json.decode((root / "undo" / "processes.json").read_bytes())
    processes: dict[str, dict[str, int]] = content["processes"]
    return processes
