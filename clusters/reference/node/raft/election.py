"""Elections (Raft 5.2, 5.4.1; thesis 4.2.3, 9.6): the round of votes that a member asks for, what
a member grants to another that asks, both as values, and the time that it waits for a leader
before it asks.
"""

from __future__ import annotations

import random

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import Configuration, Vote, tally
from clusters.reference.node.raft.types import VoteReply, VoteRequest


class Election(msgspec.Struct, frozen=True):
    """One round of votes for ``term``; with ``pre`` it only finds out whether the round could be
    won, and disturbs no term (pre-vote, thesis 9.6).
    """

    term: int
    pre: bool
    votes: dict[str, bool]

    def asked_for(self, reply: VoteReply) -> bool:
        """Whether ``reply`` answers this round. A refused pre-vote names the voter's own term."""
        if reply.pre != self.pre:
            return False
        return reply.term == self.term or (reply.pre and not reply.granted)

    def counting(self, reply: VoteReply) -> Election:
        """This round with the vote in ``reply``; a voter's first answer counts."""
        if reply.sender in self.votes:
            return self
        return Election(self.term, self.pre, {**self.votes, reply.sender: reply.granted})

    def with_own_vote(self, node: str) -> Election:
        """This round with the vote of ``node``, which holds it."""
        return Election(self.term, self.pre, {**self.votes, node: True})

    def result(self, configuration: Configuration) -> Vote:
        """Whether the votes so far decide, by the majorities of ``configuration``."""
        return tally(configuration, self.votes)


class Voter(msgspec.Struct, frozen=True):
    """A member as it is asked for its vote.

    ``vote`` is whom it gave that of ``term``, ``leader`` the one of ``term`` that it knows, ``led``
    whether it heard from a leader so lately that no other may depose it. ``last`` is the term and
    the index of its last entry. ``began``: its own round of pre-votes began within this tick.
    """

    node: str
    term: int
    vote: str | None
    leader: str | None
    led: bool
    last: tuple[int, int]
    began: bool

    def protects_leader(self, request: VoteRequest) -> bool:
        """Whether the request is refused unheard, its term, too (thesis 4.2.3): a leader lives, and
        its lease holds. One that has handed leadership over has given its lease up.
        """
        protects = request.term > self.term and self.led and not request.handed_over
        if protects:
            reached("vote refused while a leader lives")
        return protects

    def grants(self, request: VoteRequest) -> bool:
        """Whether the vote is given, or with ``pre`` would be."""
        # Raft 5.4.1: a leader must have every committed entry; the last term counts before the
        # length.
        asked = (request.last_term, request.last_index)
        if not planted("vote-ignores-log") and asked < self.last:
            if request.last_index > self.last[1]:
                reached("vote refused to a longer log of an earlier term")
            return False
        if request.pre:
            return request.term > self.term and not self._goes_before(request)
        # The same candidate may ask again, since its answer may have been lost (Raft 5.2). A leader
        # of this term that is known here has won the election already.
        free = self.vote in (None, request.sender) and self.leader is None
        return request.term == self.term and free

    def _goes_before(self, request: VoteRequest) -> bool:
        """Whether this member's own round of pre-votes has just begun, too, and is to be the one
        that goes on: two that cross, and both go on, split the votes of a term. Not after the tick
        in which it began: its requests may reach no other member.
        """
        asks = (request.last_term, request.last_index, request.sender)
        return self.began and (*self.last, self.node) > asks


class ElectionTimer:
    """Counts the ticks since a member last had a reason to wait for its leader.

    The timeout lies between ``election_ticks`` and twice that, and is drawn anew at each restart,
    so that split votes end (Raft 5.2). A round that others refuse needs no such patience: the
    leader that it waited for is gone, or the pre-vote that comes next disturbs none.
    """

    def __init__(self, election_ticks: int, rng: random.Random) -> None:
        self._election_ticks, self._random = election_ticks, rng
        self.restart(0)

    def restart(self, now: int) -> None:
        """Wait from tick ``now`` on, for a timeout that is drawn now."""
        self._started = now
        self._timeout = self._election_ticks + self._random.randrange(self._election_ticks)

    def retry(self, now: int) -> None:
        """Wait from tick ``now`` on as long as two that were in each other's way need to part: the
        range is as wide as that of a whole timeout, and begins once slow disks have a vote.
        """
        self._started = now
        least = 1 + self._election_ticks // 4
        self._timeout = least + self._random.randrange(self._election_ticks)

    def extend(self, now: int) -> None:
        """The leader lives at tick ``now``: wait from there on, as long as drawn before."""
        self._started = now

    def began(self, now: int) -> bool:
        """Whether the wait began at tick ``now``."""
        return now == self._started

    def expired(self, now: int) -> bool:
        """Whether the member has waited long enough to ask for votes."""
        return now - self._started >= self._timeout
