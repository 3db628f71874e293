"""What keys cost in memory and on disk, and whether the log stays bounded while it is written to.

``python benchmarks/reference_size.py [KEYS] [SECONDS]``: three node processes of this machine, 8
partitions of 3 replicas, so that every node holds every key. Loads KEYS (1,000,000 by default) of
100 bytes through clients, prints resident size and log size of each node, then writes to keys that
are there for at least SECONDS (60 by default), and until so much was written that a log that is
never cut would be over its bound. Prints the size of each log every few seconds beside the bound.
Exit code 1 where a log goes beyond it, 2 where a slow machine writes too little in 5 times SECONDS.
First a calibrator.

The bound is what the store says of itself (``storage/log.py``, ``saving.py``). A group is saved
once as much was applied as its snapshot takes, and a quarter of what a snapshot covers stays in the
log: at most 4/3 of a snapshot counts, and a little that comes while it is saved. Segments go when
the log is over ``MAX_WASTE`` times what counts in it and one segment.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import attrs
from calibrator import calibrate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "node"))

from reference_kit import Store, store

from clusters.reference.client import ReferenceClient
from clusters.reference.node.config import DEFAULT_SNAPSHOT_BYTES
from clusters.reference.node.storage.shared_log import MAX_WASTE, SEGMENT_BYTES
from harness.protocols.client import StoreError

PARTITIONS = 8
VALUE = tuple(range(2**31, 2**31 + 18))  # 92 bytes of it, and 8 of the key
KEYS_AT_ONCE = 1000  # in one transaction while loading, of one partition
LOADERS = 4
DEADLINE_S = 20.0
LOOK_EVERY_S = 5.0
MIB = 1024 * 1024
PASSED, FAILED, UNPROVEN = 0, 1, 2
VERDICTS = {
    PASSED: "PASS: every log kept within its bound, and more than that was written",
    FAILED: "FAIL: a log went beyond its bound",
    UNPROVEN: "UNPROVEN: every log kept within its bound, but no more than that was written",
}
COVERED = 1.5  # times a snapshot
KEYS_AT_WRITE = 200  # under steady load
KEY_BYTES = 100  # with its value, and as little as that in the log
LONGEST = 5  # times SECONDS, for a machine that is slow


@attrs.frozen
class Size:
    """One node, in bytes: resident memory, log, snapshot files."""

    resident: int
    log: int
    snapshots: int

    @property
    def bound(self) -> int:
        """What the log may come to."""
        counts = COVERED * max(self.snapshots, PARTITIONS * DEFAULT_SNAPSHOT_BYTES)
        return int(MAX_WASTE * (counts + SEGMENT_BYTES))

    def __str__(self) -> str:
        return (
            f"resident {self.resident / MIB:6.1f} MiB, log {self.log / MIB:6.1f} MiB, "
            f"snapshots {self.snapshots / MIB:6.1f} MiB"
        )


def sizes(running: Store) -> dict[str, Size]:
    """Every node as it is now."""
    found = {}
    for node, child in running.processes.children.items():
        status = Path(f"/proc/{child.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        data = Path(running.cluster.work_dir[node]) / "data"
        log = sum(files(data, "log-").values())
        found[node] = Size(int(resident.split()[1]) * 1024, log, snapshots(data))
    return found


def files(directory: Path, prefix: str) -> dict[str, int]:
    """The bytes of each file that begins with ``prefix``; one may go while they are counted."""
    found = dict[str, int]()
    for path in directory.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):
            found[path.name] = path.stat().st_size
    return found


def snapshots(directory: Path) -> int:
    """The bytes of every group's snapshot: while the next one is written, of the larger file."""
    largest = dict[str, int]()
    for name, size in files(directory, "snap-").items():
        group = name.rpartition("-")[2]
        largest[group] = max(size, largest.get(group, 0))
    return sum(largest.values())


