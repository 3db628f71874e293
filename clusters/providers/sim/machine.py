"""A simulated machine: a disk that stays, and at most one process, which is a family of tasks."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import Any, Protocol

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import Timeline, live_by, true_loop
from clusters.providers.sim.network import Fabric, HostNetwork
from clusters.reference.node import declarations, moments
from clusters.reference.node.markers import Counts, count_into
from clusters.reference.node.runtime import Disk, Network, Rare, Runtime, never
from harness.clock import NS_PER_S, substream
from harness.errors import UsageError
from harness.protocols.cluster import NodeStatus, Program
from harness.protocols.hardware import ClockTrouble

# What a program does once it is started: returns or raises at its end, stops when cancelled.
Body = Callable[[Program, Runtime], Coroutine[Any, Any, None]]

WALL_EPOCH_NS = 1_700_000_000 * NS_PER_S  # where virtual wall clocks begin
STOP_LIMIT_S = 10.0
RARE_EVERY_S = 4.0  # a point that is open is taken about so often by each process
UPTIME_S = (10.0, 1000.0)  # a machine's monotonic clock at the beginning

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def running_process() -> Process | None:
    """The process that the running code belongs to; ``None`` in the controller."""
    return _process.get()


def _nobody(_moment: str, _partition: int | None) -> None:
    """Listens to no moment."""


def _unheard(_event: object) -> None:
    """Listens to no declaration."""


def wall_ns() -> int:
    """The controller's virtual wall clock, which is right."""
    return WALL_EPOCH_NS + int(true_loop().true_time() * NS_PER_S)


class Clocks:
    """The clocks of a machine, which one oscillator drives: ``timeline`` is the monotonic one."""

    def __init__(self, reads_s: float, ahead_s: float = 0.0) -> None:
        """``reads_s``: the reading of the monotonic clock at the loop's 0; ``ahead_s``: by how much
        the wall clock is ahead of the right one.
        """
        self._reads_s = reads_s
        self._jumped_s = ahead_s
        self.jumps: list[float] = []  # by how many seconds each jump moved the wall clock
        self.timeline = Timeline(reads_s)

    def spoil(self, trouble: ClockTrouble) -> None:
        """See ``harness.protocols.hardware.ClockTrouble``."""
        if trouble.jump_s:
            self._jumped_s += trouble.jump_s
            self.jumps.append(trouble.jump_s)
        self.timeline.drift(true_loop().true_time(), trouble.rate)

    def monotonic_s(self) -> float:
        """The monotonic clock."""
        return self.timeline.local(true_loop().true_time())

    def wall_ns(self) -> int:
        """The wall clock."""
        monotonic_s = self.timeline.local(true_loop().true_time())
        return WALL_EPOCH_NS + int((monotonic_s - self._reads_s + self._jumped_s) * NS_PER_S)


