"""A small world for the nemesis: a cluster in memory whose verbs can be made to fail, and time that
jumps to the next timer instead of passing.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from harness.clock import RunClock
from harness.errors import DeadlineExceeded, HarnessError
from harness.history.records import FaultState, FaultTransition, Record
from harness.protocols.cluster import (
    Capability,
    Cluster,
    Grudge,
    Link,
    LinkQuality,
    LinkShape,
    NodeStatus,
    PortSpec,
    Program,
    Roles,
)
from harness.protocols.cluster_membership import Membership
from harness.protocols.faults import Fault, PlannedFault, Scene
from nemesis.node_faults import freeze, host_loss, kill, pause, restart
from nemesis.packet_faults import delay, loss
from nemesis.partition_faults import bridge, majorities_ring, one_way, one_way_in, partition
from nemesis.runner import Nemesis
from nemesis.waits import Limits

EVERY_FAULT: dict[str, Fault] = {
    fault.kind.name: fault
    for fault in (
        bridge(), delay(), freeze(), host_loss(), kill(), loss(), majorities_ring(), one_way(),
        one_way_in(), partition(), pause(), restart(),
    )
}  # fmt: skip
NODES = ("n1", "n2", "n3", "n4", "n5")
LATE_S = 1.0


class JumpingSelector(selectors.DefaultSelector):
    """Never waits: what would have been waited for is added to ``now``."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everybody waits and no timer is set")
        self.now += max(timeout, 0)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time; only for code that uses no threads and no sockets."""

    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(work())


class World:
    """Provider and system in one: five nodes, who runs, what is cut, and what goes wrong.

    ``broken`` holds the verbs that fail, ``hung`` those that never answer, ``deaf`` those that
    answer and do nothing, ``late`` those that act ``late_s`` after they were sent, whether or not
    somebody still waits for them; after ``patience_s`` they raise as a provider's own deadline.
    """

    name = "world"
    ports: tuple[PortSpec, ...] = ()

    def __init__(self, roles: Roles | None = None) -> None:
        self.running = dict.fromkeys(NODES, True)
        self.boots = dict.fromkeys(NODES, 1)
        self.paused = dict.fromkeys(NODES, False)
        self.frozen = dict.fromkeys(NODES, False)
        self.lost = dict.fromkeys(NODES, False)
        self.cuts: Grudge = ()
        self.shapes: dict[Link, LinkShape] = {}
        self.cut_calls: list[Grudge] = []
        self.calls: list[tuple[str, str]] = []
        self.told = roles or Roles(leaders={0: "n2", 3: "n4"}, metastorage_leader="n1")
        self.broken: list[str] = []
        self.hung: list[str] = []
        self.deaf: list[str] = []
        self.late: list[str] = []
        self.late_s, self.patience_s = LATE_S, math.inf
        self.silent: list[str] = []  # nodes that run and tell nothing
        self.pace_s = 0.01

    async def _verb(self, verb: str, about: str, act: Callable[[], None]) -> None:
        self.calls.append((verb, about))
        if verb in self.late:
            asyncio.get_running_loop().call_later(self.late_s, act)
            await asyncio.sleep(min(self.late_s, self.patience_s))
            if self.late_s > self.patience_s:
                raise DeadlineExceeded(f"{about}: {verb}", self.patience_s)
        await asyncio.sleep(self.pace_s)
        if verb in self.broken:
            raise HarnessError(f"{verb} of {about} is broken")
        if verb in self.hung:
            await asyncio.Event().wait()
        if verb not in (*self.deaf, *self.late):
            act()

    async def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    async def kill(self, node: str) -> NodeStatus:
        return await self._end("kill", node)

    async def stop(self, node: str) -> NodeStatus:
        return await self._end("stop", node)

    async def _end(self, verb: str, node: str) -> NodeStatus:
        def act() -> None:
            self.running[node] = self.paused[node] = False

        await self._verb(verb, node, act)
        return self._status(node)

    async def pause(self, node: str) -> NodeStatus:
        await self._verb("pause", node, lambda: self.paused.update({node: True}))
        return self._status(node)

    async def resume(self, node: str) -> NodeStatus:
        await self._verb("resume", node, lambda: self.paused.update({node: False}))
        return self._status(node)

    async def freeze(self, node: str) -> NodeStatus:
        await self._verb("freeze", node, lambda: self.frozen.update({node: True}))
        return self._status(node)

    async def thaw(self, node: str) -> NodeStatus:
        await self._verb("thaw", node, lambda: self.frozen.update({node: False}))
        return self._status(node)

    async def lose(self, node: str) -> NodeStatus:
        def act() -> None:
            self.lost[node], self.running[node] = True, False

        await self._verb("lose", node, act)
        return self._status(node)

    async def restore(self, node: str) -> NodeStatus:
        await self._verb("restore", node, lambda: self.lost.update({node: False}))
        return self._status(node)

    async def start(self, node: str) -> NodeStatus:
        def act() -> None:
            self.running[node] = True
            self.boots[node] += 1

        await self._verb("start", node, act)
        return self._status(node)

    async def probe(self, node: str) -> NodeStatus:
        await self._verb("probe", node, lambda: None)
        return self._status(node)

    async def cut(self, grudge: Grudge) -> None:
        def act() -> None:
            self.cuts = grudge

        await self._verb("cut", "network", act)
        self.cut_calls.append(grudge)

    async def probe_links(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        await self._verb("probe_links", "network", lambda: None)
        away = [node for node in NODES if self.frozen[node] or self.lost[node]]
        return {
            link: link not in self.cuts for link in links if not any(node in away for node in link)
        }

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        await self._verb(
            "shape", "network", lambda: setattr(self, "shapes", {s.link: s for s in shapes})
        )

    async def measure_links(self, links: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        carried = await self.probe_links(links)
        plain = LinkShape(link=("", ""))
        there_and_back = {
            link: (self.shapes.get(link, plain), self.shapes.get(link[::-1], plain))
            for link in carried
        }
        return {
            link: LinkQuality(
                loss=there.loss if carried[link] else 1.0,
                round_trip_s=0.001 + there.delay_s + back.delay_s if carried[link] else None,
            )
            for link, (there, back) in there_and_back.items()
        }

    async def roles(self, cluster: Cluster) -> Roles:
        await self._verb("roles", ",".join(cluster.nodes), lambda: None)
        asked = cluster.nodes[0]
        mute = not self.running[asked] or self.paused[asked] or self.frozen[asked]
        if len(cluster.nodes) == 1 and (mute or asked in self.silent):
            return Roles()
        return self.told

    def _status(self, node: str) -> NodeStatus:
        return NodeStatus(
            node=node,
            running=self.running[node],
            paused=self.paused[node],
            frozen=self.frozen[node],
            pid=7,
            boot=f"boot-{self.boots[node]}",
        )

    # What a nemesis never asks a provider for.
    async def provision(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> Cluster:
        raise NotImplementedError

    async def install(self, node: str, program: Program) -> None:
        raise NotImplementedError

    async def collect(self, node: str, into: Path) -> dict[str, int]:
        raise NotImplementedError

    async def teardown(self) -> None:
        raise NotImplementedError


class Stage:
    """A nemesis with its world, and what it recorded."""

    def __init__(
        self,
        *schedule: PlannedFault,
        world: World | None = None,
        faults: dict[str, Fault] | None = None,
        seed: int = 7,
        duration_s: float | None = None,
        overtime_s: float = 0.0,
    ) -> None:
        self.world = world or World()
        self.records: list[Record] = []
        self.nemesis = Nemesis(
            schedule=schedule,
            faults=faults or EVERY_FAULT,
            seed=seed,
            write=self.records.append,
            limits=Limits(),
            duration_s=duration_s,
            overtime_s=overtime_s,
        )
        cluster = Cluster(nodes=NODES, bind={}, peer={}, client={}, work_dir={})
        world_as: Any = self.world
        self.scene = Scene(
            provider=world_as,
            system=world_as,
            membership=Membership(cluster),
            clock=RunClock(asyncio.get_running_loop(), wall_ns=lambda: 0),
        )

    async def run(self) -> None:
        await self.nemesis.run(self.scene, 0)

    async def heal_all(self) -> None:
        await self.nemesis.heal_all(self.scene)

    def transitions(self, fault: int) -> list[FaultTransition]:
        return [r for r in self.records if isinstance(r, FaultTransition) and r.fault == fault]

    def states(self, fault: int = 0) -> list[str]:
        return [t.state.value for t in self.transitions(fault)]

    def last(self, fault: int, state: FaultState) -> FaultTransition:
        return [t for t in self.transitions(fault) if t.state is state][-1]

    async def until(self, what: Callable[[], bool], limit_s: float = 100.0) -> None:
        async with asyncio.timeout(limit_s):
            while not what():  # noqa: ASYNC110 (virtual time: polling costs nothing)
                await asyncio.sleep(0.01)


async def cancelled(work: Awaitable[None]) -> None:
    """Cancel ``work`` and wait until it is over."""
    task = asyncio.ensure_future(work)
    task.cancel()
    await asyncio.wait({task})
