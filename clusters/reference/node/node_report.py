"""What a node tells of itself, to whoever asks by an admin question."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from clusters.reference.node.groups.group import Group
from clusters.reference.node.placement.assignments import partition_of
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.topology.membership import names_of
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.wire.messages import Version
from clusters.reference.node.wire.reports import (
    AdminBody,
    AdminQuestion,
    AskEvents,
    AskKey,
    AskStates,
    KeyReport,
    LogMark,
    NodeReport,
    PrimaryStatus,
    ReplicaReport,
    StateReport,
)

if TYPE_CHECKING:
    from clusters.reference.node.server import Node

MAX_VALUES_BYTES = 8 * 1024 * 1024  # of one key's versions in an answer; half a frame


async def answer(node: Node, question: AdminQuestion) -> AdminBody:
    """The answer of ``node``: its events since a cursor, one key, or everything it is."""
    if isinstance(question, AskEvents):
        return node.events.since(question.boot, question.cursor)
    if isinstance(question, AskKey):
        return _key_report(node, question.key)
    if isinstance(question, AskStates):
        return await state_report(node, whole=question.whole)
    return _node_report(node)


def _node_report(node: Node) -> NodeReport:
    config, grants = node.config, node.leases.grants
    return NodeReport(
        node=config.node,
        incarnation=node.incarnation,
        boot=node.runtime.boot,
        wall_ns=node.runtime.wall_ns(),
        revision=node.metastorage.revision,
        partitions=config.partitions,
        replicas=config.replicas,
        members=config.members,
        assignments={p: names_of(a.members) for p, a in node.assignments.items()},
        groups=tuple(group.status() for group in node.host.groups.values()),
        primaries=tuple(
            _primary_status(
                replica.primary,
                node.leases.primary(number),
                grants[number].epoch if number in grants else 0,
            )
            for number, replica in node.replicas.items()
        ),
        lease_s=node.leases.left_s,
        clock=node.clock.last,
        reachable=node.peers.reachable(),
        log_bytes=node.log.size_bytes,
        bugs=config.bugs,
    )


def _primary_status(primary: Primary, granted: str | None, epoch: int) -> PrimaryStatus:
    """``granted`` and ``epoch`` as metastorage has it."""
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
        outcomes=len(partition.outcomes),
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


def _key_report(node: Node, key: bytes) -> KeyReport:
    number = partition_of(key, node.config.partitions)
    replica = node.replicas.get(number)
    if replica is None:
        return KeyReport(partition=number, versions=(), holders=())
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


MARKS_MAX = 65_536  # of all logs of a node in one answer: about a megabyte
GROUP_MARKS_MAX = 2048
ROWS_AT_ONCE = 256  # milliseconds, where others wait for the loop
_BYTES = 7  # of a digest: fits an int64 of whoever reads it
_MODULUS = 1 << 8 * _BYTES
_encode = msgspec.msgpack.Encoder().encode


async def state_report(node: Node, *, whole: bool) -> StateReport:
    """Every replica of ``node``; with ``whole`` its content and log too. Each replica is told of as
    it was at one moment; while contents are read the node goes on, and so do its leases.
    """
    groups = tuple(node.host.groups.values())
    room = min(GROUP_MARKS_MAX, MARKS_MAX // max(1, len(groups))) if whole else 0
    replicas = []
    for group in groups:
        replica = _replica(node, group, room)
        if whole:
            content = await content_digest(group.machine.content())
            replica = msgspec.structs.replace(replica, content=content)
        replicas.append(replica)
    return StateReport(
        node=node.config.node,
        member=node.member,
        boot=node.runtime.boot,
        replicas=tuple(replicas),
    )


def _replica(node: Node, group: Group, room: int) -> ReplicaReport:
    raft, durable = group.raft, node.log.groups.get(group.name)
    # What is not on the disk yet is not told: whoever compares takes every word for durable.
    settled = durable is None or not (group.unwritten or raft.has_ready())
    hard = raft.hard_state if settled or durable is None else durable.hard_state
    replica = None if group.partition is None else node.replicas.get(group.partition)
    primary = None if replica is None else replica.primary
    return ReplicaReport(
        group=group.name,
        partition=group.partition,
        leading=group.leading,
        voter=raft.configuration.decides(node.member),
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
    )


def _marks(group: Group, room: int) -> tuple[LogMark, ...]:
    entries = group.raft.entries_from(group.applied_index - room + 1)
    return tuple(
        LogMark(entry.index, entry.term, _digest(_shown(entry)))
        for entry in entries
        if entry.index <= group.applied_index
    )


async def content_digest(rows: Iterable[object]) -> int:
    """A number that is equal for equal ``rows``, in whatever order they come. The loop turns every
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
