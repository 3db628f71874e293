"""A leader's work for one term: sending the log, counting answers, its quorum and its lease."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from clusters.reference.node import markers
from clusters.reference.node.bugs import planted
from clusters.reference.node.raft.configuration import reached
from clusters.reference.node.raft.raft_log import Log
from clusters.reference.node.raft.settings import LEASE_MARGIN_TICKS, RaftConfig
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Mark,
    PeerStatus,
)


class Transfer:
    """A snapshot on its way to a follower: one chunk at a time, each answered by where to go on."""

    __slots__ = ("mark", "offset", "sent_tick")

    def __init__(self, mark: Mark) -> None:
        self.mark, self.offset = mark, 0
        self.sent_tick: int | None = None  # of the chunk that waits for its answer

    def due(self, now: int, patience_ticks: int) -> bool:
        """Whether to send the chunk at ``offset``: it was not yet, or no answer came."""
        return self.sent_tick is None or now - self.sent_tick >= patience_ticks

    def answered(self, offset: int) -> None:
        """The follower has the bytes before ``offset``: fewer than before if it lost them."""
        # The same offset answers a chunk that was sent twice: nothing more is due.
        if offset != self.offset:
            markers.reached("chunk of a snapshot stored by the follower")
            self.offset, self.sent_tick = offset, None


class Progress:
    """One follower's replication, seen by a leader.

    While ``probing`` is off, appends are sent ahead of their answers (pipelined) up to the limit in
    flight, and ``next_index`` runs ahead. A refusal turns probing on: one message at a time until
    the logs are found to match. With a ``transfer`` no entries are sent at all.

    ``is_acking``: it has answered this leader since its node was last out of reach. ``paired``: its
    node acknowledges for it, so that a follower with nothing to learn is sent nothing. ``lost``:
    how many times in a row it refused an index that it had acknowledged. The leader never sends
    such entries again, since a member that lost entries may have lost votes, too.
    """

    __slots__ = (
        "commit_index",
        "heard_tick",
        "inflight",
        "is_acking",
        "lost",
        "match_index",
        "matched_tick",
        "next_index",
        "paired",
        "probing",
        "sent_tick",
        "told_commit",
        "transfer",
        "waiting",
    )

    def __init__(self, next_index: int) -> None:
        self.match_index = self.commit_index = self.told_commit = self.lost = 0
        self.is_acking = self.paired = False
        self.next_index = next_index
        self.probing = False
        self.waiting = False
        self.inflight: deque[int] = deque()
        # Before any tick: silence since the beginning is no answer at tick 0.
        self.heard_tick = self.sent_tick = self.matched_tick = -1
        self.transfer: Transfer | None = None

    def settled(self, last_index: int, commit: int) -> bool:
        """Whether the follower has everything, and knows how much of it is committed."""
        done = self.match_index == last_index and self.commit_index >= commit
        return done and self.transfer is None

    def may_send(self, max_inflight: int) -> bool:
        """Whether another message with entries may leave now."""
        return not self.waiting if self.probing else len(self.inflight) < max_inflight

    def sent(self, last_index: int) -> None:
        """A message with entries up to ``last_index`` was sent."""
        if self.probing:
            self.waiting = True
            return
        self.inflight.append(last_index)
        self.next_index = last_index + 1

    def accepted(self, match_index: int) -> None:
        """The follower has everything up to ``match_index`` on its disk."""
        self.match_index = max(self.match_index, match_index)
        self.lost, self.matched_tick = 0, self.sent_tick
        while self.inflight and self.inflight[0] <= match_index:
            self.inflight.popleft()
        # An answer to an older message says nothing of what was sent since.
        if match_index >= self.next_index - 1:
            self.next_index = match_index + 1
            self.probing = self.waiting = False
            self.transfer = None

    def refused(self, previous_index: int, hint_index: int, context: int) -> None:
        """The follower has no such entry at ``previous_index``, of a message of tick ``context``;
        go back to ``hint_index``.
        """
        # An honest log never shrinks below what it acknowledged. The refusals of a whole pipeline
        # may come behind an acceptance that overtook them: they say nothing of what it says.
        if hint_index < self.match_index and context > self.matched_tick:
            markers.reached("follower lacks what it had acknowledged")
            self.lost += 1
        # Of a pipeline only the first refusal counts; those of the messages behind it are stale.
        stale = (
            previous_index != self.next_index - 1
            if self.probing
            else previous_index <= self.match_index
        )
        if stale or self.transfer is not None or planted("laggard-left-behind"):
            return
        asked = self.next_index if self.probing else None
        self.next_index = max(min(hint_index + 1, previous_index), self.match_index + 1)
        # With nothing lower to try the next heartbeat asks again. To answer each answer would never
        # end, and every heartbeat would begin one more such exchange.
        self.probing, self.waiting = True, self.next_index == asked
        self.inflight.clear()

    def begin_transfer(self, mark: Mark) -> None:
        """The log no longer has the entries that the follower lacks: send the snapshot at
        ``mark``.
        """
        # A newer snapshot starts over: bytes of two snapshots don't fit together.
        if self.transfer is None or self.transfer.mark.index < mark.index:
            if self.transfer is not None:
                markers.reached("transfer begins anew with a newer snapshot")
            markers.reached("follower needs a snapshot")
            self.transfer = Transfer(mark)
            self.probing, self.waiting = True, False
            self.inflight.clear()


# A follower whose link was lost in the middle of a snapshot goes on with that, where it comes back
# within so many election timeouts: with a newer one it would have to begin anew, at each loss.
RESUMES_WITHIN = 10
# Planted bug: the leader commits what is on its own disk, without counting a quorum.
COMMIT_BEFORE_QUORUM = "commit-before-quorum"
LOST_AFTER = 10  # refusals without a word that fits: a second of heartbeats


class Leadership:
    """Begins with an election and ends with it; a new term starts from nothing.

    Every append carries the tick at which it was sent, and the answer echoes it. The greatest tick
    that a majority has echoed is therefore a moment at which a quorum still followed, counted from
    the *sending*: lease and check-quorum both rest on it.
    """

    def __init__(self, *, config: RaftConfig, term: int, log: Log, now: int) -> None:
        self._config, self._term, self._log = config, term, log
        self._elected_tick = self._beat_tick = now
        self._lease_over = False
        self._announced = log.commit
        self._peers: dict[str, Progress] = {}
        self.reconfigured()

    def reconfigured(self) -> None:
        """The configuration changed: follow new members, forget removed ones.

        Optimistic: most followers of a new leader have all that it has; one that lacks something
        refuses, and is probed.
        """
        next_index = self._log.last_index + 1
        self._peers = {
            # Members that stay keep theirs: it is of this term, whatever else changes.
            name: self._peers.get(name) or Progress(next_index)
            for name in self._log.configuration.members
            if name != self._config.node
        }

    @property
    def peers(self) -> tuple[tuple[str, Progress], ...]:
        """The followers in the order of the configuration."""
        return tuple(self._peers.items())

    def heartbeat_due(self, now: int) -> bool:
        """Whether it is time for the next round."""
        return now - self._beat_tick >= self._config.heartbeat_ticks

    def heartbeats(self, now: int, commit: int) -> Iterator[tuple[str, Append]]:
        """An append without entries, right behind the last ones sent, for all followers but those
        whose node acknowledges for them and that have nothing to learn.

        It is more than a sign of life: a follower that missed the last message refuses it, and so a
        loss is found without another timer.
        """
        self._beat_tick = now
        for name, progress in self._peers.items():
            if progress.paired and progress.settled(self._log.last_index, commit):
                continue
            yield name, self._append(progress, now, commit, with_entries=False)

    def announcements(self, now: int, commit: int) -> Iterator[tuple[str, Append]]:
        """An append without entries, once for each ``commit``, for all followers that were sent the
        whole log and not that so much of it is committed.
        """
        if commit <= self._announced:
            return
        self._announced = commit
        for name, progress in self._peers.items():
            behind = progress.next_index <= self._log.last_index or progress.transfer is not None
            # A follower that lacks entries hears of it with them.
            if not behind and progress.told_commit < commit:
                yield name, self._append(progress, now, commit, with_entries=False)

    def replicate(self, now: int, commit: int) -> Iterator[tuple[str, Append]]:
        """Everything that may leave now, for every follower that the log can still serve."""
        for name, progress in self._peers.items():
            while (
                progress.next_index <= self._log.last_index
                # Behind the base only a snapshot helps: see ``chunks``.
                and progress.next_index > self._log.base.index
                and progress.transfer is None
                and progress.may_send(self._config.max_inflight)
            ):
                message = self._append(progress, now, commit, with_entries=True)
                progress.sent(message.entries[-1].index)
                yield name, message

    def chunks(self, now: int, snapshot: Mark | None) -> Iterator[tuple[str, Chunk]]:
        """Chunks to send now, still without bytes, of the newest ``snapshot`` here."""
        for name, progress in self._peers.items():
            if progress.next_index <= self._log.base.index and snapshot is not None:
                progress.begin_transfer(snapshot)
            transfer = progress.transfer
            if transfer is not None and transfer.due(now, self._config.election_ticks):
                # One chunk at a time: a follower that is slow to write sets the pace.
                transfer.sent_tick = now
                yield (
                    name,
                    Chunk(
                        sender=self._config.node,
                        term=self._term,
                        context=now,
                        mark=transfer.mark,
                        offset=transfer.offset,
                        lineage=self._log.configuration.lineage,
                    ),
                )

    def sending(self, now: int) -> bool:
        """Whether a follower takes a snapshot, or was cut off from it a moment ago."""
        return any(
            progress.transfer is not None
            and now - progress.heard_tick < RESUMES_WITHIN * self._config.election_ticks
            for progress in self._peers.values()
        )

    def _append(self, progress: Progress, now: int, commit: int, *, with_entries: bool) -> Append:
        # Behind the base nothing is known; the base itself will be refused, which is an answer.
        previous = max(progress.next_index - 1, self._log.base.index)
        limits = self._config.max_append_entries, self._config.max_append_bytes
        progress.told_commit, progress.sent_tick = commit, now
        return Append(
            sender=self._config.node,
            term=self._term,
            previous_index=previous,
            previous_term=self._log.term(previous) or 0,
            commit=commit,
            context=now,
            entries=self._log.bounded(progress.next_index, *limits) if with_entries else (),
            lineage=self._log.configuration.lineage,
        )

    def answered(self, reply: AppendReply) -> None:
        """Take a follower's answer; a refusal, too, shows that it follows."""
        progress = self._peers.get(reply.sender)
        # A member that was removed may still answer.
        if progress is None:
            return
        # The greatest: answers may come late, and the lease must not go back.
        progress.heard_tick = max(progress.heard_tick, reply.context)
        progress.commit_index = max(progress.commit_index, reply.commit)
        # Its node could not know whether this group is there: first the member itself answers.
        progress.is_acking = True
        if reply.refused:
            progress.refused(reply.match_index, reply.hint_index, reply.context)
        else:
            progress.accepted(reply.match_index)

    def chunk_answered(self, reply: ChunkReply) -> None:
        """Take a follower's report of how much of a snapshot it has."""
        progress = self._peers.get(reply.sender)
        if progress is None:
            return
        progress.heard_tick = max(progress.heard_tick, reply.context)
        if progress.transfer is not None and progress.transfer.mark.index == reply.index:
            progress.transfer.answered(reply.offset)

    def is_acking(self, name: str) -> bool:
        """Whether ``name`` itself has answered that it follows: then its node may acknowledge for
        it.
        """
        progress = self._peers.get(name)
        return progress is not None and progress.is_acking

    def node_acked(self, name: str, tick: int) -> None:
        """The node of ``name`` reports that it followed when the heartbeat of ``tick`` arrived."""
        progress = self._peers.get(name)
        if progress is not None:
            progress.heard_tick = max(progress.heard_tick, tick)
            # After ``unpair`` an ack may still be under way: it must not stand for the member.
            progress.paired = progress.is_acking

    def unpair(self, name: str) -> None:
        """The node of ``name`` no longer acknowledges for it: it has to answer for itself."""
        progress = self._peers.get(name)
        if progress is not None:
            progress.is_acking = progress.paired = False
            markers.reached("follower unpaired")

    def followers_with_lost_log(self) -> tuple[str, ...]:
        """Followers that have lost entries that they had acknowledged: until they are wiped they
        don't count.
        """
        return tuple(name for name, peer in self._peers.items() if peer.lost >= LOST_AFTER)

    def quorum_index(self) -> int:
        """The greatest index that is durable on a majority; our own disk counts like another."""
        return reached(self._log.configuration, self.match)

    def commit_index(self) -> int:
        """The index up to which entries are committed by now (Raft 5.4.2): only one of our own term
        commits by counting, all before it with it.
        """
        before = self._log.commit
        index = self.quorum_index()
        if COMMIT_BEFORE_QUORUM in self._config.bugs:
            index = self._log.durable_index
        ours = planted("old-term-counted") or self._log.term(index) == self._term
        # Never back: a member that joins late lowers the quorum's index, not what was committed.
        return max(index, before) if ours else before

    def match(self, name: str) -> int:
        """The index up to which ``name`` is known to have the log on its disk; 0 for a node that is
        no follower.
        """
        if name == self._config.node:
            return self._log.durable_index
        progress = self._peers.get(name)
        return progress.match_index if progress else 0

    def progress(self, name: str) -> tuple[int, int]:
        """The index up to which ``name`` has the log, and how much of a snapshot: another pair is
        progress.
        """
        progress = self._peers.get(name)
        if progress is None:
            return 0, 0
        return progress.match_index, progress.transfer.offset if progress.transfer else 0

    def is_there(self, name: str, now: int) -> bool:
        """Whether ``name`` is a follower that has answered within the election timeout."""
        progress = self._peers.get(name)
        if progress is None or progress.heard_tick < 0:
            return False
        return now - progress.heard_tick < self._config.election_ticks

    def asked_to_lead(self) -> None:
        """A follower was asked to take over: from now on another may lead while this one does."""
        # For the rest of the term: the message may arrive after the hand-over was given up here.
        self._lease_over = True

    def followed_since(self, tick: int, now: int) -> bool:
        """Whether a quorum has answered messages that were sent after ``tick``."""
        return self._quorum_tick(now) > tick

    def _quorum_tick(self, now: int) -> int:
        def heard(name: str) -> int:
            return now if name == self._config.node else self._peers[name].heard_tick

        return reached(self._log.configuration, heard)

    def has_quorum(self, now: int) -> bool:
        """Whether a quorum followed within the last election timeout (a new leader has one)."""
        # The votes themselves count as answers, or a new leader would step down at once.
        last = max(self._elected_tick, self._quorum_tick(now))
        return now - last < self._config.election_ticks

    def lease_holds(self, now: int) -> bool:
        """Whether no one else can have been elected yet: a quorum still refuses its votes."""
        tick = self._quorum_tick(now)
        # Shorter than the followers' patience, by what clocks may drift apart within it.
        limit = self._config.election_ticks - LEASE_MARGIN_TICKS
        return tick >= 0 and now - tick < limit and not self._lease_over

    def statuses(self) -> tuple[PeerStatus, ...]:
        """The followers as values, for people."""
        return tuple(
            PeerStatus(
                node=name,
                match_index=peer.match_index,
                next_index=peer.next_index,
                probing=peer.probing,
                inflight=len(peer.inflight),
                sending_snapshot=None if peer.transfer is None else peer.transfer.mark.index,
            )
            for name, peer in self._peers.items()
        )
