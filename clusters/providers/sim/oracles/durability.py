"""What is told to others is on the disks: terms and votes, logs, commits, acknowledgements."""

from __future__ import annotations

from clusters.providers.sim.oracles.synced_disks import Lives, Place, SyncedDisk
from harness.protocols.claims import (
    Acknowledgement,
    Command,
    CommitClaim,
    LeaderLog,
    LogEntry,
    LogMatch,
    LogUpdate,
    TermClaim,
    term_of,
)

KEPT_TERMS = 4  # of which leaders' logs are remembered: later answers of older terms are not judged


class Durability:
    """Judges each fact; a text is what was true instead, ``None``: nothing was to be judged."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._told: dict[str, dict[int, dict[int, int]]] = {}  # group, term, index: mark
        self._held: dict[tuple[str, int, str], int] = {}  # group, term, member: compared up to
        self._terms: dict[tuple[str, str], tuple[int, str | None]] = {}  # judged last
        self._committed: dict[str, dict[int, int]] = {}  # group: index: mark
        self._commit: dict[str, int] = {}
        self._places: dict[tuple[str, str], list[Place]] = {}  # of commands

    def term_told(self, disk: SyncedDisk, fact: TermClaim) -> str | None:
        """The hard state behind a term that is told."""
        judged = (fact.term, fact.vote)
        key = disk.member_of(fact.group), fact.group
        # A leader says the same with every append: once synced it stays so.
        if self._terms.get(key) == judged:
            return None
        log = disk.log(fact.group)
        if log.term < fact.term:
            return f"term {fact.term} of {fact.group} is told, term {log.term} is synced"
        if fact.vote is not None and log.term == fact.term and log.vote != fact.vote:
            given = f"the vote of term {fact.term} in {fact.group} went to {fact.vote}"
            return f"{given}, and {log.vote or 'no vote'} is synced"
        self._terms[key] = judged
        return ""

    def log_told(self, fact: LeaderLog) -> None:
        """A leader's log, as far as it is told."""
        terms = self._told.setdefault(fact.group, {})
        told = terms.get(fact.term)
        if told is None:
            told = terms[fact.term] = {}
            for old in sorted(terms)[:-KEPT_TERMS]:
                del terms[old]
        for index, mark in enumerate(fact.marks, fact.first):
            told[index] = mark

    def log_held(self, disk: SyncedDisk, fact: LogMatch) -> str | None:
        """A follower's answer: each entry is compared once."""
        log = disk.log(fact.group)
        if log.term > fact.term:
            return None  # the answer waited for a sync that brought a later leader: it binds nobody
        if log.last_index < fact.index:
            return (
                f"{fact.group} up to entry {fact.index} is answered for, "
                f"up to {log.last_index} is synced"
            )
        told = self._told.get(fact.group, {}).get(fact.term, {})
        key = fact.group, fact.term, disk.member_of(fact.group)
        for index in range(self._held.get(key, log.base_index) + 1, fact.index + 1):
            mark = told.get(index)
            if mark is not None and not log.holds(index, mark):
                return (
                    f"entry {index} of {fact.group} is answered for as the leader of term "
                    f"{fact.term} told it, and another one, of term "
                    f"{term_of(log.mark_at(index) or 0)}, is synced"
                )
        self._held[key] = max(self._held.get(key, 0), fact.index)
        return ""

    def committed(self, disk: SyncedDisk, fact: CommitClaim) -> str | None:
        """A leader's commit index, where it is new."""
        before = self._commit.get(fact.group, 0)
        mark = self.mark(disk, fact.group, fact.term, fact.index)
        if fact.index <= before or mark is None:
            return None
        self._commit[fact.group] = fact.index
        what = f"entry {fact.index} of {fact.group} counts as committed"
        if lacking := self._lives.shortfall(fact.group, fact.index, mark):
            return f"{what}, and {lacking}"
        if usurper := self._lives.usurper(fact.group, fact.index, mark):
            return f"{what}, and {usurper}, which lacks it, could be elected by what is synced"
        known = self._committed.setdefault(fact.group, {})
        for index in range(before + 1, fact.index + 1):
            earlier = self.mark(disk, fact.group, fact.term, index)
            if earlier is not None:
                known[index] = earlier
        return ""

    def mark(self, disk: SyncedDisk, group: str, term: int, index: int) -> int | None:
        """The entry at ``index`` in the log of the leader of ``term``, whose disk this is."""
        told = self._told.get(group, {}).get(term, {}).get(index)
        return disk.log(group).mark_at(index) if told is None else told

    def commit_index(self, group: str) -> int:
        """Up to where commits were judged."""
        return self._commit.get(group, 0)

    def replaced(self, update: LogUpdate, replaced: list[Place]) -> str | None:
        """Entries that a disk has given up for others."""
        known = self._committed.get(update.group)
        if known is None or not replaced:
            return None
        new = {entry.index: entry.mark for entry in update.entries}
        for index, mark in replaced:
            if known.get(index) == mark and new.get(index, 0) != mark:
                return (
                    f"entry {index} of {update.group}, of term {term_of(mark)}, was committed, and "
                    f"is replaced by entries of term {term_of(update.entries[0].mark)}"
                )
        return ""

    def logged(self, group: str, entry: LogEntry) -> None:
        """Note the commands of ``entry``."""
        for fact in entry.says:
            if isinstance(fact, Command):
                places = self._places.setdefault((group, fact.name), [])
                if (entry.index, entry.mark) not in places:
                    places.append((entry.index, entry.mark))

    def acknowledged(self, fact: Acknowledgement) -> str:
        """All commands of a transaction are on majorities."""
        if fact.lacking:
            return f"{fact.what}: its write of {', '.join(fact.lacking)} is in no log"
        for group, name in fact.commands:
            places = self._places.get((group, name), [])
            lacking = [self._lives.shortfall(group, index, mark) for index, mark in places]
            if all(lacking):
                where = lacking[0] if lacking else "no synced disk holds it"
                return f"{fact.what}: {name} of {group} is acknowledged, and {where}"
        return ""
