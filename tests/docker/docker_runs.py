"""What the tests of the docker provider share: a run of talkers, always torn down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import docker

from clusters.providers.docker.provider import DockerProvider, build
from harness.protocols.cluster import Address, Cluster, PortSpec, Program, PythonTree

PORTS = (PortSpec(name="talk", between_nodes=True), PortSpec(name="admin", between_nodes=False))
READY_LIMIT_S = 15.0
NODES = ("n1", "n2", "n3")


def named(name: str) -> str:
    """A run identifier of this process: two runs of the tests at once don't meet."""
    return f"t-{name}-{os.getpid()}"


@attrs.frozen
class Run:
    provider: DockerProvider
    cluster: Cluster

    async def start_all(self) -> None:
        """Install and start a talker everywhere, and wait until all answer."""
        await asyncio.gather(*(self.install(node) for node in self.cluster.nodes))
        await asyncio.gather(*(self.provider.start(node) for node in self.cluster.nodes))
        await asyncio.gather(*(self.ready(node) for node in self.cluster.nodes))

    async def install(self, node: str) -> None:
        at = self.cluster.bind[node]["talk"]
        tree = PythonTree(source=str(Path(__file__).parent / "talker"), package="deep.talker")
        argv = ("python3", "-m", "deep.talker", at.host, str(at.port))
        await self.provider.install(node, Program(argv=argv, python=(tree,)))

    async def ready(self, node: str) -> None:
        async with asyncio.timeout(READY_LIMIT_S):
            while True:
                try:
                    assert await say(self.cluster.client[node]["talk"], "echo hi") == "hi"
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    return

    async def asked(self, source: str, destination: str) -> str:
        """What ``source`` experiences when it talks to ``destination``."""
        peer = self.cluster.peer[(source, destination)]["talk"]
        return await say(self.cluster.client[source]["talk"], f"ask {peer.host} {peer.port}")


async def say(at: Address, line: str) -> str:
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(line.encode() + b"\n")
        answer = await reader.readline()
        writer.close()
    return answer.decode().strip()


@asynccontextmanager
async def running(run_id: str, nodes: tuple[str, ...] = NODES) -> AsyncIterator[Run]:
    provider = build(run_id, {}, Path("unused"))
    try:
        yield Run(provider, await provider.provision(nodes, PORTS))
    finally:
        await provider.teardown()


def owned(client: docker.APIClient, run_id: str) -> list[str]:
    """Names of what the daemon has of a run."""
    chosen = {"label": f"firedrill.run={run_id}"}
    containers = client.containers(all=True, filters=chosen)
    return [c["Names"][0] for c in containers] + [
        n["Name"] for n in client.networks(filters=chosen)
    ]
