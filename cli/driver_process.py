"""A driver process: executes ``harness.driving.protocol`` on its standard input; runs start it.

    python -m cli.driver_process

Every invocation is with the operating system before its request is sent, as in a run's own process.
When the run is gone (its end of the pipe is), the process records open operations as uncertain, and
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from cli.plan_plugins import build_system, build_workload
from cli.streams import bound_warnings
from harness import plugins
from harness.clock import RunClock, cpu_s
from harness.driving import protocol
from harness.driving.driver import Driver
from harness.driving.final_reads import final_reads
from harness.driving.protocol import (
    Dismiss,
    Enlist,
    First,
    Halt,
    Main,
    Members,
    Order,
    Read,
    Word,
)
from harness.errors import FiredrillError
from harness.generators import Generator, paced
from harness.history.chunks import ChunkWriter
from harness.history.records import Complete, Heartbeat, OpType
from harness.plan.plan import loads
from harness.protocols.workload import Share, Workload
from harness.run.controller_health import LoopSampler

TALLY_S = 0.25  # as often as a display is worth drawing


class Worker:
    """One driver, between the run that sends orders and the store."""

    def __init__(self, enlist: Enlist) -> None:
        plan = self._plan = loads(enlist.plan, source="the run's plan")
        share = self._share = Share(number=enlist.number, of=enlist.of)
        system = self._system = build_system(plan)
        self._workload: Workload = build_workload(plan, system)
        clock = RunClock(asyncio.get_running_loop(), origin_s=enlist.origin_s)
        self._writer = ChunkWriter(
            Path(enlist.chunks), writer=enlist.number + 1, run_id=enlist.run_id
        )
        self._writer.append(Heartbeat(at_ns=clock.now_ns()))
        self._writer.sync()
        self.beat = LoopSampler(clock, cpu_s)
        self._tally: Counter[tuple[OpType, str | None]] = Counter()
        self._driver = Driver(
            clock=clock,
            system=system,
            cluster=enlist.cluster.cluster(),
            workload=self._workload,
            write=self._writer.extend,
            concurrency=plan.drive.concurrency,
            op_deadline_s=plan.drive.op_deadline_s,
            observe=self._count,
            share=share,
        )

    async def obey(self, order: First | Main | Read) -> bool:
        """Carry ``order`` out; return whether it was completed."""
        match order:
            case First():
                generator = self._workload.first()
            case Main():
                generator = self._paced(self._workload.main())
            case Read():
                generator = final_reads(self._workload, order.keys, self._system.declaration)
        return await self._driver.drive(generator, order.until_ns)

    async def next_order(self, reader: asyncio.StreamReader) -> Order:
        """Return the next order, after those on the cluster's members, which it carries out."""
        while isinstance(order := await receive(reader), Members):
            self._driver.use_nodes(order.nodes)
        return order

    def touched(self) -> tuple[int, ...]:
        """See ``Driver``."""
        return self._driver.touched_keys()

    def tally(self) -> protocol.Tally:
        """Return the operations that ended since the last call."""
        counts, self._tally = self._tally, Counter()
        told = tuple((*ending, count) for ending, count in counts.items())
        return protocol.Tally(counts=told, stats=self.beat.take())

    async def close(self) -> None:
        """Drop the connections and end the records."""
        await self._driver.close()
        self._writer.close()

    def _count(self, done: Complete) -> None:
        self._tally[done.type, done.error] += 1

    def _paced(self, generator: Generator) -> Generator:
        """Pace the generator: arrivals of every process are a Poisson process of their own, and
        together they have the plan's rate.
        """
        rate = self._plan.drive.rate_per_s
        own = None if rate is None else rate / self._share.of
        return paced(generator, own, self._plan.seed, lane=self._share.number)


def send(word: Word) -> None:
    """Send a message to the run. Where the run is gone, the end of the input reports it, too."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(protocol.line(word))
        sys.stdout.buffer.flush()


async def receive(reader: asyncio.StreamReader) -> Order:
    """Return the next order; a dismissal after the last one."""
    text = await reader.readline()
    # A line without its end was cut off by the end of the pipe: the run is gone.
    return protocol.ORDERS.decode(text) if text.endswith(b"\n") else Dismiss()


async def serve() -> None:
    """Enlist, and carry orders out until dismissed."""
    reader = asyncio.StreamReader(limit=protocol.MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    enlist = await receive(reader)
    if not isinstance(enlist, Enlist):
        return
    worker = Worker(enlist)
    beat = asyncio.ensure_future(worker.beat.run())
    try:
        send(protocol.Ready())
        order = await worker.next_order(reader)
        while not isinstance(order, Dismiss):
            order = await one(worker, order, reader)
    finally:
        beat.cancel()
        await worker.close()


async def one(worker: Worker, order: Order, reader: asyncio.StreamReader) -> Order:
    """Carry one order out, unless another comes; return the next one."""
    # Read on during the work: a halt, or the end of the pipe, must end it.
    heard = asyncio.ensure_future(worker.next_order(reader))
    if isinstance(order, First | Main | Read):
        done = await _unless(heard, worker, worker.obey(order))
        send(worker.tally())
        send(protocol.PhaseResult(done=done, touched=worker.touched()))
    following = await heard
    return await worker.next_order(reader) if isinstance(following, Halt) else following


async def _unless(
    heard: asyncio.Future[Order], worker: Worker, work: Coroutine[Any, Any, bool]
) -> bool:
    """Return whether ``work`` was done before another order came. Reports progress meanwhile."""
    task = asyncio.ensure_future(work)
    either: tuple[asyncio.Future[Any], ...] = (task, heard)
    while not task.done() and not heard.done():
        await asyncio.wait(either, timeout=TALLY_S, return_when=asyncio.FIRST_COMPLETED)
        send(worker.tally())
    if not task.done():
        task.cancel()
    # Awaited when cancelled, too: the driver records the operations that are still open.
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return False


def main() -> int:
    """Run the process; return 0 where it was dismissed."""
    bound_warnings()
    try:
        with plugins.keeping_alive():
            asyncio.run(serve())
    except FiredrillError as error:
        send(protocol.DriverFailure(text=str(error)))
        return 1
    except SystemExit as error:
        send(protocol.DriverFailure(text=plugins.blamed(error)))
        return 1
    except Exception as error:
        send(protocol.DriverFailure(text=f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    # ``os._exit`` flushes nothing.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)  # a client's thread must not keep a process whose run is gone
