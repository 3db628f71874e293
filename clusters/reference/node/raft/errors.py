"""What the raft core raises, one class a reason."""

from __future__ import annotations


class RaftError(Exception):
    """Any refusal of the raft core."""


class NotLeader(RaftError):
    """A proposal reached a member that does not lead; ``leader`` is who does, where it knows."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader (the leader is {leader or 'not known'})")
        self.leader = leader


class RaftConfigError(RaftError):
    """A configuration that can't work."""


class InvariantBroken(RaftError):
    """This should never happen: going on could lose what was acknowledged, so the node must
    stop.
    """


class ChangeRefused(RaftError):
    """A change of members that can't be made, or not now."""
