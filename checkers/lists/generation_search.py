"""Which generation each operation on a key is of: an exact search within bounds.

Generations follow one another, so times and lists bound each operation's generation from below by
those of others (``_Edges``), and the least and the greatest solution of such bounds are found by
raising or lowering values until nothing changes. The one choice that is tried out is how far the
list of each generation is known to have grown: every list that was read is a prefix of one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from checkers.engine.arrays import Bools

# What needs more is undecided: choices of lists that are tried, and operations, each pair of which
# is looked at.
TRIED_MAX = 4096
OPERATIONS_MAX = 1000
Elements = tuple[int, ...]


class Placed(Protocol):
    """An operation that may be of the generations from ``first`` to ``last``."""

    @property
    def start_ns(self) -> int: ...
    @property
    def finish_ns(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


class Read(Placed, Protocol):
    """A read of a list; ``current`` reads see what was acknowledged before them."""

    @property
    def elements(self) -> Elements: ...
    @property
    def current(self) -> bool: ...


class Append(Placed, Protocol):
    """An append of one element; its end is unbounded where it was not acknowledged."""

    @property
    def element(self) -> int: ...
    @property
    def acked(self) -> bool: ...


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


def place_reads(reads: Sequence[Read], appends: Sequence[Append], generations: int) -> Placement:
    """Place committed ``reads``. Of several ways to place all of them the latest generations are
    preferred; ``others`` are further ways, not all.
    """
    told = _telling(reads)
    some = [reads[n] for n in told]
    if len(some) + len(appends) > OPERATIONS_MAX:
        return Placement(places=tuple(r.last for r in reads), fits=False, decided=False)
    found = _placed(some, appends, generations)

    def every(way: Sequence[int]) -> tuple[int, ...]:
        of = dict(zip(told, way, strict=True))
        return tuple(of.get(n, read.last) for n, read in enumerate(reads))

    return attrs.evolve(found, places=every(found.places), others=tuple(map(every, found.others)))


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


def _placed(reads: Sequence[Read], appends: Sequence[Append], generations: int) -> Placement:
    problem = _Problem(reads, appends, generations)
    choices = _lists(reads, generations)
    if math.prod(len(each) for each in choices) > TRIED_MAX:
        return Placement(places=tuple(r.last for r in reads), fits=False, decided=False)
    leaves = _leaves(reads)
    best: tuple[int, tuple[int, ...]] | None = None
    ways: list[tuple[int, ...]] = []
    spans: dict[int, tuple[int, int]] = {}
    for chosen in itertools.product(*choices):
        known = {each for each in chosen if each is not None}
        if best is not None and best[0] == 0 and not leaves <= known:
            continue
        allowed = problem.allowed(reads, chosen)
        failed, low = problem.least(allowed)
        if not failed and leaves <= known:
            high = problem.greatest(allowed)
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

    def __init__(self, reads: Sequence[Read], appends: Sequence[Append], generations: int) -> None:
        edges = np.asarray(sorted(set(_edges(reads, appends))), dtype=np.int64).reshape(-1, 3)
        self._one, self._other, self._more = edges.T
        self._first = np.asarray([op.first for op in (*reads, *appends)], dtype=np.int64)
        self._last = np.asarray([op.last for op in (*reads, *appends)], dtype=np.int64)
        self._reads, self._generations = len(reads), generations

    def allowed(self, reads: Sequence[Read], chosen: Sequence[Elements | None]) -> Bools:
        """Return for each operation the generations that its list allows."""
        at = np.arange(self._generations)
        found: Bools = (at >= self._first[:, None]) & (at <= self._last[:, None])
        for n, read in enumerate(reads):
            size = len(read.elements)
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
            bound = now.copy()
            np.minimum.at(bound, self._one, now[self._other] - self._more)
            lowered = before[nodes, bound]
            if np.array_equal(lowered, now):
                return list(now.tolist())
            now = lowered


def _edges(reads: Sequence[Read], appends: Sequence[Append]) -> Iterator[tuple[int, int, int]]:
    current = [(n, read) for n, read in enumerate(reads) if read.current]
    own = list(enumerate(appends, len(reads)))
    shown = [frozenset(read.elements) for read in reads]
    lacks = {
        n: {a.element for a in appends if a.acked and a.finish_ns < read.start_ns} - shown[n]
        for n, read in current
    }
    for (m, one), (n, other) in itertools.permutations(current, 2):
        if one.finish_ns < other.start_ns:
            # No list of a generation ever shrinks, or gets what it once lacked.
            shrunk = len(other.elements) < len(one.elements)
            yield m, n, shrunk or not lacks[m].isdisjoint(shown[n])
    for (n, read), (m, append) in itertools.product(current, own):
        if append.acked and append.finish_ns < read.start_ns:
            yield m, n, append.element not in shown[n]
        if read.finish_ns < append.start_ns:
            yield n, m, 0
    for n, elements in enumerate(shown):
        for m, append in own:
            if append.element in elements:
                yield m, n, 0
    for (m, first), (n, later) in itertools.permutations(own, 2):
        if first.acked and first.finish_ns < later.start_ns:
            # A list without the first can't have the later one from the same generation.
            yield m, n, any(later.element in e and first.element not in e for e in shown)
