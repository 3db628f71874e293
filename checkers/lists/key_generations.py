"""The operations on one key of a partition that was reset, each in one generation; what lists of
different generations owe each other. See ``by_generation``.

Generations, reads and appends may each be thousands: nothing here goes over all of two of them, and
what has to compare pairs spends from the ``Work`` that the history's size allows.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from checkers.lists.generation_search import TRIED_MAX, TooMuchWork, Work, place_reads
from harness.protocols.consistency_models import (
    MIXED_GENERATIONS,
    RESTORED_IN_PART,
    RESTORED_OVER_WRITES,
    RETURNED_WRITE,
)
from harness.protocols.generations import GenerationTree

Row = dict[str, Any]


@attrs.frozen(kw_only=True)
class ListRead:
    """The longest read of a key by one transaction, with the ``rows`` of all of them. ``current``:
    it promises to see what was acknowledged before it began; else it may be of the past.
    """

    rows: tuple[int, ...]
    txn: int
    start_ns: int
    finish_ns: int
    elements: tuple[int, ...]
    committed: bool
    current: bool
    first: int
    last: int
    shown: frozenset[int] = attrs.field(init=False, eq=False, repr=False)

    @shown.default
    def _shown(self) -> frozenset[int]:
        return frozenset(self.elements)


@attrs.frozen(kw_only=True)
class ListAppend:
    """An append; ``finish_ns`` is ``NEVER`` unless it was acknowledged. ``first`` and ``last`` are
    the generations in which it may have taken effect.
    """

    row: int
    txn: int
    element: int
    start_ns: int
    finish_ns: int
    acked: bool
    failed: bool
    first: int
    last: int

    @property
    def certain(self) -> bool:
        """Whether it is known in which generation it took effect, if it did."""
        return self.first == self.last

    def possible(self, place: int) -> bool:
        """Tell whether it may have taken effect in the generation ``place``."""
        return self.first <= place <= self.last


PlacedRead = tuple[ListRead, int]


@attrs.frozen(kw_only=True)
class Cut:
    """A row of ``CUTS``, without partition and key: as many as elements were read, or more."""

    place: int
    kept: bool
    element: int
    writer: int
    invoke_ns: int
    known_ns: int | None
    shown_by: int | None = None
    shown_ns: int | None = None
    missed_by: int | None = None
    missed_ns: int | None = None


@attrs.frozen(kw_only=True)
class PlacedReads:
    """The committed reads of a key with their generations: in order, the ``current`` ones by
    generation, the ``longest`` of each generation (the earliest of equals).
    """

    all: tuple[PlacedRead, ...]
    current: Mapping[int, Sequence[ListRead]]
    current_places: tuple[int, ...]
    longest: Mapping[int, ListRead]

    @classmethod
    def of(cls, reads: Iterable[ListRead], places: Iterable[int]) -> PlacedReads:
        """That of ``reads``, each at one of ``places``."""
        pairs = zip(reads, places, strict=True)
        placed = tuple((read, at) for read, at in pairs if read.committed)
        current: dict[int, list[ListRead]] = {}
        longest: dict[int, ListRead] = {}
        for read, at in placed:
            if read.current:
                current.setdefault(at, []).append(read)
            if at not in longest or len(read.elements) > len(longest[at].elements):
                longest[at] = read
        return cls(
            all=placed, current=current, current_places=tuple(sorted(current)), longest=longest
        )


class KeyGenerations:
    """The operations on one key of a partition that was reset, each in one generation."""

    def __init__(
        self,
        tree: GenerationTree,
        reads: Sequence[ListRead],
        appends: Sequence[ListAppend],
        work: Work,
    ) -> None:
        self.tree = tree
        self.reads = list(reads)
        self.appends = {append.element: append for append in appends}
        self.undecided = False
        self.findings: list[Row] = []
        """Rows of ``RESET_FINDINGS``, without key."""
        self.cuts: list[Cut] = []
        self._work = work
        self._unfit: ListRead | None = None
        self.places: tuple[int, ...] = ()
        self.members: dict[int, list[ListAppend]] = {}
        """By generation the appends that belong to its list."""
        try:
            self.places = self._assign()
            self._placing = PlacedReads.of(self.reads, self.places)
            findings, cuts = list(self._told()), list(self._cuts())
            self.members = self._members()
        except TooMuchWork:
            self.undecided, self.reads, self.places = True, [], ()
        else:
            self.findings, self.cuts = findings, cuts

    def _assign(self) -> tuple[int, ...]:
        """Return the generation of each read: by its time, and by its list where that leaves a
        choice. Where no choice could be made the reads that have one are left out.
        """
        committed = [read for read in self.reads if read.committed]
        free = [read for read in committed if read.first != read.last]
        if not free:
            return tuple(read.last for read in self.reads)
        certain = [append for append in self.appends.values() if not append.failed]
        found = place_reads(committed, certain, self._work)
        if not found.decided:
            return self._without(free)
        if not found.fits:
            fixed = [read for read in committed if read.first == read.last]
            sure = [append for append in certain if append.certain]
            if place_reads(fixed, sure, self._work).fits:
                self._unfit = max(free, key=lambda read: (len(read.elements), -read.txn))
            return self._all(committed, found.places)
        for element, (first, last) in found.spans.items():
            self.appends[element] = attrs.evolve(self.appends[element], first=first, last=last)
        for places in (found.places, *found.others):
            every = self._all(committed, places)
            if not self._misfits(every):
                return every
        return self._tried(free) or self._without(free)

    def _without(self, free: Sequence[ListRead]) -> tuple[int, ...]:
        self.undecided = True
        left_out = {read.txn for read in free}
        self.reads = [read for read in self.reads if read.txn not in left_out]
        return tuple(read.last for read in self.reads)

    def _all(self, committed: Sequence[ListRead], places: Sequence[int]) -> tuple[int, ...]:
        """Return the places of all reads, of which those that did not commit tell nothing."""
        of = dict(zip((read.txn for read in committed), places, strict=True))
        return tuple(of.get(read.txn, read.last) for read in self.reads)

    def _tried(self, free: Sequence[ListRead]) -> tuple[int, ...] | None:
        """Return the places with the fewest contradictions, of all that there are; ``None`` where
        they are too many.
        """
        spans = [range(read.last, read.first - 1, -1) for read in free]
        if math.prod(map(len, spans)) > TRIED_MAX:
            return None
        txns = [read.txn for read in free]
        best: tuple[int, tuple[int, ...]] | None = None
        for chosen in itertools.product(*spans):
            of = dict(zip(txns, chosen, strict=True))
            every = tuple(of.get(read.txn, read.last) for read in self.reads)
            misfits = self._misfits(every)
            if best is None or misfits < best[0]:
                best = misfits, every
        return None if best is None else best[1]

    def _misfits(self, places: Sequence[int]) -> int:
        """Count the contradictions that the reads show where they are of ``places``."""
        self._work.spend(len(self.reads))
        placing = PlacedReads.of(self.reads, places)
        found = len(list(self._findings(placing)))
        current = [(read, at) for read, at in placing.all if read.current]
        self._work.spend(len(current) ** 2)
        for (one, at), (other, later) in itertools.permutations(current, 2):
            # A generation is over once another has been read, and no list of it ever shrinks.
            found += at < later and other.finish_ns < one.start_ns
            shorter = len(other.elements) < len(one.elements)
            found += at == later and one.finish_ns < other.start_ns and shorter
        for read, at in placing.all:
            whole = placing.longest[at].elements
            found += read.elements != whole[: len(read.elements)]
            if read.current:
                self._work.spend(len(whole) + len(self.appends))
                due = [self.appends[e] for e in whole[len(read.elements) :] if e in self.appends]
                due += [a for a in self.appends.values() if a.first == a.last == at]
                found += any(
                    a.acked and a.finish_ns < read.start_ns and a.element not in read.shown
                    for a in due
                )
        return found

    def _told(self) -> Iterator[Row]:
        found = list(self._findings(self._placing))
        if not found and self._unfit is not None:
            # What is of no generation for certain must not go unsaid.
            read = self._unfit
            row = {"element": None, "writer": read.txn, "reader": -1}
            found = [{"anomaly": MIXED_GENERATIONS, "place": max(1, read.last), **row}]
        yield from found

    def _findings(self, placing: PlacedReads) -> Iterator[Row]:
        for place, read in sorted(placing.longest.items()):
            if not place:
                continue
            before = placing.longest.get(self.tree.parents[place])
            held = before.elements if before else ()
            common = _common(held, read.elements)
            self._work.spend(len(read.elements))
            for element in read.elements[common:]:
                append = self.appends.get(element)
                if append is None or append.failed or append.possible(place):
                    continue  # garbage and aborted reads are findings of their own
                if len(held) > common:
                    # The lists have parted: what follows must be new.
                    yield _found(MIXED_GENERATIONS, place, append, read)
                elif (witness := self._absent(append, place, placing)) is not None:
                    yield _found(RETURNED_WRITE, place, append, witness)
        yield from self._restored(placing)

    def _absent(self, append: ListAppend, place: int, placing: PlacedReads) -> ListRead | None:
        """Return a read that shows that the generation ``place`` can't have got ``append`` from the
        ones whose log it continues; ``None`` where it can.
        """
        latest = self.tree.ancestor(place, append.last)
        self._work.spend(1 + len(placing.current_places))
        if latest < append.first:
            return next((read for read, _ in placing.all if append.element in read.shown), None)
        end = bisect.bisect_left(placing.current_places, place)
        for at in reversed(placing.current_places[:end]):
            if at < latest:
                break
            if not self.tree.continues(place, at):
                continue
            self._work.spend(len(placing.current[at]))
            for read in placing.current[at]:
                due = at > latest or append.finish_ns < read.start_ns
                if due and append.element not in read.shown:
                    return read
        return None

    def _restored(self, placing: PlacedReads) -> Iterator[Row]:
        """A generation that takes up another one has all of it, and hides nothing that was
        acknowledged since.
        """
        for place in self.tree.restoring:
            self._work.spend(len(self.appends))
            for append in self.appends.values():
                # In every generation in which it may have been acknowledged.
                span = range(append.first, append.last + 1) if append.acked else ()
                told = (self._against(append, at, place, placing) for at in span)
                every = list(itertools.takewhile(lambda row: row is not None, told))
                if every and len(every) == len(span):
                    yield from (row for row in every[:1] if row is not None)

    def _against(self, append: ListAppend, at: int, place: int, placing: PlacedReads) -> Row | None:
        """Return what the restored generation ``place`` breaks if ``append`` was of generation
        ``at``; ``None`` where nothing.
        """
        parent = self.tree.parents[place]
        self._work.spend(1)
        if parent < at < place and not self.tree.continues(place, at):
            return _found(RESTORED_OVER_WRITES, place, append, None)
        if at not in (parent, place):
            return None
        self._work.spend(len(placing.all))
        for read, later in placing.all:
            if not read.current or append.element in read.shown:
                continue
            if not self.tree.continues(later, place):
                continue
            # What the restored generation has got since, and passed on: a list that has grown by it
            # has all that came before.
            self._work.spend(len(read.elements))
            since = [
                self.appends[e]
                for e in read.elements
                if e in self.appends
                and self.appends[e].first >= place
                and not (later != place and self.appends[e].possible(later))
            ]
            if at == parent and (later == place or since):
                return _found(RESTORED_IN_PART, place, append, read)
            stale = later == place and append.finish_ns < read.start_ns
            if at == place and (stale or any(append.finish_ns < e.start_ns for e in since)):
                return _found(RESTORED_OVER_WRITES, place, append, read)
        return None

    def _cuts(self) -> Iterator[Cut]:
        shown = _shown_by(self._placing, self._work)
        certain: dict[int, list[ListAppend]] = {}
        for append in self.appends.values():
            if append.acked and append.certain:
                certain.setdefault(append.first, []).append(append)
        for place in self._placing.current_places:
            if not place:
                continue
            parent = self.tree.parents[place]
            longest = self._placing.longest.get(parent)
            held = longest.shown if longest else frozenset[int]()
            got = _Got.of(self._placing.current[place], place, self.appends, self._work)
            # Only what the generation before had can be cut, and only these show it either way.
            own = (append.element for append in certain.get(parent, ()))
            known = got.kept.union(held, own) & self.appends.keys()
            self._work.spend(len(known))
            for append in sorted((self.appends[e] for e in known), key=lambda a: a.row):
                had = append.element in held or (append.acked and append.certain)
                had = had and append.first <= parent and not append.failed
                if not had or not self.tree.continues(parent, append.first):
                    continue
                self._work.spend(10)
                by = shown.get(append.element, _BY_NONE)
                known_ns = by.known_ns(append, place)
                due = append.element in held or append.first == parent
                if append.element in got.kept:
                    yield _cut(append, place, known_ns, kept=True)
                elif due and got.misses(append, known_ns):
                    yield self._lost(_cut(append, place, known_ns, kept=False), by)

    def _lost(self, cut: Cut, by: _Shown) -> Cut:
        """Return ``cut``, of an append that was lost, with the reads that tell."""
        shown = [
            read
            for read, at in zip(by.reads, by.places, strict=True)
            # A branch that takes up what was cut off shows it rightly.
            if at < cut.place or self.tree.continues(at, cut.place)
        ]
        here, known_ns = self._placing.current[cut.place], cut.known_ns
        self._work.spend(len(by.reads) + len(here))
        missed = [
            read
            for read in here
            if known_ns is not None and known_ns < read.start_ns and cut.element not in read.shown
        ]
        if shown:
            last = max(shown, key=lambda read: (read.start_ns, read.txn))
            cut = attrs.evolve(cut, shown_by=last.txn, shown_ns=last.start_ns)
        if missed:
            first = min(missed, key=lambda read: (read.finish_ns, read.txn))
            cut = attrs.evolve(cut, missed_by=first.txn, missed_ns=first.finish_ns)
        return cut

    def _members(self) -> dict[int, list[ListAppend]]:
        """Return by generation the appends that a read of it shows, with all of their transactions'
        to this key; those of transactions that read it there; and those that certainly took effect
        in it.
        """
        of_txn: dict[int, list[ListAppend]] = {}
        for append in self.appends.values():
            of_txn.setdefault(append.txn, []).append(append)
        own: dict[int, set[int]] = {}  # transactions
        read_at: dict[int, set[int]] = {}  # by transaction
        for read, at in zip(self.reads, self.places, strict=True):
            self._work.spend(len(read.elements))
            own.setdefault(at, {read.txn}).add(read.txn)
            own[at].update(self.appends[e].txn for e in read.elements if e in self.appends)
            read_at.setdefault(read.txn, set()).add(at)
        found: dict[int, dict[int, ListAppend]] = {}
        for at, txns in own.items():
            for txn in txns & of_txn.keys():
                self._work.spend(len(of_txn[txn]))
                found.setdefault(at, {}).update({each.row: each for each in of_txn[txn]})
        for append in self.appends.values():
            elsewhere = read_at.get(append.txn, set()) - {append.first}
            if append.certain and not append.failed and not elsewhere:
                found.setdefault(append.first, {})[append.row] = append
        return {at: [these[row] for row in sorted(these)] for at, these in found.items()}


@attrs.frozen
class _Shown:
    """The current reads that show one element, in the order of their generations, and the earliest
    end of those so far.
    """

    reads: list[ListRead] = attrs.field(factory=list)
    places: list[int] = attrs.field(factory=list)
    least_ns: list[int] = attrs.field(factory=list)

    def add(self, read: ListRead, place: int) -> None:
        """Add a read of ``place`` or later generations than those so far."""
        self.reads.append(read)
        self.places.append(place)
        ended_ns = read.finish_ns
        self.least_ns.append(min(self.least_ns[-1], ended_ns) if self.least_ns else ended_ns)

    def known_ns(self, append: ListAppend, place: int) -> int | None:
        """Return by when ``append`` was in the log, by reads of generations before ``place`` and
        its acknowledgement; ``None`` where neither tells.
        """
        acked_ns = append.finish_ns if append.acked else None
        before = bisect.bisect_left(self.places, place)
        if not before:
            return acked_ns
        read_ns = self.least_ns[before - 1]
        return read_ns if acked_ns is None else min(read_ns, acked_ns)


_BY_NONE = _Shown()


def _shown_by(placing: PlacedReads, work: Work) -> Mapping[int, _Shown]:
    found: dict[int, _Shown] = {}
    for at in placing.current_places:
        for read in placing.current[at]:
            work.spend(len(read.shown))
            for element in read.shown:
                if element not in found:
                    found[element] = _Shown()
                found[element].add(read, at)
    return found


@attrs.frozen(kw_only=True)
class _Got:
    """What the current reads of one generation show: ``kept`` of the elements are those that a read
    shows which is of no generation before, by its time or by what else it shows.
    """

    reads: Sequence[ListRead]
    kept: frozenset[int]
    in_any: frozenset[int]
    late: bool
    last_start_ns: int
    place: int
    work: Work

    @classmethod
    def of(
        cls, reads: Sequence[ListRead], place: int, appends: Mapping[int, ListAppend], work: Work
    ) -> _Got:
        kept = set[int]()
        for read in reads:
            work.spend(len(read.elements))
            if read.first >= place or any(
                e in appends and appends[e].first >= place for e in read.elements
            ):
                kept |= read.shown
        return cls(
            reads=reads,
            kept=frozenset(kept),
            in_any=frozenset.union(*(read.shown for read in reads)),
            late=any(read.first >= place for read in reads),
            last_start_ns=max(read.start_ns for read in reads),
            place=place,
            work=work,
        )

    def misses(self, append: ListAppend, known_ns: int | None) -> bool:
        """Tell whether a read shows that the generation lacks what the one before had."""
        if append.element not in self.in_any:
            return self.late or (known_ns is not None and known_ns < self.last_start_ns)
        self.work.spend(len(self.reads))
        return any(
            append.element not in read.shown
            and (read.first >= self.place or (known_ns is not None and known_ns < read.start_ns))
            for read in self.reads
        )


def _cut(append: ListAppend, place: int, known_ns: int | None, *, kept: bool) -> Cut:
    return Cut(
        place=place,
        kept=kept,
        element=append.element,
        writer=append.txn,
        invoke_ns=append.start_ns,
        known_ns=known_ns,
    )


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _found(anomaly: str, place: int, append: ListAppend, reader: ListRead | None) -> Row:
    return {
        "anomaly": anomaly,
        "place": place,
        "element": append.element,
        "writer": append.txn,
        "reader": -1 if reader is None else reader.txn,
    }
