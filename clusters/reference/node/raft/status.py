"""A member's state as a value, for the admin command and for tests."""

from __future__ import annotations

import msgspec

from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.membership import Stage
from clusters.reference.node.raft.types import Role


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader sees it. ``silent_ticks``: since it last answered, if ever;
    ``sending_snapshot``: index of the one that is on its way to it.
    """

    node: str
    match_index: int
    next_index: int
    probing: bool
    inflight: int
    silent_ticks: int | None
    sending_snapshot: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group. ``peers`` is empty unless it leads; the log begins behind
    ``base_index``.
    """

    node: str
    role: Role
    term: int
    vote: str | None
    leader: str | None
    configuration: Configuration
    stage: Stage
    base_index: int
    commit_index: int
    applied_index: int
    durable_index: int
    last_index: int
    last_term: int
    lease: bool
    peers: tuple[PeerStatus, ...]


def broken(status: Status) -> str | None:
    """The text of the first broken invariant between the parts of a member."""
    if status.last_term > status.term:
        return f"log ends in term {status.last_term}, which is after term {status.term}"
    if not status.base_index <= status.applied_index <= status.commit_index <= status.last_index:
        return (
            f"base {status.base_index}, applied {status.applied_index}, commit "
            f"{status.commit_index} and last {status.last_index} are out of order"
        )
    if status.role in (Role.LEADER, Role.CANDIDATE) and status.vote != status.node:
        return f"a {status.role} voted for {status.vote!r} in its own term {status.term}"
    for peer in status.peers:
        if not peer.match_index < peer.next_index <= status.last_index + 1:
            return f"{peer.node}: match {peer.match_index}, next {peer.next_index} are out of order"
    return None