async def put(client: ReferenceClient, keys: list[int], refused: Counter[str]) -> None:
    """Write ``keys`` in one transaction, again where it was refused."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            await client.one_shot([(key, VALUE) for key in keys], loop.time() + DEADLINE_S)
        except StoreError as error:
            refused[error.code] += 1
            await asyncio.sleep(0.2)
        else:
            return


async def load(running: Store, keys: list[list[int]]) -> float:
    """Write every key once, ``keys`` by partition; the seconds that it took."""
    loop = asyncio.get_running_loop()
    begun_s, refused = loop.time(), Counter[str]()
    batches = [
        held[first : first + KEYS_AT_ONCE]
        for first in range(0, max(map(len, keys)), KEYS_AT_ONCE)
        for held in keys
    ]

    async def one(number: int) -> None:
        node = running.cluster.nodes[number % len(running.cluster.nodes)]
        client = await running.system.connect(running.cluster, node, number)
        for batch in batches[number::LOADERS]:
            await put(client, batch, refused)
        await client.close()

    await asyncio.gather(*(one(number) for number in range(LOADERS)))
    tell(refused)
    return loop.time() - begun_s


def tell(refused: Counter[str]) -> None:
    """What was tried again: a machine that is too busy shows here, before any figure does."""
    if refused:
        print("  tried again: " + ", ".join(f"{code} {n}" for code, n in refused.most_common()))


@attrs.define
class Steady:
    """Writes to keys that are there, while somebody looks at the logs."""

    running: Store
    keys: list[list[int]]
    seconds: float
    loaded_bytes: int
    written: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    over: bool = False

    @property
    def written_bytes(self) -> int:
        """What every log would hold at least if it were never cut."""
        return self.loaded_bytes + self.written * KEY_BYTES

    async def write(self, number: int) -> None:
        """One client, of one partition: what is measured is not how transactions conflict."""
        choose, nodes = random.Random(number), self.running.cluster.nodes
        node = nodes[number % len(nodes)]
        client = await self.running.system.connect(self.running.cluster, node, number)
        while not self.over:
            chosen = choose.sample(self.keys[number], KEYS_AT_WRITE)
            await put(client, chosen, self.refused)
            self.written += len(chosen)
        await client.close()

    async def watch(self) -> int:
        """The exit code: whether every log kept within its bound, and would not have without being
        cut.
        """
        loop = asyncio.get_running_loop()
        begun_s, kept, proven = loop.time(), True, False
        while not self.over:
            await asyncio.sleep(LOOK_EVERY_S)
            now, took_s = sizes(self.running), loop.time() - begun_s
            bound = max(size.bound for size in now.values())
            kept &= all(size.log <= size.bound for size in now.values())
            proven = self.written_bytes > bound
            logs = "  ".join(f"{node} {size.log / MIB:6.1f}" for node, size in now.items())
            print(
                f"  {took_s:4.0f} s  written {self.written_bytes / MIB:6.1f} MiB, logs: {logs}, "
                f"bound {bound / MIB:.0f}{'' if kept else ', EXCEEDED'}",
                flush=True,
            )
            enough = took_s >= self.seconds and proven
            self.over = enough or took_s >= LONGEST * self.seconds
        print(f"  {self.written / took_s:.0f} keys/s")
        return (PASSED if proven else UNPROVEN) if kept else FAILED

    async def run(self) -> int:
        """Write and watch."""
        writers = [self.write(number) for number in range(PARTITIONS)]
        code, *_ = await asyncio.gather(self.watch(), *writers)
        tell(self.refused)
        return int(code or PASSED)


async def measure(directory: Path, count: int, seconds: float) -> int:
    """Everything on one cluster."""
    async with store(directory, partitions=PARTITIONS) as running:
        for node, size in sizes(running).items():
            print(f"{node}, empty:  {size}")
        keys: list[list[int]] = [[] for _ in range(PARTITIONS)]
        for key in range(count):
            keys[running.system.partition_of(key)].append(key)
        took_s = await load(running, keys)
        print(f"{count} keys of 100 bytes in {took_s:.0f} s")
        await running.whole()
        for node, size in sizes(running).items():
            print(f"{node}, loaded: {size}")
        code = await Steady(running, keys, seconds, count * KEY_BYTES).run()
        for node, size in sizes(running).items():
            print(f"{node}, written to: {size}")
        print(VERDICTS[code])
        return code


def main() -> int:
    """Calibrate, measure, print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    with tempfile.TemporaryDirectory() as directory:
        print(calibrate())
        return asyncio.run(measure(Path(directory), count, seconds))


if __name__ == "__main__":
    sys.exit(main())
