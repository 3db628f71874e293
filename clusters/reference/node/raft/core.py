"""One member of a raft group: a state machine of ticks, messages and proposals, without any I/O.

The caller feeds ``tick``, ``step`` and ``propose``, takes a ``Ready`` whenever there is one, does
what it says in its order, and tells ``persisted``. Section numbers are those of "In Search of an
Understandable Consensus Algorithm" (Ongaro, Ousterhout 2014) and of Ongaro's thesis.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusters.reference.node.bugs import planted
from clusters.reference.node.raft.configuration import Configuration, PeerChange, Stage, leave_joint
from clusters.reference.node.raft.settings import ChangeRefused, InvariantBroken, NotLeader
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Mark,
    Message,
    Ready,
    Role,
    VoteReply,
    VoteRequest,
)
from clusters.reference.node.raft.voter import Voter

COMMIT_BEFORE_QUORUM = "commit-before-quorum"
"""Planted bug: the leader commits what is on its own disk, without counting a quorum."""


class Raft(Voter):
    """A member of one group. Not thread-safe; nothing in it waits.

    ``step``, ``propose``, ``tick`` and ``persisted`` raise ``InvariantBroken`` when going on could
    lose what was acknowledged: the node must stop then.
    """

    # -- what a caller does

    def tick(self) -> None:
        """A unit of time has passed."""
        self._now += 1
        if self._leadership is None:
            patience_over = self._now - self._timer_started >= self._timeout
            if patience_over and self._log.configuration.decides(self._config.node):
                self._ask_before_campaign()
            return
        if not self._leadership.has_quorum(self._now):
            # Thesis 6.2: a leader cut off from its quorum must not keep clients waiting.
            self._follow(self.term, leader=None)
        elif self._leadership.heartbeat_due(self._now):
            self._send_now.extend(self._leadership.heartbeats(self._now, self._commit))

    def observe_leader(self, leader: str, term: int) -> bool:
        """The node of ``leader`` says that it still leads ``term``: as good as a heartbeat of this
        group, if this member follows it in that term. Whether it does.
        """
        if self._leadership is not None or (leader, term) != (self._leader, self.term):
            return False
        self._leader_seen = self._timer_started = self._now
        return True

    def is_acking(self, follower: str) -> bool:
        """Whether ``follower`` has answered this leader, so that its node may vouch for it."""
        return self._leadership is not None and self._leadership.is_acking(follower)

    def node_acked(self, follower: str, term: int, tick: int) -> None:
        """Another member's ``observe_leader`` was true for what was sent here at ``tick``."""
        if self._leadership is not None and term == self.term:
            self._leadership.node_acked(follower, tick)

    def followers_with_lost_log(self) -> tuple[str, ...]:
        """Followers of this leader that have lost what they had acknowledged."""
        return () if self._leadership is None else self._leadership.followers_with_lost_log()

    def unpair(self, follower: str) -> None:
        """Nobody vouches for ``follower`` any more: it is sent heartbeats again."""
        if self._leadership is not None:
            self._leadership.unpair(follower)

    def step_down(self) -> None:
        """Lead no more, and let patience begin anew: called at every tick it keeps this member from
        asking for votes.
        """
        if self._role is Role.FOLLOWER:
            self._restart_timer()
        else:
            self._follow(self.term, leader=None)

    def propose(self, data: bytes) -> tuple[int, int]:
        """Append an entry; returns its (term, index). Raises ``NotLeader``.

        It is committed once an entry with that term *and* index is handed out; another term at
        that index says that it never will be.
        """
        if self._leadership is None:
            raise NotLeader(self._leader)
        entry = self._log.append(self.term, data)
        return entry.term, entry.index

    def change_peers(self, voters: Sequence[str], learners: Sequence[str] = ()) -> None:
        """Begin to make ``voters`` and ``learners`` the group's members; asking for what is on its
        way already changes nothing. New voters first catch up as learners.

        Raises ``NotLeader``, and ``ChangeRefused`` while another change goes on or nothing of this
        leader's term is committed: what a leader of the past has begun might come back.
        """
        if self._leadership is None:
            raise NotLeader(self._leader)
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
        """Give a change up that is catching up; whoever came as a learner stays one. False where
        none is, and once it is joint.
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
        """Of the snapshot that ``chunk`` is of, the bytes before ``offset`` are kept."""
        if chunk.term == self.term:
            reply = ChunkReply(
                self._config.node, self.term, chunk.context, chunk.mark.index, offset
            )
            self._send_now.append((chunk.sender, reply))

    def install(self, chunk: Chunk) -> bool:
        """The snapshot that ends with ``chunk`` is kept and whole. Whether the state machine must
        be restored from it now: the log begins behind it then, and the next ``Ready`` says so.
        """
        if chunk.term != self.term:
            return False
        wanted = not self._has(chunk.mark)
        if wanted:
            self._log.reset(chunk.mark)
            self._snapshot = self._installed = chunk.mark
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
        # What is most likely comes first: this is asked at every turn.
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
        """Everything to do now, taken out. Readies are finished in the order they are taken."""
        self._replicate()
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
        return min(self._commit, self._log.durable_index)

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
        base, previous = self._log.base.index, message.previous_index
        unchecked = planted("term-not-checked") and previous <= self._log.last_index
        matches = unchecked or self._log.term(previous) == message.previous_term
        if previous >= base and not matches:
            self._answer_append(message, refused=True, index=previous, hint=self._hint(previous))
            return
        # What was cut off here was committed, so it matches every leader's.
        self._log.merge([e for e in message.entries if e.index > base], self._commit)
        match_index = max(previous + len(message.entries), base)
        self._commit = max(self._commit, min(message.commit, match_index))
        self._answer_append(message, refused=False, index=match_index, hint=0)

    def _hint(self, previous_index: int) -> int:
        """Where the leader should try next: a whole conflicting term is skipped (Raft 5.3)."""
        if previous_index > self._log.last_index:
            return self._log.last_index
        # What is committed matches every later leader, so it never pays to go below it.
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
            self._answer_append(chunk, refused=True, index=chunk.mark.index, hint=0)
            return
        self._follow(chunk.term, leader=chunk.sender)
        self._leader_seen = self._now
        if self._has(chunk.mark):
            self._answer_chunk(chunk)
        else:
            self._chunks.append(chunk)

    def _has(self, mark: Mark) -> bool:
        """Whether the log holds what ``mark`` covers; then all of it is known to be committed."""
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
        if leads is None or self._log.configuration_index > self._commit:
            return
        if self._log.term(self._commit) != self.term:
            return
        if config.joint:
            self._reconfigure(leave_joint(config))
        elif not config.decides(self._config.node):
            # Raft 6: it has led its group up to the end of a configuration without itself.
            self._follow(self.term, leader=None)
        elif self._change is not None and self._change.reached(config):
            self._change = None
        elif self._change is not None:
            following = self._change.step(config, leads.match, self._log.last_index)
            if following is not None:
                self._reconfigure(following)

    def _reconfigure(self, config: Configuration) -> None:
        self._log.append_configuration(self.term, config)
        if self._leadership is not None:
            self._leadership.reconfigured()
