"""The fault that explains each of many losses, found by order in time instead of pair by pair.

Of the faults that were in force at some moment from ``since_ns`` to ``read_ns`` the one that led
the partition and was near explains a loss; then the nearest to ``ack_ns``; between equals the one
of the least number.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from checkers.engine.arrays import Bools, Ints
from checkers.engine.spans import FOREVER_NS, NONE, FirstInForce

_LATEST_NS = FOREVER_NS - 1  # the distance of two such moments fits 64 bits
_CELLS = 1_000_000  # pairs that are looked at together


@attrs.frozen(kw_only=True, eq=False)
class Moments:
    """The times of losses: when each can have begun, was acknowledged, and was missed."""

    since_ns: Ints
    ack_ns: Ints
    read_ns: Ints

    @classmethod
    def of(cls, since_ns: Ints, ack_ns: Ints, read_ns: Ints) -> Moments:
        """Those of these losses."""
        columns = (np.clip(each, -_LATEST_NS, _LATEST_NS) for each in (since_ns, ack_ns, read_ns))
        return cls(**dict(zip(("since_ns", "ack_ns", "read_ns"), columns, strict=True)))

    def __len__(self) -> int:
        return len(self.ack_ns)

    def __getitem__(self, rows: Ints | Bools) -> Moments:
        """Return those of some of the losses."""
        return Moments(
            since_ns=self.since_ns[rows], ack_ns=self.ack_ns[rows], read_ns=self.read_ns[rows]
        )

    @property
    def ordered(self) -> Bools:
        """Which of them were acknowledged between their begin and the read."""
        return (self.since_ns <= self.ack_ns) & (self.ack_ns <= self.read_ns)


@attrs.frozen(kw_only=True, eq=False)
class Faults:
    """When each of some faults began and ended, in the order in which equals are preferred."""

    begin_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int | None]]) -> Faults:
        """Those of ``spans``; an end of ``None`` never comes."""
        begins = [max(-_LATEST_NS, min(begin, _LATEST_NS)) for begin, _ in spans]
        ends = [
            _LATEST_NS if end is None else max(-_LATEST_NS, min(end, _LATEST_NS))
            for _, end in spans
        ]
        return cls(begin_ns=np.array(begins, np.int64), end_ns=np.array(ends, np.int64))

    def __getitem__(self, places: Ints | Bools) -> Faults:
        """Return some of the faults."""
        return Faults(begin_ns=self.begin_ns[places], end_ns=self.end_ns[places])

    def away_ns(self, place: Ints, at_ns: Ints) -> Ints:
        """Return how far each moment is from the fault at ``place``, which must be one."""
        begin_ns, end_ns = self.begin_ns[place], self.end_ns[place]
        found: Ints = np.maximum(np.maximum(begin_ns - at_ns, at_ns - end_ns), 0)
        return found

    def nearest(self, losses: Moments) -> Ints:
        """Return the place of the nearest fault that was in force while each of ``losses`` may have
        happened, or ``NONE``.
        """
        # What ended before it began, or was missed before it was acknowledged, no run of ours
        # tells: the order in time says nothing there, and pairs are looked at.
        sound = self.begin_ns <= self.end_ns
        ordered, best = losses.ordered, np.full(len(losses), NONE, np.int64)
        if not len(sound):
            return best
        places, rows = np.flatnonzero(sound), np.flatnonzero(ordered)
        if len(places):
            best[rows] = np.append(places, NONE)[self[places]._nearest_in_order(losses[rows])]
        others = np.flatnonzero(~sound)
        best[rows] = self._nearer(best[rows], others, losses[rows])
        rest = np.flatnonzero(~ordered)
        best[rest] = self._nearer(best[rest], np.arange(len(sound)), losses[rest])
        return best

    def _nearest_in_order(self, losses: Moments) -> Ints:
        at_ns = losses.ack_ns
        best = FirstInForce.of(self.begin_ns.tolist(), self.end_ns.tolist()).at(at_ns)
        none, number = np.array([NONE]), np.arange(len(self.begin_ns))
        # Of those that were over, the last; of those that had not begun, the first.
        ended = np.lexsort((-number, self.end_ns))
        place = np.searchsorted(self.end_ns[ended], at_ns, side="left")
        before = np.concatenate([none, ended])[place]
        before[self.end_ns[before] < losses.since_ns] = NONE
        begun = np.lexsort((number, self.begin_ns))
        place = np.searchsorted(self.begin_ns[begun], at_ns, side="right")
        after = np.concatenate([begun, none])[place]
        after[self.begin_ns[after] > losses.read_ns] = NONE
        for other in (before, after):
            best = self._better(best, other, at_ns)
        return best

    def _better(self, best: Ints, other: Ints, at_ns: Ints) -> Ints:
        """Return of two places for each moment the nearer one, and of equals the first."""
        near, far = self.away_ns(best, at_ns), self.away_ns(other, at_ns)
        wins = (other != NONE) & (
            (best == NONE) | (far < near) | ((far == near) & (other < best))
        )
        return np.where(wins, other, best)

    def _nearer(self, best: Ints, places: Ints, losses: Moments) -> Ints:
        """Return ``best``, or one at ``places`` where that is better: each is looked at."""
        if not len(places) or not len(losses):
            return best
        size = max(1, _CELLS // len(places))
        found = [
            self._nearest_of(places, losses[np.arange(low, min(low + size, len(losses)))])
            for low in range(0, len(losses), size)
        ]
        return self._better(best, np.concatenate(found), losses.ack_ns)

    def _nearest_of(self, places: Ints, losses: Moments) -> Ints:
        begin_ns, end_ns = self.begin_ns[places], self.end_ns[places]
        met = (begin_ns <= losses.read_ns[:, None]) & (end_ns >= losses.since_ns[:, None])
        away = self.away_ns(places, losses.ack_ns[:, None])
        # The places ascend: of equals this is the first.
        first = np.where(met, away, np.iinfo(np.int64).max).argmin(axis=1)
        return np.where(met.any(axis=1), places[first], NONE)
