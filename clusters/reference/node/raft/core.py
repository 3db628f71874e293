"""One member of a raft group: a state machine of ticks, messages and proposals, without any I/O.

The caller feeds ``tick``, ``step`` and ``propose``, takes a ``Ready`` whenever there is one, does
what it says in its order, and tells ``persisted``. Section numbers are those of "In Search of an
Understandable Consensus Algorithm" (Ongaro, Ousterhout 2014) and of Ongaro's thesis.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from clusters.reference.node.raft import quorum
from clusters.reference.node.raft.config import RaftConfig
from clusters.reference.node.raft.errors import InvariantBroken, NotLeader
from clusters.reference.node.raft.leader import Leadership
from clusters.reference.node.raft.log import Log
from clusters.reference.node.raft.status import Status
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Entry,
    HardState,
    Message,
    Ready,
    Role,
    VoteReply,
    VoteRequest,
)

COMMIT_BEFORE_QUORUM = "commit-before-quorum"
"""Planted bug: the leader commits what is on its own disk, without counting a quorum."""


class Raft:
    """A member of one group. Not thread-safe; nothing in it waits.

    ``step``, ``propose``, ``tick`` and ``persisted`` raise ``InvariantBroken`` when going on could
    lose what was acknowledged: the node must stop then.
    """

    def __init__(
        self,
        *,
        config: RaftConfig,
        hard_state: HardState,
        entries: Sequence[Entry],
        random: random.Random,
    ) -> None:
        """``hard_state`` and ``entries`` are what the disk held; nothing is committed yet, since
        the commit index is found again from the others (Raft 5.2, figure 2).
        """
        self._config, self._hard, self._random = config, hard_state, random
        self._log = Log(entries)
        self._role = Role.FOLLOWER
        self._leader: str | None = None
        self._leadership: Leadership | None = None
        self._votes: dict[str, bool] = {}
        self._commit = self._applied = self._now = 0
        # A member that was part of the group may have promised a leader its patience just before
        # it went down: it must keep that promise, or the leader's lease would be worth nothing.
        self._leader_seen = 0 if hard_state.term else -config.election_ticks
        self._hard_changed = False
        self._send_now: list[tuple[str, Message]] = []
        self._send_durable: list[tuple[str, Message]] = []
        self._restart_timer()

    # -- what a caller may look at

    @property
    def term(self) -> int:
        """The current term."""
        return self._hard.term

    @property
    def role(self) -> Role:
        """What this member is now."""
        return self._role

    @property
    def leader(self) -> str | None:
        """Who leads the current term, where it is known."""
        return self._leader

    @property
    def voters(self) -> tuple[str, ...]:
        """Whose majority decides."""
        return self._config.voters

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return self._commit

    @property
    def applied_index(self) -> int:
        """The last committed entry that a ``Ready`` handed out."""
        return self._applied

    @property
    def last_index(self) -> int:
        """The last entry of the log, durable or not."""
        return self._log.last_index

    def entry_term(self, index: int) -> int | None:
        """The term of the entry at ``index``; ``None`` where there is none."""
        return self._log.term(index)

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
            voters=self._config.voters,
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
        if broken := self._log.broken():
            return broken
        if self._log.last_term > self.term:
            return f"log ends in term {self._log.last_term}, which is after term {self.term}"
        if not self._applied <= self._commit <= self._log.last_index:
            return (
                f"applied {self._applied}, commit {self._commit} and last {self._log.last_index} "
                f"are out of order"
            )
        if (self._role is Role.LEADER) != (self._leadership is not None):
            return f"a {self._role} must {'' if self._leadership is None else 'not '}lead"
        if self._role in (Role.LEADER, Role.CANDIDATE) and self._hard.vote != self._config.node:
            return f"a {self._role} voted for {self._hard.vote!r} in its own term {self.term}"
        for name, peer in self._leadership.peers if self._leadership else ():
            if not peer.match_index < peer.next_index <= self._log.last_index + 1:
                return f"{name}: match {peer.match_index}, next {peer.next_index} are out of order"
        return None

    # -- what a caller does

    def tick(self) -> None:
        """A unit of time has passed."""
        self._now += 1
        if self._leadership is None:
            patience_over = self._now - self._timer_started >= self._timeout
            if patience_over and self._config.node in self._config.voters:
                self._ask_before_campaign()
            return
        if not self._leadership.has_quorum(self._now):
            # Thesis 6.2: a leader cut off from its quorum must not keep clients waiting.
            self._follow(self.term, leader=None)
        elif self._leadership.heartbeat_due(self._now):
            self._send_now.extend(self._leadership.heartbeats(self._now, self._commit))

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry; returns its (term, index). Raises ``NotLeader``.

        It is committed once an entry with that term *and* index is handed out; another term at
        that index says that it never will be.
        """
        if self._leadership is None:
            raise NotLeader(self._leader)
        entry = self._log.append(self.term, data)
        return entry.term, entry.index

    def step(self, message: Message) -> None:
        """Take a message of another member."""
        match message:
            case VoteRequest():
                self._vote_requested(message)
            case VoteReply():
                self._vote_answered(message)
            case Append():
                self._append_requested(message)
            case AppendReply():
                self._append_answered(message)

    def persisted(self, index: int, term: int) -> None:
        """The entries of the ``Ready`` that ended with (index, term) are durable here, and those
        of every one before it.
        """
        self._log.persisted(index, term)
        self._advance_commit()

    def has_ready(self) -> bool:
        """Whether ``ready`` would hold anything."""
        return bool(
            self._hard_changed
            or self._log.has_unhanded
            or self._send_now
            or self._send_durable
            or self._applied < self._applicable()
        )

    def ready(self) -> Ready:
        """Everything to do now, taken out. Readies are finished in the order they are taken."""
        if self._leadership is not None:
            self._send_now.extend(self._leadership.replicate(self._now, self._commit))
        last = min(self._applicable(), self._applied + self._config.max_apply_entries)
        ready = Ready(
            hard_state=self._hard if self._hard_changed else None,
            entries=self._log.hand_out(),
            send_now=tuple(self._send_now),
            send_durable=tuple(self._send_durable),
            committed=self._log.between(self._applied + 1, last),
        )
        self._applied = max(self._applied, last)
        self._hard_changed = False
        self._send_now.clear()
        self._send_durable.clear()
        return ready

    def _applicable(self) -> int:
        return min(self._commit, self._log.durable_index)

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
        outbox.extend((name, request) for name in self._config.voters if name != request.sender)
        self._count_votes()

    def _count_votes(self) -> None:
        result = quorum.tally(self._config.voters, self._votes)
        if result is quorum.Vote.LOST:
            self._follow(self.term, leader=None)
        elif result is quorum.Vote.WON and self._role is Role.PRE_CANDIDATE:
            self._campaign()
        elif result is quorum.Vote.WON:
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
        up_to_date = (request.last_term, request.last_index) >= (
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

    # -- replication

    def _append_requested(self, message: Append) -> None:
        if message.term < self.term:
            # The answer's term deposes a leader of the past, or frees one that a member with a
            # higher term would otherwise never obey.
            self._answer_append(message, refused=True, index=message.previous_index, hint=0)
            return
        if message.term == self.term and self._leader not in (None, message.sender):
            raise InvariantBroken(f"{message.sender} and {self._leader} both lead term {self.term}")
        self._follow(message.term, leader=message.sender)
        self._leader_seen = self._now
        previous = message.previous_index
        if self._log.term(previous) != message.previous_term:
            self._answer_append(message, refused=True, index=previous, hint=self._hint(previous))
            return
        self._log.merge(message.entries, self._commit)
        match_index = previous + len(message.entries)
        self._commit = max(self._commit, min(message.commit, match_index))
        self._answer_append(message, refused=False, index=match_index, hint=0)

    def _hint(self, previous_index: int) -> int:
        """Where the leader should try next: a whole conflicting term is skipped (Raft 5.3)."""
        if previous_index > self._log.last_index:
            return self._log.last_index
        # What is committed matches every later leader, so it never pays to go below it.
        return max(self._log.first_index_of_term_at(previous_index) - 1, self._commit)

    def _answer_append(self, message: Append, *, refused: bool, index: int, hint: int) -> None:
        reply = AppendReply(
            sender=self._config.node,
            term=self.term,
            refused=refused,
            match_index=index,
            hint_index=hint,
            context=message.context,
        )
        self._send_durable.append((message.sender, reply))

    def _append_answered(self, reply: AppendReply) -> None:
        if reply.term > self.term:
            self._follow(reply.term, leader=None)
        elif self._leadership is not None and reply.term == self.term:
            self._leadership.answered(reply)
            self._advance_commit()
            self._send_now.extend(self._leadership.replicate(self._now, self._commit))

    def _advance_commit(self) -> None:
        """Raft 5.4.2: only an entry of our own term commits by counting, all before it with it."""
        if self._leadership is None:
            return
        index = self._leadership.quorum_index()
        if COMMIT_BEFORE_QUORUM in self._config.bugs:
            index = self._log.durable_index
        if index > self._commit and self._log.term(index) == self.term:
            self._commit = index
