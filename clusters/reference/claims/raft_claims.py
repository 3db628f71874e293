"""What raft's messages promise: terms and votes, the log of a leader, what followers have of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clusters.reference.claims.durable_facts import entry_mark, generation_name
from clusters.reference.node.raft.core import TERM_BITS
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    Message,
    VoteReply,
    VoteRequest,
)
from harness.protocols.claims import (
    Claim,
    CommitClaim,
    CommitLearnt,
    Fact,
    LeaderLog,
    LogMatch,
    Statement,
    TermClaim,
    VoteClaim,
)


def _candidate(group: str, message: VoteRequest) -> Fact | None:
    return None if message.pre else TermClaim(group, message.term, message.sender)


def _leader(group: str, message: Append | Chunk) -> Fact:
    return TermClaim(group, message.term, message.sender)


def _log_told(group: str, message: Append) -> Fact:
    marks = tuple([entry_mark(entry) for entry in message.entries])
    return LeaderLog(group, message.term, message.previous_index + 1, marks)


def _snapshot_told(group: str, message: Chunk) -> Fact:
    return LeaderLog(group, message.term, message.mark.index + 1)


def _commit_told(group: str, message: Append) -> Fact:
    return CommitClaim(group, message.term, message.commit)


def _answering(group: str, message: AppendReply) -> Fact:
    return TermClaim(group, message.term)


def _commit_learnt(group: str, message: AppendReply) -> Fact:
    return CommitLearnt(group, message.commit)


def _log_held(group: str, message: AppendReply) -> Fact | None:
    return None if message.refused else LogMatch(group, message.term, message.match_index)


RAFT: Mapping[type, tuple[tuple[Claim, Callable[[str, Any], Fact | None]], ...]] = {
    VoteRequest: ((Claim.HARD_STATE_SYNCED, _candidate),),
    Append: (
        (Claim.HARD_STATE_SYNCED, _leader),
        (Claim.KNOWN_AFTER_CRASH, _log_told),  # the other half of what its answers promise
        (Claim.COMMITTED_ON_MAJORITY, _commit_told),
    ),
    Chunk: ((Claim.HARD_STATE_SYNCED, _leader), (Claim.KNOWN_AFTER_CRASH, _snapshot_told)),
    AppendReply: (
        (Claim.HARD_STATE_SYNCED, _answering),
        (Claim.KNOWN_AFTER_CRASH, _log_held),
        (Claim.COMMITTED_ON_MAJORITY, _commit_learnt),
    ),
}
"""What messages of raft promise, and where that stands in them. ``VoteReply`` is read by itself: it
does not say whom the vote went to.
"""


class RaftClaims:
    """Reads the messages of one run: an answer to a request for votes names no candidate."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], VoteRequest] = {}  # by group and node, the last one

    def said(self, source: str, to: str, group: str, message: Message) -> list[Statement]:
        """What ``message`` of ``group`` states, which leaves ``source``."""
        name = type(message).__name__
        group = generation_name(group, message.generation)
        if isinstance(message, VoteReply):
            return self._vote(name, group, to, message)
        if isinstance(message, VoteRequest) and not message.pre:
            self._asked[(group, source)] = message
        return [
            (name, fact)
            for _, read in RAFT.get(type(message), ())
            if (fact := read(group, message)) is not None
        ]

    def _vote(self, name: str, group: str, to: str, reply: VoteReply) -> list[Statement]:
        if not reply.granted or reply.pre:
            return []
        asked = self._asked.get((group, to))
        candidate = None if asked is None else asked.sender
        said: list[Statement] = [(name, TermClaim(group, reply.term, candidate))]
        if asked is not None and asked.term == reply.term:
            said.append((name, VoteClaim(group, reply.term, asked.last_term, asked.last_index)))
        return said


def begun_claim(group: str, claim: int) -> Fact:
    """The claim of a heartbeat's ``claim``: see ``Raft.claim``."""
    generation, term = claim >> TERM_BITS, claim & ((1 << TERM_BITS) - 1)
    return TermClaim(generation_name(group, generation), term)
