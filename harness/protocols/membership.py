"""The members of a cluster while a run goes on: nodes join it, and leave it.

A machine that is no member is a spare: provisioned, with a program installed, and not counted on by
targets, clients, recovery or the judgement of what the cluster lacks. Faults that change members
tell the ``Membership`` of the run; all others read the ``Cluster`` that it has at that moment.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from harness.errors import HarnessBug
from harness.protocols.cluster import Cluster

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
