"""A follower's answers to the leader of its term: entries that follow on its log, or do not, and
snapshots for what the leader's log has no longer.
"""

from __future__ import annotations

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.raft.raft_log import Log
from clusters.reference.node.raft.types import Append, AppendReply, Chunk, ChunkReply, Mark, Outbox


class Follower:
    """The part of a member that a leader acts on, through its ``log``; answers go to ``outbox``."""

    def __init__(self, *, node: str, log: Log, outbox: Outbox) -> None:
        self._node, self._log, self._outbox = node, log, outbox

    def refuse(self, message: Append | Chunk, term: int) -> None:
        """Answer a leader of the past with ``term``: that deposes it, or frees it where a member
        with a higher term would otherwise never obey.
        """
        index = message.previous_index if isinstance(message, Append) else message.mark.index
        self._answer(message, term, refused=True, index=index, hint=0)

    def append(self, message: Append) -> int | None:
        """Take the entries of the leader of this member's term, if they follow on its log; where
        they end.
        """
        log = self._log
        # Below the base the terms are gone, and all of it is committed: nothing there can conflict.
        base, previous = log.base.index, message.previous_index
        unchecked = planted("term-not-checked") and previous <= log.last_index
        matches = unchecked or log.term(previous) == message.previous_term
        if previous >= base and not matches:
            reached("append refused, the entry before it is missing")
            hint = self._hint(previous)
            self._answer(message, message.term, refused=True, index=previous, hint=hint)
            return None
        # Entries cut off here were committed, so they match every leader's.
        log.merge([e for e in message.entries if e.index > base], log.commit)
        # Not the end of the log: what lies behind the message may be of another leader.
        match_index = max(previous + len(message.entries), base)
        # Only as far as the log is known to match this leader's (Raft figure 2, rule 5).
        log.commit = max(log.commit, min(message.commit, match_index))
        self._answer(message, message.term, refused=False, index=match_index, hint=0)
        return previous + len(message.entries)

    def chunk(self, chunk: Chunk) -> None:
        """Take bytes of a snapshot, if it is needed: they wait for the caller."""
        # A chunk that comes again after its install, or for what appends brought meanwhile.
        if self._has(chunk.mark):
            reached("chunk of a snapshot that is not needed")
            self._installed(chunk)
        else:
            self._outbox.chunks.append(chunk)

    def chunk_stored(self, chunk: Chunk, offset: int) -> None:
        """The bytes before ``offset`` of the snapshot of ``chunk`` are kept."""
        # Sent without a sync: it is no promise, and after a crash the transfer begins anew.
        reply = ChunkReply(
            self._node, chunk.term, chunk.context, chunk.mark.index, offset, chunk.generation
        )
        self._outbox.send_now.append((chunk.sender, reply))

    def install(self, chunk: Chunk) -> bool:
        """The snapshot that ends with ``chunk`` is whole; whether the log begins behind it now."""
        wanted = not self._has(chunk.mark)
        if wanted:
            if self._log.last_index > chunk.mark.index:
                reached("snapshot installed over a longer log")
            # The log does not match at the mark, so nothing behind it
            # is kept (Raft figure 13, rule 7).
            self._log.reset(chunk.mark)
            self._outbox.installed = chunk.mark
            # Only committed entries are in a snapshot, so all it covers is committed here too.
            self._log.commit = chunk.mark.index
        self._installed(chunk)
        return wanted

    def _hint(self, previous_index: int) -> int:
        """Where the leader should try next: a whole conflicting term is skipped (Raft 5.3)."""
        if previous_index > self._log.last_index:
            return self._log.last_index
        # Committed entries match every later leader's, so it never pays to go below them.
        return max(self._log.first_index_of_term_at(previous_index) - 1, self._log.commit)

    def _has(self, mark: Mark) -> bool:
        """Whether the log holds all that ``mark`` covers; then all of it is known to be
        committed.
        """
        log = self._log
        if mark.index > log.commit and log.term(mark.index) == mark.term:
            log.commit = mark.index
        return mark.index <= log.commit

    def _installed(self, chunk: Chunk) -> None:
        self._answer(chunk, chunk.term, refused=False, index=chunk.mark.index, hint=0)

    def _answer(
        self, message: Append | Chunk, term: int, *, refused: bool, index: int, hint: int
    ) -> None:
        # Until the log is the leader's from its generation's begin on, what was committed here is
        # of another one: a reset goes on with what its survivor has, and that may differ before it.
        same = self._log.configuration.generation == message.generation
        reply = AppendReply(
            sender=self._node,
            term=term,
            refused=refused,
            match_index=index,
            hint_index=hint,
            context=message.context,
            commit=self._log.commit if same else 0,
            generation=message.generation,
        )
        # It promises that the entries survive a crash here, so it waits for the disk.
        self._outbox.send_durable.append((message.sender, reply))
