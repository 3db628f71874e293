"""What a node tells of its replicas, for those who compare them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from clusters.reference.node.group import Group
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.wire.states import (
    LogMark,
    ReplicaReport,
    StateReport,
)

if TYPE_CHECKING:
    from clusters.reference.node.server import Node

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
