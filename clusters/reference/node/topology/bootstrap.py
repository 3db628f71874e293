"""The founding of a cluster, and the first revision that is written in it.

A cluster is founded once: the first node by name, when it has heard from every other one that no
cluster is known there, records the members that all nodes are. A node that is wiped later is not
among the founders; it waits until the groups take it in (``reconfigurer``).
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.metastorage.metastorage import METASTORAGE, Metastorage, encode_invoke
from clusters.reference.node.placement.rendezvous import (
    ZONE,
    Zone,
    first_assignments,
    zone_of,
)
from clusters.reference.node.runtime import Disk
from clusters.reference.node.runtime.concurrency import Failure
from clusters.reference.node.storage.identity import Identity, member_of, name_of, save

ASSIGN_TIMEOUT_S = 5.0  # for the first assignments; then they are proposed again

log = logging.getLogger("node.bootstrap")


class NodeFailure(Exception):
    """The node can't go on; the text says why."""


class Bootstrap:
    """Decides, once in the life of a node's directory, which members founded the cluster."""

    def __init__(self, disk: Disk, identity: Identity, names: tuple[str, ...]) -> None:
        """``names``: all nodes of the cluster, this one included."""
        self._disk, self.identity, self._names = disk, identity, sorted(names)
        self._seen: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._news = asyncio.Event()

    @property
    def founders(self) -> tuple[str, ...]:
        """The members that founded the cluster; empty as long as that is not known."""
        return self.identity.founders

    def observe_peer(self, peer: str, incarnation: str, founders: tuple[str, ...]) -> None:
        """Take in what ``peer``, in this life, reports of the founders."""
        self._seen[peer] = (member_of(peer, incarnation), founders)
        self._news.set()

    async def settle(self) -> None:
        """Return when the founders are known, durably. Raises ``DiskError``."""
        while not self.founders:
            founders = self._learned() or self._decide()
            if founders:
                self.identity = msgspec.structs.replace(self.identity, founders=founders)
                await save(self._disk, self.identity)
                log.info("the cluster was founded by %s", ", ".join(founders))
                return
            await self._news.wait()
            self._news.clear()

    def _learned(self) -> tuple[str, ...]:
        return next((founders for _, founders in self._seen.values() if founders), ())

    def _decide(self) -> tuple[str, ...]:
        """All members, if this node is the first by name and has heard from every other one."""
        me = self.identity.node
        # One node decides: two could have heard from different lives, and found two clusters.
        if me != self._names[0] or any(n not in self._seen for n in self._names if n != me):
            return ()
        mine = member_of(me, self.identity.incarnation)
        return tuple(mine if name == me else self._seen[name][0] for name in self._names)


class ZoneBootstrap:
    """Writes the shape of the cluster and its first assignments, once, where this node leads
    metastorage; and compares its own configuration with the written one.
    """

    def __init__(
        self, *, zone: Zone, host: RaftHost, metastorage: Metastorage, failure: Failure
    ) -> None:
        """``zone`` is the shape in this node's configuration."""
        self._zone, self._host, self._metastorage = zone, host, metastorage
        self._failure = failure
        self._proposing = False

    def tick(self) -> None:
        """Propose the first assignments, unless they are written or on their way."""
        if self._proposing or self._metastorage.get(ZONE) is not None:
            return
        group = self._host.groups[METASTORAGE]
        if not group.serving:
            return

        def done(_: object) -> None:
            self._proposing = False

        self._proposing = True
        members = {name_of(member): member for member in group.raft.configuration.voters}
        data = encode_invoke(first_assignments(self._zone, members))
        self._host.propose(group, data, ASSIGN_TIMEOUT_S, done)

    def check(self) -> None:
        """End the node if its configuration is not of the cluster that it is in."""
        if (zone := zone_of(self._metastorage)) != self._zone:
            why = f"the configuration says {self._zone}, the cluster is {zone}"
            self._failure.report(NodeFailure(why))
