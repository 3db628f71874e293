"""The settings of one raft member, each with the failure it allows; and the errors of the core."""

from __future__ import annotations

import msgspec


class RaftError(Exception):
    """Any refusal of the raft core."""


class NotLeader(RaftError):
    """A proposal reached a member that does not lead; ``leader`` does, where it is known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader (the leader is {leader or 'not known'})")
        self.leader = leader


class RaftConfigError(RaftError):
    """A configuration that can't work."""


class InvariantBroken(RaftError):
    """This should never happen: going on could lose acknowledged entries, so the node must stop."""


class ChangeRefused(RaftError):
    """A change of members that can't be made, or not now."""


class ChangeBusy(ChangeRefused):
    """Another change goes on."""


class StaleTerm(ChangeRefused):
    """A change that was asked of the leader of another term."""


class StaleRevision(ChangeRefused):
    """A change that is older than one that this leader was asked for."""


# How much earlier than its followers' patience ends a leader's lease does. One tick because a
# leader sends somewhere inside its tick, one because a follower's first tick may come right after a
# message. At 10 election ticks the rest allows clocks that differ in rate by a tenth; with more
# drift than that a lease may outlive the leadership.
LEASE_MARGIN_TICKS = 2


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group. Raises ``RaftConfigError`` naming a value that can't work.

    ``voters`` are the group's founders; a member without any joins a group, and learns of the
    others from its log. ``election_ticks``: a follower that hears nothing for this long, and up to
    twice as long, asks for votes; a leader that hears from no quorum for this long steps down.
    ``max_append_entries`` and ``max_append_bytes`` bound one message (a single larger entry still
    travels), ``max_inflight`` the unanswered messages per follower, ``max_apply_entries`` the
    entries that one ``Ready`` hands out. A change of members fails once a new voter has come no
    further for ``catch_up_ticks``, or is slower than the log grows. With ``announce_commits`` a
    leader tells its followers at once what is committed, not with the next entries or heartbeat.
    ``bugs`` names planted mistakes: see ``Raft``.
    """

    node: str
    voters: tuple[str, ...] = ()
    election_ticks: int = 10
    heartbeat_ticks: int = 1
    max_append_entries: int = 256
    max_append_bytes: int = 1 << 20
    max_inflight: int = 64
    max_apply_entries: int = 1024
    catch_up_ticks: int = 50
    announce_commits: bool = False
    bugs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(frozenset(self.voters)) != len(self.voters):
            raise RaftConfigError(f"voters must be distinct (got {self.voters})")
        if self.heartbeat_ticks < 1:
            raise RaftConfigError(f"heartbeat_ticks must be >= 1 (got {self.heartbeat_ticks})")
        # Below it the lease would run out between two heartbeats.
        least = self.heartbeat_ticks + LEASE_MARGIN_TICKS + 1
        if self.election_ticks < least:
            raise RaftConfigError(f"election_ticks must be >= {least} (got {self.election_ticks})")
        for name in (
            "max_append_entries",
            "max_append_bytes",
            "max_inflight",
            "max_apply_entries",
            "catch_up_ticks",
        ):
            if getattr(self, name) < 1:
                raise RaftConfigError(f"{name} must be >= 1 (got {getattr(self, name)})")
