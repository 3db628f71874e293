"""A member's state as a value, for the admin command and for tests."""

from __future__ import annotations

import msgspec

from clusters.reference.node.raft.types import Role


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader sees it. ``silent_ticks``: since it last answered, if ever."""

    node: str
    match_index: int
    next_index: int
    probing: bool
    inflight: int
    silent_ticks: int | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group. ``peers`` is empty unless it leads."""

    node: str
    role: Role
    term: int
    vote: str | None
    leader: str | None
    voters: tuple[str, ...]
    commit_index: int
    applied_index: int
    durable_index: int
    last_index: int
    last_term: int
    lease: bool
    peers: tuple[PeerStatus, ...]
