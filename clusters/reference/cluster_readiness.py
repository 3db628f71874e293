"""The parts that a cluster of the reference store lacks, read from its nodes' reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from clusters.reference.node.raft import Role, Stage
from clusters.reference.node.storage.identity import directory_of, member_of
from clusters.reference.node.wire.reports import GroupStatus, NodeReport
from harness.protocols.cluster import Roles

T = TypeVar("T")
METASTORAGE = -1  # its group among the partitions


def roles_of(reports: Mapping[str, NodeReport]) -> Roles:
    """Leaders as they report themselves, the higher term before the lower; primaries under a lease
    that holds, the higher epoch first; voters by the newest assignment that a node has applied;
    learners and the voters of metastorage as the leaders have them.
    """
    best: dict[int | None, tuple[int, str]] = {}
    leading: dict[int | None, GroupStatus] = {}
    primaries: dict[int, tuple[int, str]] = {}
    voters: dict[int, tuple[str, ...]] = {}
    for node in sorted(reports, key=lambda node: (reports[node].revision, node)):
        voters.update(reports[node].assignments)
        for group in reports[node].groups:
            if group.role == Role.LEADER:
                known = best.get(group.partition, (0, ""))
                if (group.term, node) > known:
                    best[group.partition], leading[group.partition] = (group.term, node), group
        for held in reports[node].primaries:
            if held.serving:
                granted = primaries.get(held.partition, (0, ""))
                primaries[held.partition] = max(granted, (held.epoch, node))
    return Roles(
        leaders={p: node for p, (_, node) in best.items() if p is not None},
        # Without known voters no node has reported a partition, so primaries are unknown, not none.
        primaries={p: node for p, (_, node) in primaries.items()} if voters else None,
        voters=voters,
        learners={
            p: group.learners for p, group in leading.items() if p is not None and group.learners
        },
        metastorage_leader=best[None][1] if None in best else None,
        metastorage_voters=leading[None].voters if None in leading else (),
    )


def planned_roles(roles: Roles, partitions: int) -> Roles:
    """``roles`` in the partitions below ``partitions``, which are those of the plan's tables."""

    def planned(held: Mapping[int, T]) -> dict[int, T]:
        return {partition: one for partition, one in held.items() if partition < partitions}

    return msgspec.structs.replace(
        roles,
        leaders=planned(roles.leaders),
        primaries=None if roles.primaries is None else planned(roles.primaries),
        voters=planned(roles.voters),
    )


def renumbered(report: NodeReport, flat: Callable[[int], int | None]) -> NodeReport:
    """``report`` with the numbers that partitions have in the run."""

    def of(number: int) -> int:
        found = flat(number)
        return number if found is None else found

    replace = msgspec.structs.replace
    return replace(
        report,
        assignments={of(number): names for number, names in report.assignments.items()},
        groups=tuple(
            group if group.partition is None else replace(group, partition=of(group.partition))
            for group in report.groups
        ),
        primaries=tuple(replace(held, partition=of(held.partition)) for held in report.primaries),
    )


def missing(
    reports: Mapping[str, NodeReport],
    nodes: tuple[str, ...],
    partitions: int,
    goals: dict[int, int],
    system_nodes: tuple[str, ...] | None = None,
) -> list[str]:
    """The reasons why the cluster of ``nodes`` is not whole, in words; empty when every replica of
    every partition runs and has applied the partition's goal. What is assigned to a node that is
    none of them, since it has left, is not missed.

    ``goals`` is kept between calls: the last index that a partition's leader knew to be committed
    when it was first seen to serve. A goal that moved with the load would never be reached by all
    at once. ``system_nodes`` vote in metastorage at first, all nodes by
    default; the leader tells which nodes have replaced them.
    """
    silent = [node for node in nodes if node not in reports]
    lacking = [f"{node} does not answer" for node in silent]
    assigned = roles_of(reports).voters
    members: dict[int, dict[str, GroupStatus]] = {METASTORAGE: {}}
    members.update({p: {} for p in range(partitions)})
    for node, report in reports.items():
        for group in report.groups:
            number = METASTORAGE if group.partition is None else group.partition
            members.setdefault(number, {})[node] = group
    lives = {n: member_of(n, report.incarnation) for n, report in reports.items()}
    served = frozenset(
        status.partition
        for report in reports.values()
        for status in report.primaries
        if status.serving
    )
    for partition, held in members.items():
        if partition == METASTORAGE:
            holders = nodes
        elif partition in assigned:
            holders = tuple(node for node in assigned[partition] if node in nodes)
        else:
            lacking.append(f"partition {partition} is not assigned")
            continue
        running = {n: held.get(n) for n in holders if n not in silent}
        behind = _behind(partition, running, goals)
        if partition == METASTORAGE and system_nodes is not None:
            told = {n for status in held.values() if status.serving for n in status.voters}
            voters = told or system_nodes
            running = {n: status for n, status in running.items() if n in voters}
        lacking += behind or _foreign(partition, running, lives)
        if partition != METASTORAGE and partition not in served:
            lacking.append(f"{_name(partition)} has no primary")
    return lacking


def _foreign(
    partition: int, replicas: Mapping[str, GroupStatus | None], lives: Mapping[str, str]
) -> list[str]:
    """Why the members of a partition that has caught up are not the assigned ones: a change that
    goes on, or a former life of a node that was wiped.
    """
    leader = max(
        (status for status in replicas.values() if status is not None and status.serving),
        key=lambda status: status.term,
    )
    name = _name(partition)
    if leader.stage != Stage.STABLE:
        return [f"{name} changes its members ({leader.stage})"]
    members = frozenset(map(directory_of, leader.members))
    return [f"{name} has not taken {n} in" for n in replicas if lives[n] not in members]


def _name(partition: int) -> str:
    return "metastorage" if partition == METASTORAGE else f"partition {partition}"


def _behind(
    partition: int, replicas: Mapping[str, GroupStatus | None], goals: dict[int, int]
) -> list[str]:
    leaders = [status for status in replicas.values() if status is not None and status.serving]
    if not leaders:
        return [f"{_name(partition)} has no leader"]
    leader = max(leaders, key=lambda status: status.term)
    goal = goals.setdefault(partition, leader.commit_index)
    return [
        f"{_name(partition)} on {node} has not caught up"
        for node, status in replicas.items()
        if status is None or status.term != leader.term or status.applied_index < goal
    ]
