"""Detects nodes that exit unexpectedly.

Every verb that ends a program goes through ``MonitoredProvider``, so that an unexpected exit is
distinguished from a fault, a teardown and a restart, for faults of every kind, those of plug-ins
included. An unexpected exit is recorded as an event of kind ``node-exited``, with the provider's
knowledge of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar, cast

from harness.clock import NS_PER_S, RunClock
from harness.errors import FiredrillError
from harness.history.records import EventKind, Record, StoreEvent
from harness.protocols.cluster import NodeStatus, Provider
from harness.tasks import together

T = TypeVar("T")

LOOK_S = 1.0  # between two looks at all nodes, at least
SHARE = 20  # a round of looks takes at most this part of the time: in containers each is a process
LOOK_MOST_S = 15.0  # and however slow a round was, as after a restart of the daemon, at most this
LOOK_LIMIT_S = 10.0
# Before a verb that ends a node: a machine that tells nothing must not keep the verb from its work.
LOOK_BEFORE_LIMIT_S = 3.0
FRESH_S = 1.0  # a look this young is not taken again: nodes that are struck together stay together
EXIT_TEXT_CHARS = 2000


class ExitMonitor:
    """The state of every node: whether its exit is expected, and when it was last seen alive.

    A node's exit is *expected* until the node is first started, and from the start of any verb that
    ends it until a ``start`` returns, or until a probe shows the new boot of a ``start`` that did
    not return.
    """

    def __init__(
        self, provider: Provider, clock: RunClock, write: Callable[[Record], None]
    ) -> None:
        self.exits = 0  # that nobody expected, so far
        self._provider, self._clock, self._write = provider, clock, write
        self._running: set[str] = set()  # as far as verbs and probes show
        self._verbs: dict[str, int] = {}  # begun and ended, so that a look sees that it was crossed
        self._boots: dict[str, str | None] = {}  # as last seen
        self._unsure: dict[str, str | None] = {}  # by node whose start raised: the boot before
        self._alive_ns: dict[str, int] = {}

    async def run(self, nodes: tuple[str, ...]) -> None:
        """Probe ``nodes`` again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.look(nodes)
            pause_s = SHARE * (loop.time() - began_s)
            await asyncio.sleep(min(max(LOOK_S, pause_s), LOOK_MOST_S))

    async def look(self, nodes: Iterable[str]) -> None:
        """Probe each of ``nodes`` once; a node that can't be probed now yields no evidence."""
        await together(self._look(node) for node in nodes)

    async def probe(self, node: str) -> NodeStatus:
        """Return the provider's status of ``node``, and record it as a probe."""
        verbs, asked_ns = self._verbs.get(node, 0), self._clock.now_ns()
        status = await self._provider.probe(node)
        # What was seen beside a verb may be its doing, before or after.
        if self._verbs.get(node, 0) == verbs:
            self._take(status, asked_ns)
        return status

    async def _look(self, node: str, limit_s: float = LOOK_LIMIT_S) -> None:
        if node not in self._running and node not in self._unsure:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self.probe(node)
        except (TimeoutError, FiredrillError):
            return

    def _take(self, status: NodeStatus, asked_ns: int) -> None:
        """Record the status of a probe that began at ``asked_ns`` and that no verb overlapped."""
        node, now_ns = status.node, self._clock.now_ns()
        if status.running:
            self._alive_ns[node], self._boots[node] = asked_ns, status.boot
            # The boot from before the start may yet be ended by an abandoned verb.
            if node in self._unsure and status.boot != self._unsure[node]:
                self._started(node)
            return
        # Expected, or recorded already.
        if node not in self._running:
            return
        self._running.discard(node)
        self.exits += 1
        why = status.end[:EXIT_TEXT_CHARS] or "how is not known"
        self._write(
            StoreEvent(
                kind=EventKind.NODE_EXITED,
                node=node,
                wall_ns=self._clock.wall_ns(),
                boot=status.boot or "",
                at_ns=now_ns,
                uncertainty_ns=now_ns - self._alive_ns.get(node, now_ns),
                text=f"ended without being told to: {why}",
            )
        )

    async def expect_exit(self, node: str, verb: Callable[[], Awaitable[T]]) -> T:
        """Await a verb that ends ``node``; first probe whether the node exited before, by
        itself.
        """
        if self._clock.now_ns() - self._alive_ns.get(node, 0) > FRESH_S * NS_PER_S:
            await self._look(node, LOOK_BEFORE_LIMIT_S)
        # Before the verb: the program may be gone long before the call returns.
        self._running.discard(node)
        self._unsure.pop(node, None)
        return await self._crossing(node, verb)

    async def expect_start(
        self, node: str, verb: Callable[[], Awaitable[NodeStatus]]
    ) -> NodeStatus:
        """Await a verb that starts ``node``; first probe for an unexpected exit before it."""
        await self._look(node)
        try:
            status = await self._crossing(node, verb)
        except BaseException:  # a start that timed out may still bring the node up
            if node not in self._running:
                self._unsure.setdefault(node, self._boots.get(node))
            raise
        self._started(node)
        self._alive_ns[node], self._boots[node] = self._clock.now_ns(), status.boot
        return status

    def _started(self, node: str) -> None:
        self._running.add(node)
        self._unsure.pop(node, None)

    async def _crossing(self, node: str, verb: Callable[[], Awaitable[T]]) -> T:
        self._verbs[node] = self._verbs.get(node, 0) + 1
        try:
            return await verb()
        finally:
            self._verbs[node] += 1


class MonitoredProvider:
    """A provider that reports its verbs that end and start programs to an ``ExitMonitor``; all
    other members are the wrapped provider's own.
    """

    def __init__(self, provider: Provider, monitor: ExitMonitor) -> None:
        self._provider, self._monitor = provider, monitor
        for name in dir(type(provider)):
            # As attributes of its own: from Python 3.12 on ``isinstance`` of a protocol, by which
            # faults find verbs that only some providers have, sees no others.
            if not name.startswith("_") and not hasattr(type(self), name):
                verb = getattr(type(provider), name)
                if callable(verb):
                    setattr(self, name, getattr(provider, name))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any member of the protocol)
        return getattr(self._provider, name)

    async def probe(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._monitor.probe(node)

    async def start(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._monitor.expect_start(node, partial(self._provider.start, node))

    async def stop(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._monitor.expect_exit(node, partial(self._provider.stop, node))

    async def kill(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._monitor.expect_exit(node, partial(self._provider.kill, node))

    async def lose(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._monitor.expect_exit(node, partial(self._provider.lose, node))


def monitored(provider: Provider, monitor: ExitMonitor) -> Provider:
    """``provider`` with its exits and starts reported to the monitor."""
    return cast(Provider, MonitoredProvider(provider, monitor))
