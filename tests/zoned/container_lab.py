"""The lab of ``zoned_lab`` on containers: the same stories, on a real network and real disks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.docker.provider import DockerProvider, build
from clusters.reference.node.config import Endpoint
from clusters.reference.node.runtime import ConnectionLost, Network
from clusters.reference.node.runtime.real import TcpNetwork
from clusters.reference.system import LOG_FILE, NODE_SOURCE, REQUIREMENTS
from harness.protocols.cluster import Program, PythonTree


class ContainerLab(Lab):
    """To be torn down (``containers.teardown``)."""

    def __init__(self, name: str, nodes: tuple[str, ...]) -> None:
        self.containers: DockerProvider = build(f"t-{name}-{os.getpid()}", {}, Path("unused"))
        # The verbs that stories use are those of ``Provider``.
        self.provider = self.containers  # type: ignore[assignment]
        self.nodes = nodes
        self._network = TcpNetwork()

    @property
    def network(self) -> Network:
        return self._network

    def program(self, config: bytes) -> Program:
        return Program(
            argv=("python3", "-m", "clusters.reference.node", "--config", "node.json"),
            files={"node.json": config},
            python=(PythonTree(source=str(NODE_SOURCE), package="clusters.reference.node"),),
            requirements=str(REQUIREMENTS),
            log=LOG_FILE,
        )

    def endpoint_of(self, node: str, other: str) -> Endpoint:
        at = self.cluster.peer[node, other]["peer"]
        return Endpoint(host=at.host, port=at.port)

    async def start(self, *nodes: str) -> None:
        await asyncio.gather(*map(self._start, nodes))

    async def _start(self, node: str) -> None:
        """Until it listens, as a simulated node does at once."""
        await self.containers.start(node)
        at, deadline_s = self.cluster.client[node]["client"], now_s() + LIMIT_S
        while True:
            try:
                connection = await self.network.dial(at.host, at.port, LIMIT_S, at.source)
            except ConnectionLost:
                assert now_s() < deadline_s
                await asyncio.sleep(0.05)
            else:
                connection.close()
                return
