"""Transactions a second on three node processes of this machine, and how long a failover takes.

``python benchmarks/reference_commits.py [SECONDS] [CLIENTS]``. First a calibrator: a fixed loop of
CPU and of fsync, so that figures of different machines can be read beside each other. Nodes and
clients share the machine's cores. Keys are uniform over 1,000 in 8 partitions.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "node"))

from reference_kit import Store, store

from clusters.reference.client import ReferenceClient
from harness.client import READ_WRITE, StoreError

KEYS = 1000
DEADLINE_S = 5.0
LOAD_SHARE = 0.7  # of the maximum, where latency is read
VALUE = tuple(range(20))  # about 100 bytes with its key

Attempt = Callable[[ReferenceClient, random.Random, float], Awaitable[None]]


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


@attrs.frozen
class Measured:
    """What a load came to; times in seconds."""

    took_s: list[float]
    failed: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Commits a second."""
        return len(self.took_s) / self.seconds

    def __str__(self) -> str:
        cuts = statistics.quantiles(self.took_s, n=100)
        return (
            f"{self.rate:6.0f} commits/s, p50 {cuts[49] * 1e3:5.1f} ms, "
            f"p99 {cuts[98] * 1e3:5.1f} ms, {self.failed} failed, "
            f"{self.cpu_s / len(self.took_s) * 1e3:.2f} ms of CPU each"
        )


def cpu_s(running: Store) -> float:
    """Seconds of CPU that nodes and clients have used: what is left to the machine's other work
    does not distort it.
    """
    ticks = 0
    for child in running.processes.children.values():
        if child.returncode is None:
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


async def one_shot(client: ReferenceClient, choose: random.Random, deadline_s: float) -> None:
    """Get and put one key in one round trip."""
    key = choose.randrange(KEYS)
    await client.one_shot([(key, None), (key, VALUE)], deadline_s)


def two_keys(running: Store) -> Attempt:
    """Get and put two keys of two partitions, step by step."""

    async def attempt(client: ReferenceClient, choose: random.Random, deadline_s: float) -> None:
        first = second = choose.randrange(KEYS)
        while running.system.partition_of(first) == running.system.partition_of(second):
            second = choose.randrange(KEYS)
        tx = await client.begin(READ_WRITE, deadline_s)
        try:
            for key in sorted((first, second)):
                await tx.read(key)
                await tx.write(key, choose.randrange(2**40))
            await tx.commit()
        except StoreError:
            await tx.rollback()
            raise

    return attempt


async def load(
    running: Store, attempt: Attempt, *, seconds: float, clients: int, rate: float | None = None
) -> Measured:
    """Run ``attempt`` on ``clients`` connections; with ``rate`` at random times, counted from when
    each was due.
    """
    loop = asyncio.get_running_loop()
    until_s, took_s, failures = loop.time() + seconds, list[float](), list[str]()
    before_s = cpu_s(running)

    async def one(number: int) -> None:
        choose, due_s = random.Random(number), loop.time()
        nodes = running.cluster.nodes
        client = await running.system.connect(running.cluster, nodes[number % len(nodes)], number)
        while True:
            due_s = due_s + choose.expovariate(rate / clients) if rate else loop.time()
            if due_s >= until_s:
                break
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            try:
                await attempt(client, choose, loop.time() + DEADLINE_S)
            except StoreError as error:
                failures.append(error.code)
            else:
                took_s.append(loop.time() - due_s)
        await client.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    return Measured(took_s, len(failures), seconds, cpu_s(running) - before_s)


async def failover(running: Store) -> float:
    """Seconds from the kill of a primary to the next commit on its partition."""
    loop = asyncio.get_running_loop()
    key = next(k for k in range(KEYS) if running.system.partition_of(k) == 0)
    victim = (await running.system.roles(running.cluster)).leaders[0]
    node = next(n for n in running.cluster.nodes if n != victim)
    client = await running.system.connect(running.cluster, node, 0)
    await running.processes.kill(victim)
    killed_s = loop.time()
    while True:
        try:
            await client.one_shot([(key, None), (key, VALUE)], loop.time() + DEADLINE_S)
        except StoreError:
            await asyncio.sleep(0.01)
        else:
            break
    took_s = loop.time() - killed_s
    await client.close()
    await running.processes.start(victim)
    await running.whole()
    return took_s


async def measure(directory: Path, seconds: float, clients: int) -> None:
    """Everything on one cluster."""
    async with store(directory) as running:
        loads = (
            ("one-shot get+put, one key", one_shot),
            ("get+put of two keys in two partitions", two_keys(running)),
        )
        for name, attempt in loads:
            await load(running, attempt, seconds=1.0, clients=clients)
            most = await load(running, attempt, seconds=seconds, clients=clients)
            print(f"{name}, {clients} clients:  {most}")
            share = await load(
                running, attempt, seconds=seconds, clients=clients, rate=most.rate * LOAD_SHARE
            )
            print(f"{name}, at {LOAD_SHARE:.0%} of it:  {share}")
        took_s = [await failover(running) for _ in range(5)]
        times = ", ".join(f"{each:.2f}" for each in took_s)
        print(f"primary killed, service back after: {times} s")


def main() -> None:
    """Calibrate, measure, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    clients = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    with tempfile.TemporaryDirectory() as directory:
        print(calibrate(Path(directory)))
        asyncio.run(measure(Path(directory), seconds, clients))


if __name__ == "__main__":
    main()
