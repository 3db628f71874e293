"""A running reference store for benchmarks."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "node"))

from reference_kit import store

from clusters.providers.docker.daemon import connect
from clusters.providers.docker.labels import RUN
from clusters.reference.client import ReferenceClient
from clusters.reference.system import ReferenceSystem, build
from harness import plugins
from harness.protocols.cluster import Cluster, Provider
from harness.tasks import together

BARE = "bare"
READY_S = 60.0


@attrs.frozen(kw_only=True)
class Running:
    """A store that serves, and the provider of its nodes."""

    provider: Provider
    system: ReferenceSystem
    cluster: Cluster
    containers: tuple[str, ...] = ()

    async def whole(self) -> None:
        """Bring back what is down, and wait until every replica has everything."""
        deadline_s = asyncio.get_running_loop().time() + READY_S
        await self.system.recover(self.cluster, self.provider, deadline_s)

    async def client(self, number: int) -> ReferenceClient:
        """A connection to the node whose turn it is with ``number``."""
        nodes = self.cluster.nodes
        return await self.system.connect(self.cluster, nodes[number % len(nodes)], number)

    async def cpu_s(self) -> float:
        """Seconds of CPU that the nodes have used: what is left to the machine's other work
        distorts it least.
        """
        if self.containers:
            return await asyncio.to_thread(_containers_cpu_s, self.containers)
        looks = await together(self.provider.probe(node) for node in self.cluster.nodes)
        return sum(_cpu_s(look.pid) for look in looks if look.pid)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # User and system time: fields 14 and 15 of proc(5), of which two are cut off here.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _containers_cpu_s(containers: tuple[str, ...]) -> float:
    client = connect()
    try:
        looks = [client.stats(name, stream=False, one_shot=True) for name in containers]
    finally:
        client.close()
    return sum(look["cpu_stats"]["cpu_usage"]["total_usage"] for look in looks) / 1e9


@asynccontextmanager
async def running(
    provider_name: str, directory: Path, *, nodes: int = 3, **options: object
) -> AsyncIterator[Running]:
    """A store of ``nodes`` nodes of the named provider, or of ``BARE`` processes that dial each
    other without a proxy between; ``options`` are the plan's ``[system]``.
    """
    if provider_name == BARE:
        async with store(directory, nodes, **options) as bare:
            found: Any = bare.processes
            yield Running(provider=found, system=bare.system, cluster=bare.cluster)
        return
    names = tuple(f"n{i + 1}" for i in range(nodes))
    run = f"bench-{os.getpid()}"
    provider = plugins.load("providers", provider_name)(run, {}, directory / "undo")
    system = build(options, names, 1)
    try:
        (directory / "undo").mkdir(exist_ok=True)
        await provider.capabilities()
        cluster = await provider.provision(names, system.ports)
        await together(provider.install(node, system.program(node, cluster)) for node in names)
        deadline_s = asyncio.get_running_loop().time() + READY_S
        await system.set_up(cluster, provider, deadline_s)
        made = _containers(run) if provider_name == "docker" else ()
        yield Running(provider=provider, system=system, cluster=cluster, containers=made)
    finally:
        await provider.teardown()


def _containers(run: str) -> tuple[str, ...]:
    client = connect()
    try:
        found = client.containers(filters={"label": f"{RUN}={run}"})
    finally:
        client.close()
    return tuple(container["Id"] for container in found)
