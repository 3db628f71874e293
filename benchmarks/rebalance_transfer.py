"""A partition of many bytes moves to a container whose link is cut again and again, under load.

``python benchmarks/rebalance_transfer.py [--mib 200] [--mbit 80] [--cuts 5]``. Four containers: a
partition of so many MiB on a, b and c, where three clients overwrite small values, goes from c to
d. What the other nodes send to d is limited to so many Mbit/s (htb), and the link to d is cut for
0.7 s each time that another part of the bytes has come. Prints what the transfer took of the
network, as a ratio to what d has on its disk then (a snapshot, and the log behind it), and the p99
of writes meanwhile, as one to that before in the same run; exit code 1 where one of them is over
its bar, or the partition smaller than asked for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
from calibrator import calibrate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "zoned"))

from container_lab import ContainerLab
from timed_writer import Writer, write
from zoned_lab import columns, now_s

from clusters.reference.client import ReferenceClient, connect

MIB = 2**20
VALUE_BYTES = 2**18  # at most: how many follows from the value, here 112,090 for each
CUT_S = 0.7
BEFORE_S = 15.0
FILLERS = 4
MOST_BYTES, MOST_SLOWER = 1.2, 3.0
TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
STABLE = "SELECT NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'stable'"
LIMITED = """
set -e
device=$(ip -o route get {to} | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')
tc qdisc replace dev $device root handle 1: htb
tc class add dev $device parent 1: classid 1:1 htb rate {mbit}mbit quantum 60000
tc filter add dev $device parent 1: protocol ip u32 match ip dst {to}/32 flowid 1:1
"""
RECEIVED = "cat /sys/class/net/eth0/statistics/rx_bytes"


async def measured(lab: ContainerLab, mib: int, mbit: float, cuts: int) -> bool:
    """Move the partition; return whether both bars were met."""

    async def dial(node: str, padding_bytes: int = 0) -> ReferenceClient:
        at = lab.cluster.client[node]["client"]
        return await connect(
            lab.network,
            *(at.host, at.port, 5.0, at.source),
            padding_bytes=padding_bytes,
            table_of=lambda _: "T",
        )

    async def number(command: str) -> int:
        done = await lab.containers.run_command("d", command, 10.0)
        return int(done.output.split()[0])

    await lab.provision()
    await lab.start(*lab.nodes)
    await lab.until_rows(TOPOLOGY, columns("a b c d"))
    filtered = 'DATA_NODES_FILTER = \'"a", "b", "{}"\''
    await lab.done(f"CREATE ZONE z WITH PARTITIONS = 1, REPLICAS = 3, {filtered.format('c')}")
    await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
    values = 12 * mib * MIB // (5 * VALUE_BYTES)
    begun_s = now_s()
    await asyncio.gather(
        *(fill(lambda: dial("a", VALUE_BYTES), range(i, values, FILLERS)) for i in range(FILLERS))
    )
    print(f"{values} values written in {now_s() - begun_s:.0f} s", flush=True)
    to = lab.cluster.peer["a", "d"]["peer"].host
    for node in "abc":
        limited = await lab.containers.run_command(node, LIMITED.format(to=to, mbit=mbit), 10.0)
        if limited.status:
            raise click.ClickException(f"{node} can't be limited: {limited.output}")

    writers = [Writer() for _ in range(3)]
    work = [
        asyncio.ensure_future(writer.run(await dial(node), values + i))
        for i, (writer, node) in enumerate(zip(writers, "abc", strict=True))
    ]
    begun_s = now_s()
    await asyncio.sleep(BEFORE_S)
    before_bytes, moves_s = await number(RECEIVED), now_s()
    await lab.done(f"ALTER ZONE z SET {filtered.format('d')}")
    links = tuple(sorted(link for other in "abc" for link in (("d", other), (other, "d"))))
    made, limit_s = 0, moves_s + 20 * mib * MIB * 8 / (mbit * 1e6) + 60
    while made < cuts:
        if await number(RECEIVED) - before_bytes >= (made + 1) * mib * MIB / (cuts + 1):
            await lab.containers.cut(links)
            await asyncio.sleep(CUT_S)
            await lab.containers.cut(())
            made += 1
        if now_s() > limit_s:
            raise click.ClickException(f"{made} cuts, and no more bytes came")
        await asyncio.sleep(0.05)
    ended_s = await lab.until_rows(STABLE, {("a,b,d",)}, limit_s=limit_s - now_s())
    sent, size = await number(RECEIVED) - before_bytes, await lab.containers.data_bytes("d")
    for writer in writers:
        writer.over = True
    await asyncio.gather(*work)

    together = Writer()
    together.took_s = [took for writer in writers for took in writer.took_s]
    before_s, during_s = together.p99_s(begun_s, moves_s), together.p99_s(moves_s, ended_s)
    print(
        f"{size / MIB:.0f} MiB in {ended_s - moves_s:.1f} s, {made} cuts of "
        f"{CUT_S} s: all that came to d is {sent / size:.3f} x that (bar {MOST_BYTES})"
    )
    print(
        f"p99 of writes {1e3 * before_s:.1f} ms before, {1e3 * during_s:.1f} ms meanwhile: "
        f"{during_s / before_s:.2f} x (bar {MOST_SLOWER})"
    )
    return size >= mib * MIB and sent <= MOST_BYTES * size and during_s <= MOST_SLOWER * before_s


async def fill(dial: Callable[[], Awaitable[ReferenceClient]], keys: range) -> None:
    """Write every key once, from a client of its own."""
    client = await dial()
    for key in keys:
        await write(client, key)
    await client.close()


@click.command()
@click.option("--mib", default=200, show_default=True, help="Of the partition.")
@click.option("--mbit", default=80.0, show_default=True, help="A second, from each node to d.")
@click.option("--cuts", default=5, show_default=True)
def main(mib: int, mbit: float, cuts: int) -> None:
    """Calibrate, measure, print."""
    print(calibrate())
    print(f"{os.cpu_count()} cores, {mib} MiB at {mbit:g} Mbit/s", flush=True)

    async def run() -> bool:
        lab = ContainerLab("transfer", ("a", "b", "c", "d"))
        try:
            return await measured(lab, mib, mbit, cuts)
        finally:
            await lab.containers.teardown()

    sys.exit(not asyncio.run(run()))


if __name__ == "__main__":
    main()
