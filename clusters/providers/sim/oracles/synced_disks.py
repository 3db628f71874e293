"""What each disk would give back after a crash at this instant: the logs on it, record by record.

A mirror follows the syncs of a disk and reads each byte once. It repeats nothing of the store's own
recovery: a mistake there must not be repeated by the judge.
"""

from __future__ import annotations

from harness.protocols.claims import Base, DiskReader, LogEntry, LogUpdate, Members, term_of

Place = tuple[int, int]  # index and mark of an entry


class SyncedLog:
    """One group on one disk. ``members`` are (index, configuration), the last one counts."""

    __slots__ = (
        *("base_index", "base_term", "file", "first", "foreign_from", "left", "marks", "members"),
        *("term", "vote"),
    )

    def __init__(self) -> None:
        self.term, self.vote = 0, None
        self.base_index = self.base_term = 0
        self.file = ""  # of the snapshot that stands for the entries up to the base
        self.first = 1  # the index of the first of ``marks``
        self.marks: list[int] = []
        self.members: list[tuple[int, Members]] = []
        self.left = False  # for a later generation: it stays as it was then
        # The first of those entries that an earlier generation wrote and this one lacks: a leader
        # of this one may be of the same term, and its entry there have the same mark.
        self.foreign_from: int | None = None

    term: int
    vote: str | None

    @property
    def last_index(self) -> int:
        """The last entry."""
        return self.first + len(self.marks) - 1 if self.marks else self.base_index

    @property
    def last(self) -> tuple[int, int]:
        """Term and index of the last entry: elections compare these."""
        return (term_of(self.marks[-1]) if self.marks else self.base_term), self.last_index

    def last_before(self, term: int) -> tuple[int, int]:
        """Term and index of the last entry of a term before ``term``, as far as is known here: not
        of what is behind a base of ``term`` itself or of a later one.
        """
        for position in range(len(self.marks) - 1, -1, -1):
            if term_of(self.marks[position]) < term:
                return term_of(self.marks[position]), self.first + position
        return (self.base_term, self.base_index) if self.base_term < term else (0, 0)

    def mark_at(self, index: int) -> int | None:
        """The mark of the entry; ``None`` where it is cut off or absent."""
        position = index - self.first
        return self.marks[position] if 0 <= position < len(self.marks) else None

    def holds(self, index: int, mark: int) -> bool:
        """Whether the entry is here, or stands behind the base: what is cut off is committed."""
        if index <= self.base_index:
            return True
        is_foreign = self.foreign_from is not None and index >= self.foreign_from
        return self.mark_at(index) == mark and not is_foreign

    def inherit(self, inherited: SyncedLog) -> None:
        """Tell apart, in a log that a generation begins with here, what that generation began with
        and what is of an earlier one alone.
        """
        for index, mark in enumerate(self.marks, self.first):
            if not inherited.holds(index, mark):
                self.foreign_from = index
                return

    def leave(self) -> SyncedLog:
        """Return the log with which the next generation begins here: its own configurations count
        there, and its own terms.
        """
        successor = SyncedLog()
        successor.base_index, successor.base_term = self.base_index, self.base_term
        successor.file, successor.first, successor.marks = self.file, self.first, self.marks[:]
        self.left, self.file = True, ""
        return successor

    def take(self, update: LogUpdate) -> list[Place]:
        """Follow ``update``; returns the entries that it replaced."""
        if update.term is not None:
            self.term, self.vote = update.term, update.vote
        if update.base is not None and update.base.index >= self.base_index:
            self._cut(update.base)
        return self._write(update.entries) if update.entries else []

    def _cut(self, base: Base) -> None:
        gone = len(self.marks) if base.whole else base.index - self.first + 1
        if gone > 0:
            del self.marks[:gone]
            self.first = base.index + 1
        if self.foreign_from is not None and (base.whole or base.index >= self.foreign_from):
            self.foreign_from = None
        self.base_index, self.base_term, self.file = base.index, base.term, base.file
        kept = [] if base.whole else [each for each in self.members if each[0] > base.index]
        self.members = [(base.index, base.members), *kept]

    def _write(self, entries: tuple[LogEntry, ...]) -> list[Place]:
        first = entries[0].index
        replaced: list[Place] = []
        if self.marks:
            kept = max(first - self.first, 0)
            end = self.last_index + 1 if self.foreign_from is None else self.foreign_from
            replaced = [(self.first + at, self.marks[at]) for at in range(kept, end - self.first)]
            del self.marks[kept:]
        if self.foreign_from is not None and first <= self.foreign_from:
            self.foreign_from = None
        if not self.marks:
            self.first = first
        if self.members and self.members[-1][0] >= first:
            self.members = [each for each in self.members if each[0] < first]
        for entry in entries:
            self.marks.append(entry.mark)
            self.members += [(entry.index, f) for f in entry.says if isinstance(f, Members)]
        return replaced


