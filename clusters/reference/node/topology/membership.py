"""Who belongs to the cluster's groups, from the founding on: nodes that were wiped come back here.

A cluster is founded once: the first node by name, when it has heard from every other one that no
cluster is known there, writes down who they all are. Whoever is wiped later is not among the
founders; it waits until the groups take it in. The leader of metastorage replaces its former
incarnation, in metastorage's own group and in every assignment, and the leaders of partitions
follow the assignments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from clusters.reference.node import events
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.metastorage.store import encode_invoke
from clusters.reference.node.placement.assignments import Assignment, reassigned
from clusters.reference.node.raft import ChangeRefused, NotLeader, Stage
from clusters.reference.node.runtime import Disk
from clusters.reference.node.storage.identity import Identity, member_of, name_of, replaced, save

KEEP_EVERY_TICKS = 3
PROPOSAL_LIMIT_S = 5.0

log = logging.getLogger("node.membership")


class Bootstrap:
    """How a node learns, once in its life, who founded its cluster."""

    def __init__(self, disk: Disk, identity: Identity, names: tuple[str, ...]) -> None:
        """``names``: all nodes of the cluster, this one included."""
        self._disk, self.identity, self._names = disk, identity, sorted(names)
        self._seen: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._news = asyncio.Event()

    @property
    def founders(self) -> tuple[str, ...]:
        """The members that founded the cluster; empty as long as that is not known."""
        return self.identity.founders

    def heard(self, peer: str, incarnation: str, founders: tuple[str, ...]) -> None:
        """What ``peer`` knows of a cluster."""
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
        """All members, if it is on this node to found the cluster and everyone is there."""
        me = self.identity.node
        if me != self._names[0] or any(n not in self._seen for n in self._names if n != me):
            return ()
        mine = member_of(me, self.identity.incarnation)
        return tuple(mine if name == me else self._seen[name][0] for name in self._names)


class Reconfigurer:
    """Makes groups consist of the nodes as they live now; acts where this node leads."""

    def __init__(
        self,
        *,
        host: RaftHost,
        metastorage: Group,
        assignments: Mapping[int, Assignment],
        partitions: Callable[[], Mapping[int, Group]],
        lives: Callable[[], dict[str, str]],
        event_log: events.EventLog,
    ) -> None:
        """``lives``: the members as which nodes are met now, by name, this one included."""
        self._host, self._metastorage, self._events = host, metastorage, event_log
        self._reported: dict[tuple[str, str], None] = {}  # group and member, told of
        self._assignments, self._partitions, self._lives = assignments, partitions, lives
        self._ticks = 0
        self._proposing = False

    def tick(self) -> None:
        """A tick has passed."""
        self._ticks += 1
        if self._ticks % KEEP_EVERY_TICKS:
            return
        self._report_lost_logs(self._metastorage)
        if self._metastorage.serving:
            self._keep_metastorage()
        for partition, group in self._partitions().items():
            self._report_lost_logs(group)
            if group.serving and partition in self._assignments:
                self._step_towards(group, self._assignments[partition].members)

    def _keep_metastorage(self) -> None:
        lives = self._lives()
        self._step_towards(
            self._metastorage, replaced(self._metastorage.raft.configuration.voters, lives)
        )
        invoke = reassigned(self._assignments, lives)
        if invoke is None or self._proposing:
            return
        self._proposing = True

        def done(_: object) -> None:
            self._proposing = False

        self._host.propose(self._metastorage, encode_invoke(invoke), PROPOSAL_LIMIT_S, done)

    def _report_lost_logs(self, group: Group) -> None:
        """A follower that has lost what it had acknowledged stays out. That must not be silent."""
        for member in group.raft.followers_with_lost_log():
            if (group.name, member) not in self._reported:
                self._reported[group.name, member] = None
                text = f"{name_of(member)} has lost entries of {group.name} that it had: wipe it"
                self._events.add(
                    events.STORAGE_ERROR, text, partition=group.partition, term=group.raft.term
                )

    def _step_towards(self, group: Group, members: tuple[str, ...]) -> None:
        """One step of ``group`` towards ``members``."""
        raft = group.raft
        if raft.stage is Stage.CATCHING_UP and raft.changing_to not in (None, members):
            raft.cancel_change()  # whoever was to come is gone again
        config = raft.configuration
        if frozenset(config.voters) == frozenset(members) and not config.learners:
            return
        if raft.stage is not Stage.STABLE:
            return
        try:
            raft.change_peers(members)
        except (ChangeRefused, NotLeader) as error:
            log.debug("%s: not now: %s", group.name, error)
            return
        log.info("%s: from %s to %s", group.name, config, " ".join(members))
        self._host.mark_ready(group)


def names_of(members: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes behind ``members``."""
    return tuple(name_of(member) for member in members)
