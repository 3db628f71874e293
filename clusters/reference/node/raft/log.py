"""The log of one group in memory, and how much of it is on the way to the disk or there.

Three marks divide it: entries up to ``durable_index`` are on this member's disk, those up to
``handed_index`` were given to the caller to write, the rest waits for the next ``Ready``.
Positions are asked by index only, so that a compacted prefix can replace the first entries later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clusters.reference.node.raft.errors import InvariantBroken
from clusters.reference.node.raft.types import Entry


class _Batch:
    """Entries handed out in one ``Ready``: up to (index, term), of which ``valid`` still stand."""

    __slots__ = ("index", "term", "valid")

    def __init__(self, index: int, term: int) -> None:
        self.index, self.term, self.valid = index, term, index


class Log:
    """Entries 1, 2, 3 ...; the entry before the first has index and term 0."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """``entries`` are what recovery found on the disk: durable, from index 1 on."""
        self._entries = list(entries)
        self._handed = self._durable = len(self._entries)
        self._batches: deque[_Batch] = deque()
        if broken := self.broken():
            raise InvariantBroken(f"recovered log: {broken}")

    @property
    def last_index(self) -> int:
        """Index of the last entry, 0 when there is none."""
        return len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry, 0 when there is none."""
        return self._entries[-1].term if self._entries else 0

    @property
    def durable_index(self) -> int:
        """The last entry known to be on this member's disk, with all before it."""
        return self._durable

    @property
    def has_unhanded(self) -> bool:
        """Whether entries wait to be handed out for writing."""
        return self._handed < self.last_index

    def term(self, index: int) -> int | None:
        """The term of the entry at ``index``, or ``None`` where there is none."""
        if index == 0:
            return 0
        return self._entries[index - 1].term if 0 < index <= self.last_index else None

    def first_index_of_term_at(self, index: int) -> int:
        """The first index of the run of entries with the same term that holds ``index``."""
        term = self.term(index)
        while index > 1 and self.term(index - 1) == term:
            index -= 1
        return index

    def between(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries ``first`` to ``last``, both included, as far as they exist."""
        return tuple(self._entries[max(first, 1) - 1 : last])

    def bounded(self, first: int, max_entries: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` on within both limits, but at least one where there is one."""
        found: list[Entry] = []
        size = 0
        for entry in self._entries[first - 1 : first - 1 + max_entries]:
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return tuple(found)

    def append(self, term: int, data: bytes) -> Entry:
        """Add a new entry at the end (the leader's verb)."""
        entry = Entry(term, self.last_index + 1, data)
        self._entries.append(entry)
        return entry

    def merge(self, entries: Sequence[Entry], commit_index: int) -> None:
        """Take over a leader's ``entries``, which follow on an entry that is here (Raft 5.3).

        Only a conflict truncates: an old message that holds a prefix of what is here changes
        nothing. Raises ``InvariantBroken`` where a conflict lies at or below ``commit_index``.
        """
        for position, entry in enumerate(entries):
            if self.term(entry.index) == entry.term:
                continue
            if entry.index <= self.last_index:
                self._truncate(entry, commit_index)
            self._entries.extend(entries[position:])
            return

    def _truncate(self, entry: Entry, commit_index: int) -> None:
        if entry.index <= commit_index:
            raise InvariantBroken(
                f"entry {entry.index} of term {entry.term} conflicts with a committed entry of "
                f"term {self.term(entry.index)} (commit index {commit_index})"
            )
        del self._entries[entry.index - 1 :]
        keep = entry.index - 1
        self._handed, self._durable = min(self._handed, keep), min(self._durable, keep)
        for batch in self._batches:
            batch.valid = min(batch.valid, keep)

    def hand_out(self) -> tuple[Entry, ...]:
        """What must be written next. It replaces everything on disk from its first index on."""
        entries = tuple(self._entries[self._handed :])
        if entries:
            self._batches.append(_Batch(entries[-1].index, entries[-1].term))
            self._handed = self.last_index
        return entries

    def persisted(self, index: int, term: int) -> None:
        """The batch that ended with (index, term), and every one handed out before, is durable.

        What was truncated after it had been handed out does not count, even if an equal entry
        has come back since: that one is in a later batch. Raises ``InvariantBroken`` for a batch
        that is not being written.
        """
        if (index, term) not in [(batch.index, batch.term) for batch in self._batches]:
            raise InvariantBroken(f"entry {index} of term {term} ends no batch being written")
        while True:
            batch = self._batches.popleft()
            self._durable = max(self._durable, batch.valid)
            if (batch.index, batch.term) == (index, term):
                return

    def broken(self) -> str | None:
        """The text of the first broken invariant of the log."""
        if not 0 <= self._durable <= self._handed <= self.last_index:
            return (
                f"marks out of order: durable {self._durable}, handed {self._handed}, "
                f"last {self.last_index}"
            )
        before = Entry(0, 0, b"")
        for entry in self._entries:
            if entry.index != before.index + 1:
                return f"entry {entry.index} follows entry {before.index}"
            if entry.term < before.term:
                return f"entry {entry.index} has term {entry.term} after term {before.term}"
            before = entry
        return None
