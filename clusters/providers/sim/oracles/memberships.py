"""Elections and members: a leader has the votes of its group, the members of a group change in
steps whose majorities meet, none votes before it has caught up, and a cut of a log keeps the
members of its place.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusters.providers.sim.oracles.histories import Histories
from clusters.providers.sim.oracles.synced_disks import Lives, Place, SyncedDisk, SyncedLog
from harness.protocols.claims import Base, LogEntry, LogUpdate, Members, TermClaim

KEPT_TERMS = 4  # of each group whose votes are remembered
# Before the members that a new voter was taken in by were written: what was committed by then it
# has. The leader had written them a moment before the first disk has them, which may be a slow one.
CAUGHT_UP_BEFORE_S = 2.0


class Elections:
    """The votes that were told, by group, term and voter; and the terms whose leaders were held
    against them.
    """

    def __init__(self) -> None:
        self._votes: dict[str, dict[int, dict[str, str]]] = {}
        self._led: dict[tuple[str, str], int] = {}  # group and leader: the last term

    def voted(self, disk: SyncedDisk, fact: TermClaim) -> None:
        """A vote is told; a leader tells its own with every message."""
        if fact.vote is None:
            return
        terms = self._votes.setdefault(fact.group, {})
        votes = terms.get(fact.term)
        if votes is None:
            votes = terms[fact.term] = {}
            for old in sorted(terms)[:-KEPT_TERMS]:
                del terms[old]
        votes[disk.member_of(fact.group)] = fact.vote

    def leads(self, disk: SyncedDisk, group: str, term: int) -> str | None:
        """The member of ``disk`` acts as the leader of ``term``, judged once: by the configuration
        on its disk, behind which its own vote was written.
        """
        leader = disk.member_of(group)
        key = group, leader
        if self._led.get(key, 0) >= term:
            return None
        self._led[key] = term
        log, votes = disk.log(group), self._votes.get(group, {}).get(term)
        if votes is None or log.left or log.term != term or not log.members:
            return None
        members = log.members[-1][1]
        for half in (members.voters, members.outgoing):
            count = sum(votes.get(name) == leader for name in half)
            if half and count <= len(half) // 2:
                return (
                    f"{leader} leads term {term} of {group} by the votes of {count} of the "
                    f"{len(half)} voters {' '.join(half)}"
                )
        return ""


class Configurations:
    """The members of each group by what is committed, and what each disk says of them."""

    def __init__(self) -> None:
        self._logged: dict[str, dict[Place, Members]] = {}
        self._committed: dict[str, list[tuple[int, Members]]] = {}
        self._unknown: dict[str, None] = {}  # groups of which a committed entry was never seen

    def logged(self, group: str, entry: LogEntry) -> None:
        """A disk holds ``entry``."""
        for fact in entry.says:
            if isinstance(fact, Members):
                self._logged.setdefault(group, {})[(entry.index, entry.mark)] = fact

    def committed(self, group: str, index: int, mark: int) -> None:
        """The next entry of ``group`` is committed; ``mark`` 0: which one is not known."""
        if not mark:
            self._unknown[group] = None
        members = self._logged.get(group, {}).get((index, mark))
        if members is not None:
            self._committed.setdefault(group, []).append((index, members))

    def alone(self, group: str, index: int) -> list[tuple[Place, Members]]:
        """The entries of ``group`` up to ``index`` from which on one set of voters decides alone,
        as far as any disk has had them.
        """
        known = self._logged.get(group, {}).items()
        return [(at, found) for at, found in known if at[0] <= index and not found.outgoing]

    def stepped(self, log: SyncedLog, update: LogUpdate) -> str | None:
        """The changes of members in ``update``, which is to be written to ``log``; ``None`` where
        there is none, or none before it is known.
        """
        judged = None
        before: Members | None = None
        for index, members in self.changes(log, update):
            if before is not None and before.voters and members.voters:
                judged = ""
                if text := _step(before, members):
                    return f"entry {index} of {update.group} {text}"
            before = members
        return judged

    def changes(self, log: SyncedLog, update: LogUpdate) -> Iterator[tuple[int, Members]]:
        """Yield the configuration that counted before ``update``, and those in it."""
        first = update.entries[0].index if update.entries else 0
        base = update.base
        if base is not None and base.whole:
            yield base.index, base.members
        elif kept := [each for each in log.members if each[0] < first]:
            yield kept[-1]
        for entry in update.entries:
            for fact in entry.says:
                if isinstance(fact, Members):
                    yield entry.index, fact

    def cut(self, log: SyncedLog, group: str, base: Base, commit: int) -> str | None:
        """``log`` is to be cut at ``base``: the members that it names are those of its place.
        ``commit``: up to where it is known what was committed.

        Of what its own disk cuts off the disk tells, since nothing is cut that is not committed;
        of an installed snapshot, which stands for entries that may never have been here, what was
        committed.
        """
        known = self._committed.get(group, []) if base.whole else log.members
        # At the same place as before nothing is cut off: a group is founded, and perhaps again.
        if base.index < log.base_index or (base.index == log.base_index and not base.whole):
            return None
        if base.whole and (base.index > commit or group in self._unknown):
            return None
        expected = [members for index, members in known if index <= base.index]
        if not expected or not expected[-1].voters or not base.members.voters:
            return None
        if expected[-1] == base.members:
            return ""
        return (
            f"{group} is cut at entry {base.index} with {_worded(base.members)}, and there its "
            f"members are {_worded(expected[-1])}"
        )


class Promotions:
    """New voters, and what was committed as they were taken in to learn."""

    def __init__(self, lives: Lives, histories: Histories) -> None:
        self._lives, self._histories = lives, histories
        # By group, index and members of an entry: what a new voter behind it has at the least.
        self._least: dict[tuple[str, int, Members], int] = {}
        self._judged: dict[tuple[str, int, Members], None] = {}

    def logged(self, now_s: float, group: str, entry: LogEntry) -> None:
        """The first disk holds ``entry``."""
        for fact in entry.says:
            if isinstance(fact, Members):
                least = self._histories.commit_index(now_s - CAUGHT_UP_BEFORE_S, group)
                self._least.setdefault((group, entry.index, fact), min(least, entry.index))

    def promoted(
        self, group: str, before: tuple[int, Members], after: tuple[int, Members]
    ) -> str | None:
        """The members of ``group`` become those of the entry ``after``, behind those of ``before``;
        ``None`` where no new voter is among them, and once a disk has it: later ones are written
        anew, and a new voter's own is, too.
        """
        place, members = before
        least = self._least.get((group, place, members))
        if (group, *after) in self._judged:
            return None
        self._judged[(group, *after)] = None
        known = (*members.voters, *members.outgoing)
        new = [name for name in after[1].voters if name not in known]
        new = [name for name in new if self._lives.lives(name, group)]
        if least is None or not members.voters or not new:
            return None
        for name in new:
            last = self._lives.log(name, group).last_index
            if last < least:
                return (
                    f"{name} votes in {group}, and has entries up to {last}: up to {least} were "
                    f"committed before it was taken in as a learner"
                )
        return ""


def _step(before: Members, after: Members) -> str:
    """Why majorities of ``before`` and ``after`` need not meet; empty where they do."""
    if before.outgoing:
        fits = after == before or after == Members(before.voters)
    elif after.outgoing:
        fits = after.outgoing == before.voters
    else:
        fits = len(frozenset(before.voters) ^ frozenset(after.voters)) <= 1
    return "" if fits else f"changes the members from {_worded(before)} to {_worded(after)}"


def _worded(members: Members) -> str:
    text = f"({' '.join(members.voters)})"
    return f"{text}&&({' '.join(members.outgoing)})" if members.outgoing else text
