"""Which files of the node a transaction enters that appends to two partitions, from the session of
its client to the disks of all replicas and back.

``python benchmarks/files_entered.py``. Three simulated nodes serve the same transaction again and
again, and then nothing for as long. A file counts where some function of it is called at least
every second transaction more often than without: heartbeats, renewals and what else goes on by
itself does not count; bug switches, markers and what a simulation listens to do. Prints each file
with its most frequent calls, and how many files there are.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import FrameType

import click

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference import node as node_package
from clusters.reference.client import ReferenceClient
from clusters.reference.system import build
from harness.protocols.client import READ_WRITE

NAMES = ("n1", "n2", "n3")
PARTITIONS = 4
EVERY_S = 0.05
LIMIT_S = 3.0
SHOWN = 3
NODE = f"{Path(node_package.__file__ or '').parent}/"

Calls = defaultdict[str, Counter[str]]


class Profile:
    """Counts calls of the node's functions, by file, in the one of ``into`` that is set."""

    def __init__(self) -> None:
        self.into: Calls | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and self.into is not None and name.startswith(NODE):
            self.into[name.removeprefix(NODE)][frame.f_code.co_qualname] += 1


async def measured(transactions: int) -> tuple[Calls, Calls]:
    """Calls while ``transactions`` go on, and in as much time without any."""
    loop, profile = asyncio.get_running_loop(), Profile()
    provider = SimProvider(seed=1)
    system = build({"partitions": PARTITIONS}, NAMES, 1, network=provider.client_network)
    cluster = await provider.provision(NAMES, system.ports)
    for name in NAMES:
        await provider.install(name, system.program(name, cluster))
    await system.set_up(cluster, provider, loop.time() + 30.0)
    keys = [next(key for key in range(1000) if system.partition_of(key) == p) for p in range(2)]
    client = await system.connect(cluster, NAMES[0], 0)
    busy: Calls = defaultdict(Counter)
    alone: Calls = defaultdict(Counter)
    await appended(client, keys)
    await asyncio.sleep(1.0)
    sys.setprofile(profile)
    try:
        profile.into = alone
        await asyncio.sleep(transactions * EVERY_S)
        profile.into = busy
        for _ in range(transactions):
            next_s = loop.time() + EVERY_S
            await appended(client, keys)
            await asyncio.sleep(max(0.0, next_s - loop.time()))
    finally:
        sys.setprofile(None)
    await provider.teardown()
    return busy, alone


async def appended(client: ReferenceClient, keys: list[int]) -> None:
    """One transaction: an append is a read and a write of a key."""
    tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + LIMIT_S)
    for key in keys:
        await tx.append(key, 1)
    await tx.commit()


@click.command()
@click.option("--transactions", type=click.IntRange(1), default=200, show_default=True)
def main(transactions: int) -> None:
    """Print the files of the node that one append to two partitions enters."""
    busy, alone = simulate(measured(transactions))
    entered = 0
    for name, calls in sorted(busy.items()):
        more = {each: (count - alone[name][each]) / transactions for each, count in calls.items()}
        often = sorted((each for each in more if more[each] > 0.5), key=lambda each: -more[each])
        if often:
            entered += 1
            shown = ", ".join(f"{each} {more[each]:.1f}" for each in often[:SHOWN])
            click.echo(f"{name}: {shown}")
    click.echo(f"{entered} files")


if __name__ == "__main__":
    main()
