"""Interactive get + put commits a second on three node processes of this machine.

``python benchmarks/reference_commits.py [SECONDS] [CLIENTS]``. First a calibrator: a fixed loop of
CPU and of fsync, so that figures of different machines can be read beside each other.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "node"))

from reference_kit import Store, store

from harness.client import READ_WRITE, StoreError

KEYS = 1000
DEADLINE_S = 5.0


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


async def client(running: Store, number: int, until_s: float, took_s: list[float]) -> int:
    """Commit until the time is over; counts what failed."""
    loop = asyncio.get_running_loop()
    choose = random.Random(number)
    node = running.cluster.nodes[number % len(running.cluster.nodes)]
    connection = await running.system.connect(running.cluster, node, number)
    failed = 0
    while loop.time() < until_s:
        begun_s = loop.time()
        try:
            tx = await connection.begin(READ_WRITE, begun_s + DEADLINE_S)
            await tx.append(choose.randrange(KEYS) * 10_000 + choose.randrange(10_000), number)
            await tx.commit()
        except StoreError:
            failed += 1
        else:
            took_s.append(loop.time() - begun_s)
    await connection.close()
    return failed


async def measure(directory: Path, seconds: float, clients: int) -> str:
    """Run the clients and say what they reached."""
    async with store(directory) as running:
        loop = asyncio.get_running_loop()
        took_s: list[float] = []
        until_s = loop.time() + seconds
        failed = sum(
            await asyncio.gather(*(client(running, n, until_s, took_s) for n in range(clients)))
        )
        cuts = statistics.quantiles(took_s, n=100)
        return (
            f"{clients} clients: {len(took_s) / seconds:.0f} commits/s, "
            f"p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms, {failed} failed"
        )


def main() -> None:
    """Calibrate, measure, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    clients = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    with tempfile.TemporaryDirectory() as directory:
        print(calibrate(Path(directory)))
        print(asyncio.run(measure(Path(directory), seconds, clients)))


if __name__ == "__main__":
    main()
