"""One member of a raft group: a state machine of ticks, messages and proposals, without any I/O.

The caller feeds ``tick``, ``step`` and ``propose``, takes a ``Ready`` whenever there is one,
carries it out in its order, and calls ``persisted``. Section numbers are those of "In Search of an
Understandable Consensus Algorithm" (Ongaro, Ousterhout 2014) and of Ongaro's thesis.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import (
    Configuration,
    PeerChange,
    Stage,
    Vote,
    leave_joint,
)
from clusters.reference.node.raft.election import Election, ElectionTimer
from clusters.reference.node.raft.leader import Leadership
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
    Chunk,
    ChunkReply,
    Entry,
    HardState,
    Mark,
    Message,
    Ready,
    Role,
    Status,
    VoteReply,
    VoteRequest,
    broken,
)

# Planted bug: the leader commits what is on its own disk, without counting a quorum.
COMMIT_BEFORE_QUORUM = "commit-before-quorum"


class Raft:
    """A member of one group. Not thread-safe; nothing in it waits.

    ``step``, ``propose``, ``tick`` and ``persisted`` raise ``InvariantBroken`` when going on could
    lose acknowledged entries: the node must stop then.
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
        self._change: PeerChange | None = None
        self._election: Election | None = None  # the round that this member holds
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
        self._timer = ElectionTimer(config.election_ticks, random)

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
            commit_index=self._commit,
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
        return self._log.broken() or broken(self.status())

    # -- what a caller does

    def tick(self) -> None:
        """A unit of time has passed."""
        self._now += 1
        if self._leadership is None:
            # A learner, or a member that was removed, would depose leaders for nothing: it can't
            # win.
            if self._timer.expired(self._now) and self._log.configuration.decides(
                self._config.node
            ):
                self._campaign(pre=True)
            return
        if not self._leadership.has_quorum(self._now):
            reached("leader without its quorum steps down")
            # Thesis 6.2: a leader cut off from its quorum must not keep clients waiting.
            self._follow(self.term, leader=None)
        # At once, without a disk: heartbeats claim nothing that could be lost.
        elif self._leadership.heartbeat_due(self._now):
            self._send_now.extend(self._leadership.heartbeats(self._now, self._commit))

    def observe_leader(self, leader: str, term: int) -> bool:
        """The node of ``leader`` reports that it still leads ``term``: as good as a heartbeat of
        this group, if this member follows it in that term. Returns whether it does.
        """
        # The report may be older than an election: in another term it must not hold back a vote.
        if self._leadership is not None or (leader, term) != (self._leader, self.term):
            reached("heartbeat for a leader that is not followed")
            return False
        self._leader_seen = self._now
        self._timer.extend(self._now)
        return True

    def is_acking(self, follower: str) -> bool:
        """Whether ``follower`` has answered this leader, so that its node may acknowledge for
        it.
        """
        return self._leadership is not None and self._leadership.is_acking(follower)

    def node_acked(self, follower: str, term: int, tick: int) -> None:
        """The ``observe_leader`` of ``follower`` was true for the heartbeat that was sent here at
        ``tick``.
        """
        if self._leadership is not None and term == self.term:
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
        if self._leadership is None:
            raise NotLeader(self._leader)
        # Not sent from here: ``ready`` batches everything that one turn of the loop proposed.
        entry = self._log.append(self.term, data)
        return entry.term, entry.index

    def change_peers(self, voters: Sequence[str], learners: Sequence[str] = ()) -> None:
        """Begin to make ``voters`` and ``learners`` the group's members; a request for the change
        that is under way changes nothing. New voters first catch up as learners.

        Raises ``NotLeader``, and ``ChangeRefused`` while another change goes on or nothing of this
        leader's term is committed: a change that a past leader began might come back.
        """
        if self._leadership is None:
            raise NotLeader(self._leader)
        # The index is what new voters have to reach before they count (thesis 4.2.1).
        wanted = PeerChange(tuple(voters), tuple(learners), self._log.last_index)
        running = self._change
        if running is not None and running.same(wanted):
            return
        if self.stage is not Stage.STABLE:
            raise ChangeRefused(f"a change of members goes on: it is {self.stage}")
        if self._log.term(self._commit) != self.term:
            raise ChangeRefused("nothing of this leader's term is committed yet")
        if not voters:
            raise ChangeRefused("a group needs voters")
        self._change = wanted
        self._advance_change()

    def cancel_change(self) -> bool:
        """Cancel a change that is still catching up; a member that came as a learner stays one.
        False where there is none, and once it is joint.
        """
        if self.stage is not Stage.CATCHING_UP:
            return False
        self._change = None
        return True

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
        if chunk.term == self.term:
            reply = ChunkReply(
                self._config.node, self.term, chunk.context, chunk.mark.index, offset
            )
            self._send_now.append((chunk.sender, reply))

    def install(self, chunk: Chunk) -> bool:
        """The snapshot that ends with ``chunk`` is kept and whole. Returns whether the state
        machine must be restored from it now: the log begins behind it then, and the next ``Ready``
        carries it.
        """
        if chunk.term != self.term:
            return False
        wanted = not self._has(chunk.mark)
        if wanted:
            if self._log.last_index > chunk.mark.index:
                reached("snapshot installed over a longer log")
            self._log.reset(chunk.mark)
            self._snapshot = self._installed = chunk.mark
            # Only committed entries are in a snapshot, so all it covers is committed here too.
            self._commit = self._applied = chunk.mark.index
        self._answer_chunk(chunk)
        return wanted

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
            case Chunk():
                self._chunk_received(message)
            case ChunkReply():
                self._chunk_answered(message)

    def persisted(self, index: int, term: int) -> None:
        """The entries of the ``Ready`` that ended with (index, term) are durable here, and those
        of every one before it.
        """
        self._log.persisted(index, term)
        self._advance_commit()

    def has_ready(self) -> bool:
        """Whether ``ready`` would hold anything."""
        # The most likely reason comes first: this is asked at every turn.
        return bool(
            self._send_durable
            or self._send_now
            or (self._applied < self._commit and self._applied < self._log.durable_index)
            or self._log.has_unhanded
            or self._hard_changed
            or self._send_chunks
            or self._chunks
            or self._installed is not None
        )

    def ready(self) -> Ready:
        """Everything to do now, taken out. Readies must be finished in the order in which they are
        taken.
        """
        self._replicate()
        # Bounded, so that a member that catches up does not hold the loop for all of its log.
        last = min(self._applicable(), self._applied + self._config.max_apply_entries)
        ready = Ready(
            hard_state=self._hard if self._hard_changed else None,
            entries=self._log.hand_out(),
            send_now=tuple(self._send_now),
            send_durable=tuple(self._send_durable),
            committed=self._log.between(self._applied + 1, last),
            installed=self._installed,
            send_chunks=tuple(self._send_chunks),
            chunks=tuple(self._chunks),
        )
        self._applied = max(self._applied, last)
        self._hard_changed, self._installed = False, None
        for taken in (self._send_now, self._send_durable, self._send_chunks, self._chunks):
            taken.clear()
        return ready

    def _applicable(self) -> int:
        # A member may learn of a commit before its own disk has the entry; applied early, a crash
        # would leave a state machine ahead of its log.
        return min(self._commit, self._log.durable_index)

    # -- roles and terms

    def _set_hard(self, term: int, vote: str | None) -> None:
        if (term, vote) != (self._hard.term, self._hard.vote):
            self._hard, self._hard_changed = HardState(term, vote), True

    def _follow(self, term: int, leader: str | None) -> None:
        """Become a follower in ``term``; a vote given in that term stays given."""
        if term > self.term:
            self._set_hard(term, None)
        # What was queued for sending stays: it was true in the term that it names.
        self._leader, self._leadership = leader, None
        self._change = self._election = None
        self._timer.restart(self._now)

    def _campaign(self, *, pre: bool) -> None:
        """Ask for votes: with ``pre`` for those of the next term, else in it (Raft 5.2)."""
        node = self._config.node
        if not pre:
            self._set_hard(self.term + 1, node)
        self._leader = None
        self._timer.restart(self._now)
        term = self.term + 1 if pre else self.term
        self._election = Election(term, pre, {node: True})
        request = VoteRequest(
            sender=node,
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
        outbox.extend((name, request) for name in voters if name != node)
        self._conclude(self._election)

    def _conclude(self, election: Election) -> None:
        """Act on ``election`` if its votes decide it."""
        result = election.result(self._log.configuration)
        if result is Vote.LOST:
            reached("election lost")
            self._follow(self.term, leader=None)
        elif result is Vote.WON and election.pre:
            self._campaign(pre=False)
        elif result is Vote.WON:
            self._lead()

    def _lead(self) -> None:
        self._election, self._leader = None, self._config.node
        self._leadership = Leadership(
            config=self._config, term=self.term, log=self._log, now=self._now
        )
        # Raft 5.4.2 and 8: entries of earlier terms commit only under one of our own.
        self._log.append(self.term, b"")

    # -- votes

    def _vote_requested(self, request: VoteRequest) -> None:
        follows_another = self._now - self._leader_seen < self._config.election_ticks
        if request.term > self.term and (self._leadership or follows_another):
            reached("vote refused while a leader lives")
            # Thesis 4.2.3: while a leader is alive no member may depose it, and its lease holds.
            self._answer_vote(request, granted=False)
            return
        # A pre-vote changes nothing here: it only asks whether an election would be worth a new
        # term.
        if request.term > self.term and not request.pre:
            self._follow(request.term, leader=None)
        up_to_date = planted("vote-ignores-log") or (request.last_term, request.last_index) >= (
            self._log.last_term,
            self._log.last_index,
        )
        if request.pre:
            self._answer_vote(request, granted=up_to_date and request.term > self.term)
            return
        # The same candidate may ask again, since its answer may have been lost (Raft 5.2).
        free = self._hard.vote in (None, request.sender) and self._leader is None
        granted = request.term == self.term and free and up_to_date
        if granted:
            reached("vote granted")
            self._set_hard(self.term, request.sender)
            self._timer.restart(self._now)
        self._answer_vote(request, granted=granted)

    def _answer_vote(self, request: VoteRequest, *, granted: bool) -> None:
        """Answer a vote request. A granted pre-vote names the term asked for, every other answer
        our own, which may be news.
        """
        term = request.term if granted else self.term
        reply = VoteReply(sender=self._config.node, term=term, granted=granted, pre=request.pre)
        # A vote that a crash could forget would be given twice in one term: two leaders.
        (self._send_now if request.pre else self._send_durable).append((request.sender, reply))

    def _vote_answered(self, reply: VoteReply) -> None:
        promised = reply.pre and reply.granted  # its term is the one we asked for, not theirs
        if reply.term > self.term and not promised:
            self._follow(reply.term, leader=None)
            return
        if self._election is not None and self._election.asked_for(reply):
            self._election = self._election.counting(reply)
            self._conclude(self._election)

    # -- replication

    def _append_requested(self, message: Append) -> None:
        if message.term < self.term:
            reached("append of a past term refused")
            # The answer's term deposes a leader of the past, or frees one that a member with a
            # higher term would otherwise never obey.
            self._answer_append(message, refused=True, index=message.previous_index, hint=0)
            return
        if message.term == self.term and self._leader not in (None, message.sender):
            raise InvariantBroken(f"{message.sender} and {self._leader} both lead term {self.term}")
        self._follow(message.term, leader=message.sender)
        self._leader_seen = self._now
        # Below the base the terms are gone, and all of it is committed: nothing there can conflict.
        base, previous = self._log.base.index, message.previous_index
        unchecked = planted("term-not-checked") and previous <= self._log.last_index
        matches = unchecked or self._log.term(previous) == message.previous_term
        if previous >= base and not matches:
            reached("append refused, the entry before it is missing")
            self._answer_append(message, refused=True, index=previous, hint=self._hint(previous))
            return
        # Entries cut off here were committed, so they match every leader's.
        self._log.merge([e for e in message.entries if e.index > base], self._commit)
        # Not the end of the log: what lies behind the message may be of another leader.
        match_index = max(previous + len(message.entries), base)
        # Only as far as the log is known to match this leader's (Raft figure 2, rule 5).
        self._commit = max(self._commit, min(message.commit, match_index))
        self._answer_append(message, refused=False, index=match_index, hint=0)

    def _hint(self, previous_index: int) -> int:
        """Where the leader should try next: a whole conflicting term is skipped (Raft 5.3)."""
        if previous_index > self._log.last_index:
            return self._log.last_index
        # Committed entries match every later leader's, so it never pays to go below them.
        return max(self._log.first_index_of_term_at(previous_index) - 1, self._commit)

    def _answer_append(
        self, message: Append | Chunk, *, refused: bool, index: int, hint: int
    ) -> None:
        reply = AppendReply(
            sender=self._config.node,
            term=self.term,
            refused=refused,
            match_index=index,
            hint_index=hint,
            context=message.context,
            commit=self._commit,
        )
        # It promises that the entries survive a crash here, so it waits for the disk.
        self._send_durable.append((message.sender, reply))

    def _append_answered(self, reply: AppendReply) -> None:
        if reply.term > self.term:
            self._follow(reply.term, leader=None)
        elif self._leadership is not None and reply.term == self.term:
            self._leadership.answered(reply)
            self._advance_commit()
            self._replicate()

    def _replicate(self) -> None:
        if self._leadership is not None:
            self._send_now.extend(self._leadership.replicate(self._now, self._commit))
            self._send_chunks.extend(self._leadership.chunks(self._now, self._snapshot))

    def _advance_commit(self) -> None:
        """Raft 5.4.2: only an entry of our own term commits by counting, all before it with it."""
        if self._leadership is None:
            return
        # Never back: a member that joins late lowers the quorum's index, not what was committed.
        index = self._leadership.quorum_index()
        if COMMIT_BEFORE_QUORUM in self._config.bugs:
            index = self._log.durable_index
        ours = planted("old-term-counted") or self._log.term(index) == self.term
        if index > self._commit and ours:
            self._commit = index
        self._advance_change()

    # -- snapshots

    def _chunk_received(self, chunk: Chunk) -> None:
        if chunk.term < self.term:
            reached("chunk of a past term refused")
            self._answer_append(chunk, refused=True, index=chunk.mark.index, hint=0)
            return
        self._follow(chunk.term, leader=chunk.sender)
        self._leader_seen = self._now
        # A chunk that comes again after its install, or for what appends brought meanwhile.
        if self._has(chunk.mark):
            reached("chunk of a snapshot that is not needed")
            self._answer_chunk(chunk)
        else:
            self._chunks.append(chunk)

    def _has(self, mark: Mark) -> bool:
        """Whether the log holds all that ``mark`` covers; then all of it is known to be
        committed.
        """
        if mark.index > self._commit and self._log.term(mark.index) == mark.term:
            self._commit = mark.index
        return mark.index <= self._commit

    def _answer_chunk(self, chunk: Chunk) -> None:
        self._answer_append(chunk, refused=False, index=chunk.mark.index, hint=0)

    def _chunk_answered(self, reply: ChunkReply) -> None:
        if reply.term > self.term:
            self._follow(reply.term, leader=None)
        elif self._leadership is not None and reply.term == self.term:
            self._leadership.chunk_answered(reply)
            self._replicate()

    # -- members

    def _advance_change(self) -> None:
        """One configuration after the other, each once the last one is committed."""
        leads, config = self._leadership, self._log.configuration
        # One change at a time: majorities of two changes that overlap need not meet (thesis 4.3).
        if leads is None or self._log.configuration_index > self._commit:
            return
        if self._log.term(self._commit) != self.term:
            return
        if config.joint:
            reached("joint configuration is left")
            self._reconfigure(leave_joint(config))
        elif not config.decides(self._config.node):
            # Raft 6: it has led its group up to the end of a configuration without itself.
            self._follow(self.term, leader=None)
        elif self._change is not None and self._change.reached(config):
            reached("change of members reached")
            self._change = None
        elif self._change is not None:
            following = self._change.step(config, leads.match, self._log.last_index)
            if following is not None:
                self._reconfigure(following)

    def _reconfigure(self, config: Configuration) -> None:
        self._log.append_configuration(self.term, config)
        if self._leadership is not None:
            self._leadership.reconfigured()
