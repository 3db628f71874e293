"""Values of the raft core: entries, messages, and what a step asks of its caller."""

from __future__ import annotations

import enum

import msgspec


class Role(enum.StrEnum):
    """What a member is in its group now."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One log entry. Empty ``data`` is a new leader's first entry."""

    term: int
    index: int
    data: bytes


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must be durable before a message that depends on it leaves: current term and vote."""

    term: int = 0
    vote: str | None = None


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, tag="vote?"):
    """Asks for a vote; with ``pre`` only whether one would be given (no term is disturbed)."""

    sender: str
    term: int
    last_index: int
    last_term: int
    pre: bool


class VoteReply(msgspec.Struct, frozen=True, array_like=True, tag="vote!"):
    """Grants or refuses."""

    sender: str
    term: int
    granted: bool
    pre: bool


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append?"):
    """Entries after (previous_index, previous_term); without entries it is a heartbeat or a probe.

    ``context`` is the leader's tick at sending, echoed: check-quorum and the lease count from it.
    """

    sender: str
    term: int
    previous_index: int
    previous_term: int
    commit: int
    context: int
    entries: tuple[Entry, ...] = ()


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag="append!"):
    """Accepted: everything up to ``match_index`` is durable here. Refused: the entry before those
    sent, repeated as ``match_index``, is not here; ``hint_index`` is where to try next.
    """

    sender: str
    term: int
    refused: bool
    match_index: int
    hint_index: int
    context: int


Message = VoteRequest | VoteReply | Append | AppendReply


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller must do after a step, in this order.

    1. ``send_now`` may leave at once. 2. Make ``hard_state`` (if any) and ``entries`` durable;
    ``entries`` replace everything from their first index on. 3. Then send ``send_durable`` and call
    ``Raft.persisted``. 4. Apply ``committed`` in order: only entries that are durable on this
    member are handed out.
    """

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    send_now: tuple[tuple[str, Message], ...]
    send_durable: tuple[tuple[str, Message], ...]
    committed: tuple[Entry, ...]
