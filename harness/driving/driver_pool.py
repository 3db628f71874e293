"""The clients of a run: one driver in this process, or several driver processes, for a load that a
single one can't drive.

Each process drives its share of the slots (slot modulo processes) with a generator and a stream of
records of its own. Process numbers and appended values are made from slots, so they are unique in
the run; times are on one axis, since all processes of a host share CLOCK_MONOTONIC. Sealing merges
the streams. When one process dies, the run ends the others too: the last requests of the dead
process are unknown, so nothing later can be judged, and the history is cut at the last write of its
stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Protocol

import msgspec

from harness.clock import NS_PER_S, RunClock
from harness.driving import protocol
from harness.driving.driver import Driver
from harness.driving.final_reads import final_reads
from harness.driving.protocol import Order, Word
from harness.errors import HarnessBug, HarnessError, InvariantError
from harness.generators import paced
from harness.history.records import OpType
from harness.plan.plan import Plan
from harness.protocols.cluster import Cluster
from harness.protocols.promise import Declaration
from harness.protocols.workload import Workload, whole
from harness.run.controller_health import LoopStats
from harness.run.stop import SETTLE_LIMIT_S, end
from harness.tasks import together

ENLIST_LIMIT_S = 30.0  # an interpreter starts, and imports the modules of the run
LATE_LIMIT_S = 15.0  # after ``until_ns``, beyond the deadline of an operation
HALT_LIMIT_S = SETTLE_LIMIT_S - 1.0  # the caller that ends a drive waits at most SETTLE_LIMIT_S
LEAVE_LIMIT_S = 10.0
_BLOCK_BYTES = 1 << 16
Observe = Callable[[OpType, str | None], None]


class Load(Protocol):
    """The clients of a run, as its life cycle sees them."""

    @property
    def trouble(self) -> tuple[str, ...]:
        """The reasons why the run is inconclusive, a sentence each."""

    async def enlist(self) -> None:
        """Start the driver processes, once and before ``drive``, so that the drive phase does not
        wait some seconds for them.
        """

    async def drive(self, until_ns: int) -> None:
        """Run the workload until the clock reads ``until_ns``, and wait for open operations."""

    def prolong(self, until_ns: int) -> None:
        """Let ``drive``, which goes on, end at ``until_ns`` instead."""

    async def read_all(self, until_ns: int) -> bool:
        """Read every key that was touched; whether that was done by ``until_ns``."""

    def use_nodes(self, nodes: tuple[str, ...]) -> None:
        """Make new connections to ``nodes`` alone from now on; those that are open stay so."""

    def loop_stats(self) -> LoopStats:
        """The loop statistics, since the last call, of the processes that this load started."""

    async def close(self) -> None:
        """Close every connection, and end the started processes. Bounded."""


class OwnLoad:
    """One driver, on this process's loop."""

    trouble: tuple[str, ...] = ()

    def __init__(
        self, plan: Plan, workload: Workload, driver: Driver, declaration: Declaration
    ) -> None:
        self._plan, self._workload, self._driver = plan, workload, driver
        self._declaration = declaration

    async def enlist(self) -> None:
        """No other process is needed."""

    async def drive(self, until_ns: int) -> None:
        """See ``Load``."""
        generator = paced(whole(self._workload), self._plan.drive.rate_per_s, self._plan.seed)
        await self._driver.drive(generator, until_ns)

    def prolong(self, until_ns: int) -> None:
        """See ``Load``."""
        self._driver.prolong(until_ns)

    async def read_all(self, until_ns: int) -> bool:
        """See ``Load``."""
        final = final_reads(self._workload, self._driver.touched_keys(), self._declaration)
        return await self._driver.drive(final, until_ns)

    def use_nodes(self, nodes: tuple[str, ...]) -> None:
        """See ``Load``."""
        self._driver.use_nodes(nodes)

    def loop_stats(self) -> LoopStats:
        """Empty: this load started no process."""
        return LoopStats()

    async def close(self) -> None:
        """See ``Load``."""
        await self._driver.close()


class DriverLost(HarnessError):
    """A driver process has exited, or reported that it can't go on."""


