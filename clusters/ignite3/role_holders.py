"""The holders of roles, by the latest events in the nodes' logs."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from clusters.ignite3.logline import MANAGEMENT, METASTORAGE, LogEvent, partition_of_group
from harness.history.records import EventKind
from harness.protocols.cluster import Roles


@attrs.define
class Holders:
    """The latest holders of roles, independent of the order in which nodes are read: leaders by
    term, leases by their beginning, learners by the time of the node that named them.
    """

    leaders: dict[str, tuple[int, str]] = attrs.field(factory=dict)
    leases: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    learners: dict[int, tuple[int, tuple[str, ...]]] = attrs.field(factory=dict)

    def take(self, node: str, heard: LogEvent) -> None:
        """Take in the next event of ``node``."""
        # A new process has none of the roles of its last life, however that ended.
        if heard.kind is EventKind.NODE_STARTED:
            self.leaders = {g: held for g, held in self.leaders.items() if held[1] != node}
            self.leases = {p: held for p, held in self.leases.items() if held[1] != node}
        elif heard.elected and heard.term is not None:
            known = self.leaders.get(heard.group, (0, ""))
            self.leaders[heard.group] = max(known, (heard.term, node))
        elif heard.kind is EventKind.LEADER_LOST:
            # Only of that term: a log that is read late may tell of an older one.
            if self.leaders.get(heard.group) == (heard.term, node):
                del self.leaders[heard.group]
        elif heard.lease is not None and heard.partition is not None:
            known = self.leases.get(heard.partition, (0, ""))
            self.leases[heard.partition] = max(known, (heard.lease, node))
        if heard.partition is not None and heard.peers:
            since_ns, _ = self.learners.get(heard.partition, (0, ()))
            if heard.wall_ns >= since_ns:
                self.learners[heard.partition] = (heard.wall_ns, heard.learners)

    def learner(self, node: str, partition: int) -> bool:
        """Whether ``node`` is a learner of ``partition``."""
        return node in self.learners.get(partition, (0, ()))[1]


def roles_of(held: Mapping[str, tuple[int, ...]], holders: Holders) -> Roles:
    """The roles of the nodes that answered, each with the partitions that it ``held``; no roles
    where no node answered.
    """
    if not held:
        return Roles()
    learners: dict[int, tuple[str, ...]] = {}
    voters: dict[int, tuple[str, ...]] = {}
    for node, partitions in held.items():
        for partition in partitions:
            into = learners if holders.learner(node, partition) else voters
            into[partition] = (*into.get(partition, ()), node)
    # A node without an answer may be dead: what it held last proves nothing.
    leaders = {group: node for group, (_, node) in holders.leaders.items() if node in held}
    some = {*leaders.values(), *(node for node, partitions in held.items() if partitions)}
    return Roles(
        leaders={
            p: node for g, node in leaders.items() if (p := partition_of_group(g)) is not None
        },
        primaries={p: node for p, (_, node) in holders.leases.items() if node in held},
        voters=voters,
        learners=learners,
        metastorage_leader=leaders.get(METASTORAGE),
        management_leader=leaders.get(MANAGEMENT),
        others=tuple(node for node in held if node not in some),
    )
