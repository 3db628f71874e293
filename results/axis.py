"""An axis that gives room to what happens and cuts what does not.

The write that got lost and the read that misses it may be a minute apart, and last three
milliseconds each: on a linear axis both are less than a pixel. Here the stretches in which nothing
of interest happens are narrow bands, each told as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import attrs

CUT_PX = 58.0
CUT_SHARE = 0.3  # of all that happens: an idle stretch longer than this is cut
MARGIN_SHARE = 0.06  # of the busy stretches, as air around each
CUTS_MAX = 8
SEGMENT_MIN_PX = 36.0


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
        """Where ``position`` is drawn; what lies outside is drawn at the edge."""
        for segment in self.segments:
            if position <= segment.end:
                length = max(1, segment.end - segment.start)
                share = max(0, position - segment.start) / length
                return segment.left + share * (segment.right - segment.left)
        return self.segments[-1].right


def axis_of(busy: Iterable[tuple[int, int]], left: float, right: float) -> Axis:
    """An axis from ``left`` to ``right`` for the stretches ``busy``, of which there is one at
    least.
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
    """The same with idle stretches kept that are short, or shorter than the longest few."""
    gaps = sorted((b[0] - a[1] for a, b in pairwise(merged)), reverse=True)
    least = max(int(total * CUT_SHARE), gaps[CUTS_MAX] if len(gaps) > CUTS_MAX else 0)
    found = merged[:1]
    for start, end in merged[1:]:
        if start - found[-1][1] <= least:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
