"""Operations a second that the harness drives and records, against a store that does nothing.

    python benchmarks/driver_rate.py [--ops 200000] [--concurrency 20] [--drivers 1] [--runs 3]

List-append transactions of 1 to 4 steps: drawn by the workload's generator, driven, invocation and
completion handed to the operating system one by one with their checksums, and sealed into tables.
What counts is the whole, sealing included. ``--drivers`` processes share the operations, as in a
run. The baseline is the least that any recorder does: the very same records appended to chunks, by
one process, and sealed. First a calibrator: fixed loops of CPU and of fsync, so that figures of
different machines can be read beside each other; ``cpu`` is what does not depend on who else uses
the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
from calibrator import calibrate

from harness.clock import NS_PER_S, RunClock
from harness.driving.driver import Driver
from harness.generators import Limit
from harness.history.chunks import ChunkWriter
from harness.history.manifest import RUNNING, write_manifest
from harness.history.records import PhaseMark, Record
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.scan import scan
from harness.history.seal import seal
from harness.protocols.client import Committed
from harness.protocols.cluster import Cluster
from harness.protocols.promise import Declaration
from harness.protocols.workload import Share, WorkloadSetting
from workloads.list_append import build

DRIVE_LIMIT_S = 600
BAR, GOAL = 10_000, 25_000  # operations a second
SEED = 1
NODES = ("n1", "n2", "n3")


# The records of each writer.
Streams = dict[int, list[Record]]


class Idle:
    """A store, its client and its transactions in one: agrees to everything at once."""

    errors: dict[str, Any] = {}  # noqa: RUF012
    server_txn = None

    async def connect(self, cluster: Cluster, node: str, process: int) -> Idle:
        """A connection."""
        return self

    async def begin(self, kind: str, deadline_s: float) -> Idle:
        """A transaction."""
        return self

    async def read(self, key: int) -> tuple[int, ...]:
        """Nothing is there."""
        return ()

    async def append(self, key: int, element: int) -> None:
        """Forgotten."""

    async def commit(self) -> Committed:
        """Agreed."""
        return AGREED

    async def close(self) -> None:
        """Nothing to drop."""


AGREED = Committed()


@attrs.frozen(kw_only=True)
class Measured:
    """Operations; the seconds that driving them and sealing what was recorded took; and the seconds
    of CPU in all of that, of all processes.
    """

    ops: int
    drive_s: float
    seal_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Operations a second, sealed."""
        return self.ops / (self.drive_s + self.seal_s)

    def __str__(self) -> str:
        return (
            f"{self.rate:6.0f} ops/s (drive {self.drive_s:.2f} s, seal {self.seal_s:.2f} s; "
            f"cpu {self.cpu_s / self.ops * 1e6:.0f} us each)"
        )


def manifest_of(run: RunDirectory) -> None:
    """Make ``run`` a run that goes on."""
    run.root.mkdir(parents=True)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=run.root.name,
        state=RUNNING,
        versions={},
        machine={},
        declaration=Declaration(system="idle", mode="SC", promises=()),
        workload="list-append",
        checkers=(),
    )
    write_manifest(run, manifest)


async def drive(run: RunDirectory, ops: int, concurrency: int, share: Share) -> None:
    """Drive and record ``ops`` operations."""
    writer = ChunkWriter(run.chunks, writer=share.number)
    setting = WorkloadSetting(
        seed=SEED,
        concurrency=concurrency,
        drivers=share.of,
        transaction_scope="cluster",
        partitions=None,
        partition_of=lambda _key: None,
    )
    workload = build({}, setting)
    store: Any = Idle()
    cluster = Cluster(nodes=NODES, bind={}, peer={}, client={}, work_dir={})
    driver = Driver(
        clock=RunClock(asyncio.get_running_loop()),
        system=store,
        cluster=cluster,
        workload=workload,
        write=writer.extend,
        concurrency=concurrency,
        op_deadline_s=2.0,
        share=share,
    )
    writer.append(PhaseMark(name="drive", at_ns=0))
    await driver.drive(Limit(ops, workload.main()), DRIVE_LIMIT_S * NS_PER_S)
    await driver.close()
    writer.close()


