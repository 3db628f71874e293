"""Transactions a second without faults: the reference store, then Apache Ignite 3.

``python benchmarks/ignite3_throughput.py [--runs 1] [--seconds 10]``. Three nodes in containers, 8
partitions, 3 replicas; each client reads and writes two keys out of 1,000 in one read-write
transaction, through the same harness code. Nodes and clients share this machine's cores. First a
calibrator, so that figures of different machines can be read beside each other. Ignite's log is not
synced unless asked (its own default); the reference store always syncs, so a row with
``raft.fsync`` stands beside it. Where others load the machine, too, read the last column: what all
nodes together used of CPU for one commit. Needs ``scripts/prepare-ignite``.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import attrs
import click
from calibrator import calibrate

from clusters.ignite3 import image
from clusters.ignite3.artifacts import Artifacts
from clusters.providers.docker.daemon import connect
from clusters.providers.docker.labels import RUN
from harness import plugins
from harness.protocols.client import READ_WRITE, Client, StoreError
from harness.protocols.cluster import Cluster, System
from harness.protocols.conflicts import conflict_codes
from harness.tasks import together

NODES = ("n1", "n2", "n3")
KEYS = 1000
DEADLINE_S = 10.0
READY_S = 120.0
CLIENTS = (8, 16)
RUN_ID = f"throughput-{os.getpid()}"


@attrs.frozen
class Subject:
    """A row's system, its options, and what its containers need."""

    label: str
    system: str
    options: Mapping[str, object]
    containers: Mapping[str, object]


@attrs.frozen
class Load:
    """What a load came to."""

    took_s: list[float]
    codes: Counter[str]
    seconds: float
    cpu_s: float

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of the nodes' CPU for one commit."""
        return self.cpu_s * 1e3 / max(1, len(self.took_s))

    @property
    def rate(self) -> float:
        """Commits a second."""
        return len(self.took_s) / self.seconds

    @property
    def failures(self) -> str:
        """How often each code was met."""
        return ", ".join(f"{code} {count}" for code, count in self.codes.most_common()) or "none"

    def __str__(self) -> str:
        if len(self.took_s) < 2:
            return f"{len(self.took_s)} commits; failed: {self.failures}"
        p99_s = statistics.quantiles(self.took_s, n=100)[98]
        return (
            f"{self.rate:6.0f} tx/s, p50 {statistics.median(self.took_s) * 1e3:5.1f} ms, "
            f"p99 {p99_s * 1e3:6.1f} ms, {self.cpu_ms:5.1f} ms of CPU each; failed: {self.failures}"
        )


def subjects() -> tuple[Subject, ...]:
    """The rows, in the order in which they are measured."""
    options = {"partitions": 8, "replicas": 3}
    ignite = {"image": image.check(Artifacts()), "memory_mib": 1536, "processes": 1024}
    return (
        Subject("reference (synced)", "reference", options, {}),
        Subject("ignite 3.1.0", "ignite3", options, ignite),
        Subject("ignite 3.1.0 (synced)", "ignite3", options | {"fsync": True}, ignite),
    )


@asynccontextmanager
async def serving(subject: Subject, directory: Path) -> AsyncIterator[tuple[System, Cluster]]:
    """A cluster of ``subject`` in containers, gone afterwards."""
    undo = directory / "undo"
    undo.mkdir()
    provider = plugins.load("providers", "docker")(RUN_ID, subject.containers, undo)
    system: System = plugins.load("systems", subject.system)(subject.options, NODES, 1)
    try:
        await provider.capabilities()
        cluster = await provider.provision(NODES, system.ports)
        await together(provider.install(node, system.program(node, cluster)) for node in NODES)
        await system.set_up(cluster, provider, asyncio.get_running_loop().time() + READY_S)
        yield system, cluster
    finally:
        await provider.teardown()


