"""One member of a raft group: a state machine of ticks, messages and proposals, without any I/O.

The caller feeds ``tick``, ``step`` and ``propose``, takes a ``Ready`` whenever there is one,
carries it out in its order, and calls ``vote_persisted`` and ``persisted``. Section numbers are
those of "In Search of an Understandable Consensus Algorithm" (Ongaro, Ousterhout 2014) and of
Ongaro's thesis.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import (
    Configuration,
    Generation,
    Lineage,
    Stage,
    Vote,
    forced,
    later_base,
    shared_index,
)
from clusters.reference.node.raft.election import Election, ElectionTimer, Voter
from clusters.reference.node.raft.follower import Follower
from clusters.reference.node.raft.leader import Leadership
from clusters.reference.node.raft.membership import Membership, PeerChange
from clusters.reference.node.raft.raft_log import Log
from clusters.reference.node.raft.settings import (
    ChangeRefused,
    InvariantBroken,
    NotLeader,
    RaftConfig,
)
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    CatchUpError,
    Chunk,
    ChunkReply,
    Diverged,
    Entry,
    HardState,
    Mark,
    Message,
    Outbox,
    Ready,
    Role,
    Status,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    broken,
)

TERM_BITS = 32


class Raft:
    """A member of one group. Not thread-safe; nothing in it waits.

    ``step``, ``propose``, ``tick``, ``persisted`` and ``vote_persisted`` raise ``InvariantBroken``
    when going on could lose acknowledged entries: the node must stop then.
    """

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
        """The state on the disk: ``hard_state``, and the log's ``entries`` behind its ``base``, by
        default the founders at its beginning. ``snapshot``, at or after the base, is the one that
        the state machine was restored from. Nothing more is committed yet, since the commit index
        is found again from the others (Raft 5.2, figure 2).
        """
        self._config, self._hard = config, hard_state
        self._log = Log(entries, base or Mark(0, 0, Configuration(config.voters)))
        self._snapshot = snapshot
        self._leader: str | None = None
        self._leadership: Leadership | None = None
        self._membership: Membership | None = None  # of the same term
        self._election: Election | None = None  # the round that this member holds
        # A snapshot holds committed entries only, so that much is known to be committed.
        self._log.commit = self._applied = max(
            self._log.base.index, snapshot.index if snapshot else 0
        )
        self._now = 0
        self._diverged: int | None = None  # the generation that it can't follow
        # What is committed here is of the generation that it is in, not of one before that may
        # differ: known once its log was found to be that of a leader there.
        self._is_of_generation = self._log.configuration.generation == hard_state.generation
        # A member that was part of the group may have promised a leader its patience just before
        # it went down: it must keep that promise, or the leader's lease would be worth nothing.
        self._leader_seen = 0 if hard_state.term else -config.election_ticks
        self._outbox = Outbox()
        self._follower = Follower(node=config.node, log=self._log, outbox=self._outbox)
        self._timer = ElectionTimer(config.election_ticks, random)

    # -- what a caller may look at

    @property
    def node(self) -> str:
        """The name of this member."""
        return self._config.node

    @property
    def term(self) -> int:
        """The current term."""
        return self._hard.term

    @property
    def generation(self) -> int:
        """The generation of the group that this member is in."""
        return self._hard.generation

    @property
    def claim(self) -> int:
        """Term and generation in one number, which later ones exceed: for heartbeats of nodes."""
        return self.generation << TERM_BITS | self.term

    @property
    def last_term(self) -> int:
        """The term of the last entry of its log."""
        return self._log.last_term

    @property
    def diverged(self) -> bool:
        """Whether it must be erased: see ``Diverged``."""
        return self._diverged is not None

    @property
    def log_generation(self) -> int:
        """The generation whose log this member has, as far as it has come: the one before, where it
        has diverged from the one that it was to follow, or where that may turn out yet.
        """
        if self.diverged or not self._is_of_generation:
            return self._log.configuration.generation
        return self.generation

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
        """The present role of this member."""
        if self._leadership is not None:
            return Role.LEADER
        if self._election is None:
            return Role.FOLLOWER
        return Role.PRE_CANDIDATE if self._election.pre else Role.CANDIDATE

    @property
    def leader(self) -> str | None:
        """The leader of the current term, where it is known."""
        return self._leader

    @property
    def configuration(self) -> Configuration:
        """The members and the voters: the last configuration in the log, committed or not."""
        return self._log.configuration

    @property
    def committed_configuration(self) -> tuple[int, Configuration]:
        """The newest configuration that is known to be committed, and its index."""
        return self._log.configuration_at(self._log.commit)

    def configuration_at(self, index: int) -> Configuration:
        """The configuration that counted at ``index``, at or after the base."""
        return self._log.configuration_at(index)[1]

    @property
    def stage(self) -> Stage:
        """How far a change of members is, as far as this member knows."""
        if self._membership is not None:
            return self._membership.stage(self._log.commit)
        undecided = self._log.configuration_index > self._log.commit
        return Stage.JOINT if undecided or self._log.configuration.joint else Stage.STABLE

    @property
    def changing_to(self) -> tuple[str, ...] | None:
        """The voters that a change asked for here leads to."""
        change = None if self._membership is None else self._membership.change
        return None if change is None else change.voters

    @property
    def change_revision(self) -> int | None:
        """The revision of what asked for the change that goes on here."""
        change = None if self._membership is None else self._membership.change
        return None if change is None else change.revision

    @property
    def waiting_revision(self) -> int | None:
        """The revision of the change whose new voters have caught up and that waits for
        ``confirm_change``.
        """
        change = None if self._membership is None else self._membership.change
        waits = change is not None and change.caught_up and not change.confirmed
        return change.revision if change is not None and waits else None

    @property
    def sending_snapshot(self) -> bool:
        """Whether a follower is being sent the snapshot, or may be again in a moment."""
        return self._leadership is not None and self._leadership.sending(self._now)

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return self._log.commit

    @property
    def applied_index(self) -> int:
        """The last committed entry that a ``Ready`` handed out."""
        return self._applied

    @property
    def base_index(self) -> int:
        """Entries up to here are cut off."""
        return self._log.base.index

    @property
    def last_index(self) -> int:
        """The last entry of the log, durable or not."""
        return self._log.last_index

    def mark(self, index: int) -> Mark:
        """The place ``index`` in the log, for a snapshot there."""
        return self._log.mark(index)

    def entries_from(self, index: int) -> tuple[Entry, ...]:
        """The log from ``index`` on, durable or not."""
        return self._log.between(index, self._log.last_index)

    def lease_holds(self) -> bool:
        """Whether this member leads and surely no other does: a quorum answered messages that it
        sent within the election timeout, less the margin for drift.

        This tells nothing of what is committed: a new leader knows that only once an entry of its
        own term is (Raft 8).
        """
        return self._leadership is not None and self._leadership.lease_holds(self._now)

    def status(self) -> Status:
        """Everything about this member, as a value."""
        return Status(
            node=self._config.node,
            role=self.role,
            term=self._hard.term,
            vote=self._hard.vote,
            leader=self._leader,
            configuration=self._log.configuration,
            stage=self.stage,
            base_index=self._log.base.index,
            commit_index=self._log.commit,
            applied_index=self._applied,
            durable_index=self._log.durable_index,
            last_index=self._log.last_index,
            last_term=self._log.last_term,
            lease=self.lease_holds(),
            peers=self._leadership.statuses() if self._leadership else (),
        )

    def invariants(self) -> str | None:
        """The text of the first broken invariant of this member, ``None`` when all hold."""
        if self._leadership is not None and self._election is not None:
            return f"{self._config.node} leads and asks for votes at once"
        if self.diverged:
            # Its term is of the generation that it can't follow, its log is not: it is to go.
            return self._log.broken()
        return self._log.broken() or broken(self.status())

    # -- what a caller does

    def tick(self) -> None:
        """A unit of time has passed."""
        self._now += 1
        if self._leadership is None:
            # A learner, or a member that was removed, would depose leaders for nothing: it can't
            # win.
            decides = self._may_lead()
            if self._timer.expired(self._now) and decides and not self._vote_unwritten():
                self._campaign(pre=True)
            return
        if not self._leadership.has_quorum(self._now):
            reached("leader without its quorum steps down")
            # Thesis 6.2: a leader cut off from its quorum must not keep clients waiting.
            self._follow(self.term, leader=None)
            return
        # At once, without a disk: heartbeats claim nothing that could be lost.
        if self._leadership.heartbeat_due(self._now):
            self._outbox.send_now.extend(self._leadership.heartbeats(self._now, self._log.commit))
        if self._membership is not None:
            self._membership.tick(self._now, self._log.commit)
            self._advance_change()

    def _may_lead(self) -> bool:
        """Whether it has a vote, by a configuration of the generation that it is in."""
        config = self._log.configuration
        whole = config.generation == self.generation and self._diverged is None
        return whole and config.decides(self._config.node)

    def observe_leader(self, leader: str, claim: int) -> bool:
        """The node of ``leader`` reports that it still leads by ``claim``: as good as a heartbeat
        of this group, if this member follows it in that term. Returns whether it does.
        """
        # The report may be older than an election: in another term it must not hold back a vote.
        if self._leadership is not None or (leader, claim) != (self._leader, self.claim):
            reached("heartbeat for a leader that is not followed")
            return False
        self._leader_seen = self._now
        self._timer.extend(self._now)
        return True

    def is_there(self, follower: str) -> bool:
        """Whether ``follower`` has answered this leader within the election timeout."""
        return self._leadership is not None and self._leadership.is_there(follower, self._now)

    def is_acking(self, follower: str) -> bool:
        """Whether ``follower`` has answered this leader, so that its node may acknowledge for
        it.
        """
        return self._leadership is not None and self._leadership.is_acking(follower)

    def node_acked(self, follower: str, claim: int, tick: int) -> None:
        """The ``observe_leader`` of ``follower`` was true for the heartbeat with ``claim`` that was
        sent here at ``tick``.
        """
        if self._leadership is not None and claim == self.claim:
            self._leadership.node_acked(follower, tick)

    def followers_with_lost_log(self) -> tuple[str, ...]:
        """Followers of this leader that have lost entries that they had acknowledged."""
        return () if self._leadership is None else self._leadership.followers_with_lost_log()

    def unpair(self, follower: str) -> None:
        """The node of ``follower`` acknowledges no more: it is sent heartbeats again."""
        if self._leadership is not None:
            self._leadership.unpair(follower)

    def step_down(self) -> None:
        """Stop leading, and restart the election timer: called at every tick it keeps this member
        from asking for votes.
        """
        if self.role is Role.FOLLOWER:
            self._timer.restart(self._now)
        else:
            self._follow(self.term, leader=None)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry; returns its (term, index). Raises ``NotLeader``.

        It is committed once an entry with that term *and* index is handed out; another term at
        that index says that it never will be.
        """
        if self._leadership is None or self._membership is None:
            raise NotLeader(self._leader)
        if self._membership.hand_over is not None:
            # The successor must have the whole log before it is asked to lead.
            reached("proposal refused while leadership is handed over")
            raise NotLeader(self._membership.hand_over.target)
        # Not sent from here: ``ready`` batches everything that one turn of the loop proposed.
        entry = self._log.append(self.term, data)
        return entry.term, entry.index

    def change_peers(
        self,
        voters: Sequence[str],
        learners: Sequence[str] = (),
        *,
        term: int | None = None,
        revision: int = 0,
        confirm: bool = False,
        adjust: bool = False,
    ) -> None:
        """Begin to make ``voters`` and ``learners`` the group's members, as the leader of ``term``
        (by default of the present one); a request for the change that goes on changes nothing. New
        voters first catch up as learners. A leader that is not among the voters hands leadership
        over first, and another request has to be made of its successor.

        ``revision`` is that of what asks for it: a leader refuses a request older than its last.
        With ``confirm`` the change waits for ``confirm_change`` before it is joint. With ``adjust``
        it takes the place of one that is still catching up. It ends with a ``PeersApplied`` or a
        ``ChangeFailed``.

        Raises ``NotLeader``; ``StaleTerm``; ``StaleRevision``; ``ChangeBusy`` while another change
        goes on; and ``ChangeRefused`` while nothing of this leader's term is committed: a change
        that a past leader began might come back.
        """
        if self._membership is None:
            raise NotLeader(self._leader)
        wanted = PeerChange(
            tuple(voters),
            tuple(learners),
            revision=revision,
            confirm=confirm,
        )
        self._membership.request(
            wanted, term=term, commit=self._log.commit, now=self._now, adjust=adjust
        )
        self._advance_change()

    def confirm_change(self, revision: int) -> bool:
        """Let the change of ``revision`` become joint, whose new voters have caught up. False where
        it is not the one that waits for this.
        """
        confirmed = self._membership is not None and self._membership.confirm(revision)
        if confirmed:
            self._advance_change()
        return confirmed

    def cancel_change(self) -> bool:
        """Cancel a change that is still catching up; a member that came as a learner stays one
        until the next change. False where there is none, and once it is joint.

        Another leader may have been elected meanwhile, and may have gone on: only once
        ``leads_since`` this tick is true, nothing of the configuration was or will be applied.
        """
        return self._membership is not None and self._membership.cancel(self._log.commit)

    def leads_since(self, tick: int) -> bool:
        """Whether this member led at a moment after ``tick``, and a quorum knew of no other leader
        then (the read index of thesis 6.4).
        """
        return self._leadership is not None and self._leadership.followed_since(tick, self._now)

    def hand_over(self, *targets: str) -> None:
        """Ask the one of ``targets``, voters, that has most of the log to lead in place of this
        member, which refuses proposals until then; it goes on to lead where that one does not in
        time, or none is there. Raises ``NotLeader``.
        """
        if self._membership is None:
            raise NotLeader(self._leader)
        self._membership.begin_hand_over(targets, self._now)
        self._ask_to_lead()

    def begin_generation(self, number: int) -> Generation:
        """Go on alone, as the first voter of generation ``number``, with the log as it is here: the
        other members' answers count for nothing from now on (resetPeers). The caller has to know
        that no other member acts for the generation before any more.

        Raises ``ChangeRefused`` where that generation, or a later one, has begun, or this member's
        log is not whole.
        """
        config = self._log.configuration
        if number <= self.generation or config.generation != self.generation or self.diverged:
            raise ChangeRefused(
                f"generation {number} can't follow {config.generation} in {self.generation}"
            )
        last_index, last_term = self._log.last_index, self._log.last_term
        begun = Generation(number, self.generation, last_index, last_term)
        self._enter(number, self.term + 1)
        self._is_of_generation = True
        self._log.append_configuration(self.term, forced(config, self._config.node, begun))
        self._campaign(pre=True)
        return begun

    def _enter(self, generation: int, term: int) -> None:
        """Enter ``term`` of a later ``generation`` without a leader."""
        self._follow(self.term, leader=None)
        self._hard = self._outbox.hard_state = HardState(term, None, generation)

    def compacted(self, index: int, snapshot: Mark) -> None:
        """A ``snapshot`` is durable here: forget the log up to ``index``, which it covers."""
        if not index <= snapshot.index <= self._applied:
            raise InvariantBroken(
                f"cut at {index}, snapshot {snapshot.index} and applied {self._applied} are out "
                f"of order"
            )
        self._snapshot = snapshot
        self._log.compact(index)

    def chunk_stored(self, chunk: Chunk, offset: int) -> None:
        """The bytes before ``offset`` of the snapshot of ``chunk`` are kept."""
        # While the bytes were written a new term may have begun, whose leader did not send them.
        if (chunk.generation, chunk.term) == (self.generation, self.term):
            self._follower.chunk_stored(chunk, offset)

    def install(self, chunk: Chunk) -> bool:
        """The snapshot that ends with ``chunk`` is kept and whole. Returns whether the state
        machine must be restored from it now: the log begins behind it then, and the next ``Ready``
        carries it.
        """
        # Only the leader of the present term may replace the log.
        present = (chunk.generation, chunk.term) == (self.generation, self.term)
        wanted = present and self._follower.install(chunk)
        if wanted:
            self._is_of_generation = True
            self._snapshot, self._applied = chunk.mark, chunk.mark.index
        return wanted

    def step(self, message: Message) -> None:
        """Take a message of another member."""
        if message.generation != self.generation and not self._may_follow(message):
            return
        match message:
            case VoteRequest():
                self._vote_requested(message)
            case VoteReply():
                self._vote_answered(message)
            case Append():
                self._append_requested(message)
            case AppendReply():
                self._append_answered(message)
            case Chunk():
                self._chunk_received(message)
            case ChunkReply():
                self._chunk_answered(message)
            case TimeoutNow():
                self._asked_to_lead(message)

    def _may_follow(self, message: Message) -> bool:
        """Whether a message of another generation counts: only that of a leader of a later one."""
        if message.generation < self.generation:
            reached("message of an earlier generation")
            return False
        # A member learns of a generation with the log that it begins with, and by nothing else.
        if not isinstance(message, Append | Chunk):
            reached("message of a later generation without its log")
            return False
        reached("later generation followed")
        self._enter(message.generation, message.term)
        self._is_of_generation = False
        return True

    def _has_lineage(self, message: Append | Chunk) -> bool:
        """Leave off what is not of the log of the leader that is followed; whether that could be
        done: nothing that was applied here can be left off.
        """
        if self.diverged:
            # What it took in and acknowledged now would be gone again as it is erased.
            reached("message to a member that has diverged")
            return False
        ours, lineage = self._log.configuration.lineage, message.lineage
        shared = None if ours == lineage else shared_index(ours, lineage)
        if shared is None:
            return True
        if self._log.commit > shared or self._contradicts(message):
            if self._diverged != self.generation:
                reached("member diverged from a later generation")
                self._diverged = self.generation
                self._outbox.events.append(Diverged(self.generation, shared, self._log.commit))
            return False
        # Nothing of a later term than the leader's is in its log. What is not committed here and
        # looks like it is compared as in any generation.
        kept = min(shared, self._log.last_index)
        while kept > self._log.commit and (self._log.term(kept) or 0) > message.term:
            kept -= 1
        self._log.keep_until(kept)
        return True

    def _contradicts(self, message: Append | Chunk) -> bool:
        """Whether an entry that is committed here is another one there. A reset goes on with what
        its survivor has, and that may not have been committed: so logs may differ before it, too.
        """
        log = self._log
        if isinstance(message, Chunk):
            places = [(message.mark.index, message.mark.term)]
        else:
            before = (message.previous_index, message.previous_term)
            places = [before, *((entry.index, entry.term) for entry in message.entries)]
        # What a snapshot stands for can't be compared any more, and may differ.
        cut = isinstance(message, Chunk) and message.mark.index < log.base.index
        later = (log.term(log.commit) or 0) > message.term
        committed = ((log.term(index), term) for index, term in places if index <= log.commit)
        return cut or later or any(ours not in (None, theirs) for ours, theirs in committed)

    def keeps(self, lineage: Lineage) -> bool:
        """Whether this member could follow a leader whose log has ``lineage`` with what it has
        applied; if not, it reports that it is ``Diverged``. It follows no leader of an earlier
        generation: it may have the only copy of the later one.
        """
        ours = self._log.configuration.lineage
        if (lineage[-1].number if lineage else 0) < self.generation:
            reached("member asked for by an earlier generation")
            return False
        shared = None if ours == lineage else shared_index(ours, lineage)
        kept = shared is None or (self._log.commit <= shared and self._may_be_of(lineage))
        if shared is not None and not kept and self._diverged is None:
            self._diverged = lineage[-1].number if lineage else 0
            self._outbox.events.append(Diverged(self._diverged, shared, self._log.commit))
        return kept

    def _may_be_of(self, lineage: Lineage) -> bool:
        """Whether what is committed here may be of the log that a later generation of ``lineage``
        goes on with: its survivor may not have had what an old majority has committed since.
        """
        base, commit = later_base(self._log.configuration.lineage, lineage), self._log.commit
        if base is None:
            return True
        term = self._log.term(commit) or 0
        return term == base.base_term if commit == base.base_index else term <= base.base_term

    def persisted(self, index: int, term: int) -> None:
        """The entries of the ``Ready`` that ended with (index, term) are durable here, and those
        of every one before it.
        """
        self._log.persisted(index, term)
        # The leader's own disk is one of the quorum, and may be the one that completes it.
        self._advance_commit()

    def vote_persisted(self, state: HardState) -> None:
        """The hard ``state`` of a ``Ready`` is durable here: this member's vote for itself in that
        term counts, if it is a candidate there.
        """
        election = self._election
        if election is not None and not election.pre and state == self._hard:
            self._election = election.with_own_vote(self._config.node)
            self._conclude(self._election)

    def has_ready(self) -> bool:
        """Whether ``ready`` would hold anything."""
        return bool(
            self._outbox
            or (self._applied < self._log.commit and self._applied < self._log.durable_index)
            or self._log.has_unhanded
        )

    def ready(self) -> Ready:
        """Everything to do now, taken out. Readies must be finished in the order in which they are
        taken.
        """
        self._replicate()
        if self._leadership is not None and self._config.announce_commits:
            news = self._leadership.announcements(self._now, self._log.commit)
            self._outbox.send_now.extend(news)
        # Bounded, so that a member that catches up does not hold the loop for all of its log.
        last = min(self._applicable(), self._applied + self._config.max_apply_entries)
        ready = self._outbox.take(self._log.hand_out(), self._log.between(self._applied + 1, last))
        self._applied = max(self._applied, last)
        return ready

    def _applicable(self) -> int:
        # A member may learn of a commit before its own disk has the entry; applied early, a crash
        # would leave a state machine ahead of its log.
        return min(self._log.commit, self._log.durable_index)

    # -- roles and terms

    def _set_hard(self, term: int, vote: str | None) -> None:
        # A state that did not change must not cost a sync.
        if (term, vote) != (self._hard.term, self._hard.vote):
            self._hard = self._outbox.hard_state = HardState(term, vote, self.generation)

    def _follow(self, term: int, leader: str | None) -> None:
        """Become a follower in ``term``; a vote given in that term stays given."""
        if self._membership is not None:
            later = term > self.term
            error = CatchUpError.HIGHER_TERM if later else CatchUpError.STEPPED_DOWN
            self._membership.ended(error)
        # A vote counts in its term only (Raft figure 2): a new term begins without one.
        if term > self.term:
            self._set_hard(term, None)
        # What was queued for sending stays: it was true in the term that it names.
        self._leader = leader
        self._leadership = self._membership = self._election = None
        self._timer.restart(self._now)

    def _campaign(self, *, pre: bool, handed_over: bool = False) -> None:
        """Ask for votes: with ``pre`` for those of the next term, else in it (Raft 5.2)."""
        node = self._config.node
        if not pre:
            self._set_hard(self.term + 1, node)
        self._leader = None
        self._timer.restart(self._now)
        term = self.term + 1 if pre else self.term
        # Its own vote counts once it is durable (``vote_persisted``): the only voter of a group
        # would lead before, and after a crash begin another log in the same term.
        self._election = Election(term, pre, {node: True} if pre else {})
        request = VoteRequest(
            sender=node,
            term=term,
            last_index=self._log.last_index,
            last_term=self._log.last_term,
            pre=pre,
            handed_over=handed_over,
            generation=self.generation,
        )
        # A real request leaves after our own vote is durable: after a crash we must not
        # give it to another in the same term.
        outbox = self._outbox.send_now if pre else self._outbox.send_durable
        config = self._log.configuration
        # Learners have no vote; outgoing voters keep theirs while
        # the configuration is joint (Raft 6).
        voters = (name for name in config.members if config.decides(name))
        outbox.extend((name, request) for name in voters if name != node)
        # The only voter of its group has won by its own pre-vote.
        self._conclude(self._election)

    def _vote_unwritten(self) -> bool:
        """Whether its vote for itself is on the way to the disk: on one that takes longer than an
        election timeout each new term would overtake the vote of the one before.
        """
        election = self._election
        return election is not None and self._config.node not in election.votes

    def _conclude(self, election: Election) -> None:
        """Act on ``election`` if its votes decide it."""
        result = election.result(self._log.configuration)
        if result is Vote.LOST:
            reached("election lost")
            self._follow(self.term, leader=None)
            self._timer.retry(self._now)
        elif result is Vote.WON and election.pre:
            self._campaign(pre=False)
        elif result is Vote.WON:
            self._lead()

    def _lead(self) -> None:
        if self._log.configuration.joint:
            reached("elected in a joint configuration")
        self._election, self._leader = None, self._config.node
        self._leadership = Leadership(
            config=self._config, term=self.term, log=self._log, now=self._now
        )
        self._membership = Membership(
            config=self._config,
            term=self.term,
            log=self._log,
            leads=self._leadership,
            events=self._outbox.events,
        )
        # Raft 5.4.2 and 8: entries of earlier terms commit only under one of our own.
        self._log.append(self.term, b"")

    # -- votes

    def _vote_requested(self, request: VoteRequest) -> None:
        if self._voter().protects_leader(request):
            self._answer_vote(request, granted=False)
            return
        # A pre-vote changes nothing here: it only asks whether an election would be worth a new
        # term.
        if request.term > self.term and not request.pre:
            self._follow(request.term, leader=None)
        granted = self._voter().grants(request)
        if granted and not request.pre:
            reached("vote granted")
            self._set_hard(self.term, request.sender)
            # A candidate with this vote gets time to win: granting
            # restarts the timeout (Raft figure 2).
            self._timer.restart(self._now)
        elif granted and self._election is not None and self._election.pre:
            reached("election left to another candidate")
            self._election = None
            self._timer.restart(self._now)
        self._answer_vote(request, granted=granted)

    def _voter(self) -> Voter:
        heard = self._now - self._leader_seen < self._config.election_ticks
        asks_itself = self._election is not None and self._election.pre
        return Voter(
            node=self._config.node,
            term=self.term,
            vote=self._hard.vote,
            leader=self._leader,
            led=heard or self._leadership is not None,
            last=(self._log.last_term, self._log.last_index),
            began=asks_itself and self._timer.began(self._now),
        )

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        """Answer a vote request. A granted pre-vote names the term asked for, every other answer
        our own, which may be news.
        """
        term = request.term if granted else self.term
        reply = VoteReply(
            sender=self._config.node,
            term=term,
            granted=granted,
            pre=request.pre,
            generation=self.generation,
        )
        # A vote that a crash could forget would be given twice in one term: two leaders.
        outbox = self._outbox.send_now if request.pre else self._outbox.send_durable
        outbox.append((request.sender, reply))

    def _vote_answered(self, reply: VoteReply) -> None:
        promised = reply.pre and reply.granted  # its term is the one we asked for, not theirs
        if reply.term > self.term and not promised:
            self._follow(reply.term, leader=None)
            return
        if self._election is not None and self._election.asked_for(reply):
            election = self._election = self._election.counting(reply)
            self._conclude(election)
            # With a voter that is gone no answer more may come to a split round.
            if not reply.granted and self._election is election:
                reached("election refused by a voter")
                self._timer.retry(self._now)

    # -- replication

    def _append_requested(self, message: Append) -> None:
        if message.term < self.term:
            reached("append of a past term refused")
            self._follower.refuse(message, self.term)
            return
        # Election safety (Raft 5.2): a second leader in one term means that votes were forgotten.
        if message.term == self.term and self._leader not in (None, message.sender):
            raise InvariantBroken(f"{message.sender} and {self._leader} both lead term {self.term}")
        # A candidate of the same term has lost: another member was elected (Raft 5.2).
        self._follow(message.term, leader=message.sender)
        self._leader_seen = self._now
        if not self._has_lineage(message):
            return
        committed, last = self._log.commit, self._follower.append(message)
        # What ends before cut off entries was compared with none of them.
        self._is_of_generation |= last is not None and last >= committed

    def _append_answered(self, reply: AppendReply) -> None:
        if reply.term > self.term:
            self._follow(reply.term, leader=None)
        elif self._leadership is not None and reply.term == self.term:
            self._leadership.answered(reply)
            self._advance_commit()
            self._replicate()

    def _replicate(self) -> None:
        if self._leadership is not None:
            self._outbox.send_now.extend(self._leadership.replicate(self._now, self._log.commit))
            self._outbox.send_chunks.extend(self._leadership.chunks(self._now, self._snapshot))

    def _advance_commit(self) -> None:
        if self._leadership is not None:
            self._log.commit = self._leadership.commit_index()
            self._advance_change()

    # -- snapshots

    def _chunk_received(self, chunk: Chunk) -> None:
        if chunk.term < self.term:
            reached("chunk of a past term refused")
            self._follower.refuse(chunk, self.term)
            return
        self._follow(chunk.term, leader=chunk.sender)
        self._leader_seen = self._now
        if not self._has_lineage(chunk):
            return
        self._follower.chunk(chunk)

    def _chunk_answered(self, reply: ChunkReply) -> None:
        if reply.term > self.term:
            self._follow(reply.term, leader=None)
        elif self._leadership is not None and reply.term == self.term:
            self._leadership.chunk_answered(reply)
            self._replicate()

    # -- members

    def _advance_change(self) -> None:
        """One configuration after the other, each once the last one is committed."""
        if self._membership is None:
            return
        following = self._membership.advance(self._log.commit, self._now)
        if following is not None:
            self._log.append_configuration(self.term, following)
            if self._leadership is not None:
                # A configuration counts from its append on, not from its commit (Raft 6).
                self._leadership.reconfigured()
        elif self._membership.removed(self._log.commit):
            # Raft 6: it has led its group up to the end of a configuration without itself.
            self._follow(self.term, leader=None)
        else:
            self._ask_to_lead()

    def _ask_to_lead(self) -> None:
        """Ask the member that leadership is handed over to, once it can't lose the election."""
        if self._membership is None or self._leadership is None:
            return
        target = self._membership.may_ask(self._log.commit)
        if target is not None:
            reached("successor is asked to lead")
            # Before the message leaves: the successor may be elected
            # within what would be our lease.
            self._leadership.asked_to_lead()
            self._outbox.send_now.append(
                (target, TimeoutNow(self._config.node, self.term, self.generation))
            )

    def _asked_to_lead(self, message: TimeoutNow) -> None:
        # One that comes late is of another term, or of a leader that is gone.
        follows = (message.sender, message.term) == (self._leader, self.term)
        if self._leadership is None and follows and self._may_lead():
            reached("leadership is taken over")
            self._campaign(pre=False, handed_over=True)
