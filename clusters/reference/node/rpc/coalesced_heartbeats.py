"""Heartbeats of a pair of nodes, in place of those of the groups that they share.

A node reports to every other one, once a tick, that it leads the groups that it has *claimed*, by
name and term; each claim is sent once a connection. The receiver informs its members of these
groups that their leader lives, and answers which of them do not follow (any more). So a quiet group
sends nothing, and elections, check-quorum and lease rest on the same two facts as with heartbeats
of its own: a follower heard of its leader now, and a leader knows when it sent the heartbeat that a
follower has answered.

A group is claimed only after the follower itself has answered. A claim lives with one connection,
on which heartbeats and answers keep their order: a node that restarts, or comes back wiped, begins
without claims, and its members have to answer for themselves first.

That a link is dead is decided in ``peers``, that a node has left in ``topology/logical``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from clusters.reference.node.groups.group import Group
from clusters.reference.node.storage.identity import FIRST_LIFE, directory_of
from clusters.reference.node.wire.messages import Claim, Heartbeat, HeartbeatAck


class Sender:
    """The claims of this node on one connection to a peer: the sender's side."""

    def __init__(self) -> None:
        self._claims: dict[
            str, tuple[int, int]
        ] = {}  # group -> term, and the tick of the first heartbeat with it

    def heartbeat(self, tick: int, leads: Mapping[str, int]) -> Heartbeat:
        """The heartbeat of ``tick``, one for each; ``leads``: every group led now, and its term."""
        ended = tuple(group for group in self._claims if group not in leads)
        for group in ended:
            del self._claims[group]
        # A new term is a new claim: the follower may not follow it yet.
        begun = tuple(
            (group, term)
            for group, term in leads.items()
            if group not in self._claims or self._claims[group][0] != term
        )
        self._claims.update({group: (term, tick) for group, term in begun})
        return Heartbeat(tick, begun, ended)

    def answered(self, answer: HeartbeatAck) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
        """The claims that the peer acknowledges, as of the tick that it answered, and the groups
        that it refuses from now on. Later claims are in neither.
        """
        heard = {g: term for g, (term, since) in self._claims.items() if since <= answer.tick}
        # A refusal that names an earlier term does not end a later claim.
        refused = tuple(group for group, term in answer.refused if heard.get(group) == term)
        for group in refused:
            del self._claims[group], heard[group]
        return tuple(heard.items()), refused


class Receiver:
    """The claims of a peer on one connection from it: the receiver's side."""

    def __init__(self) -> None:
        self._claims: dict[str, int] = {}

    def take(self, heartbeat: Heartbeat, follows: Callable[[str, int], bool]) -> HeartbeatAck:
        """The answer to ``heartbeat``. ``follows(group, term)`` informs the member of the group,
        and returns whether it follows in that term.
        """
        for group in heartbeat.ended:
            self._claims.pop(group, None)
        self._claims.update(heartbeat.begun)
        refused = tuple(claim for claim in self._claims.items() if not follows(*claim))
        for group, _ in refused:
            del self._claims[group]
        return HeartbeatAck(heartbeat.tick, refused)


class Heartbeats:
    """Both sides of the heartbeats of pairs of nodes, for the raft groups of this node."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        """``groups``: those that are open, by name."""
        self._groups = groups

    def led(self, directory: str) -> Mapping[str, int]:
        """The groups led here in which the member in ``directory`` has answered, with their
        terms.
        """
        return {
            name: group.raft.claim
            for name, group in self._groups.items()
            if group.leading
            and (member := group.member_in(directory)) is not None
            and group.raft.is_acking(member)
        }

    def follows(self, directory: str, name: str, term: int) -> bool:
        """The node of ``directory`` reports that it leads group ``name`` in ``term``; whether our
        member follows it.
        """
        group = self._groups.get(name)
        if group is None:
            return False
        # The leader may mean the replica that was here before: until it has taken this one in, no
        # answer may stand for the other.
        if group.life != FIRST_LIFE and group.member_in(directory_of(group.raft.node)) is None:
            return False
        leader = group.raft.leader
        if leader is None or directory_of(leader) != directory:
            leader = directory
        return group.raft.observe_leader(leader, term)

    def node_acked(self, directory: str, tick: int, claims: Iterable[Claim]) -> None:
        """In all these groups ``follows`` was true in ``directory`` for the heartbeat that was sent
        at ``tick``.
        """
        for name, term in claims:
            group = self._groups.get(name)
            member = None if group is None else group.member_in(directory)
            if group is not None and member is not None:
                # Heartbeats carry the ticks of the host, and raft counts
                # from when the group was opened.
                group.raft.node_acked(member, term, tick - group.opened_tick)

    def unpair(self, directory: str, names: Iterable[str] | None) -> None:
        """The node of ``directory`` no longer acknowledges for these groups, or for any
        (``None``).
        """
        for name in self._groups if names is None else names:
            group = self._groups.get(name)
            member = None if group is None else group.member_in(directory)
            if group is not None and member is not None:
                group.raft.unpair(member)
