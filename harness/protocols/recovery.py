"""When a rate counts as back: the one rule of the limit ``recovered_within_s``, of the report, and
of the time to recover that runs are compared by.

The rate before a fault is that of the last time without any, ``MIN_CALM_NS`` to ``BEFORE_NS`` of
it; where that ended with another fault's begin, too little was free of faults since. ``MIN_BEFORE``
acknowledgements at least tell it. In an open loop it is at most the rate that is asked for: what is
more is a backlog that it catches up with. After the heal an open loop owes what it meant to begin
before; that doesn't count either. When it meant to begin others is known, though drawn: the same
rate is the same share of these (``Arrivals``), so that few of them by chance lower no rate, nor
many by chance make up for what was not served.

The rate is back at the first acknowledgement from which on ``SHARE`` of it is acknowledged over
``counting_ns``: as long as 200 acknowledgements take at the rate before, since a second of few says
little. Half of that has to come in each of its beginnings (``PARTS``), so that no later service
hides a silence. A few transactions tell a rate by chance only: where one that came back whole
would often be counted lower, so much less is enough, but never less than ``LEAST_SHARE``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from harness.clock import NS_PER_S
from harness.protocols.fault_spans import FaultSpan

SHARE, LEAST_SHARE = 0.9, 0.8
BEFORE_NS = 10 * NS_PER_S
MIN_CALM_NS = NS_PER_S  # of the time before a fault: a shorter one tells no rate
MIN_BEFORE = 20  # acknowledgements before a fault: fewer tell no rate
NOTICED_NS = 3 * NS_PER_S  # a store may take so long to notice a loss of nodes
COUNTED, MIN_COUNT_NS, MAX_COUNT_NS = 200, NS_PER_S, 5 * NS_PER_S
PARTS = (8, 4, 2)
FOREVER_NS = 2**62
DRAWN = 4.0  # standard deviations by which drawn arrivals may differ from their rate

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


def calms_before(
    spans: Sequence[FaultSpan], drive_ns: int, over_ns: int
) -> dict[int, tuple[int, int]]:
    """Return from when to when the rate before each fault is counted, by the fault's number; none
    where no time before it was long enough free of faults. ``spans`` are all faults of a drive from
    ``drive_ns`` to ``over_ns``, in the order of their begin.
    """
    found, clear_ns, calm = dict[int, tuple[int, int]](), drive_ns, None
    for span in spans:
        if span.begin_ns - clear_ns >= MIN_CALM_NS:
            calm = max(clear_ns, span.begin_ns - BEFORE_NS), span.begin_ns
        if calm is not None:
            found[span.fault] = calm
        clear_ns = max(clear_ns, span.end_ns(over_ns))
    return found


@attrs.frozen(kw_only=True, eq=False)
class Calms:
    """When no fault of a drive is in force, around each: ``before`` says when the rate before it is
    counted, by its number. ``healed`` are the two latest heals of each fault and all that began
    before it, each with its number.
    """

    drive_ns: int
    over_ns: int
    begins: Ints
    healed: Sequence[tuple[tuple[int, int], tuple[int, int]]]
    before: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, spans: Sequence[FaultSpan], drive_ns: int, over_ns: int) -> Calms:
        """Those around ``spans``, in the order of their begin, from ``drive_ns`` to ``over_ns``."""
        none, found = (-1, -1), list[tuple[tuple[int, int], tuple[int, int]]]()
        first, second = none, none
        for span in spans:
            healed_ns = FOREVER_NS if span.healed_ns is None else span.healed_ns
            first, second, _ = sorted([first, second, (healed_ns, span.fault)], reverse=True)
            found.append((first, second))
        return cls(
            drive_ns=drive_ns,
            over_ns=over_ns,
            begins=np.array([span.begin_ns for span in spans], dtype=np.int64),
            healed=found,
            before=calms_before(spans, drive_ns, over_ns),
        )

    def clear_ns(self, calm: tuple[int, int]) -> int:
        """By when all faults that began before ``calm`` had ended, in which none is in force."""
        count = int(np.searchsorted(self.begins, calm[1]))
        return self.healed[count - 1][0][0] if count else self.drive_ns

    def until(self, span: FaultSpan, end_ns: int) -> int:
        """Until when none but ``span`` is in force from its end on; ``end_ns`` where another is."""
        count = int(np.searchsorted(self.begins, end_ns, side="right"))
        for other_ns, number in self.healed[count - 1] if count else ():
            if number != span.fault and other_ns > end_ns:
                return end_ns
        next_ns = int(self.begins[count]) if count < len(self.begins) else self.over_ns
        return max(end_ns, min(self.over_ns, next_ns))


@attrs.frozen(kw_only=True, eq=False)
class Arrivals:
    """When an open loop meant the transactions of its drive to begin, ascending, at ``per_ns`` a
    nanosecond. What was due behind the last is not recorded: no client was free for it.
    """

    at: Ints
    per_ns: float

    @classmethod
    def of(cls, intended: Ints, asked_per_s: float | None, over_ns: int) -> Arrivals | None:
        """Those of a drive until ``over_ns`` that was asked for ``asked_per_s`` transactions, which
        were ``intended`` to begin then, in any order; ``None`` of a closed loop, that is asked for
        no rate.
        """
        if asked_per_s is None:
            return None
        return cls(at=np.sort(intended[intended < over_ns]), per_ns=asked_per_s / NS_PER_S)

    def counts(self, starts: Ints, long_ns: int) -> Floats:
        """Return how many were due in the times of ``long_ns`` from each of ``starts`` on; no more
        or less than chance lets be drawn.
        """
        last_ns = int(self.at[-1]) if len(self.at) else 0
        unrecorded_ns = np.clip(starts + long_ns - np.maximum(starts, last_ns), 0, None)
        mean = self.per_ns * long_ns
        chance = DRAWN * math.sqrt(mean)
        due = _counts(self.at, starts, long_ns) + self.per_ns * unrecorded_ns
        return np.clip(due, mean - chance, mean + chance)


@attrs.frozen(kw_only=True, eq=False)
class Rate:
    """A rate of ``per_ns`` acknowledgements a nanosecond, told by ``count`` of them: the share
    ``served`` of the ``arrivals`` of an open loop.
    """

    per_ns: float
    count: int
    arrivals: Arrivals | None = None
    served: float = 1.0

    @property
    def counting_ns(self) -> int:
        """Over how long acknowledgements are counted to tell it again."""
        return counting_ns(self.per_ns)

    def expected(self, starts: Ints, long_ns: int) -> Floats:
        """Return how many acknowledgements it lets expect in the times of ``long_ns`` from each of
        ``starts`` on.
        """
        if self.arrivals is None:
            return np.full(len(starts), self.per_ns * long_ns)
        return self.served * self.arrivals.counts(starts, long_ns)

    def enough(
        self, starts: Ints, long_ns: int, deviations: float = 1.0, scatter: float = 1.0
    ) -> Floats:
        """Return how many acknowledgements in so long from each of ``starts`` on count as this
        rate: ``SHARE`` of it, or what of the whole chance leaves but for so many ``deviations``, of
        counts whose variance is ``scatter`` times their mean.
        """
        expected = self.expected(starts, long_ns)
        chance = deviations * np.sqrt(scatter * (expected + expected**2 / self.count))
        return np.minimum(SHARE * expected, np.maximum(LEAST_SHARE * expected, expected - chance))


def deviation(expected: float, count_before: int, scatter: float = 1.0) -> float:
    """The standard deviation of a count of which a rate, itself told by a count, lets expect so
    many: of counts whose variance is ``scatter`` times their mean.
    """
    return math.sqrt(scatter * (expected + expected**2 / count_before))


@attrs.frozen(kw_only=True, eq=False)
class Acknowledgements:
    """When the transactions of a drive were acknowledged, ascending, and were meant to begin; an
    open loop has the ``arrivals`` of all its transactions, a closed one ``None``.
    """

    ended: Ints
    intended: Ints
    arrivals: Arrivals | None

    @classmethod
    def of(cls, ended: Ints, intended: Ints, arrivals: Arrivals | None) -> Acknowledgements:
        """Those that ended and were meant to begin so, in any order."""
        order = np.argsort(ended, kind="stable")
        return cls(ended=ended[order], intended=intended[order], arrivals=arrivals)

    def own(self, clear_ns: int, start_ns: int, end_ns: int) -> Ints:
        """Return those from ``start_ns`` until ``end_ns``, without what an open loop meant to begin
        before ``clear_ns`` and caught up with afterwards.
        """
        low, high = np.searchsorted(self.ended, [start_ns, end_ns])
        ended, intended = self.ended[low:high], self.intended[low:high]
        if self.arrivals is None:
            return ended
        return ended[(ended < clear_ns) | (intended >= clear_ns)]

    def counts(self, starts: Ints, long_ns: int) -> Ints:
        """Count those of the times of ``long_ns`` from each of ``starts`` on."""
        return _counts(self.ended, starts, long_ns)

    def rate(self, clear_ns: int, calm: tuple[int, int]) -> Rate | None:
        """Return the rate in a ``calm``, before which the last fault was over by ``clear_ns``;
        ``None`` where too few tell it.
        """
        count, long_ns = len(self.own(clear_ns, *calm)), calm[1] - calm[0]
        if count < MIN_BEFORE:
            return None
        if self.arrivals is None:
            return Rate(per_ns=count / long_ns, count=count)
        due = float(self.arrivals.counts(np.array([calm[0]]), long_ns)[0])
        per_ns = min(count / long_ns, self.arrivals.per_ns)
        served = min(1.0, count / due)
        return Rate(per_ns=per_ns, count=count, arrivals=self.arrivals, served=served)


def counting_ns(rate: float) -> int:
    """Return over how long acknowledgements are counted at a ``rate`` of so many a nanosecond."""
    return int(min(MAX_COUNT_NS, max(MIN_COUNT_NS, COUNTED / rate)))


def is_served(acks: Ints, starts: Ints, rate: Rate) -> Bools:
    """Tell of the times of ``rate.counting_ns`` from ``starts`` on whether ``acks``, ascending,
    are enough for ``rate``.
    """
    long_ns = rate.counting_ns
    found: Bools = _counts(acks, starts, long_ns) >= rate.enough(starts, long_ns)
    return found


def is_back(acks: Ints, starts: Ints, rate: Rate) -> Bools:
    """Tell at which of ``starts`` the rate is back: half of enough comes in each beginning, too."""
    long_ns, found = rate.counting_ns, is_served(acks, starts, rate)
    half = rate.enough(starts, long_ns) / 2
    for part in PARTS:
        found &= _counts(acks, starts, long_ns // part) >= half / part
    return found


def _counts(acks: Ints, starts: Ints, long_ns: int) -> Ints:
    counts = np.searchsorted(acks, starts + long_ns) - np.searchsorted(acks, starts)
    return counts.astype(np.int64)


def first_back(acks: Ints, rate: Rate, start_ns: int, end_ns: int) -> int | None:
    """Return the first of ``acks``, ascending, from ``start_ns`` on at which the rate is back, as
    far as what comes until ``end_ns`` tells it; ``None`` where it is not.
    """
    low, high = np.searchsorted(acks, [start_ns, end_ns])
    starts = np.unique(np.append(acks[low:high], start_ns))
    starts = starts[starts + rate.counting_ns <= end_ns]
    back = starts[is_back(acks, starts, rate)]
    return int(acks[np.searchsorted(acks, back[0])]) if len(back) else None
