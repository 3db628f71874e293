"""A leader's work for one term: sending the log, counting answers, its quorum and its lease."""

from __future__ import annotations

from collections.abc import Iterator

from clusters.reference.node.raft import quorum
from clusters.reference.node.raft.config import LEASE_MARGIN_TICKS, RaftConfig
from clusters.reference.node.raft.log import Log
from clusters.reference.node.raft.progress import Progress
from clusters.reference.node.raft.status import PeerStatus
from clusters.reference.node.raft.types import Append, AppendReply, Chunk, ChunkReply, Mark

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
        self._peers: dict[str, Progress] = {}
        self.reconfigured()

    def reconfigured(self) -> None:
        """Members changed: follow who came, forget who went.

        Optimistic: most followers of a new leader have all that it has; one that lacks something
        refuses, and is probed.
        """
        next_index = self._log.last_index + 1
        self._peers = {
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
        """An append without entries, right behind what was sent last, for everyone but those whose
        node vouches for them and who have nothing to learn.

        It is more than a sign of life: a follower that missed the last message refuses it, and so
        a loss is found without another timer.
        """
        self._beat_tick = now
        for name, progress in self._peers.items():
            if progress.paired and progress.settled(self._log.last_index, commit):
                continue
            yield name, self._append(progress, now, commit, with_entries=False)

    def replicate(self, now: int, commit: int) -> Iterator[tuple[str, Append]]:
        """Everything that may leave now, for every follower that the log can still serve."""
        for name, progress in self._peers.items():
            while (
                progress.next_index <= self._log.last_index
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
                transfer.sent_tick = now
                yield (
                    name,
                    Chunk(
                        sender=self._config.node,
                        term=self._term,
                        context=now,
                        mark=transfer.mark,
                        offset=transfer.offset,
                    ),
                )

    def sending(self, now: int) -> bool:
        """Whether a follower that is there takes a snapshot."""
        return any(
            progress.transfer is not None
            and now - progress.heard_tick < self._config.election_ticks
            for progress in self._peers.values()
        )

    def _append(self, progress: Progress, now: int, commit: int, *, with_entries: bool) -> Append:
        # Behind the base nothing is known; the base itself will be refused, which is an answer.
        previous = max(progress.next_index - 1, self._log.base.index)
        limits = self._config.max_append_entries, self._config.max_append_bytes
        return Append(
            sender=self._config.node,
            term=self._term,
            previous_index=previous,
            previous_term=self._log.term(previous) or 0,
            commit=commit,
            context=now,
            entries=self._log.bounded(progress.next_index, *limits) if with_entries else (),
        )

    def answered(self, reply: AppendReply) -> None:
        """Take a follower's answer; a refusal too says that it follows."""
        progress = self._peers.get(reply.sender)
        if progress is None:
            return
        progress.heard_tick = max(progress.heard_tick, reply.context)
        progress.commit_index = max(progress.commit_index, reply.commit)
        progress.answers = True
        if reply.refused:
            progress.refused(reply.match_index, reply.hint_index)
        else:
            progress.accepted(reply.match_index)

    def chunk_answered(self, reply: ChunkReply) -> None:
        """Take a follower's word on how much of a snapshot it has."""
        progress = self._peers.get(reply.sender)
        if progress is None:
            return
        progress.heard_tick = max(progress.heard_tick, reply.context)
        if progress.transfer is not None and progress.transfer.mark.index == reply.index:
            progress.transfer.answered(reply.offset)

    def answers(self, name: str) -> bool:
        """Whether ``name`` follows, by its own word: then its node may vouch for it."""
        progress = self._peers.get(name)
        return progress is not None and progress.answers

    def vouched(self, name: str, tick: int) -> None:
        """The node of ``name`` says that it followed when what was sent at ``tick`` arrived."""
        progress = self._peers.get(name)
        if progress is not None:
            progress.heard_tick = max(progress.heard_tick, tick)
            progress.paired = progress.answers

    def unpair(self, name: str) -> None:
        """Nobody vouches for ``name``: it has to answer for itself."""
        progress = self._peers.get(name)
        if progress is not None:
            progress.answers = progress.paired = False

    def forgetful(self) -> tuple[str, ...]:
        """Followers that have lost what they had acknowledged: until they are wiped they count for
        nothing.
        """
        return tuple(name for name, peer in self._peers.items() if peer.lost >= LOST_AFTER)

    def quorum_index(self) -> int:
        """The greatest index that is durable on a majority; our own disk counts like another."""
        return quorum.reached(self._log.configuration, self.match)

    def match(self, name: str) -> int:
        """Up to which index ``name`` is known to have the log on its disk; 0 of a stranger."""
        if name == self._config.node:
            return self._log.durable_index
        progress = self._peers.get(name)
        return progress.match_index if progress else 0

    def _quorum_tick(self, now: int) -> int:
        def heard(name: str) -> int:
            return now if name == self._config.node else self._peers[name].heard_tick

        return quorum.reached(self._log.configuration, heard)

    def has_quorum(self, now: int) -> bool:
        """Whether a quorum followed within the last election timeout (a new leader has one)."""
        last = max(self._elected_tick, self._quorum_tick(now))
        return now - last < self._config.election_ticks

    def lease_holds(self, now: int) -> bool:
        """Whether no one else can have been elected yet: a quorum still refuses its votes."""
        tick = self._quorum_tick(now)
        limit = self._config.election_ticks - LEASE_MARGIN_TICKS
        return tick >= 0 and now - tick < limit

    def statuses(self, now: int) -> tuple[PeerStatus, ...]:
        """The followers as values, for people."""
        return tuple(
            PeerStatus(
                node=name,
                match_index=peer.match_index,
                next_index=peer.next_index,
                probing=peer.probing,
                inflight=len(peer.inflight),
                sending_snapshot=None if peer.transfer is None else peer.transfer.mark.index,
                silent_ticks=None if peer.heard_tick < 0 else now - peer.heard_tick,
            )
            for name, peer in self._peers.items()
        )
