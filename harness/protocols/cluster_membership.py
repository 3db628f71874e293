"""The members of a cluster while a run goes on: nodes join it, and leave it.

A machine that is no member is a spare: provisioned, with a program installed, and not counted on by
targets, clients, recovery or the judgement of what the cluster lacks. Faults that change members
tell the ``Membership`` of the run; all others read the ``Cluster`` that it has at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import attrs

from harness.errors import HarnessBug
from harness.protocols.cluster import Cluster, Program, System

AttributeValue = str | bool | int | float | None
Observer = Callable[[tuple[str, ...]], None]


class Membership:
    """Which nodes of a run are members of its cluster now."""

    def __init__(self, cluster: Cluster) -> None:
        """The members at first are the ``nodes`` of ``cluster``."""
        self._cluster = cluster
        self._order = cluster.machines
        self._observers: list[Observer] = []

    @property
    def cluster(self) -> Cluster:
        """The cluster with its members as ``nodes`` and all other machines as ``spares``."""
        return self._cluster

    def join(self, node: str) -> None:
        """Count ``node`` among the members from now on. Idempotent."""
        self._change({*self._cluster.nodes, node})

    def leave(self, node: str) -> None:
        """Count ``node`` among the members no longer. Idempotent."""
        self._change({*self._cluster.nodes} - {node})

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with the members after each change."""
        self._observers.append(observer)

    def _change(self, members: set[str]) -> None:
        if strangers := sorted(members - set(self._order)):
            raise HarnessBug(f"no machine of this run: {', '.join(strangers)}")
        nodes = tuple(node for node in self._order if node in members)
        if not nodes:
            raise HarnessBug("the last member can't leave its cluster")
        if nodes == self._cluster.nodes:
            return
        spares = tuple(node for node in self._order if node not in members)
        self._cluster = attrs.evolve(self._cluster, nodes=nodes, spares=spares)
        for observer in self._observers:
            observer(nodes)


@runtime_checkable
class ChangesMembers(System, Protocol):
    """A ``System`` of which nodes join, leave and announce other attributes while it serves."""

    def fixed_members(self) -> str:
        """Return why no node can do that in this cluster; empty where some can."""

    def keeps_members(self) -> str:
        """Return why data stays assigned to a node that has left for good; empty where it moves
        off.
        """

    def announcing(
        self, node: str, cluster: Cluster, attributes: Mapping[str, AttributeValue] | None
    ) -> Program:
        """Return the program of ``node`` with ``attributes``; ``None`` are those of the plan."""

    def announcement(self, node: str, attributes: Mapping[str, AttributeValue] | None) -> str:
        """Return what ``announced`` tells of ``node`` with ``attributes``."""

    async def announced(self, cluster: Cluster) -> dict[str, str]:
        """Return the nodes that have joined, and what each announced of its attributes. Raises
        ``HarnessError`` where no member answers.
        """

    async def unsettled(self, cluster: Cluster, nodes: Sequence[str]) -> list[str]:
        """Return which data is not yet where the configuration wants it, and which of ``nodes``,
        that have joined or left, have yet to be taken into account for that. Raises
        ``HarnessError`` where no member answers.
        """