class DriverProcess:
    """One driver process, as the run's process sees it."""

    def __init__(self, number: int, process: Process, observe: Observe) -> None:
        self.number, self.process = number, process
        self._observe = observe
        self.touched: tuple[int, ...] = ()
        self._loop_stats = LoopStats()

    def send(self, order: Order) -> None:
        """Send ``order``, if the process still reads its input."""
        # A process that is gone is found by its answer's end: here is nothing to report.
        if self.process.stdin is not None and not self.process.stdin.is_closing():
            with contextlib.suppress(OSError):
                self.process.stdin.write(protocol.line(order))

    async def ask(self, order: Order, limit_s: float) -> bool:
        """Send ``order`` and await its end; whether it was done. Raises ``DriverLost``."""
        self.send(order)
        try:
            async with asyncio.timeout(limit_s):
                return await self._answer()
        except TimeoutError as error:
            raise DriverLost(f"{self}: no answer within {limit_s:g} s") from error

    async def _answer(self) -> bool:
        while True:
            match await self._hear():
                # Between order and answer: the display and the controller's health want them live.
                case protocol.Tally(counts=counts, stats=stats):
                    self._count(counts)
                    self._loop_stats = self._loop_stats.and_also(stats)
                case protocol.DriverFailure(text=text):
                    raise DriverLost(f"{self}: {text}")
                case protocol.PhaseResult(done=done, touched=touched):
                    self.touched = touched
                    return done
                case protocol.Ready():
                    return True

    async def _hear(self) -> Word:
        try:
            text = await self._output().readline()
            # A line without its end is that of a process that died while it wrote.
            if text.endswith(b"\n"):
                return protocol.WORDS.decode(text)
        except (ValueError, msgspec.DecodeError) as error:  # a line too long, or no message
            raise DriverLost(f"{self}: what it says can't be read: {error}") from error
        raise DriverLost(f"{self}: {_how_it_ended(await self.process.wait())}")

    def _count(self, counts: Sequence[tuple[OpType, str | None, int]]) -> None:
        for type_, error, count in counts:
            for _ in range(count):
                self._observe(type_, error)

    def loop_stats(self) -> LoopStats:
        """The loop statistics that the process reported since the last call."""
        stats, self._loop_stats = self._loop_stats, LoopStats()
        return stats

    def hang_up(self) -> None:
        """Close the process's input, which dismisses it."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def leave(self) -> None:
        """Let the process exit; it is killed after the limit, and on every error."""
        self.hang_up()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_LIMIT_S):
                    # Its pipe may be full: a process that can't write would never exit.
                    while await self._read_on():
                        pass
                    await self.process.wait()
        finally:
            # Also after an error here: no driver process outlives its run.
            if self.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self.process.kill()
                await self.process.wait()

    async def _read_on(self) -> bytes:
        return await self._output().read(_BLOCK_BYTES)

    def _output(self) -> asyncio.StreamReader:
        if self.process.stdout is None:
            raise InvariantError("a driver process without the pipe that it was started with")
        return self.process.stdout

    def __str__(self) -> str:
        return f"driver process {self.number} (pid {self.process.pid})"


class DriverPool:
    """A ``harness.driving.driver_pool.Load`` of several processes."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        count: int,
        plan: Path,
        chunks: Path,
        cluster: Cluster,
        clock: RunClock,
        op_deadline_s: float,
        observe: Observe,
        run_id: str = "",
    ) -> None:
        """``command`` starts a process that obeys ``protocol``; ``plan`` is the run's file.
        ``observe`` sees how operations end, some time after they did.
        """
        self.command, self._count = tuple(command), count
        self._plan, self._chunks, self._cluster = plan, chunks, cluster
        self._clock, self._observe, self._run_id = clock, observe, run_id
        self._late_s = op_deadline_s + LATE_LIMIT_S
        self._members: list[DriverProcess] = []
        self._trouble: list[str] = []

    @property
    def trouble(self) -> tuple[str, ...]:
        """A sentence for each driver process that was lost."""
        return tuple(self._trouble)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids, in the order of the processes' numbers."""
        return tuple(member.process.pid for member in self._members)

    def loop_stats(self) -> LoopStats:
        """See ``Load``."""
        return reduce(
            LoopStats.and_also, [member.loop_stats() for member in self._members], LoopStats()
        )

    def use_nodes(self, nodes: tuple[str, ...]) -> None:
        """See ``Load``."""
        for member in self._members:
            member.send(protocol.Members(nodes=nodes))

    def hang_up(self) -> None:
        """Let every process end its current order and exit, without asking it."""
        for member in self._members:
            member.hang_up()

    async def enlist(self) -> None:
        """See ``Load``. Raises ``HarnessError`` where a process can't be started."""
        for number in range(self._count):
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=PIPE,
                    stdout=PIPE,
                    limit=protocol.MAX_LINE_BYTES,
                    start_new_session=True,  # the terminal's Ctrl-C is for the run to handle
                )
            except OSError as error:
                raise HarnessError(f"driver process {number} can't be started: {error}") from error
            self._members.append(DriverProcess(number, process, self._observe))
        # The text, not the path: all processes read the same plan, whatever becomes of the file.
        plan = await asyncio.to_thread(self._plan.read_text)
        # Only now, when all have been started: their imports go on side by side.
        await together(self._enlisted(member, plan) for member in self._members)

    async def drive(self, until_ns: int) -> None:
        """See ``Load``. Returns early when a process is lost."""
        limit_s = self._limit_s(until_ns)
        # One alone: a store is prepared once, before any other transaction.
        first = [(self._members[0], protocol.First(until_ns=until_ns))]
        if await self._all(first, limit_s):
            main = protocol.Main(until_ns=until_ns)
            await self._all([(member, main) for member in self._members], limit_s)

    def prolong(self, until_ns: int) -> None:
        """See ``Load``. Raises ``HarnessBug``: no plan with several processes comes to it."""
        raise HarnessBug(f"driver processes have been told their end (got another, {until_ns})")

    async def read_all(self, until_ns: int) -> bool:
        """See ``Load``. Every process reads its share of the keys."""
        if self._trouble:
            return False
        # Of all processes: a key that two of them wrote is read once.
        keys = sorted({key for member in self._members for key in member.touched})
        shares = [tuple(keys[n :: self._count]) for n in range(self._count)]
        reads = [
            (member, protocol.Read(keys=share, until_ns=until_ns))
            for member, share in zip(self._members, shares, strict=True)
        ]
        return await self._all(reads, self._limit_s(until_ns))

    async def close(self) -> None:
        """See ``Load``."""
        await together(member.leave() for member in self._members)

    async def _enlisted(self, member: DriverProcess, plan: str) -> None:
        order = protocol.Enlist(
            plan=plan,
            cluster=protocol.ClusterMap.of(self._cluster),
            chunks=str(self._chunks),
            number=member.number,
            of=self._count,
            # CLOCK_MONOTONIC is the host's, so one origin puts all times on one axis.
            origin_s=self._clock.loop_time(0),
            run_id=self._run_id,
        )
        await member.ask(order, ENLIST_LIMIT_S)

    async def _all(self, work: Sequence[tuple[DriverProcess, Order]], limit_s: float) -> bool:
        """Carry out every order; whether all of them were done. The loss of one process ends the
        others' orders, and so does cancellation.
        """
        tasks = {
            asyncio.ensure_future(member.ask(order, limit_s)): member for member, order in work
        }
        try:
            # On the first loss: whatever the others still do can't be judged.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if not all(task.done() for task in tasks):
                for member, _ in work:
                    member.send(protocol.Halt())
                # They record what they have open before they answer.
                await asyncio.wait(tasks, timeout=HALT_LIMIT_S)
            # Also when cancelled: a task that is left would take the answer to the next order.
            done = [await self._over(task, member) for task, member in tasks.items()]
        return all(done)

    async def _over(self, task: asyncio.Future[bool], member: DriverProcess) -> bool:
        """Whether the order was done, once no task reads the answers of ``member`` any more."""
        if not task.done():
            await end(task)
            self._trouble.append(f"{member}: went on {HALT_LIMIT_S:g} s after it was told to end")
        if task.cancelled() or not task.done():
            return False
        if isinstance(error := task.exception(), DriverLost):
            self._trouble.append(f"{error}; nothing after that is judged")
            return False
        return task.result()

    def _limit_s(self, until_ns: int) -> float:
        return max(0.0, (until_ns - self._clock.now_ns()) / NS_PER_S) + self._late_s


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended by itself with {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
