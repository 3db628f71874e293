"""The log of one group in memory, and how much of it is on the way to the disk or there.

Three indices divide it: entries up to ``durable_index`` are on this member's disk, those up to the
handed one were given to the caller to write, the rest waits for the next ``Ready``. Entries up to
``base`` are cut off, those up to ``commit`` are known to be committed. The log also knows which
configuration counts: the last one in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.raft import configuration
from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.settings import InvariantBroken
from clusters.reference.node.raft.types import Entry, Mark


class _Batch:
    """Entries handed out in one ``Ready``: up to (index, term), of which ``valid`` still stand."""

    __slots__ = ("index", "term", "valid")

    def __init__(self, index: int, term: int) -> None:
        self.index, self.term, self.valid = index, term, index


class Log:
    """Entries ``base.index`` + 1 and on."""

    def __init__(self, entries: Sequence[Entry], base: Mark = Mark()) -> None:  # noqa: B008
        """``entries`` are those that recovery found on the disk: durable, from ``base`` on."""
        self._base = base
        self.commit = base.index  # the last entry that is known to be committed
        self._entries = list(entries)
        self._configs = [(base.index, base.configuration)]
        # What recovery read is on the disk by definition.
        self._handed = self._durable = self.last_index
        self._batches: deque[_Batch] = deque()
        if broken := self.broken():
            raise InvariantBroken(f"recovered log: {broken}")
        self._note_configs(self._entries)

    @property
    def base(self) -> Mark:
        """The mark that stands for all entries that were cut off."""
        return self._base

    @property
    def last_index(self) -> int:
        """Index of the last entry, the base's when there is none."""
        return self._base.index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, the base's when there is none."""
        return self._entries[-1].term if self._entries else self._base.term

    @property
    def durable_index(self) -> int:
        """The last entry known to be on this member's disk, with all before it."""
        return self._durable

    @property
    def has_unhanded(self) -> bool:
        """Whether entries wait to be handed out for writing."""
        return self._handed < self.last_index

    @property
    def configuration(self) -> Configuration:
        """The configuration that counts."""
        return self._configs[-1][1]

    @property
    def configuration_index(self) -> int:
        """Index of the entry that brought it."""
        return self._configs[-1][0]

    def mark(self, index: int) -> Mark:
        """The place ``index``, which must be in the log or its base."""
        term = self.term(index)
        if term is None:
            raise InvariantBroken(f"there is no entry {index} to mark")
        return Mark(index, term, self.configuration_at(index)[1])

    def configuration_at(self, index: int) -> tuple[int, Configuration]:
        """The configuration that counted at ``index``, at or after the base, and its own index."""
        # From the end: it is asked for near it, and changes of members are rare.
        return next((i, c) for i, c in reversed(self._configs) if i <= index)

    def term(self, index: int) -> int | None:
        """The term of the entry at ``index``, or ``None`` where there is none any more or yet."""
        position = index - self._base.index - 1
        if position == -1:
            return self._base.term
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def first_index_of_term_at(self, index: int) -> int:
        """The first index of the run of entries with the same term that holds ``index``."""
        term = self.term(index)
        while index > self._base.index + 1 and self.term(index - 1) == term:
            index -= 1
        return index

    def between(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries ``first`` to ``last``, both included, as far as they exist."""
        offset = self._base.index
        # Bounded below, since a negative index would count from the end of the list.
        return tuple(self._entries[max(first - offset, 1) - 1 : max(last - offset, 0)])

    def bounded(self, first: int, max_entries: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` on within both limits, but at least one where there is one."""
        found: list[Entry] = []
        size = 0
        position = first - self._base.index - 1
        for entry in self._entries[position : position + max_entries]:
            size += len(entry.data)
            # One entry may be larger than the limit by itself; without it replication would stand
            # still.
            if found and size > max_bytes:
                reached("append cut at its bytes")
                break
            found.append(entry)
        return tuple(found)

    def append(self, term: int, data: bytes) -> Entry:
        """Add a new entry at the end (the leader's verb)."""
        entry = Entry(term, self.last_index + 1, data)
        self._entries.append(entry)
        return entry

    def append_configuration(self, term: int, config: Configuration) -> None:
        """Add an entry that makes ``config`` count."""
        entry = Entry(term, self.last_index + 1, configuration.encode(config), True)
        self._entries.append(entry)
        self._configs.append((entry.index, config))

    def merge(self, entries: Sequence[Entry], commit_index: int) -> None:
        """Take over a leader's ``entries``, which follow on an entry that is here (Raft 5.3).

        Only a conflict truncates: an old message that holds a prefix of what is here changes
        nothing. Raises ``InvariantBroken`` where a conflict lies at or below ``commit_index``.
        """
        for position, entry in enumerate(entries):
            # Same index and term: the same entry (Raft 5.3, log matching).
            if self.term(entry.index) == entry.term:
                continue
            if planted("conflict-kept") and entry.index <= self.last_index:
                continue
            if entry.index <= self.last_index:
                self._truncate(entry, commit_index)
            self._entries.extend(entries[position:])
            self._note_configs(entries[position:])
            return

    def keep_until(self, index: int) -> None:
        """Drop the entries behind ``index``, of which none may be committed: they are of another
        generation than those that follow.
        """
        if index < self.last_index:
            reached("entries of another generation dropped")
            self._drop_after(index)

    def _truncate(self, entry: Entry, commit_index: int) -> None:
        reached("follower replaces entries by those of a leader")
        # Such a conflict means that raft's safety is lost already: better to stop than to go on.
        if entry.index <= commit_index:
            raise InvariantBroken(
                f"entry {entry.index} of term {entry.term} conflicts with a committed entry of "
                f"term {self.term(entry.index)} (commit index {commit_index})"
            )
        self._drop_after(entry.index - 1)

    def _drop_after(self, keep: int) -> None:
        del self._entries[keep - self._base.index :]
        # A configuration counts as soon as it is in the log, so it goes with its entry (thesis
        # 4.1).
        while self._configs[-1][0] > keep:
            reached("configuration goes with its truncated entry")
            self._configs.pop()
        # Writes of the truncated entries may still be under way: see ``_Batch``.
        self._handed, self._durable = min(self._handed, keep), min(self._durable, keep)
        for batch in self._batches:
            if batch.valid > keep:
                reached("entries cut off on their way to the disk")
            batch.valid = min(batch.valid, keep)

    def hand_out(self) -> tuple[Entry, ...]:
        """The entries to write next. They replace everything on disk from their first index on."""
        entries = tuple(self._entries[self._handed - self._base.index :])
        if entries:
            self._batches.append(_Batch(entries[-1].index, entries[-1].term))
            self._handed = self.last_index
        return entries

    def persisted(self, index: int, term: int) -> None:
        """The batch that ended with (index, term), and every one handed out before, is durable.

        Entries that were truncated after they had been handed out don't count, even if an equal
        entry has come back since: that one is in a later batch. Raises ``InvariantBroken`` for a
        batch that is not being written.
        """
        if (index, term) not in [(batch.index, batch.term) for batch in self._batches]:
            raise InvariantBroken(f"entry {index} of term {term} ends no batch being written")
        while True:
            batch = self._batches.popleft()
            # Never back: a batch from before a ``reset`` is valid up to 0 only.
            self._durable = max(self._durable, batch.valid)
            if (batch.index, batch.term) == (index, term):
                return

    def compact(self, index: int) -> None:
        """Cut off everything up to ``index``, which is durable; further back is a no-op."""
        if index <= self._base.index:
            return
        if index > self._durable:
            raise InvariantBroken(f"can't cut at {index}: durable up to {self._durable}")
        base = self.mark(index)
        del self._entries[: index - self._base.index]
        # The base's own configuration stands for all that are cut off.
        kept = [(i, c) for i, c in self._configs if i > index]
        self._base, self._configs = base, [(index, base.configuration), *kept]

    def reset(self, base: Mark) -> None:
        """Forget everything for a snapshot at ``base``."""
        self._base, self._configs = base, [(base.index, base.configuration)]
        self._entries.clear()
        # The snapshot's file is synced by now, so nothing up to here is left to write.
        self._handed = self._durable = base.index
        for batch in self._batches:
            # Late completions of these writes say nothing of the snapshot that replaced them.
            batch.valid = 0

    def _note_configs(self, entries: Sequence[Entry]) -> None:
        self._configs += [(e.index, configuration.decode(e.data)) for e in entries if e.config]

    def broken(self) -> str | None:
        """The text of the first broken invariant of the log."""
        if not self._base.index <= self._durable <= self._handed <= self.last_index:
            return (
                f"marks out of order: durable {self._durable}, handed {self._handed}, "
                f"last {self.last_index}"
            )
        for index, config in self._configs[1:]:
            held = self.between(index, index)
            # One that stays behind its entry would decide by members that nothing names.
            if not held or not held[0].config or configuration.decode(held[0].data) != config:
                return f"{config} counts from {index} on, and the entry there does not say so"
        # The base is the entry before the first: terms must not fall behind it either.
        before = Entry(self._base.term, self._base.index, b"")
        for entry in self._entries:
            if entry.index != before.index + 1:
                return f"entry {entry.index} follows entry {before.index}"
            if entry.term < before.term:
                return f"entry {entry.index} has term {entry.term} after term {before.term}"
            before = entry
        return None
