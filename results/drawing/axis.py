"""An axis that gives room to busy stretches and cuts idle ones.

A lost write and the read that misses it may be a minute apart, and last three milliseconds each: on
a linear axis both are less than a pixel. Here idle stretches are narrow bands, each with its
length.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import attrs

from harness.text import UNITS_NS, duration

CUT_PX = 58.0
CUT_SHARE = 0.3  # of the busy time: an idle stretch longer than this is cut
MARGIN_SHARE = 0.06  # of the busy stretches, as air around each
CUTS_MAX = 8
SEGMENT_MIN_PX = 36.0
GAP_PX = 26.0
LEAST_SHARE = 0.09  # of the width, for the shortest stretch
TICKS_PX = 110.0  # between ticks, about
_STEPS = (1.0, 2.0, 5.0)
PLACE = "index"
BARS_MAX = 150  # of one colour in one lane, each drawn for itself
DOTS_ACROSS = 3_000  # that a plot has at most over its width
N = TypeVar("N", int, float)
COARSE = 10  # units that a span must hold at least, or the next finer unit is taken


@attrs.frozen(kw_only=True)
class Segment(Generic[N]):
    """Positions from ``start`` to ``end`` drawn from ``left`` to ``right``; ``cut`` where idle."""

    start: N
    end: N
    left: float
    right: float
    cut: bool = False

    def x(self, position: float) -> float:
        """Return the place of a position; outside of the segment for one outside of it."""
        # A moment has no length: it is drawn where its segment begins.
        share = (position - self.start) / (self.end - self.start or 1)
        return self.left + share * (self.right - self.left)

    def clipped(self, position: float) -> float:
        """Return ``x``, no further than the segment's ends."""
        return min(max(self.x(position), self.left), self.right)

    def touches(self, start: float, end: float) -> bool:
        """Tell whether any part of that stretch is within."""
        return start <= self.end and end >= self.start

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield round positions, and their labels."""
        wanted = (self.end - self.start) * TICKS_PX / (self.right - self.left)
        power = 10.0 ** math.floor(math.log10(wanted))
        step = next((s * power for s in _STEPS if s * power >= wanted), 10 * power)
        digits = max(0, -math.floor(math.log10(step)))
        # Counted, not summed: rounding errors of many steps would show in the labels.
        number = math.ceil(self.start / step)
        while number * step <= self.end:
            yield number * step, f"{number * step:.{digits}f}"
            number += 1


@attrs.frozen
class Axis:
    """Segments one after the other, without gaps between them."""

    segments: tuple[Segment[int], ...]

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
                return segment.clipped(position)
        return self.segments[-1].right


def axis_of(busy: Iterable[tuple[int, int]], left: float, right: float) -> Axis:
    """Return an axis from ``left`` to ``right`` for the stretches ``busy``, of which there is one
    at least.
    """
    found = merged(busy, 1)
    # Mere moments have no busy time: then the whole span is the measure.
    total = sum(end - start for start, end in found) or max(1, found[-1][1] - found[0][0])
    # The bound is exclusive: a gap of that very length is to be joined as well.
    found = merged(found, _longest_joined(found, total) + 1)
    total = max(1, sum(end - start for start, end in found))
    margin = max(1, int(total * MARGIN_SHARE))
    found = merged(((start - margin, end + margin) for start, end in found), 1)
    return Axis(_segments(found, left, right))


def _segments(
    stretches: Sequence[tuple[int, int]], left: float, right: float
) -> tuple[Segment[int], ...]:
    cuts = len(stretches) - 1
    total = sum(end - start for start, end in stretches)
    free = right - left - CUT_PX * cuts - SEGMENT_MIN_PX * len(stretches)
    found: list[Segment[int]] = []
    x = left
    for place, (start, end) in enumerate(stretches):
        if place:
            before = found[-1].end
            found.append(Segment(start=before, end=start, left=x, right=x + CUT_PX, cut=True))
            x += CUT_PX
        width = SEGMENT_MIN_PX + free * (end - start) / total
        found.append(Segment(start=start, end=end, left=x, right=x + width))
        x += width
    return tuple(found)


def _longest_joined(stretches: Sequence[tuple[int, int]], total: int) -> int:
    """Return the longest idle stretch that is drawn: a short one, or shorter than the longest
    few.
    """
    gaps = sorted((b[0] - a[1] for a, b in pairwise(stretches)), reverse=True)
    # Gaps up to the longest beyond the first ``CUTS_MAX`` are drawn, so no more are cut than that.
    return max(int(total * CUT_SHARE), gaps[CUTS_MAX] if len(gaps) > CUTS_MAX else 0)


def merged(stretches: Iterable[tuple[N, N]], closer_than: N) -> list[tuple[N, N]]:
    """Return ``stretches`` in order, those that overlap or nearly touch as one."""
    found: list[tuple[N, N]] = []
    for start, end in sorted(stretches):
        if found and start - found[-1][1] < closer_than:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def without(stretches: Iterable[tuple[N, N]], holes: Iterable[tuple[N, N]]) -> list[tuple[N, N]]:
    """Return the parts of ``stretches`` (in order, apart) outside of ``holes``."""
    found = list[tuple[N, N]]()
    waiting = sorted(holes, reverse=True)
    for begin, end in stretches:
        since = begin
        while waiting and waiting[-1][0] < end:
            low, high = waiting[-1]
            if low > since:
                found.append((since, low))
            since = max(since, high)
            # It may reach into the next one.
            if high > end:
                break
            waiting.pop()
        if since < end:
            found.append((since, end))
    return found


def bars(stretches: Collection[tuple[float, float]], span: float) -> list[tuple[float, float]]:
    """Return ``stretches`` of a drawing of ``span`` as (begin, length). Of many those that overlap,
    or are too near to each other for the eye, become one: what is drawn over itself thousands of
    times costs as often, and shows no more.
    """
    many = len(stretches) > BARS_MAX
    shown = merged(stretches, span / DOTS_ACROSS) if many else stretches
    return [(start, end - start) for start, end in shown]


def in_lanes(stretches: Iterable[tuple[float, float]], most: int) -> list[int]:
    """Return for each of ``stretches`` the lowest lane that is free when it starts; the last of
    ``most`` lanes takes the rest.
    """
    free: list[float] = []
    chosen = []
    for start, end in stretches:
        lane = next((i for i, over in enumerate(free) if over <= start), len(free))
        lane = min(lane, most - 1)
        if lane == len(free):
            free.append(end)
        # The last lane takes what overlaps, and is free only after the longest of it.
        free[lane] = max(free[lane], end)
        chosen.append(lane)
    return chosen


def laid_out(
    stretches: Iterable[tuple[float, float]], left: float, width: float
) -> tuple[Segment[float], ...]:
    """Return segments for ``stretches`` (in order, apart) side by side: a longer one is wider, but
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
        spans.append(Segment(start=start_s, end=end_s, left=left, right=left + share))
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
    return next((Scale(u, n) for u, n in UNITS_NS if span_ns >= COARSE * n), Scale(*UNITS_NS[-1]))
