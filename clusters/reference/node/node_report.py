"""The node's reports of itself, in answer to admin questions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from clusters.reference.node import declarations
from clusters.reference.node.config import Config
from clusters.reference.node.events import EventLog
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.metastorage.metastorage import METASTORAGE, Metastorage, ObservedKeys
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.placement.rendezvous import Assignment
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.rpc.link import Links
from clusters.reference.node.runtime import Runtime
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.identity import Identity, names_of
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.routes import Routes
from clusters.reference.node.wire.messages import Failed, Version
from clusters.reference.node.wire.reports import (
    AdminBody,
    AdminQuestion,
    AskChanges,
    AskEvents,
    AskKey,
    AskSql,
    AskStates,
    AskVoters,
    ChangeReport,
    KeyReport,
    LogMark,
    NodeReport,
    PrimaryStatus,
    ReplicaReport,
    SqlProblem,
    SqlReport,
    StateReport,
    VotersReport,
)

MAX_VALUES_BYTES = 8 * 1024 * 1024  # of one key's versions in an answer; half a frame
MARKS_MAX = 65_536  # of all logs of a node in one answer: about a megabyte
GROUP_MARKS_MAX = 2048
ROWS_AT_ONCE = 256  # milliseconds, where others wait for the loop
_BYTES = 7  # of a digest: fits an int64
_MODULUS = 1 << 8 * _BYTES
_encode = msgspec.msgpack.Encoder().encode


class Zoned(Protocol):
    """What a node of a cluster with distribution zones answers beside the others."""

    async def execute(self, question: AskSql) -> SqlReport:
        """The answer to a statement, by way of the leader of metastorage."""

    async def change_voters(self, question: AskVoters) -> VotersReport:
        """The voters of metastorage, changed by its leader."""

    def changes(self, question: AskChanges) -> ChangeReport:
        """Changes of assignments and topology."""


class Reporter:
    """Answers the admin questions about one node."""

    def __init__(
        self,
        *,
        config: Config,
        runtime: Runtime,
        identity: Identity,
        event_log: EventLog,
        host: RaftHost,
        links: Links,
        metastorage: Metastorage,
        assignments: Mapping[int, Assignment],
        replicas: ReplicaManager,
        leases: LeaseTable,
        clock: Hlc,
        routes: Routes,
        observed_keys: ObservedKeys | None = None,
        zoned: Zoned | None = None,
    ) -> None:
        """``observed_keys``: where it is to be told whether observers of metastorage know what it
        holds; ``zoned``: in a cluster that has distribution zones.
        """
        self._observed_keys = observed_keys
        self._zoned, self._routes = zoned, routes
        self._config, self._runtime, self._identity = config, runtime, identity
        self._events, self._host, self._links = event_log, host, links
        self._metastorage, self._assignments = metastorage, assignments
        self._replicas, self._leases, self._clock = replicas, leases, clock

    async def answer(self, question: AdminQuestion) -> AdminBody:
        """Its events since a cursor, one key, its replicas, or all of its state."""
        if isinstance(question, AskEvents):
            return self._events.since(question.boot, question.cursor)
        if isinstance(question, AskKey):
            return self._key_report(question)
        if isinstance(question, AskStates):
            return await self._state_report(whole=question.whole)
        if isinstance(question, AskSql):
            if self._zoned is not None:
                return await self._zoned.execute(question)
            message = "the cluster has no distribution zones: its plan asks for none"
            return SqlReport(problem=SqlProblem(kind="NoZones", message=message))
        if isinstance(question, AskVoters):
            if self._zoned is not None:
                return await self._zoned.change_voters(question)
            return VotersReport(problem="all nodes vote in metastorage: the plan names none")
        if isinstance(question, AskChanges):
            if self._zoned is not None:
                return self._zoned.changes(question)
            # Without zones nothing moves that has keys of its own.
            boot, revision = self._runtime.boot, self._metastorage.revision
            return ChangeReport(boot=boot, cursor=0, begins=0, revision=revision, rows=())
        return self._node_report()

    def _node_report(self) -> NodeReport:
        config, grants = self._config, self._leases.grants
        return NodeReport(
            node=config.node,
            incarnation=self._identity.incarnation,
            boot=self._runtime.boot,
            wall_ns=self._runtime.wall_ns(),
            revision=self._metastorage.revision,
            partitions=config.partitions,
            replicas=config.replicas,
            members=config.members,
            assignments={p: names_of(a.members) for p, a in self._assignments.items()},
            groups=tuple(group.status() for group in self._host.groups.values()),
            primaries=tuple(
                _primary_status(
                    replica.primary,
                    self._leases.primary(number),
                    grants[number].epoch if number in grants else 0,
                )
                for number, replica in self._replicas.replicas.items()
            ),
            lease_s=self._leases.left_s,
            clock=self._clock.last,
            reachable=self._links.reachable(),
            log_bytes=self._host.log.size_bytes,
            bugs=config.bugs,
            tables=self._routes.tables(),
        )

    def _key_report(self, question: AskKey) -> KeyReport:
        key, number = question.key, self._routes.number(question.table, question.key)
        if isinstance(number, Failed):
            return KeyReport(problem=f"{number.code}: {number.message}")
        replica = self._replicas.replicas.get(number)
        if replica is None:
            return KeyReport(partition=number)
        versions = replica.partition.versions.all_of(key)
        shown = shown_versions(versions)
        return KeyReport(
            partition=number,
            versions=shown,
            left_out=len(versions) - len(shown),
            holders=tuple(
                (str(txn), exclusive)
                for held, txn, exclusive, _ in replica.primary.locks.rows()
                if held == key
            ),
        )

    async def _state_report(self, *, whole: bool) -> StateReport:
        """Every replica here; with ``whole`` its content and log too. Each replica is reported as
        of one moment; while contents are read the node goes on, and so do its leases.
        """
        groups = tuple(self._host.groups.values())
        room = min(GROUP_MARKS_MAX, MARKS_MAX // max(1, len(groups))) if whole else 0
        replicas = []
        for group in groups:
            again = group.partition is not None and self._replicas.catches_up(group.partition)
            # A reader takes a number that falls, in one life of a node, for a broken promise.
            if again or self._installing(group):
                continue
            replica = self._replica(group, room)
            declarations.inspected(partial(self._inspection, group))
            if whole:
                content = await content_digest(group.content())
                replica = msgspec.structs.replace(replica, content=content)
            replicas.append(replica)
        return StateReport(
            node=self._config.node,
            member=self._host.member,
            boot=self._runtime.boot,
            replicas=tuple(replicas),
        )

    def _inspection(self, group: Group) -> declarations.Inspection:
        problem = group.raft.invariants()
        replica = None if group.partition is None else self._replicas.replicas.get(group.partition)
        if problem is None and replica is not None:
            problem = replica.primary.broken()
        if problem is None and group.name == METASTORAGE and self._observed_keys is not None:
            problem = self._observed_keys.problem()
        return declarations.Inspection(group.name, problem)

    def _installing(self, group: Group) -> bool:
        """Whether the group applied a snapshot whose mark is still on its way to the disk."""
        durable = self._host.log.groups.get(group.name)
        # Entries are applied once they are durable, a snapshot before: what it stands for would be
        # forgotten by a crash, and nobody was told of it, so nobody may learn of it from a report.
        return durable is not None and group.applied_index > durable.last_index

    def _replica(self, group: Group, room: int) -> ReplicaReport:
        raft, durable = group.raft, self._host.log.groups.get(group.name)
        # Entries not on the disk yet are not reported: a checker takes all in a report for durable.
        settled = durable is None or not (group.unwritten or raft.has_ready())
        hard = raft.hard_state if settled or durable is None else durable.hard_state
        replica = None if group.partition is None else self._replicas.replicas.get(group.partition)
        primary = None if replica is None else replica.primary
        return ReplicaReport(
            group=group.name,
            partition=group.partition,
            leading=group.leading,
            member=raft.node,
            voter=raft.configuration.decides(raft.node),
            voters=len(raft.configuration.voters),
            term=hard.term,
            vote=hard.vote,
            applied_index=group.applied_index,
            applied_term=group.applied_term,
            commit_index=raft.commit_index,
            last_index=raft.last_index,
            recovered=group.recovered,
            epoch=0 if primary is None else primary.epoch,
            acting=primary is not None and primary.serving,
            locks=0 if primary is None else primary.locks.count,
            prepared=0 if replica is None else len(replica.partition.prepared),
            log=_marks(group, room) if room else (),
            # One that is on its way to the disk has terms of its own, which are not told yet.
            generation=min(raft.log_generation, hard.generation),
        )


def _primary_status(primary: Primary, granted: str | None, epoch: int) -> PrimaryStatus:
    """The primary as metastorage has it (``granted`` and ``epoch``) and as this replica has it."""
    partition = primary.partition
    return PrimaryStatus(
        partition=primary.number,
        primary=granted,
        epoch=epoch,
        serving=primary.serving,
        locks=primary.locks.count,
        waiting=primary.locks.waiting,
        open=len(primary.transactions),
        prepared=tuple(str(txn) for txn in partition.prepared),
        outcomes=len(partition.outcomes.rows),
        keys=len(partition.versions),
        versions=len(partition.versions) + partition.versions.older,
        max_ts=partition.max_ts,
        counters=primary.counters,
    )


def shown_versions(versions: tuple[Version, ...]) -> tuple[tuple[int, bytes], ...]:
    """The first of ``versions``, the newest, that fit into an answer."""
    shown: list[tuple[int, bytes]] = []
    room = MAX_VALUES_BYTES
    for version in versions:
        value = version.value or b""
        room -= len(value)
        if room < 0:
            break
        shown.append((version.ts, value))
    return tuple(shown)


def _marks(group: Group, room: int) -> tuple[LogMark, ...]:
    entries = group.raft.entries_from(group.applied_index - room + 1)
    return tuple(
        LogMark(entry.index, entry.term, _digest(_shown(entry)))
        for entry in entries
        if entry.index <= group.applied_index
    )


async def content_digest(rows: Iterable[object]) -> int:
    """A number that is equal for equal ``rows``, in any order. The loop turns every
    ``ROWS_AT_ONCE``.
    """
    total = 0
    for number, row in enumerate(rows, 1):
        total += _digest(_encode(row))
        if not number % ROWS_AT_ONCE:
            await asyncio.sleep(0)
    return total % _MODULUS


def _shown(entry: Entry) -> bytes:
    return _encode((entry.term, entry.index, entry.config, entry.data))


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=_BYTES).digest(), "big")
