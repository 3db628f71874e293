"""Which generation each operation on a key is of: an exact search within bounds.

Generations follow one another, so times and lists bound each operation's generation from below by
those of others (``_Edges``), and the least and the greatest solution of such bounds are found by
raising or lowering values until nothing changes. The one choice that is tried out is how far the
list of each generation is known to have grown: every list that was read is a prefix of one of them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import attrs
import numpy as np

from checkers.engine.arrays import Bools, Ints

# What needs more is undecided: choices of lists that are tried, and operations, each pair of which
# is looked at.
TRIED_MAX = 4096
OPERATIONS_MAX = 1000
# Steps of Python: for a key's own operations and elements, and to spare for all keys.
WORK_A_ROW, WORK_SPARE = 100, 1_000_000
AT_ONCE = 20  # steps of numpy that take as long as one of Python
CALLS = 300  # steps of Python that the calls of numpy take in one trial
Elements = tuple[int, ...]
Op = TypeVar("Op", bound="PlacedOperation")


class PlacedOperation(Protocol):
    """An operation that may be of the generations from ``first`` to ``last``."""

    @property
    def start_ns(self) -> int: ...
    @property
    def finish_ns(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


class Read(PlacedOperation, Protocol):
    """A read of a list; ``current`` reads see what was acknowledged before them."""

    @property
    def elements(self) -> Elements: ...
    @property
    def current(self) -> bool: ...


class Append(PlacedOperation, Protocol):
    """An append of one element; its end is unbounded where it was not acknowledged."""

    @property
    def element(self) -> int: ...
    @property
    def acked(self) -> bool: ...


class TooMuchWork(Exception):
    """To compare lists around resets takes more steps than a history of that size may take."""


@attrs.define
class Work:
    """The steps that are left for comparing. They are counted, not timed: what is decided must not
    depend on the machine.
    """

    left: int = WORK_SPARE

    def spend(self, steps: int) -> None:
        """Count ``steps``. Raises ``TooMuchWork`` where fewer were left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork


@attrs.frozen(kw_only=True)
class Placement:
    """The generation of each read and, where the search ``decided``, whether its lists and times
    fit together at all; ``spans`` are the generations in which each append may be then, by element.
    """

    places: tuple[int, ...]
    fits: bool
    decided: bool
    others: tuple[tuple[int, ...], ...] = ()
    spans: Mapping[int, tuple[int, int]] = attrs.field(factory=dict)


def place_reads(reads: Sequence[Read], appends: Sequence[Append], work: Work) -> Placement:
    """Place committed ``reads``. Of several ways to place all of them the latest generations are
    preferred; ``others`` are further ways, not all. Raises ``TooMuchWork``.
    """
    told = _telling(reads)
    some = [reads[n] for n in told]
    if len(some) + len(appends) > OPERATIONS_MAX:
        return Placement(places=tuple(r.last for r in reads), fits=False, decided=False)
    few = _Few.of((*some, *appends))
    work.spend(len(some) * len(few.earliest))
    found = _placed([few.of_op(r) for r in some], [few.of_op(a) for a in appends], few, work)

    def every(way: Sequence[int]) -> tuple[int, ...]:
        of = dict(zip(told, way, strict=True))
        return tuple(of.get(n, read.last) for n, read in enumerate(reads))

    return attrs.evolve(found, places=every(found.places), others=tuple(map(every, found.others)))


@attrs.frozen(kw_only=True)
class _Few:
    """The generations between which operations differ, numbered from 0. Between two in which one
    begins or ends, all are alike for the operations that last through them: no more of these are
    looked at than there are such operations. What is found there as early, or as late, as can be is
    as early or as late among all of them.
    """

    earliest: Sequence[int]
    latest: Sequence[int]
    number: Mapping[int, int]

    @classmethod
    def of(cls, operations: Sequence[PlacedOperation]) -> _Few:
        bounds = sorted({at for op in operations for at in (op.first, op.last)})
        begun = Counter(op.first for op in operations)
        ended = Counter(op.last for op in operations)
        earliest, latest, number, through = list[int](), list[int](), dict[int, int](), 0
        for at, after in itertools.zip_longest(bounds, bounds[1:]):
            number[at] = len(earliest)
            earliest.append(at)
            latest.append(at)
            through += begun[at] - ended[at]
            if after is not None:
                kept = min(after - at - 1, through)
                earliest += range(at + 1, at + 1 + kept)
                latest += range(after - kept, after)
        return cls(earliest=earliest, latest=latest, number=number)

    def of_op(self, op: Op) -> Op:
        """Return ``op`` with its generations as they are numbered here."""
        changed: Op = attrs.evolve(  # type: ignore[misc]
            op, first=self.number[op.first], last=self.number[op.last]
        )
        return changed


