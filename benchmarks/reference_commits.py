"""Transactions a second on three nodes of this machine, and how long a failover takes.

``python benchmarks/reference_commits.py [--provider docker] [--runs 5]``. First a calibrator: a
fixed loop of CPU and of fsync, so that figures of different machines can be read beside each other.
Nodes and clients share the machine's cores. Keys are uniform over 1,000 in 8 partitions. Each run
has a cluster of its own; at the end the median of all runs stands beside the bar.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import attrs
import click
from calibrator import calibrate
from reference_running import BARE, Running, running

from clusters.reference.client import ReferenceClient
from harness.protocols.client import READ_WRITE, StoreError
from harness.tasks import together

KEYS = 1000
DEADLINE_S = 5.0
LOAD_SHARE = 0.7  # of the maximum, where latency is read
FAILOVERS = 3
VALUE = tuple(range(20))  # about 100 bytes with its key

Attempt = Callable[[ReferenceClient, random.Random, float], Awaitable[None]]


@attrs.frozen
class Measured:
    """What a load came to; times in seconds, those of CPU of all nodes and of all clients."""

    took_s: list[float]
    failed: int
    seconds: float
    nodes_cpu_s: float
    clients_cpu_s: float

    @property
    def nodes_cpu_ms(self) -> float:
        """Milliseconds of CPU that a commit took on all nodes together."""
        return self.nodes_cpu_s / len(self.took_s) * 1e3

    @property
    def rate(self) -> float:
        """Commits a second."""
        return len(self.took_s) / self.seconds

    @property
    def p99_s(self) -> float:
        """What one in a hundred took longer than."""
        return statistics.quantiles(self.took_s, n=100)[98]

    def __str__(self) -> str:
        return (
            f"{self.rate:6.0f} commits/s, p50 {statistics.median(self.took_s) * 1e3:5.1f} ms, "
            f"p99 {self.p99_s * 1e3:5.1f} ms, {self.failed} failed, "
            f"CPU each: nodes {self.nodes_cpu_ms:.2f} ms, "
            f"clients {self.clients_cpu_s / len(self.took_s) * 1e3:.2f} ms"
        )


@attrs.frozen(kw_only=True)
class Figures:
    """One run: commits a second and the 99th percentile under 70 % of them, with one key and with
    two; what a commit of two keys then costs the nodes; the longest failover. Seconds.
    """

    one_rate: float
    one_p99_s: float
    two_rate: float
    two_p99_s: float
    two_cpu_ms: float
    failover_s: float


@attrs.frozen(kw_only=True)
class Bar:
    """What a figure is compared with: a ``least``, or else a most."""

    name: str
    field: str
    limit: float
    least: bool
    unit: str
    scale: float = 1.0

    def told(self, runs: list[Figures]) -> str:
        """The median over ``runs`` beside the bar."""
        median = statistics.median(getattr(run, self.field) for run in runs)
        met = median >= self.limit if self.least else median <= self.limit
        word = "at least" if self.least else "at most"
        bar = f"{word} {self.limit * self.scale:,.0f} {self.unit}"
        figure = f"{median * self.scale:8,.0f} {self.unit:<2}"
        return f"{self.name:<44} {figure}  {bar:<18} {'met' if met else 'MISSED'}"


BARS = (
    Bar(name="one-shot get+put of one key", field="one_rate", limit=1200, least=True, unit="/s"),
    Bar(name="two keys in two partitions", field="two_rate", limit=400, least=True, unit="/s"),
    Bar(
        name="p99 at 70 %, one key",
        field="one_p99_s",
        limit=0.1,
        least=False,
        unit="ms",
        scale=1e3,
    ),
    Bar(
        name="p99 at 70 %, two keys",
        field="two_p99_s",
        limit=0.1,
        least=False,
        unit="ms",
        scale=1e3,
    ),
    Bar(
        name=f"primary killed, service back (longest of {FAILOVERS})",
        field="failover_s",
        limit=2.0,
        least=False,
        unit="ms",
        scale=1e3,
    ),
)


async def one_shot(client: ReferenceClient, choose: random.Random, deadline_s: float) -> None:
    """Get and put one key in one round trip."""
    key = choose.randrange(KEYS)
    await client.one_shot([(key, None), (key, VALUE)], deadline_s)


def two_keys(store: Running) -> Attempt:
    """Get and put two keys of two partitions, step by step; a put leaves with the next step."""

    async def attempt(client: ReferenceClient, choose: random.Random, deadline_s: float) -> None:
        first = second = choose.randrange(KEYS)
        while store.system.partition_of(first) == store.system.partition_of(second):
            second = choose.randrange(KEYS)
        tx = await client.begin(READ_WRITE, deadline_s)
        try:
            # In one order, so that no two transactions wait for each other's lock.
            for key in sorted((first, second)):
                await tx.read(key)
                await tx.write(key, choose.randrange(2**40))
            await tx.commit()
        except StoreError:
            await tx.rollback()
            raise

    return attempt


async def load(
    store: Running, attempt: Attempt, *, seconds: float, clients: int, rate: float | None = None
) -> Measured:
    """Run ``attempt`` on ``clients`` connections; with ``rate`` as one stream of random arrivals a
    second, each taken by the next connection that is free and counted from when it was due.
    """
    nodes_s, clients_s = await store.cpu_s(), time.process_time()
    loop = asyncio.get_running_loop()
    took_s, failures = list[float](), list[str]()
    dues = _arrivals(loop.time(), seconds, rate) if rate else _at_once(loop.time() + seconds)

    async def one(number: int) -> None:
        choose = random.Random(number)
        client = await store.client(number)
        for due_s in dues:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            try:
                await attempt(client, choose, loop.time() + DEADLINE_S)
            except StoreError as error:
                failures.append(error.code)
            else:
                took_s.append(loop.time() - due_s)
        await client.close()

    await together(one(number) for number in range(clients))
    clients_s = time.process_time() - clients_s
    return Measured(took_s, len(failures), seconds, await store.cpu_s() - nodes_s, clients_s)


def _arrivals(start_s: float, seconds: float, rate: float) -> Iterator[float]:
    """Times of a Poisson process of ``rate`` a second, shared by all that take from it."""
    choose, due_s = random.Random(int(rate)), start_s
    while (due_s := due_s + choose.expovariate(rate)) < start_s + seconds:
        yield due_s


def _at_once(until_s: float) -> Iterator[float]:
    """Now, whenever somebody asks, until ``until_s``."""
    while (now_s := asyncio.get_running_loop().time()) < until_s:
        yield now_s


async def failover(store: Running) -> float:
    """Seconds from asking for the kill of a primary to the next commit on its partition."""
    loop = asyncio.get_running_loop()
    key = next(k for k in range(KEYS) if store.system.partition_of(k) == 0)
    victim = (await store.system.roles(store.cluster)).primaries[0]
    number = next(i for i, n in enumerate(store.cluster.nodes) if n != victim)
    # Before the kill: the figure is the store's, without a dial of the client.
    client = await store.client(number)
    killed_s = loop.time()
    await store.provider.kill(victim)
    while True:
        try:
            await client.one_shot([(key, None), (key, VALUE)], loop.time() + DEADLINE_S)
        except StoreError:
            await asyncio.sleep(0.01)  # the grain of the figure
        else:
            break
    took_s = loop.time() - killed_s
    await client.close()
    await store.provider.start(victim)
    await store.whole()
    return took_s


async def measure(store: Running, seconds: float, clients: int) -> Figures:
    """Everything on one cluster."""
    found: list[Measured] = []
    loads = (
        ("one-shot get+put, one key", one_shot),
        ("get+put of two keys in two partitions", two_keys(store)),
    )
    for name, attempt in loads:
        # Not counted: the first transactions find cold code and cold caches.
        await load(store, attempt, seconds=1.0, clients=clients)
        most = await load(store, attempt, seconds=seconds, clients=clients)
        print(f"{name}, {clients} clients:  {most}", flush=True)
        rate = most.rate * LOAD_SHARE
        share = await load(store, attempt, seconds=seconds, clients=clients, rate=rate)
        print(f"{name}, at {LOAD_SHARE:.0%} of it:  {share}", flush=True)
        found += [most, share]
    took_s = [await failover(store) for _ in range(FAILOVERS)]
    times = ", ".join(f"{each:.2f}" for each in took_s)
    print(f"primary killed, service back after: {times} s", flush=True)
    return Figures(
        one_rate=found[0].rate,
        one_p99_s=found[1].p99_s,
        two_rate=found[2].rate,
        two_p99_s=found[3].p99_s,
        two_cpu_ms=found[3].nodes_cpu_ms,
        failover_s=max(took_s),
    )


async def one_run(provider: str, directory: Path, seconds: float, clients: int) -> Figures:
    """A cluster of its own, measured."""
    async with running(provider, directory) as store:
        return await measure(store, seconds, clients)


@click.command()
@click.option("--provider", default=BARE, show_default=True, help="bare, process or docker")
@click.option("--runs", default=1, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="of each load")
@click.option("--clients", default=16, show_default=True)
def main(provider: str, runs: int, seconds: float, clients: int) -> None:
    """Calibrate, measure, print."""
    figures = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as directory:
            print(calibrate(), flush=True)
            figures.append(asyncio.run(one_run(provider, Path(directory), seconds, clients)))
    print(f"median of {runs} on provider {provider}:")
    print("\n".join(bar.told(figures) for bar in BARS))
    cpu_ms = statistics.median(run.two_cpu_ms for run in figures)
    print(f"CPU of all nodes for a commit of two keys at 70 %: {cpu_ms:.2f} ms")


if __name__ == "__main__":
    main()
