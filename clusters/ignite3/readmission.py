"""Membership of a cluster as its nodes report it, and readmission: the cluster refuses a removed
node for good, until its process is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import attrs

from clusters.ignite3 import rest
from clusters.ignite3.options import ZONE
from clusters.ignite3.waiting import is_out, most_told, unseen_nodes
from harness.errors import HarnessError
from harness.protocols.cluster import Address, Cluster, Provider
from harness.tasks import together

REST: Final = "rest"  # the port
# How long a started node may be missing from what the others see before it is taken for one that
# was thrown out: the news of a join takes a moment to go round. On a crowded host a node may be
# thrown out while it still starts, and then never ends starting; that takes longer to be sure of.
THROWN_OUT_S, THROWN_OUT_STARTING_S = 1.5, 8.0

T = TypeVar("T")


@attrs.frozen
class Admission:
    """The nodes of ``cluster``, whose zone has ``partitions``. A method that begins with ``not_``
    returns what is lacking, a sentence each; empty where nothing is.
    """

    cluster: Cluster
    provider: Provider
    partitions: int

    async def not_up(self, nodes: tuple[str, ...]) -> list[str]:
        """Nodes that don't answer at all. Raises ``HarnessError`` for one that has ended, since no
        other part restarts it.
        """
        states = await self._ask(rest.node_state, nodes)
        silent = [node for node, state in states.items() if state is None]
        looks = await together(self.provider.probe(node) for node in silent)
        for look in looks:
            if not look.running:
                why = f"{look.end or 'ended'}; see its log. In containers its image has to be one "
                made = "that scripts/prepare-ignite made (cluster.options.image)"
                raise HarnessError(f"ignite3: {look.node} did not start: {why}{made}")
        return [f"{node} does not answer" for node in silent]

    async def not_met(self) -> list[str]:
        """Nodes that don't see each other: a cluster is made only of nodes that do."""
        return [f"{node} is not seen by all" for node in await self._strangers()]

    async def not_of(self, release: str) -> list[str]:
        """Nodes that report another release. The name of adopted jars begins with that of their
        release.
        """
        told = await self._ask(rest.version)
        known = {node: version for node, version in told.items() if version is not None}
        return [
            f"{node} runs {version}"
            for node, version in known.items()
            if release != version and not release.startswith(f"{version}-")
        ]

    async def not_in(self) -> list[str]:
        """Nodes that are not started, or not in the topology."""
        states = await self._ask(rest.node_state)
        waiting = [
            f"{n} is {state or 'silent'}" for n, state in states.items() if state != rest.STARTED
        ]
        if waiting:
            return waiting
        members = await self._members()
        return [f"{n} is not in the topology" for n in self.cluster.nodes if n not in members]

    async def not_whole(self) -> list[str]:
        """The reasons why the zone is not available: nodes first, then its partitions."""
        if missing := await self.not_in():
            return missing
        found = await rest.global_states(self._at(self.cluster.nodes[0]), ZONE)
        if found is None:
            return ["nobody tells the state of partitions"]
        known = {state.partition_id: state.state for state in found}
        return [
            f"partition {p} is {known.get(p, 'not there')}"
            for p in range(self.partitions)
            if known.get(p) != rest.AVAILABLE
        ]

    async def introduce(self) -> None:
        """Restart nodes that don't see each other, before there is a cluster: on a crowded host
        nodes remove each other while they boot.
        """
        first = await self._strangers()
        if not first:
            return
        await asyncio.sleep(THROWN_OUT_STARTING_S)
        again = await self._strangers()
        # Those that stayed apart: of a node that boots the news may only have been late.
        await together(self._restart(node) for node in first if node in again)

    async def readmit(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Restart those of ``nodes`` that outlived their own removal from the topology; return
        them.
        """
        first = await self._thrown_out(nodes)
        if not first:
            return ()
        starting = rest.STARTED not in first.values()
        await asyncio.sleep(THROWN_OUT_STARTING_S if starting else THROWN_OUT_S)
        again = await self._thrown_out(nodes)
        # A node that has finished starting meanwhile is on its way in.
        out = tuple(n for n in nodes if n in first and again.get(n) == first[n])
        # After the short wait a node that still starts can't be told from a removed one.
        if not starting:
            out = tuple(n for n in out if first[n] == rest.STARTED)
        await together(self._restart(node) for node in out)
        return out

    async def revive(self) -> None:
        """Start nodes that are down, resume nodes that are paused."""
        await together(self._revive(node) for node in self.cluster.nodes)

    async def _revive(self, node: str) -> None:
        status = await self.provider.probe(node)
        if status.paused:
            await self.provider.resume(node)
        elif not status.running:
            await self.provider.start(node)

    async def _restart(self, node: str) -> None:
        await self.provider.kill(node)  # an orderly end would wait for others that don't hear it
        await self.provider.start(node)

    async def _strangers(self) -> tuple[str, ...]:
        return unseen_nodes(self.cluster.nodes, await self._ask(rest.physical_topology))

    async def _members(self) -> frozenset[str]:
        """The nodes in the logical topology; none where no node answers."""
        return most_told(tuple((await self._ask(rest.logical_topology)).values()))

    async def _thrown_out(self, nodes: tuple[str, ...]) -> dict[str, str]:
        """Those of ``nodes`` that run and serve no client, with the state that each reports."""
        members, views = await self._members(), await self._ask(rest.physical_topology)
        states = await self._ask(rest.node_state, nodes)
        seen = most_told(tuple(views.values()))
        known = {node: state for node, state in states.items() if state is not None}
        return {n: s for n, s in known.items() if is_out(n, s, members, seen, views.get(n))}

    async def _ask(
        self, question: Callable[[Address], Awaitable[T]], nodes: tuple[str, ...] | None = None
    ) -> dict[str, T]:
        """The answers of ``nodes``, by default of all nodes."""
        asked = self.cluster.nodes if nodes is None else nodes
        answers = await together(question(self._at(node)) for node in asked)
        return dict(zip(asked, answers, strict=True))

    def _at(self, node: str) -> Address:
        return self.cluster.client[node][REST]
