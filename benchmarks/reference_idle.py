"""What a quiet cluster costs: CPU of three and of five node processes without any client.

``python benchmarks/reference_idle.py [SECONDS] [PARTITIONS...]``, by default 20 s each with 8 and
with 64 partitions; metastorage's group comes on top. First a calibrator, as in the others.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from calibrator import calibrate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "node"))

from reference_kit import Store, store

SETTLE_S = 3.0  # elections and first leases are not what is measured


def cpu_s(running: Store) -> float:
    """Seconds of CPU that the nodes have used."""
    ticks = 0
    for child in running.processes.children.values():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        # User and system time: fields 14 and 15 of proc(5), of which two are cut off here.
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def idle(directory: Path, nodes: int, partitions: int, seconds: float) -> float:
    """The share of one core that all nodes take together."""
    loop = asyncio.get_running_loop()
    async with store(directory, nodes, partitions=partitions) as running:
        await asyncio.sleep(SETTLE_S)
        before_s, begun_s = cpu_s(running), loop.time()
        await asyncio.sleep(seconds)
        return (cpu_s(running) - before_s) / (loop.time() - begun_s)


def main() -> None:
    """Calibrate, measure, print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    for count, partitions in enumerate([int(word) for word in sys.argv[2:]] or [8, 64]):
        for nodes in (3, 5):
            with tempfile.TemporaryDirectory() as directory:
                if not count and nodes == 3:
                    print(calibrate())
                share = asyncio.run(idle(Path(directory), nodes, partitions, seconds))
            print(
                f"{nodes} nodes, {partitions + 1} groups, idle: {share:.2%} of a core", flush=True
            )


if __name__ == "__main__":
    main()
