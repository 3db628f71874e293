"""Which nodes end without being told to.

Every verb that ends a program goes through ``Attended``, so that an end that nobody asked for is
told from a fault, a teardown and a restart, whatever the fault is called and whoever wrote it. What
is left is recorded as an event of kind ``node-exited``, with what the provider knows of the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, cast

from harness.clock import RunClock
from harness.cluster import NodeStatus, Provider
from harness.errors import FiredrillError
from harness.records import EventKind, Record, StoreEvent
from harness.tasks import together

T = TypeVar("T")

LOOK_S = 1.0  # between two looks at all nodes, at least
SHARE = 20  # a round of looks takes at most this part of the time: in containers each is a process
LOOK_LIMIT_S = 10.0
EXIT_TEXT_CHARS = 2000


class Attendance:
    """What is known of every node: whether it was told to end, and when it was last seen alive.

    A node counts as told to end until it is first started, and from the beginning of any verb that
    ends it to the end of the next start.
    """

    def __init__(
        self, provider: Provider, clock: RunClock, write: Callable[[Record], None]
    ) -> None:
        self._provider, self._clock, self._write = provider, clock, write
        self._running: set[str] = set()  # as far as anybody asked for
        self._verbs: dict[str, int] = {}  # begun and ended, so that a look sees that it was crossed
        self._alive_ns: dict[str, int] = {}

    async def run(self, nodes: tuple[str, ...]) -> None:
        """Look at ``nodes`` again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.look(nodes)
            await asyncio.sleep(max(LOOK_S, SHARE * (loop.time() - began_s)))

    async def look(self, nodes: Iterable[str]) -> None:
        """One look at each of ``nodes``; what can't be looked at now shows nothing."""
        await together(self._look(node) for node in nodes)

    async def _look(self, node: str) -> None:
        verbs, asked_ns = self._verbs.get(node, 0), self._clock.now_ns()
        if node not in self._running:
            return
        try:
            async with asyncio.timeout(LOOK_LIMIT_S):
                status = await self._provider.probe(node)
        except (TimeoutError, FiredrillError):
            return
        if self._verbs.get(node, 0) == verbs:
            self._take(status, asked_ns)

    def _take(self, status: NodeStatus, asked_ns: int) -> None:
        """What a look showed that was asked for at ``asked_ns`` and that no verb crossed."""
        node, now_ns = status.node, self._clock.now_ns()
        if status.running:
            self._alive_ns[node] = asked_ns
            return
        if node not in self._running:
            return
        self._running.discard(node)
        why = status.exit_text[:EXIT_TEXT_CHARS] or "how is not known"
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

    async def ending(self, node: str, verb: Coroutine[Any, Any, T]) -> T:
        """Await a verb that ends ``node``."""
        self._running.discard(node)
        return await self._crossing(node, verb)

    async def starting(self, node: str, verb: Coroutine[Any, Any, T]) -> T:
        """Await a verb that starts ``node``; first a look at how it ended, if nobody did it."""
        await self._look(node)
        status = await self._crossing(node, verb)
        self._running.add(node)
        self._alive_ns[node] = self._clock.now_ns()
        return status

    async def _crossing(self, node: str, verb: Coroutine[Any, Any, T]) -> T:
        self._verbs[node] = self._verbs.get(node, 0) + 1
        try:
            return await verb
        finally:
            self._verbs[node] += 1


class Attended:
    """A provider whose verbs that end and start programs are told to an ``Attendance``; all else
    is the provider's own.
    """

    def __init__(self, provider: Provider, attendance: Attendance) -> None:
        self._provider, self._attendance = provider, attendance
        for name in dir(type(provider)):
            # As attributes of its own: from Python 3.12 on ``isinstance`` of a protocol, by which
            # faults ask for what only some providers have, sees no others.
            if not name.startswith("_") and not hasattr(type(self), name):
                verb = getattr(type(provider), name)
                if callable(verb):
                    setattr(self, name, getattr(provider, name))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the protocol has)
        return getattr(self._provider, name)

    async def start(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._attendance.starting(node, self._provider.start(node))

    async def stop(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._attendance.ending(node, self._provider.stop(node))

    async def kill(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._attendance.ending(node, self._provider.kill(node))

    async def lose(self, node: str) -> NodeStatus:
        """See ``Provider``."""
        return await self._attendance.ending(node, self._provider.lose(node))


def attended(provider: Provider, attendance: Attendance) -> Provider:
    """``provider`` with its ends and starts attended."""
    return cast(Provider, Attended(provider, attendance))
