"""An axis that gives room to busy stretches and cuts idle ones.

A lost write and the read that misses it may be a minute apart, and last three milliseconds each: on
a linear axis both are less than a pixel. Here idle stretches are narrow bands, each with its
length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import attrs

CUT_PX = 58.0
CUT_SHARE = 0.3  # of the busy time: an idle stretch longer than this is cut
MARGIN_SHARE = 0.06  # of the busy stretches, as air around each
CUTS_MAX = 8
SEGMENT_MIN_PX = 36.0
GAP_PX = 26.0
LEAST_SHARE = 0.09  # of the width, for the shortest stretch
TICKS_PX = 110.0  # between ticks, about
_STEPS = (1.0, 2.0, 5.0)
_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))
PLACE = "index"
COARSE = 10  # units that a span must hold at least, or the next finer unit is taken


@attrs.frozen(kw_only=True)
class Segment:
    """Positions from ``start`` to ``end`` drawn from ``left`` to ``right``; ``cut`` where idle."""

    start: int
    end: int
    left: float
    right: float
    cut: bool


@attrs.frozen
class Axis:
    """Segments one after the other, without gaps between them."""

    segments: tuple[Segment, ...]

    @property
    def start(self) -> int:
        """The first position that is drawn."""
        return self.segments[0].start

    @property
    def end(self) -> int:
        """The last one."""
        return self.segments[-1].end

    def x(self, position: int) -> float:
        """Return the place of ``position`` in the drawing; positions outside are
        drawn at the edge.
        """
        for segment in self.segments:
            if position <= segment.end:
                length = max(1, segment.end - segment.start)
                share = max(0, position - segment.start) / length
                return segment.left + share * (segment.right - segment.left)
        return self.segments[-1].right


def axis_of(busy: Iterable[tuple[int, int]], left: float, right: float) -> Axis:
    """Return an axis from ``left`` to ``right`` for the stretches ``busy``, of which there is one
    at least.
    """
    merged = _merged(busy)
    total = sum(end - start for start, end in merged) or max(1, merged[-1][1] - merged[0][0])
    merged = _joined(merged, total)
    total = max(1, sum(end - start for start, end in merged))
    margin = max(1, int(total * MARGIN_SHARE))
    merged = _merged((start - margin, end + margin) for start, end in merged)
    return Axis(_segments(merged, left, right))


def _segments(merged: Sequence[tuple[int, int]], left: float, right: float) -> tuple[Segment, ...]:
    cuts = len(merged) - 1
    total = sum(end - start for start, end in merged)
    free = right - left - CUT_PX * cuts - SEGMENT_MIN_PX * len(merged)
    found: list[Segment] = []
    x = left
    for place, (start, end) in enumerate(merged):
        if place:
            before = found[-1].end
            found.append(Segment(start=before, end=start, left=x, right=x + CUT_PX, cut=True))
            x += CUT_PX
        width = SEGMENT_MIN_PX + free * (end - start) / total
        found.append(Segment(start=start, end=end, left=x, right=x + width, cut=False))
        x += width
    return tuple(found)


def _merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _joined(merged: list[tuple[int, int]], total: int) -> list[tuple[int, int]]:
    """Return the same stretches, joined where the idle stretch between is short, or shorter than
    the longest few.
    """
    gaps = sorted((b[0] - a[1] for a, b in pairwise(merged)), reverse=True)
    least = max(int(total * CUT_SHARE), gaps[CUTS_MAX] if len(gaps) > CUTS_MAX else 0)
    found = merged[:1]
    for start, end in merged[1:]:
        if start - found[-1][1] <= least:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


@attrs.frozen
class Span:
    """From ``start_s`` to ``end_s``, drawn from ``left`` on, ``width`` wide."""

    start_s: float
    end_s: float
    left: float
    width: float

    @property
    def right(self) -> float:
        """The right end."""
        return self.left + self.width

    def x(self, at_s: float) -> float:
        """Return the place of a moment; outside of the span for a moment outside of it."""
        share = (at_s - self.start_s) / (self.end_s - self.start_s)
        return round(self.left + share * self.width, 1)

    def clipped(self, at_s: float) -> float:
        """Return ``x``, no further than the span's ends."""
        return min(max(self.x(at_s), self.left), self.right)

    def touches(self, start_s: float, end_s: float) -> bool:
        """Tell whether any part of that time is within."""
        return start_s <= self.end_s and end_s >= self.start_s

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield round moments, and their labels."""
        length_s = self.end_s - self.start_s
        wanted_s = length_s * TICKS_PX / self.width
        power = 10.0 ** math.floor(math.log10(wanted_s))
        step_s = next((s * power for s in _STEPS if s * power >= wanted_s), 10 * power)
        digits = max(0, -math.floor(math.log10(step_s)))
        number = math.ceil(self.start_s / step_s)
        while number * step_s <= self.end_s:
            yield number * step_s, f"{number * step_s:.{digits}f}"
            number += 1


def merged(
    stretches: Iterable[tuple[float, float]], closer_than_s: float
) -> list[tuple[float, float]]:
    """Return ``stretches`` in order, those that overlap or nearly touch as one."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in sorted(stretches):
        if found and start_s - found[-1][1] < closer_than_s:
            found[-1] = found[-1][0], max(found[-1][1], end_s)
        else:
            found.append((start_s, end_s))
    return found


def laid_out(
    stretches: Iterable[tuple[float, float]], left: float, width: float
) -> tuple[Span, ...]:
    """Return spans for ``stretches`` (in order, apart) side by side: a longer one is wider, but
    less than in proportion.
    """
    given = tuple(stretches)
    room = width - GAP_PX * (len(given) - 1)
    weights = [math.sqrt(end_s - start_s) for start_s, end_s in given]
    floor = LEAST_SHARE * sum(weights)
    weights = [max(weight, floor) for weight in weights]
    spans = []
    for (start_s, end_s), weight in zip(given, weights, strict=True):
        share = room * weight / sum(weights)
        spans.append(Span(start_s, end_s, round(left, 1), round(share, 1)))
        left += share + GAP_PX
    return tuple(spans)


@attrs.frozen
class Scale:
    """The unit of positions on a history's axis. ``per_unit`` is nanoseconds (or indices) in one
    ``unit``.
    """

    unit: str
    per_unit: int

    @property
    def timed(self) -> bool:
        """Whether positions are times at all."""
        return self.unit != PLACE

    def at(self, position: int) -> str:
        """Format a position as a number, without the unit."""
        if self.per_unit == 1:
            return str(position)
        return f"{position / self.per_unit:.3f}"

    def span(self, length: int) -> str:
        """Format a distance between positions, with its unit if it is a time."""
        if not self.timed:
            return f"{length:,}"
        return duration(length)


SECONDS = Scale("s", 1_000_000_000)


PLACES = Scale(PLACE, 1)


def scale_of(span_ns: int) -> Scale:
    """Return the scale of a history that lasts ``span_ns``: seconds for one of some seconds or
    more.
    """
    return next((Scale(u, n) for u, n in _UNITS if span_ns >= COARSE * n), Scale(*_UNITS[-1]))


def duration(length_ns: int) -> str:
    """Format a length of time to three digits, in the unit that suits it: ``44.9
    s``, ``3.2 ms``.
    """
    unit, per_unit = next((u for u in _UNITS if abs(length_ns) >= u[1]), _UNITS[-1])
    value = length_ns / per_unit
    digits = 0 if abs(value) >= 100 or per_unit == 1 else 1 if abs(value) >= 10 else 2
    shown = f"{value:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown} {unit}"
