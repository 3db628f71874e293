"""Whether less is acknowledged in a calm than before a fault, beyond what chance explains.

Counts of two times differ by chance: by the square root of each, where transactions come one by
one, by less where clients ask at even intervals, by more where they come in bursts. So the scatter
is taken from the counts themselves, in pieces of each of ``PIECES_NS``, whichever scatters most.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np

from checkers.engine.arrays import Ints
from checkers.limits.client_outcomes import Interval, named
from harness.clock import NS_PER_S
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.recovery import Rate, deviation
from harness.text import seconds

# Standard deviations by which a count may lie below what the count before lets expect: a night
# asks thousands of times.
CHANCE = 4.0
USUAL = 2.0  # by which one in forty whole rates is counted lower
PIECES_NS = (NS_PER_S, 2 * NS_PER_S)
MIN_PIECES = 4  # of a time: fewer tell no scatter
# Of the variance, in counts: a few pieces may look even by chance.
LEAST_SCATTER = 0.25
# Of what is served of known arrivals: some begin within a time and end behind it.
OF_ARRIVALS = 0.1


@attrs.frozen(kw_only=True, eq=False)
class RateBefore:
    """The ``rate`` before ``fault``: of ``acks`` in ``period``."""

    fault: FaultSpan
    rate: Rate
    acks: Ints
    period: Interval

    @property
    def per_s(self) -> float:
        """The rate a second."""
        return self.rate.per_ns * NS_PER_S

    @cached_property
    def scatter(self) -> float:
        """See ``scatter``; 1 where the time is too short to tell it."""
        return scatter(self.acks, self.period) or 1.0


@attrs.frozen(kw_only=True, eq=False)
class RateSince:
    """``count`` acknowledgements in a ``period`` without faults, held against the rate ``before``;
    ``most`` and ``least`` are the scatters of that of both times which scatters more, and less.
    """

    before: RateBefore
    count: int
    period: Interval
    most: float
    least: float

    @property
    def _length_ns(self) -> int:
        return self.period[1] - self.period[0]

    @property
    def share(self) -> float:
        """Of the rate before."""
        return self.count / (self.before.rate.per_ns * self._length_ns)

    @property
    def is_enough(self) -> bool:
        """Whether it counts as the rate before: no more chance than either time shows excuses it,
        as no less convicts it.
        """
        rate, start = self.before.rate, np.array([self.period[0]], dtype=np.int64)
        return self.count >= float(rate.enough(start, self._length_ns, USUAL, self._scatter)[0])

    @property
    def _scatter(self) -> float:
        """Of known arrivals, of which a share is served, more or less by chance."""
        rate = self.before.rate
        of_arrivals = max(OF_ARRIVALS, 1 - rate.served)
        return self.least if rate.arrivals is None else min(self.least, of_arrivals)

    def is_below(self, share: float) -> bool:
        """Tell whether less than ``share`` of the rate before was served, for certain."""
        expected = self.before.rate.per_ns * self._length_ns
        chance = CHANCE * deviation(expected, self.before.rate.count, self.most)
        return self.count < share * expected - chance

    def spare_ns(self, share: float) -> int:
        """Return for how long nothing more may have been served of the rate before, and less than
        ``share`` of it was all the same.
        """
        expected = self.before.rate.per_ns * self._length_ns
        chance = CHANCE * deviation(expected, self.before.rate.count, self.most)
        return max(0, int((share * expected - chance - self.count) / self.before.rate.per_ns))

    @property
    def in_words(self) -> str:
        """Both rates, and when they were counted."""
        (before_ns, begin_ns), (start_ns, end_ns) = self.before.period, self.period
        rate_per_s = self.count / (end_ns - start_ns) * NS_PER_S
        return (
            f"of {self.before.per_s:.1f} transactions a second before {named(self.before.fault)} "
            f"({seconds(before_ns)} to {seconds(begin_ns)}) {rate_per_s:.1f} were acknowledged in "
            f"the calm after it ({seconds(start_ns)} to {seconds(end_ns)}){self._due}"
        )

    @property
    def _due(self) -> str:
        rate = self.before.rate
        if rate.arrivals is None:
            return ""
        start = np.array([self.period[0]], dtype=np.int64)
        due = float(rate.arrivals.counts(start, self._length_ns)[0])
        due_per_s = due / self._length_ns * NS_PER_S
        return (
            f", of {due_per_s:.1f} that were asked for then; before it {rate.served:.1%} of those"
        )


def rate_since(acks: Ints, before: RateBefore, period: Interval) -> RateSince:
    """Count the ``acks``, ascending, in ``period``, which is not empty."""
    low, high = np.searchsorted(acks, period)
    here = acks[low:high]
    both = (before.scatter, scatter(here, period) or before.scatter)
    return RateSince(before=before, count=len(here), period=period, most=max(both), least=min(both))


def scatter(acks: Ints, period: Interval) -> float | None:
    """Return how much the variance of the counts of pieces of ``period`` is of their mean; ``None``
    where it has too few pieces to tell.
    """
    found = []
    for piece_ns in PIECES_NS:
        pieces = (period[1] - period[0]) // piece_ns
        if pieces < MIN_PIECES:
            continue
        edges = period[0] + np.arange(pieces + 1, dtype=np.int64) * piece_ns
        counts = np.diff(np.searchsorted(acks, edges))
        mean = float(counts.mean())
        found.append(float(counts.var(ddof=1)) / mean if mean else 1.0)
    return max(LEAST_SCATTER, *found) if found else None