def _telling(reads: Sequence[Read]) -> list[int]:
    """Return the positions of ``reads`` but those that bound no other: of reads that are of one
    generation for certain, and alike, those between the first to end and the last to begin.
    """
    ends: dict[tuple[int, bool, Elements], tuple[int, int]] = {}
    kept = set[int]()
    for n, read in enumerate(reads):
        if read.first != read.last:
            kept.add(n)
            continue
        alike = (read.last, read.current, read.elements)
        one, other = ends.get(alike, (n, n))
        ends[alike] = (
            min(one, n, key=lambda at: (reads[at].finish_ns, at)),
            max(other, n, key=lambda at: (reads[at].start_ns, at)),
        )
    return sorted(kept.union(*ends.values()))


def _placed(reads: Sequence[Read], appends: Sequence[Append], few: _Few, work: Work) -> Placement:
    undecided = Placement(
        places=tuple(few.latest[r.last] for r in reads), fits=False, decided=False
    )
    problem = _Problem(reads, appends, len(few.earliest), work)
    choices = _lists(reads, len(few.earliest))
    if math.prod(len(each) for each in choices) > TRIED_MAX:
        return undecided
    leaves = _leaves(reads)
    best: tuple[int, tuple[int, ...]] | None = None
    ways: list[tuple[int, ...]] = []
    spans: dict[int, tuple[int, int]] = {}
    for chosen in itertools.product(*choices):
        work.spend(len(chosen))
        known = {each for each in chosen if each is not None}
        if best is not None and best[0] == 0 and not leaves <= known:
            continue
        allowed = problem.allowed(reads, chosen)
        failed, found = problem.least(allowed)
        low = [few.earliest[at] for at in found]
        if not failed and leaves <= known:
            high = [few.latest[at] for at in problem.greatest(allowed)]
            ways += [tuple(high[: len(reads)]), tuple(low[: len(reads)])]
            for at, append in enumerate(appends, len(reads)):
                since, until = spans.get(append.element, (low[at], high[at]))
                spans[append.element] = min(since, low[at]), max(until, high[at])
        failed += len(leaves - known)
        if best is None or failed < best[0]:
            best = failed, tuple(low[: len(reads)])
    ways = sorted(dict.fromkeys(ways), key=lambda way: [-at for at in way])
    if ways:
        first, *others = ways
        return Placement(places=first, fits=True, decided=True, others=tuple(others), spans=spans)
    places = best[1] if best else ()
    return Placement(places=places, fits=not reads, decided=True)


def _lists(reads: Sequence[Read], generations: int) -> list[list[Elements | None]]:
    """Return for each generation the lists that it may be known to have grown to; ``None`` where no
    read needs to be of it.
    """
    found: list[list[Elements | None]] = []
    for at in range(generations):
        fixed = [r.elements for r in reads if r.first == r.last == at]
        whole = max(fixed, key=len, default=())
        free = {r.elements for r in reads if r.first <= at <= r.last and r.first != r.last}
        longer = sorted(
            (e for e in free if len(e) > len(whole) and e[: len(whole)] == whole),
            key=lambda e: (-len(e), e),
        )
        none = [whole] if fixed else [(), None] if () in free else [None]
        found.append([*longer, *none])
    return found


def _leaves(reads: Sequence[Read]) -> set[Elements]:
    """Return the lists of which no other one is a continuation: each is some generation's whole."""
    distinct = sorted({read.elements for read in reads})
    return {
        one
        for one, after in itertools.zip_longest(distinct, distinct[1:])
        # What continues a list follows it in this order.
        if after is None or after[: len(one)] != one
    }


