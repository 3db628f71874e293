"""A simulated machine: a disk that stays, and at most one process, which is a family of tasks."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.network import Fabric, HostNetwork
from clusters.reference.node.runtime import Disk, Network, Runtime
from harness.clock import NS_PER_S, substream
from harness.cluster import NodeStatus, Program

Body = Callable[[Program, Runtime], Coroutine[Any, Any, None]]
"""What a program does once it is started: returns or raises at its end, stops when cancelled."""

WALL_EPOCH_NS = 1_700_000_000 * NS_PER_S  # where virtual wall clocks begin
STOP_LIMIT_S = 10.0

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def running_process() -> Process | None:
    """The process that the running code belongs to; ``None`` in the controller."""
    return _process.get()


def wall_ns() -> int:
    """The virtual wall clock, the same on every machine and in the controller."""
    return WALL_EPOCH_NS + int(asyncio.get_running_loop().time() * NS_PER_S)


def track_tasks(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """A task factory: every task joins the process in whose context it is made."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
    process = context.get(_process) if context is not None else _process.get()
    if process is not None:
        process.adopt(task)
    return task


class SimRuntime:
    """What a simulated process is handed: ``clusters.reference.node.runtime.Runtime``."""

    def __init__(self, boot: str, network: Network, disk: Disk, stream: random.Random) -> None:
        self.boot, self.network, self.disk, self.random = boot, network, disk, stream

    def wall_ns(self) -> int:
        """The virtual wall clock."""
        return wall_ns()


class Process:
    """One start of a program: all the tasks that came of it."""

    def __init__(self, node: str, boot: str, network: HostNetwork, disk: SimDisk) -> None:
        self.node, self.boot = node, boot
        self._network, self._disk = network, disk
        self.exit_text = ""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._main: asyncio.Task[None] | None = None

    def begin(self, body: Coroutine[Any, Any, None]) -> None:
        """Run ``body``; every task made in it belongs to this process."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        loop = asyncio.get_running_loop()
        self._main = loop.create_task(body, context=context)
        self._main.add_done_callback(self._exited)

    @property
    def running(self) -> bool:
        """Whether its main task goes on."""
        return self._main is not None and not self._main.done()

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
        """End it at once. First nothing of it has an effect any more, then its tasks go."""
        self._cut_off()
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=STOP_LIMIT_S)

    def _cut_off(self) -> None:
        self._network.die()
        self._disk.die()

    def _exited(self, main: asyncio.Task[None]) -> None:
        """What an operating system does when a process ends, however it ended."""
        error = None if main.cancelled() else main.exception()
        self.exit_text = self.exit_text or (f"{type(error).__name__}: {error}" if error else "")
        self._cut_off()
        for task in list(self._tasks):
            task.cancel()


class Machine:
    """A host: its name, its disk, and what runs on it."""

    def __init__(self, name: str, fabric: Fabric, seed: int) -> None:
        self._name, self._fabric, self._seed = name, fabric, seed
        self._platter = Platter(substream(seed, "sim-disk", name))
        self._starts = 0
        self._process: Process | None = None

    def start(self, program: Program, body: Body) -> None:
        """Start ``program``, unless it runs."""
        if self.status().running:
            return
        self._starts += 1
        boot = f"{self._name}-{self._starts}"
        network, disk = HostNetwork(self._fabric, self._name), SimDisk(self._platter)
        stream = substream(self._seed, "sim-node", self._name, self._starts)
        self._process = Process(self._name, boot, network, disk)
        self._process.begin(body(program, SimRuntime(boot, network, disk, stream)))

    async def stop(self) -> None:
        """Let it end in order, and kill it past the limit; the disk keeps everything."""
        if self._process is not None:
            await self._process.stop()
            if self._process.running:
                await self.kill()

    async def kill(self) -> None:
        """End it at once; what it had not synced may be lost."""
        if self._process is not None and self._process.running:
            self._process.exit_text = "killed"
            self._platter.crash()
            await self._process.kill()

    def status(self) -> NodeStatus:
        """What runs here now."""
        process = self._process
        return NodeStatus(
            node=self._name,
            running=process is not None and process.running,
            boot=process.boot if process is not None else None,
            exit_text=process.exit_text if process is not None else "",
        )
