"""A running reference store for benchmarks, and the calibrator that goes before their figures."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from clusters.reference.system import ReferenceSystem, build
from harness import plugins
from harness.client import Client
from harness.cluster import Cluster, Provider
from harness.tasks import together

READY_S = 60.0


def calibrate(directory: Path) -> str:
    """This machine's time for 200,000 hashes and for 200 synced appends."""
    begun = time.perf_counter()
    digest = b""
    for _ in range(200_000):
        digest = hashlib.sha256(digest).digest()
    hashed = time.perf_counter()
    with (directory / "calibrate").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 512)
            os.fdatasync(file.fileno())
    synced = time.perf_counter()
    return f"calibrator: cpu {hashed - begun:.3f} s, fsync {(synced - hashed) / 200 * 1e6:.0f} us"


@attrs.frozen(kw_only=True)
class Running:
    """A store that serves, and who provides its nodes."""

    provider: Provider
    system: ReferenceSystem
    cluster: Cluster

    async def whole(self) -> None:
        """Bring back what is down, and wait until every replica has everything."""
        deadline_s = asyncio.get_running_loop().time() + READY_S
        await self.system.recover(self.cluster, self.provider, deadline_s)

    async def client(self, number: int) -> Client:
        """A connection to the node whose turn it is with ``number``."""
        nodes = self.cluster.nodes
        return await self.system.connect(self.cluster, nodes[number % len(nodes)], number)


@asynccontextmanager
async def running(
    provider_name: str, directory: Path, *, nodes: int = 3, **options: object
) -> AsyncIterator[Running]:
    """A store of ``nodes`` nodes of the named provider; ``options`` are the plan's ``[system]``."""
    names = tuple(f"n{i + 1}" for i in range(nodes))
    run = f"bench-{os.getpid()}"
    provider = plugins.load("providers", provider_name)(run, {}, directory / "undo")
    system = build(options, names, 1)
    try:
        await provider.capabilities()
        cluster = await provider.provision(names, system.ports)
        await together(provider.install(node, system.program(node, cluster)) for node in names)
        deadline_s = asyncio.get_running_loop().time() + READY_S
        await system.set_up(cluster, provider, deadline_s)
        yield Running(provider=provider, system=system, cluster=cluster)
    finally:
        await provider.teardown()
