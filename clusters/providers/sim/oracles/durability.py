"""What is told to others is on the disks: terms and votes, logs, commits, acknowledgements."""

from __future__ import annotations

import attrs

from clusters.providers.sim.oracles.synced_disks import Lives, Place, SyncedDisk, SyncedLog
from harness.protocols.claims import (
    Acknowledgement,
    Base,
    Command,
    CommitClaim,
    CommitLearnt,
    LeaderLog,
    LockRelease,
    LogEntry,
    LoggedWrites,
    LogMatch,
    LogUpdate,
    Members,
    NewGeneration,
    OutcomeDrop,
    RecoveredLog,
    TermClaim,
    VoteClaim,
    term_of,
)

KEPT_TERMS = 4  # of which leaders' logs are remembered: later answers of older terms are not judged


@attrs.frozen
class _Origin:
    """The generation of ``root`` that ``parent`` went over into; ``inherited``: the log of the
    disk that was the first to do so.
    """

    root: str
    parent: str
    inherited: SyncedLog


class Durability:
    """Judges each fact; a text is what was true instead, ``None``: nothing was to be judged."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._told: dict[str, dict[int, dict[int, int]]] = {}  # group, term, index: mark
        self._mentioned: dict[tuple[str, int], int] = {}  # group, term: how far its log reaches
        self._learnt: dict[tuple[str, str], int] = {}  # group, member: compared up to
        self._held: dict[tuple[str, int, str], int] = {}  # group, term, member: compared up to
        self._terms: dict[tuple[str, str], tuple[int, str | None]] = {}  # judged last
        self._committed: dict[str, dict[int, int]] = {}  # group: index: mark
        self._commit: dict[str, int] = {}
        # By group and index: entries that a disk has cut off before their commit was told.
        self._cut_off: dict[str, dict[int, int]] = {}
        self._places: dict[tuple[str, str], list[Place]] = {}  # of commands
        self._parts: dict[str, dict[Place, tuple[str, ...]]] = {}  # group: transactions of entries
        # Entries with writes, by group, transaction and the epoch of their primary: the last one.
        self._writes: dict[tuple[str, str, int], tuple[Place, LoggedWrites]] = {}
        self._origins: dict[str, _Origin] = {}  # of generations but the first
        self._generations: dict[str, list[str]] = {}  # root: the later ones

    def term_told(self, disk: SyncedDisk, fact: TermClaim) -> str | None:
        """The hard state behind a term that is told."""
        judged = (fact.term, fact.vote)
        key = disk.member_of(fact.group), fact.group
        # A leader says the same with every append: once synced it stays so.
        if self._terms.get(key) == judged:
            return None
        log = disk.log(fact.group)
        if log.left:
            return ""  # a later generation is synced, as a later term may be
        if log.term < fact.term:
            return f"term {fact.term} of {fact.group} is told, term {log.term} is synced"
        if fact.vote is not None and log.term == fact.term and log.vote != fact.vote:
            given = f"the vote of term {fact.term} in {fact.group} went to {fact.vote}"
            return f"{given}, and {log.vote or 'no vote'} is synced"
        self._terms[key] = judged
        return ""

    def recovered(self, disk: SyncedDisk, fact: RecoveredLog) -> str | None:
        """What a start has read from the disk: more may be there than is synced, and no less."""
        log = disk.log(fact.group)
        if log.left:
            return None
        if fact.term < log.term:
            return f"{fact.group} begins in term {fact.term}, and term {log.term} is synced"
        if fact.term == log.term and log.vote is not None and fact.vote != log.vote:
            return (
                f"{fact.group} begins with {fact.vote or 'no vote'} in term {fact.term}, and the "
                f"vote for {log.vote} is synced"
            )
        if (fact.last_term, fact.last_index) < log.last:
            return (
                f"{fact.group} begins with a log up to entry {fact.last_index} of term "
                f"{fact.last_term}, and entry {log.last[1]} of term {log.last[0]} is synced"
            )
        return ""

    def log_told(self, fact: LeaderLog) -> None:
        """A leader's log, as far as it is told."""
        key, reaches = (fact.group, fact.term), fact.first + len(fact.marks) - 1
        if reaches > self._mentioned.get(key, 0):
            self._mentioned[key] = reaches
        if not fact.marks:
            return
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
        if log.term > fact.term or log.left:
            return None  # the answer waited for a sync that brought a later leader: it binds nobody
        if log.last_index < fact.index:
            return (
                f"{fact.group} up to entry {fact.index} is answered for, "
                f"up to {log.last_index} is synced"
            )
        reaches = self._mentioned.get((fact.group, fact.term), fact.index)
        if fact.index > reaches:
            return (
                f"{fact.group} up to entry {fact.index} is answered for, and the leader of term "
                f"{fact.term} has told of entries up to {reaches}"
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

    def voted(self, disk: SyncedDisk, fact: VoteClaim) -> str | None:
        """A vote: what the voter has, but for what came of this term's leader since."""
        log = disk.log(fact.group)
        if log.term > fact.term or log.left:
            return None  # the answer waited for a sync that brought a later leader
        last = log.last_before(fact.term)
        if last <= (fact.last_term, fact.last_index):
            return ""
        return (
            f"the vote of term {fact.term} in {fact.group} goes to a log that ends with entry "
            f"{fact.last_index} of term {fact.last_term}, and entry {last[1]} of term {last[0]} is "
            f"synced here"
        )

    def learnt(self, disk: SyncedDisk, fact: CommitLearnt) -> str | None:
        """A follower's commit index: each entry is compared once."""
        key = fact.group, disk.member_of(fact.group)
        before = self._learnt.get(key, 0)
        log = disk.log(fact.group)
        if fact.index <= before or log.left:
            return None
        self._learnt[key] = fact.index
        known = self._committed.get(fact.group, {})
        for index in range(max(before, log.base_index) + 1, fact.index + 1):
            mark, ours = known.get(index), log.mark_at(index)
            if mark is not None and ours is not None and mark != ours:
                return (
                    f"entry {index} of {fact.group}, of term {term_of(ours)}, counts as committed "
                    f"here, and the one of term {term_of(mark)} is"
                )
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
        held = self._told.get(group, {}).get(term, {}).get(index)
        if held is None:
            held = disk.log(group).mark_at(index)
        if held is None:
            held = self._cut_off.get(group, {}).get(index)
        # What a snapshot stands for is what was committed in the generation before.
        origin = self._origins.get(group) if held is None else None
        if origin is None or index > origin.inherited.base_index:
            return held
        return self._known(origin.parent, index)

    def cut_off(self, group: str, log: SyncedLog, base: Base) -> None:
        """``log`` is to be cut at ``base``: what is cut off was committed. The only voter of a
        group tells of no commit before another node learns, and may have cut its log by then.
        """
        if base.whole:
            return
        for index in range(max(self.commit_index(group) + 1, log.first), base.index + 1):
            mark = log.mark_at(index)
            if mark is not None:
                self._cut_off.setdefault(group, {}).setdefault(index, mark)

    def committed_mark(self, group: str, index: int) -> int | None:
        """The mark of the entry, where it is known to be committed in ``group`` or before it."""
        return self._known(group, index)

    def _known(self, group: str, index: int) -> int | None:
        """The mark of a committed entry, where that was judged in ``group`` or before it."""
        mark = self._committed.get(group, {}).get(index)
        began: list[_Origin] = []
        while mark is None and (origin := self._origins.get(group)) is not None:
            began.append(origin)
            group = origin.parent
            mark = self._committed.get(group, {}).get(index)
        # A copy that went its own way before a reset goes on with another entry in that place.
        if mark is None or not all(origin.inherited.holds(index, mark) for origin in began):
            return None
        return mark

    def began(self, disk: SyncedDisk, fact: NewGeneration) -> frozenset[str] | None:
        """Return the transactions of which ``disk``, the first one in a new generation, lacks an
        entry; ``None`` where another one was the first.
        """
        survivor = disk.log(fact.successor)
        origin = self._origins.get(fact.successor)
        if origin is not None:
            survivor.inherit(origin.inherited)
            return None
        inherited = SyncedLog()
        inherited.base_index, inherited.first = survivor.base_index, survivor.first
        inherited.marks = survivor.marks[:]
        self._origins[fact.successor] = _Origin(fact.root, fact.group, inherited)
        names = self._names(fact.root)
        self._generations.setdefault(fact.root, []).append(fact.successor)
        return frozenset(
            txn
            for name in names
            for (index, mark), txns in self._parts.get(name, {}).items()
            if not inherited.holds(index, mark)
            for txn in txns
        )

    def _names(self, root: str) -> tuple[str, ...]:
        return (root, *self._generations.get(root, ()))

    def root(self, group: str) -> str:
        """The first generation of ``group``."""
        origin = self._origins.get(group)
        return group if origin is None else origin.root

    def inherits(self, group: str, index: int, mark: int) -> bool:
        """Whether the generation ``group`` began with the entry."""
        origin = self._origins.get(group)
        return origin is not None and origin.inherited.holds(index, mark)

    def repeats(self, group: str, index: int, mark: int) -> bool:
        """Whether the entry was committed in a generation before ``group``, too."""
        origin = self._origins.get(group)
        return origin is not None and mark != 0 and self._known(origin.parent, index) == mark

    def is_cut(self, group: str, index: int, mark: int) -> bool:
        """Whether a generation that began after ``group`` lacks the entry."""
        names = self._names(self.root(group))
        later = names[names.index(group) + 1 :]
        return any(not self.inherits(name, index, mark) for name in later)

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

    def reconfigured(self, log: SyncedLog, update: LogUpdate) -> str | None:
        """Other members count from entries of ``update`` on, which is to be written to ``log``:
        each time that those before them count must be certain by then. Whether the leader writes
        two together or a follower learns of both at once makes no difference to that.
        """
        group, text = update.group, None
        changes = [e for e in update.entries if any(isinstance(f, Members) for f in e.says)]
        if not changes or group in self._origins:
            return None
        at = log.members[-1][0] if log.members else 0
        # What the update replaces was of a leader that is gone, and need not have come to count.
        mark = log.mark_at(at) if at < update.entries[0].index else None
        for entry in changes:
            lacking = "" if mark is None else self._lives.shortfall(group, at, mark)
            if lacking:
                what = f"entry {entry.index} of {group} changes members again after {at}"
                return f"{what}, and {lacking}"
            text = text if mark is None else ""
            # What is written anew was judged when it came.
            whole = update.base is not None and update.base.whole
            at, mark = entry.index, None if whole else entry.mark
        return text

    def logged(self, group: str, entry: LogEntry) -> None:
        """Note the commands of ``entry``."""
        parts = tuple(fact.txn for fact in entry.says if isinstance(fact, Command) and fact.txn)
        if parts:
            self._parts.setdefault(group, {})[(entry.index, entry.mark)] = parts
        for fact in entry.says:
            if isinstance(fact, LoggedWrites):
                place = entry.index, entry.mark
                self._writes[(group, fact.txn, fact.epoch)] = place, fact
            elif isinstance(fact, Command):
                places = self._places.setdefault((group, fact.name), [])
                if (entry.index, entry.mark) not in places:
                    places.append((entry.index, entry.mark))

    def undecided(self, fact: LockRelease) -> str | None:
        """The primary that has proposed writes of a transaction gives its locks up: by then they
        are certain. Where they are of no majority they may yet be, and under no lock.
        """
        found = self._writes.get((fact.group, fact.txn, fact.epoch))
        if found is None or fact.group in self._generations:
            return None
        place, written = found
        lacking = self._lives.shortfall(fact.group, *place)
        if not lacking or self.is_void(written):
            return ""
        text = f"{fact.txn} gives up its locks in {fact.group}, with writes in entry {place[0]}"
        return f"{text}, and {lacking}"

    def is_void(self, fact: LoggedWrites) -> bool:
        """Whether what voids ``fact`` is certain. Where that came behind it in the log, ``fact``
        was certain before, and its locks were free to go.
        """
        return bool(fact.void_after) and not self._uncertain(fact.group, fact.void_after)

    def acknowledged(self, fact: Acknowledgement) -> str:
        """All commands of a transaction are on majorities."""
        if fact.lacking:
            return f"{fact.what}: its write of {', '.join(fact.lacking)} is in no log"
        for group, name in fact.commands:
            if where := self._uncertain(group, name):
                return f"{fact.what}: {name} of {group} is acknowledged, and {where}"
        return ""

    def ended(self, fact: OutcomeDrop) -> str:
        """An outcome is dropped: nothing asks for it once all ends are certain."""
        for group, name in fact.ends:
            if where := self._uncertain(group, name):
                return f"the outcome of {fact.txn} is dropped, and of the {name} in {group} {where}"
        return ""

    def _uncertain(self, group: str, name: str) -> str:
        """Why the command ``name`` of ``group`` is not certain; empty where it is."""
        # A node that asked before a reset may tell its client after it.
        names = self._names(group)
        places = [
            (generation, place)
            for generation in names
            for place in self._places.get((generation, name), [])
        ]
        # A generation that began with the entry has it by the voters of its own.
        places += [
            (later, place)
            for generation, place in places
            for later in names[names.index(generation) + 1 :]
            if self.inherits(later, *place)
        ]
        lacking = [self._lives.shortfall(generation, *place) for generation, place in places]
        if not all(lacking):
            return ""
        return lacking[0] if lacking else "no synced disk holds it"
