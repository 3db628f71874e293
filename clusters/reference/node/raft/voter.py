"""A member's state, and the elections that it takes part in (Raft 5.2, 5.4.1; thesis 4.2.3, 9.6).

``core.Raft`` goes on from here with what a leader and its followers do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from clusters.reference.node.bugs import planted
from clusters.reference.node.raft.configuration import Configuration, PeerChange, Stage, Vote, tally
from clusters.reference.node.raft.leader import Leadership
from clusters.reference.node.raft.raft_log import Log
from clusters.reference.node.raft.settings import RaftConfig
from clusters.reference.node.raft.types import (
    Chunk,
    Entry,
    HardState,
    Mark,
    Message,
    Role,
    Status,
    VoteReply,
    VoteRequest,
    broken,
)


class Voter:
    """What a member knows, who it votes for, and when it asks for votes itself."""

    def __init__(
        self,
        *,
        config: RaftConfig,
        hard_state: HardState,
        entries: Sequence[Entry],
        random: random.Random,
        base: Mark | None = None,
        snapshot: Mark | None = None,
    ) -> None:
        """What the disk held: ``hard_state``, and the log's ``entries`` behind its ``base``, by
        default the founders at its beginning. ``snapshot``, at or after the base, is what the
        state machine was restored from. Nothing more is committed yet, since the commit index is
        found again from the others (Raft 5.2, figure 2).
        """
        self._config, self._hard, self._random = config, hard_state, random
        self._log = Log(entries, base or Mark(0, 0, Configuration(config.voters)))
        self._snapshot = snapshot
        self._role = Role.FOLLOWER
        self._leader: str | None = None
        self._leadership: Leadership | None = None
        self._change: PeerChange | None = None
        self._votes: dict[str, bool] = {}
        self._commit = self._applied = max(self._log.base.index, snapshot.index if snapshot else 0)
        self._now = 0
        # A member that was part of the group may have promised a leader its patience just before
        # it went down: it must keep that promise, or the leader's lease would be worth nothing.
        self._leader_seen = 0 if hard_state.term else -config.election_ticks
        self._hard_changed = False
        self._send_now: list[tuple[str, Message]] = []
        self._send_durable: list[tuple[str, Message]] = []
        self._send_chunks: list[tuple[str, Chunk]] = []
        self._chunks: list[Chunk] = []
        self._installed: Mark | None = None
        self._restart_timer()

    # -- what a caller may look at

    @property
    def term(self) -> int:
        """The current term."""
        return self._hard.term

    @property
    def hard_state(self) -> HardState:
        """Term and vote, durable or on their way to the disk."""
        return self._hard

    @property
    def now(self) -> int:
        """How many ticks have passed."""
        return self._now

    @property
    def role(self) -> Role:
        """What this member is now."""
        return self._role

    @property
    def leader(self) -> str | None:
        """Who leads the current term, where it is known."""
        return self._leader

    @property
    def configuration(self) -> Configuration:
        """Who is a member, and who decides: the last one in the log, committed or not."""
        return self._log.configuration

    @property
    def stage(self) -> Stage:
        """How far a change of members is, as far as this member knows."""
        if self._log.configuration.joint:
            return Stage.JOINT
        if self._log.configuration_index > self._commit and self._change is None:
            return Stage.JOINT  # its end is in the log and not yet committed
        return Stage.STABLE if self._change is None else Stage.CATCHING_UP

    @property
    def changing_to(self) -> tuple[str, ...] | None:
        """The voters that a change asked for here leads to."""
        return None if self._change is None else self._change.voters

    @property
    def sending_snapshot(self) -> bool:
        """Whether a follower that answers is being sent the snapshot."""
        return self._leadership is not None and self._leadership.sending(self._now)

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return self._commit

    @property
    def applied_index(self) -> int:
        """The last committed entry that a ``Ready`` handed out."""
        return self._applied

    @property
    def base_index(self) -> int:
        """What was up to here is cut off."""
        return self._log.base.index

    @property
    def last_index(self) -> int:
        """The last entry of the log, durable or not."""
        return self._log.last_index

    def entry_term(self, index: int) -> int | None:
        """The term of the entry at ``index``; ``None`` where there is none."""
        return self._log.term(index)

    def mark(self, index: int) -> Mark:
        """The place ``index`` in the log, for a snapshot there."""
        return self._log.mark(index)

    def entries_from(self, index: int) -> tuple[Entry, ...]:
        """The log from ``index`` on, durable or not."""
        return self._log.between(index, self._log.last_index)

    def lease_holds(self) -> bool:
        """Whether this member leads and surely no other does: a quorum answered what it sent
        within the election timeout, less the margin for drift.

        It says nothing on what is committed: a new leader knows that only once an entry of its own
        term is (Raft 8).
        """
        return self._leadership is not None and self._leadership.lease_holds(self._now)

    def status(self) -> Status:
        """Everything about this member, as a value."""
        return Status(
            node=self._config.node,
            role=self._role,
            term=self._hard.term,
            vote=self._hard.vote,
            leader=self._leader,
            configuration=self._log.configuration,
            stage=self.stage,
            base_index=self._log.base.index,
            commit_index=self._commit,
            applied_index=self._applied,
            durable_index=self._log.durable_index,
            last_index=self._log.last_index,
            last_term=self._log.last_term,
            lease=self.lease_holds(),
            peers=self._leadership.statuses(self._now) if self._leadership else (),
        )

    def invariants(self) -> str | None:
        """The text of the first broken invariant of this member, ``None`` when all hold."""
        if (self._role is Role.LEADER) != (self._leadership is not None):
            return f"a {self._role} must {'' if self._leadership is None else 'not '}lead"
        return self._log.broken() or broken(self.status())

    # -- roles and terms

    def _restart_timer(self) -> None:
        """Patience is drawn anew each time, so that split votes end (Raft 5.2)."""
        self._timer_started = self._now
        self._timeout = self._config.election_ticks + self._random.randrange(
            self._config.election_ticks
        )

    def _set_hard(self, term: int, vote: str | None) -> None:
        if (term, vote) != (self._hard.term, self._hard.vote):
            self._hard, self._hard_changed = HardState(term, vote), True

    def _follow(self, term: int, leader: str | None) -> None:
        """Become a follower in ``term``; a vote given in that term stays given."""
        if term > self.term:
            self._set_hard(term, None)
        self._role, self._leader, self._leadership = Role.FOLLOWER, leader, None
        self._change = None
        self._votes = {}
        self._restart_timer()

    def _ask_before_campaign(self) -> None:
        """Pre-vote (thesis 9.6): find out whether an election could be won before disturbing it."""
        self._role, self._leader = Role.PRE_CANDIDATE, None
        self._canvass(term=self.term + 1, pre=True)

    def _campaign(self) -> None:
        """Ask for votes in a new term (Raft 5.2)."""
        self._set_hard(self.term + 1, self._config.node)
        self._role, self._leader = Role.CANDIDATE, None
        self._canvass(term=self.term, pre=False)

    def _canvass(self, *, term: int, pre: bool) -> None:
        self._restart_timer()
        self._votes = {self._config.node: True}
        request = VoteRequest(
            sender=self._config.node,
            term=term,
            last_index=self._log.last_index,
            last_term=self._log.last_term,
            pre=pre,
        )
        # A real request leaves after our own vote is durable: after a crash we must not
        # give it to another in the same term.
        outbox = self._send_now if pre else self._send_durable
        config = self._log.configuration
        voters = (name for name in config.members if config.decides(name))
        outbox.extend((name, request) for name in voters if name != request.sender)
        self._count_votes()

    def _count_votes(self) -> None:
        result = tally(self._log.configuration, self._votes)
        if result is Vote.LOST:
            self._follow(self.term, leader=None)
        elif result is Vote.WON and self._role is Role.PRE_CANDIDATE:
            self._campaign()
        elif result is Vote.WON:
            self._lead()

    def _lead(self) -> None:
        self._role, self._leader = Role.LEADER, self._config.node
        self._leadership = Leadership(
            config=self._config, term=self.term, log=self._log, now=self._now
        )
        # Raft 5.4.2 and 8: entries of earlier terms commit only under one of our own.
        self._log.append(self.term, b"")

    # -- votes

    def _vote_requested(self, request: VoteRequest) -> None:
        follows_another = self._now - self._leader_seen < self._config.election_ticks
        if request.term > self.term and (self._leadership or follows_another):
            # Thesis 4.2.3: while a leader is alive nobody may depose it, and its lease holds.
            self._answer_vote(request, granted=False)
            return
        if request.term > self.term and not request.pre:
            self._follow(request.term, leader=None)
        up_to_date = planted("vote-ignores-log") or (request.last_term, request.last_index) >= (
            self._log.last_term,
            self._log.last_index,
        )
        if request.pre:
            self._answer_vote(request, granted=up_to_date and request.term > self.term)
            return
        free = self._hard.vote in (None, request.sender) and self._leader is None
        granted = request.term == self.term and free and up_to_date
        if granted:
            self._set_hard(self.term, request.sender)
            self._restart_timer()
        self._answer_vote(request, granted=granted)

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        """A granted pre-vote names the term asked for, all else our own, which may be news."""
        term = request.term if granted else self.term
        reply = VoteReply(sender=self._config.node, term=term, granted=granted, pre=request.pre)
        (self._send_now if request.pre else self._send_durable).append((request.sender, reply))

    def _vote_answered(self, reply: VoteReply) -> None:
        promised = reply.pre and reply.granted  # its term is the one we asked for, not theirs
        if reply.term > self.term and not promised:
            self._follow(reply.term, leader=None)
            return
        asked = (
            (Role.PRE_CANDIDATE, self.term + 1 if reply.granted else reply.term)
            if reply.pre
            else (Role.CANDIDATE, self.term)
        )
        if (self._role, reply.term) == asked:
            self._votes.setdefault(reply.sender, reply.granted)
            self._count_votes()