class _Problem:
    """Reads, then appends, as nodes: each edge (one, other, more) says that the generation of the
    other is that of the one plus ``more`` at least.
    """

    def __init__(
        self, reads: Sequence[Read], appends: Sequence[Append], generations: int, work: Work
    ) -> None:
        count = len(reads) + len(appends)
        work.spend((count * (count + generations)) // AT_ONCE)
        self._one, self._other, self._more = _edges(reads, appends)
        self._first = np.asarray([op.first for op in (*reads, *appends)], dtype=np.int64)
        self._last = np.asarray([op.last for op in (*reads, *appends)], dtype=np.int64)
        self._generations = generations
        self._work, self._table = work, count * generations

    def allowed(self, reads: Sequence[Read], chosen: Sequence[Elements | None]) -> Bools:
        """Return for each operation the generations that its list allows."""
        self._work.spend(CALLS + self._table // AT_ONCE)
        at = np.arange(self._generations)
        found: Bools = (at >= self._first[:, None]) & (at <= self._last[:, None])
        for n, read in enumerate(reads):
            size = len(read.elements)
            self._work.spend(read.last - read.first)
            for place in range(read.first, read.last + 1):
                whole = chosen[place]
                found[n, place] = whole is not None and whole[:size] == read.elements
        return found

    def least(self, allowed: Bools) -> tuple[int, list[int]]:
        """Return how many operations fit no generation, and the least generation of each."""
        most = self._generations
        # Of each operation the first allowed generation from each on; ``most`` for none.
        after = np.full((len(allowed), most + 2), most)
        for at in range(most - 1, -1, -1):
            after[:, at] = np.where(allowed[:, at], at, after[:, at + 1])
        nodes, now = np.arange(len(allowed)), after[:, 0].copy()
        while True:
            self._work.spend(CALLS // 10 + len(self._one) // AT_ONCE)
            bound = now.copy()
            # What fits no generation bounds nothing.
            told = np.where(now[self._one] < most, now[self._one] + self._more, 0)
            np.maximum.at(bound, self._other, told)
            raised = after[nodes, bound]
            if np.array_equal(raised, now):
                break
            now = raised
        failed = now == most
        return int(failed.sum()), np.where(failed, self._first, now).tolist()

    def greatest(self, allowed: Bools) -> list[int]:
        """Return the greatest generation of each operation, where all fit."""
        nodes, now = np.arange(len(allowed)), self._last.copy()
        before = np.zeros_like(allowed, dtype=np.int64)
        for at in range(self._generations):
            before[:, at] = np.where(allowed[:, at], at, before[:, max(at - 1, 0)])
        while True:
            self._work.spend(CALLS // 10 + len(self._one) // AT_ONCE)
            bound = now.copy()
            np.minimum.at(bound, self._one, now[self._other] - self._more)
            lowered = before[nodes, bound]
            if np.array_equal(lowered, now):
                return list(now.tolist())
            now = lowered


def _edges(reads: Sequence[Read], appends: Sequence[Append]) -> tuple[Ints, Ints, Ints]:
    known = {append.element: m for m, append in enumerate(appends)}
    shown = np.zeros((len(reads), len(appends)), dtype=np.bool_)
    for n, read in enumerate(reads):
        shown[n, [known[e] for e in read.elements if e in known]] = True
    begun, ended = (_times(reads, name) for name in ("start_ns", "finish_ns"))
    written, acked_ns = (_times(appends, name) for name in ("start_ns", "finish_ns"))
    size = np.asarray([len(read.elements) for read in reads], dtype=np.int64)
    current = np.asarray([read.current for read in reads], dtype=np.bool_)
    acked = np.asarray([append.acked for append in appends], dtype=np.bool_)
    # The tables below have a row for what comes first, a column for what comes later.
    late = acked[:, None] & (acked_ns[:, None] < begun) & current
    lacks = late.T & ~shown
    both = current[:, None] & current & (ended[:, None] < begun) & ~np.eye(len(reads), dtype=bool)
    # No list of a generation ever shrinks, or gets what it once lacked.
    less = (size[:, None] > size) | _any(lacks, shown.T)
    apart = acked[:, None] & (acked_ns[:, None] < written) & ~np.eye(len(appends), dtype=bool)
    # A list without the first can't have the later one from the same generation.
    without = _any(~shown.T, shown)
    of_append = len(reads)
    parts = [
        _rows(both, less, 0, 0),
        _rows(late, ~shown.T, of_append, 0),
        _rows(current[:, None] & (ended[:, None] < written), None, 0, of_append),
        _rows(shown.T, None, of_append, 0),
        _rows(apart, without, of_append, of_append),
    ]
    one, other, more = (np.concatenate(column) for column in zip(*parts, strict=True))
    return one, other, more


def _times(operations: Sequence[PlacedOperation], name: str) -> Ints:
    return np.asarray([getattr(op, name) for op in operations], dtype=np.int64)


def _any(one: Bools, other: Bools) -> Bools:
    """Return the product of two tables of truth: whether any column of ``one`` meets its row."""
    found: Bools = one.astype(np.float32) @ other.astype(np.float32) > 0
    return found


def _rows(which: Bools, more: Bools | None, one: int, other: int) -> tuple[Ints, Ints, Ints]:
    """Return the edges of a table: its rows count from ``one`` on, its columns from ``other``."""
    row, column = np.nonzero(which)
    least = np.zeros(len(row), np.int64) if more is None else more[row, column].astype(np.int64)
    return row + one, column + other, least