def nodes_cpu_s() -> float:
    """Seconds of CPU that the containers of this run have used."""
    client = connect()
    try:
        found = client.containers(filters={"label": f"{RUN}={RUN_ID}"})
        looks = [client.stats(each["Id"], stream=False, one_shot=True) for each in found]
    finally:
        client.close()
    used_ns: int = sum(look["cpu_stats"]["cpu_usage"]["total_usage"] for look in looks)
    return used_ns / 1e9


async def transaction(client: Client, draw: random.Random, deadline_s: float) -> None:
    """Read and write two keys, in ascending order, so that no deadlock occurs."""
    tx = await client.begin(READ_WRITE, deadline_s)
    try:
        for key in sorted(draw.sample(range(KEYS), 2)):
            await tx.read(key)
            await tx.write(key, draw.randrange(2**40))
    except StoreError:
        with suppress(StoreError):  # what went wrong first is told
            await tx.rollback()
        raise
    await tx.commit()  # after which there is nothing to roll back, however it ends


async def load(system: System, cluster: Cluster, *, clients: int, seconds: float) -> Load:
    """``clients`` connections over all nodes, each waiting for its answers."""
    loop, before_s = asyncio.get_running_loop(), await asyncio.to_thread(nodes_cpu_s)
    until_s, took_s, codes = loop.time() + seconds, list[float](), Counter[str]()

    conflicts = conflict_codes(system.declaration)

    async def dialed(number: int) -> AsyncIterator[Client]:
        """A connection after another: one that met an error may be of no use any more, unless it
        was a conflict.
        """
        while loop.time() < until_s:
            client = await system.connect(cluster, NODES[number % len(NODES)], number)
            try:
                yield client
            finally:
                await client.close()

    async def one(number: int) -> None:
        draw = random.Random(number)
        # An error that leaves the loop would leave the generator, and its connection, open.
        async with aclosing(dialed(number)) as connections:
            async for client in connections:
                while (began_s := loop.time()) < until_s:
                    try:
                        await transaction(client, draw, began_s + DEADLINE_S)
                    except StoreError as error:
                        codes[error.code] += 1
                        if error.code not in conflicts:
                            break
                    else:
                        took_s.append(loop.time() - began_s)

    await together(one(number) for number in range(clients))
    after_s = await asyncio.to_thread(nodes_cpu_s)
    return Load(took_s, codes, seconds, after_s - before_s)


async def measured(subject: Subject, warm_s: float, seconds: float) -> list[Load]:
    """One load for each number of clients, after a warm-up: compilers need some seconds."""
    with tempfile.TemporaryDirectory() as directory:
        async with serving(subject, Path(directory)) as (system, cluster):
            await load(system, cluster, clients=max(CLIENTS), seconds=warm_s)
            return [await load(system, cluster, clients=n, seconds=seconds) for n in CLIENTS]


@click.command()
@click.option("--runs", default=1, show_default=True)
@click.option("--warm", "warm_s", default=10.0, show_default=True, help="seconds")
@click.option("--seconds", default=10.0, show_default=True, help="of each load")
@click.option("--only", "only", multiple=True, help="a row's label; repeatable")
def main(runs: int, warm_s: float, seconds: float, only: tuple[str, ...]) -> None:
    """Calibrate, measure, print."""
    found: dict[tuple[int, str], list[Load]] = {}
    chosen = [subject for subject in subjects() if not only or subject.label in only]
    for _ in range(runs):
        print(calibrate(), flush=True)
        for subject in chosen:
            loads = asyncio.run(measured(subject, warm_s, seconds))
            for clients, each in zip(CLIENTS, loads, strict=True):
                print(f"{subject.label:<24}{clients:>3} clients  {each}", flush=True)
                found.setdefault((clients, subject.label), []).append(each)
    print(f"median of {runs}: transactions a second, ms of the nodes' CPU for each")
    for (clients, label), every in sorted(found.items()):
        rate = statistics.median(each.rate for each in every)
        cpu_ms = statistics.median(each.cpu_ms for each in every)
        print(f"  {clients:>2} clients  {label:<24}{rate:7.0f}{cpu_ms:9.1f}")


if __name__ == "__main__":
    main()