def track_tasks(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """A task factory: every task joins the process in whose context it is made."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
    # The context that the task will run in decides: a listener serves in that of its own node.
    process = context.get(_process) if context is not None else _process.get()
    if process is not None:
        process.adopt(task)
    return task


class SimRuntime:
    """The runtime of a simulated process: ``clusters.reference.node.runtime.Runtime``."""

    def __init__(
        self,
        *,
        boot: str,
        network: Network,
        disk: Disk,
        stream: random.Random,
        clocks: Clocks,
        rare: Rare = never,
    ) -> None:
        self.boot, self.network, self.disk, self.random = boot, network, disk, stream
        self.rare = rare
        self._clocks = clocks

    def wall_ns(self) -> int:
        """The machine's wall clock."""
        return self._clocks.wall_ns()


class Chance:
    """The rare legal paths of one process: every point that is open in this simulation is taken
    now and then, however often it is passed.
    """

    def __init__(self, points: frozenset[str], stream: random.Random) -> None:
        self._stream = stream
        now_s = true_loop().true_time()
        # Sorted: a set has no order that two processes would share.
        self._next_s = {point: now_s + self._wait_s() for point in sorted(points)}

    def __call__(self, point: str) -> bool:
        """``clusters.reference.node.runtime.Rare``."""
        next_s = self._next_s.get(point)
        # Most points are closed in most simulations: then the time is not asked for.
        if next_s is None or (now_s := true_loop().true_time()) < next_s:
            return False
        self._next_s[point] = now_s + self._wait_s()
        return True

    def _wait_s(self) -> float:
        return self._stream.expovariate(1 / RARE_EVERY_S)


class Process:
    """One start of a program: all the tasks that came of it."""

    def __init__(
        self,
        *,
        node: str,
        boot: str,
        network: HostNetwork,
        disk: SimDisk,
        timeline: Timeline,
        listener: moments.Listener,
        declared: Callable[[object], None],
    ) -> None:
        """``listener`` is told the moments that the program comes to, and ``declared`` what it
        declares as long as that still has any effect.
        """
        self.node, self.boot = node, boot
        self._listener, self._declared = listener, declared
        self.network, self._disk, self._timeline = network, disk, timeline
        self.exit_text = ""
        self.silent = False  # a process that was killed writes no last word into its log
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._main: asyncio.Task[None] | None = None

    def begin(self, body: Coroutine[Any, Any, None], markers: Counts) -> None:
        """Run ``body``; every task made in it belongs to this process, and what it reaches is
        counted in ``markers``.
        """
        # Of its own: tasks that the program starts belong to it, those of the caller do not.
        context = contextvars.copy_context()
        context.run(_process.set, self)
        context.run(live_by, self._timeline)
        context.run(count_into, markers)
        context.run(moments.listen, self._listener)
        context.run(declarations.listen, self._declare)
        loop = asyncio.get_running_loop()
        self._main = loop.create_task(body, context=context)
        self._main.add_done_callback(self._exited)

    @property
    def running(self) -> bool:
        """Whether its main task goes on."""
        return self._main is not None and not self._main.done()

    def effective(self) -> bool:
        """Whether what it does still reaches anything."""
        return self.running and not self.silent

    def _declare(self, event: object) -> None:
        if not self.silent:
            self._declared(event)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """``task`` is part of this process until it is over."""
        self._tasks[task] = None
        task.add_done_callback(lambda over: self._tasks.pop(over, None))

    async def stop(self) -> None:
        """Ask it to end, as SIGTERM does, and wait within a limit."""
        if self._main is not None and self.running:
            self._main.cancel()
            await asyncio.wait({self._main}, timeout=STOP_LIMIT_S)

    async def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        left = list(self._tasks)
        self.cut_short()
        if left:
            # A task may catch its cancellation, but nothing that it does has an effect any more.
            await asyncio.wait(left, timeout=STOP_LIMIT_S)

    def cut_short(self) -> None:
        """End it, also in the middle of a step of its own. First its effects stop, then its tasks
        are cancelled.
        """
        self.silent = True
        self._cut_off()
        true_loop().release(self._timeline)  # a paused process can be killed
        for task in list(self._tasks):
            task.cancel()

    def _cut_off(self) -> None:
        self.network.die()
        self._disk.die()

    def _exited(self, main: asyncio.Task[None]) -> None:
        """The process has ended, for any reason: record why, release its disk and network, cancel
        its tasks.
        """
        error = None if main.cancelled() else main.exception()
        # What killed it, if something did, is the reason; errors after that are consequences.
        self.exit_text = self.exit_text or (f"{type(error).__name__}: {error}" if error else "")
        self._cut_off()
        for task in list(self._tasks):
            task.cancel()


class ProcessWatcher(Protocol):
    """Is told of every start of a program, and of what programs declare."""

    def started(
        self,
        node: str,
        boot: str,
        clocks: Clocks,
        running: Callable[[], bool],
        files: Mapping[str, bytes],
    ) -> None:
        """A program starts on ``node`` with these ``files``; ``running`` says whether it still has
        any effect.
        """

    def declared(self, node: str, event: object) -> None:
        """The program on ``node`` declares ``event``, which only the store's own part can read."""


class Machine:
    """A host: its name, its disk, its clocks, and its process."""

    def __init__(
        self,
        name: str,
        fabric: Fabric,
        seed: int,
        rare: frozenset[str] = frozenset(),
        listener: moments.Listener = _nobody,
        skew_s: float = 0.0,
    ) -> None:
        """``rare``: the points of rare legal paths that are open in this simulation; ``listener``
        is told the moments that programs here come to; ``skew_s``: the most by which the wall
        clocks of two machines differ.
        """
        self._name, self._fabric, self._seed, self._rare = name, fabric, seed, rare
        self._listener = listener
        self.platter = Platter(substream(seed, "sim-disk", name), name, fabric.trace)
        ahead_s = substream(seed, "sim-skew", name).uniform(-skew_s / 2, skew_s / 2)
        self.clocks = Clocks(substream(seed, "sim-clock", name).uniform(*UPTIME_S), ahead_s)
        self.markers: Counts = {}  # reached by all processes here
        self._starts = 0
        self._process: Process | None = None
        self.watcher: ProcessWatcher | None = None
        self._frozen = self._lost = False

    def start(self, program: Program, body: Body) -> None:
        """Start ``program``, unless it runs. Raises ``UsageError`` on a machine that is gone."""
        if self._lost:
            raise UsageError(f"{self._name}: a machine that is gone starts nothing")
        if self.status().running:
            return
        self._starts += 1
        boot = f"{self._name}-{self._starts}"
        network, disk = HostNetwork(self._fabric, self._name), SimDisk(self.platter)
        # By start: what one life of a node draws must not depend on how long the last one was.
        stream = substream(self._seed, "sim-node", self._name, self._starts)
        self._process = Process(
            node=self._name,
            boot=boot,
            network=network,
            disk=disk,
            timeline=self.clocks.timeline,
            listener=partial(self._came_to, network),
            declared=_unheard
            if self.watcher is None
            else partial(self.watcher.declared, self._name),
        )
        runtime = SimRuntime(
            boot=boot,
            network=network,
            disk=disk,
            stream=stream,
            clocks=self.clocks,
            rare=Chance(self._rare, substream(self._seed, "sim-rare", self._name, self._starts)),
        )
        if self.watcher is not None:
            running = self._process.effective
            self.watcher.started(self._name, boot, self.clocks, running, program.files)
        self._process.begin(body(program, runtime), self.markers)

    def _came_to(self, network: HostNetwork, moment: str, partition: int | None) -> None:
        network.mark()
        self._listener(moment, partition)

    async def stop(self) -> None:
        """Let it end in order, and kill it past the limit; the disk keeps everything."""
        if self._process is not None:
            await self._process.stop()
            if self._process.running:
                await self.kill()

    async def kill(self) -> None:
        """End it at once; unsynced data may be lost."""
        if self._process is not None and self._process.running:
            # Set first: once its tasks end there is nobody left to say why.
            self._process.exit_text = "killed"
            self.platter.crash()
            await self._process.kill()

    def crash(self) -> None:
        """``kill`` without waiting: the program may be in the middle of a step."""
        if self._process is not None and self._process.running:
            self._process.exit_text = "killed"
            self.platter.crash()
            self._process.cut_short()

    def pause(self) -> None:
        """Stop the program's tasks; the machine goes on and takes messages that are sent to it."""
        if self.status().running:
            true_loop().halt(self.clocks.timeline)

    def resume(self) -> None:
        """Let it run again. Idempotent."""
        # Pause and freeze share one timeline: a resume must not let a frozen machine go on.
        if not self._frozen:
            true_loop().release(self.clocks.timeline)

    def freeze(self) -> None:
        """Let everything on the machine stand still; nothing reaches it or leaves it."""
        self._frozen = True
        self._fabric.links.silence(self._name)
        true_loop().halt(self.clocks.timeline)

    def thaw(self) -> None:
        """Let it go on. Idempotent."""
        if self._frozen:
            self._frozen = False
            self._fabric.links.unsilence(self._name)
            true_loop().release(self.clocks.timeline)

    async def lose(self) -> None:
        """Take the machine away with its unsynced data: its peers see no reset."""
        if not self._lost:
            self._lost = True
            self._fabric.links.silence(self._name)
            if self._process is not None:
                # Before the kill, which would send the peers resets.
                self._process.network.vanish()
            await self.kill()

    def restore(self) -> None:
        """Bring it back with its disk; nothing runs on it. Idempotent."""
        if self._lost:
            self._lost = False
            self._fabric.links.unsilence(self._name)
            if self._process is not None:
                # The kernel that comes back knows none of these connections, and says so.
                self._process.network.refuse_old()

    async def wipe(self) -> None:
        """An empty disk. Raises ``UsageError`` while something runs."""
        if self.status().running:
            raise UsageError(f"{self._name}: its disk is in use")
        self.platter.wipe()

    def status(self) -> NodeStatus:
        """The status of the process here."""
        process = self._process
        running = process is not None and process.running
        still = self.clocks.timeline.still
        return NodeStatus(
            node=self._name,
            running=running,
            paused=running and still and not self._frozen,
            frozen=self._frozen,
            boot=process.boot if process is not None else None,
            exit_text=process.exit_text if process is not None else "",
        )
