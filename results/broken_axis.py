"""A time axis of several stretches with gaps between them: a failure is short, and its causes and
its proof may lie seconds apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import attrs

GAP_PX = 26.0
LEAST_SHARE = 0.09  # of the width, for the shortest stretch
TICKS_PX = 110.0  # between ticks, about
_STEPS = (1.0, 2.0, 5.0)


@attrs.frozen
class Span:
    """From ``start_s`` to ``end_s``, drawn from ``left`` on, ``width`` wide."""

    start_s: float
    end_s: float
    left: float
    width: float

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.left + self.width

    def x(self, at_s: float) -> float:
        """Where a moment is; outside of the span for one that is not of it."""
        share = (at_s - self.start_s) / (self.end_s - self.start_s)
        return round(self.left + share * self.width, 1)

    def clipped(self, at_s: float) -> float:
        """``x``, no further than the span's ends."""
        return min(max(self.x(at_s), self.left), self.right)

    def touches(self, start_s: float, end_s: float) -> bool:
        """Whether something of that time is within."""
        return start_s <= self.end_s and end_s >= self.start_s

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Round moments, and how they are said."""
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
    """``stretches`` in order, those that overlap or nearly touch as one."""
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
    """Spans for ``stretches`` (in order, apart) side by side: a longer one is wider, but less than
    in proportion.
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
