"""Makes the groups consist of the nodes in their present lives: wiped nodes come back here.

The leader of metastorage replaces a node's former incarnation, in metastorage's own group and in
every assignment, and the leaders of partitions follow the assignments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusters.reference.node import events
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import METASTORAGE, encode_invoke
from clusters.reference.node.placement.rendezvous import Assignment, reassigned
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.storage.identity import name_of, replaced
from clusters.reference.node.topology.voters import MetastorageVoters

EVERY_TICKS = 3
REASSIGN_TIMEOUT_S = 5.0


class Reconfigurer:
    """Changes members where this node leads, a step at a time."""

    def __init__(
        self,
        *,
        host: RaftHost,
        replicas: ReplicaManager,
        assignments: Mapping[int, Assignment],
        lives: Callable[[], dict[str, str]],
        event_log: events.EventLog,
        voters: MetastorageVoters | None = None,
    ) -> None:
        """``lives``: the members that the nodes are now, by name, this one included. ``voters`` of
        metastorage, where not all nodes vote in it: then this leaves partitions alone.
        """
        self._voters = voters
        self._host, self._replicas, self._events = host, replicas, event_log
        self._assignments, self._lives = assignments, lives
        self._reported: dict[tuple[str, str], None] = {}  # group and member whose log is lost
        self._ticks = 0
        self._proposing = False

    def tick(self) -> None:
        """Take the next steps, every ``EVERY_TICKS``."""
        self._ticks += 1
        if self._ticks % EVERY_TICKS:
            return
        metastorage = self._host.groups[METASTORAGE]
        self._report_lost_logs(metastorage)
        if metastorage.serving:
            if self._voters is not None:
                self._voters.tick(metastorage)
            else:
                self._reconfigure_metastorage(metastorage)
        for number, replica in self._replicas.replicas.items():
            self._report_lost_logs(replica.group)
            if self._voters is None and replica.group.serving and number in self._assignments:
                self._replicas.reconfigure(number, self._assignments[number].members)

    def _reconfigure_metastorage(self, group: Group) -> None:
        lives = self._lives()
        self._host.step_towards(group, replaced(group.raft.configuration.voters, lives))
        invoke = reassigned(self._assignments, lives)
        if invoke is None or self._proposing:
            return
        self._proposing = True

        def done(_: object) -> None:
            self._proposing = False

        self._host.propose(group, encode_invoke(invoke), REASSIGN_TIMEOUT_S, done)

    def _report_lost_logs(self, group: Group) -> None:
        """Report each follower that has lost entries that it had acknowledged: it stays out of the
        quorum, and that must not be silent.
        """
        for member in group.raft.followers_with_lost_log():
            if (group.name, member) not in self._reported:
                reached("lost log reported")
                self._reported[group.name, member] = None
                node = name_of(member)
                text = f"{node} has lost entries of {group.name} that it had: wipe it"
                self._events.add(
                    events.LOST_LOG,
                    text,
                    partition=group.partition,
                    term=group.raft.term,
                    about=node,
                )