def sealed(run: RunDirectory) -> float:
    """Seal ``run``; the seconds that it took."""
    begun = time.perf_counter()
    manifest = seal(run, partition_of=None)
    took_s = time.perf_counter() - begun
    if manifest.trouble:
        raise SystemExit(f"the history is not whole: {manifest.trouble}")
    return took_s


def harness(root: Path, ops: int, concurrency: int, drivers: int) -> tuple[Measured, Streams]:
    """The whole: drawn, driven, recorded, sealed."""
    run = RunDirectory(root / "harness")
    manifest_of(run)
    if drivers == 1:
        cpu_s, begun = time.process_time(), time.monotonic()
        asyncio.run(drive(run, ops, concurrency, Share()))
        drive_s, cpu_s = time.monotonic() - begun, time.process_time() - cpu_s
    else:
        drive_s, cpu_s = in_processes(run, ops, concurrency, drivers)
    streams: Streams = {}  # the baseline's; nobody's time
    for stream, record in scan(run.chunks).placed():
        streams.setdefault(stream.writer, []).append(record)
    before = time.process_time()
    seal_s = sealed(run)
    cpu_s += time.process_time() - before
    return Measured(ops=ops, drive_s=drive_s, seal_s=seal_s, cpu_s=cpu_s), streams


def in_processes(
    run: RunDirectory, ops: int, concurrency: int, drivers: int
) -> tuple[float, float]:
    """Seconds from the first that begins to the last that ends, and their seconds of CPU."""
    argv = [sys.executable, __file__, "--ops", str(ops // drivers), "--drivers", str(drivers)]
    argv += ["--concurrency", str(concurrency), "--drive", str(run.root), "--number"]
    children = [subprocess.Popen([*argv, str(n)], stdout=subprocess.PIPE) for n in range(drivers)]
    told = [child.communicate(timeout=DRIVE_LIMIT_S)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a driver process failed")
    begun, ended, cpu_s = zip(*(map(float, text.split()) for text in told), strict=True)
    return max(ended) - min(begun), sum(cpu_s)


def drive_alone(options: argparse.Namespace) -> None:
    """One of several processes: tells when it began, when it ended, and what it used."""
    share = Share(number=options.number, of=options.drivers)
    cpu_s, begun = time.process_time(), time.monotonic()
    asyncio.run(drive(RunDirectory(options.drive), options.ops, options.concurrency, share))
    # The monotonic clock is the host's, so the parent can compare the times of all processes.
    print(begun, time.monotonic(), time.process_time() - cpu_s)


def recorder(root: Path, ops: int, streams: Streams) -> Measured:
    """The baseline: the same records appended and sealed, without a driver."""
    run = RunDirectory(root / "recorder")
    manifest_of(run)
    before, begun = time.process_time(), time.monotonic()
    for number, records in streams.items():
        writer = ChunkWriter(run.chunks, writer=number)
        for record in records:
            writer.append(record)
        writer.close()
    drive_s = time.monotonic() - begun
    seal_s = sealed(run)
    cpu_s = time.process_time() - before
    return Measured(ops=ops, drive_s=drive_s, seal_s=seal_s, cpu_s=cpu_s)


def main() -> None:
    """Run it; ``--drive`` is what the processes are told that it starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", type=int, default=200_000)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--drivers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive_alone(options)
        return
    cores = len(os.sched_getaffinity(0))
    print(f"machine: {platform.machine()}, {cores} cores, Python {platform.python_version()}")
    found: list[tuple[Measured, Measured]] = []
    with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as scratch:
        print(calibrate(), flush=True)
        for number in range(options.runs):
            root = Path(scratch) / str(number)
            whole, streams = harness(root, options.ops, options.concurrency, options.drivers)
            least = recorder(root, options.ops, streams)
            found.append((whole, least))
            del streams
            # Here, not within the next measurement.
            gc.collect()
            print(f"harness  {whole}\nbaseline {least}", flush=True)
    rate = statistics.median(whole.rate for whole, _ in found)
    ratio = statistics.median(whole.rate / least.rate for whole, least in found)
    passed = "passed" if rate >= BAR else "FAILED"
    print(f"median of {options.runs}: {rate:.0f} ops/s sealed (bar {BAR}: {passed}; goal {GOAL})")
    print(f"harness / baseline, append and seal alone: {ratio:.2f}")
    raise SystemExit(0 if rate >= BAR else 1)


if __name__ == "__main__":
    main()
