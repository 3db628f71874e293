"""What a node tells of itself, to whoever asks by an admin question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusters.reference.node.membership import names_of
from clusters.reference.node.placement import partition_of
from clusters.reference.node.states import state_report
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.wire.messages import Version
from clusters.reference.node.wire.reports import (
    AdminBody,
    AdminQuestion,
    AskEvents,
    AskKey,
    KeyReport,
    NodeReport,
    PrimaryStatus,
)
from clusters.reference.node.wire.states import AskStates

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
        open=len(primary.footings),
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