class SyncedDisk:
    """All logs of one disk in one life of it. ``gone``: the life is over, its data is destroyed."""

    def __init__(self, node: str, reader: DiskReader) -> None:
        self.node, self.reader = node, reader
        self.member = ""
        self.gone = False
        self.logs: dict[str, SyncedLog] = {}
        self.dropped: dict[str, SyncedLog] = {}  # the last one of each group
        self.replicas: dict[str, str] = {}  # group: its member, where that is not the disk's
        self.ends: dict[str, int] = {}  # how far each file is read

    def member_of(self, group: str) -> str:
        """The member of ``group`` that the disk belongs to."""
        return self.replicas.get(group, self.member) if self.replicas else self.member

    def log(self, group: str) -> SyncedLog:
        """The log of ``group``, an empty one where there is none."""
        return self.logs.get(group, NOTHING)


NOTHING = SyncedLog()


class Lives:
    """The disks by the members that they belong to.

    A life that was destroyed keeps what it held: that this is gone is the simulation's doing, and
    no broken promise; or it is the store's, which has let a replica go and never uses its name
    again. Where the next life has the same name it takes the place of the first: then
    the store takes an empty disk for the one that made the promises.
    """

    def __init__(self) -> None:
        self.by_member: dict[str, SyncedDisk] = {}
        self._ended: dict[tuple[str, str], SyncedLog] = {}  # member and group: what it held
        self._members: dict[str, tuple[tuple[int, Members], ...]] = {}

    def replaced(self, disk: SyncedDisk, group: str, member: str) -> None:
        """The replica of ``group`` on ``disk`` is destroyed: the next one is ``member``. The store
        may say so again, where it writes what counts of ``member`` anew.
        """
        if disk.member_of(group) == member:
            return
        # A disk that is read again no longer has all that the former life held.
        self._ended.setdefault((disk.member_of(group), group), disk.dropped.get(group, NOTHING))
        disk.replicas[group] = member
        self.by_member[member] = disk

    def changed(self, group: str) -> None:
        """The members of ``group`` may be others on some disk."""
        self._members.pop(group, None)

    def members(self, group: str) -> tuple[tuple[int, Members], ...]:
        """The last configurations that the disks know, each once. Mostly that is one."""
        found = self._members.get(group)
        if found is None:
            logs = (disk.log(group) for disk in self.by_member.values() if not disk.gone)
            last = dict.fromkeys(log.members[-1] for log in logs if log.members)
            found = self._members[group] = tuple(each for each in last if each[1].voters)
        return found

    def log(self, member: str, group: str) -> SyncedLog:
        """The log of ``group`` on the disk of ``member``."""
        ended = self._ended.get((member, group))
        if ended is not None:
            return ended
        disk = self.by_member.get(member)
        return NOTHING if disk is None else disk.log(group)

    def lives(self, member: str, group: str) -> bool:
        """Whether the disk of ``member`` is there, and its replica of ``group``."""
        disk = self.by_member.get(member)
        return disk is not None and not disk.gone and (member, group) not in self._ended

    def shortfall(self, group: str, index: int, mark: int) -> str:
        """Why the entry is on no majority; empty where it is on one."""
        text = "none is known to be a member"
        for at, members in self.members(group):
            text = self._lacking(group, index, mark, deciding(at, members, index))
            # A leader may count by the new voters alone before any disk says so: it leaves the
            # joint configuration once that is committed, and both majorities then have it.
            if text and members.outgoing and self._committed_joint(group, at, members):
                text = self._lacking(group, index, mark, (members.voters,))
            if not text:
                return ""
        return text

    def _lacking(
        self, group: str, index: int, mark: int, halves: tuple[tuple[str, ...], ...]
    ) -> str:
        """The first of ``halves`` of which no majority holds the entry; empty without one."""
        for half in halves:
            count = sum(self.log(name, group).holds(index, mark) for name in half)
            if count <= len(half) // 2:
                return f"the synced disks of {count} of {len(half)} voters hold it"
        return ""

    def _committed_joint(self, group: str, at: int, members: Members) -> bool:
        """Whether the entry ``at``, which made ``members`` joint, is on majorities of both."""
        logs = [disk.log(group) for disk in self.by_member.values()]
        mark = next((log.mark_at(at) for log in logs if log.members[-1:] == [(at, members)]), None)
        halves = members.voters, members.outgoing
        return mark is not None and not self._lacking(group, at, mark, halves)

    def usurper(self, group: str, index: int, mark: int) -> str:
        """A member that lacks the entry and could be elected by what is synced now, after a crash
        of everything; empty where there is none.
        """
        for name in self.by_member:
            log = self.log(name, group)
            if not self.lives(name, group) or not log.members or log.holds(index, mark):
                continue
            # By the configuration that it has itself: one that was replaced may know an older one.
            halves = deciding(*log.members[-1], index)
            decides = any(name in half for half in halves)
            if decides and all(self._votes(h, group, log.last) > len(h) // 2 for h in halves):
                return name
        return ""

    def _votes(self, half: tuple[str, ...], group: str, last: tuple[int, int]) -> int:
        there = [name for name in half if self.lives(name, group)]
        return sum(self.log(name, group).last <= last for name in there)


def deciding(at: int, members: Members, index: int) -> tuple[tuple[str, ...], ...]:
    """The sets of voters each of which needs a majority for the entry at ``index``, where ``at`` is
    that of the configuration. Before a joint one only the old voters decided.
    """
    if not members.outgoing:
        return (members.voters,)
    if index < at:
        return (members.outgoing,)
    return members.voters, members.outgoing
