"""Where a series changes its level: steps, and slow drifts.

Steps are the optimal partition into segments of one mean each, at a penalty a segment (PELT:
Killick, Fearnhead and Eckley, 2012, as ``ruptures`` has it). What lies beyond ``OUTLIER``
deviations of its neighbours is drawn in first, so that one bad night is no change. A drift would
come out as a staircase: steps in one direction that a single slope fits better, at the same
penalty, are one drift.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_SEGMENT = 4  # nights: of fewer nobody knows whether they last
PENALTY = 5.0  # times log(n) times the variance, for each change: see benchmarks/trend_year.py
OUTLIER = 4.0  # deviations
NEIGHBOURS = 9  # of a night, itself among them
TO_DEVIATION = 1.4826  # of a normal distribution: from its median absolute deviation
COARSE = 4  # nights between the first candidates for the ends of a drift
MIN_DRIFT = 21  # nights: a shorter rise is a step


class Shape(enum.StrEnum):
    """How a series changed."""

    STEP = "step"
    DRIFT = "drift"


@attrs.frozen(kw_only=True)
class Change:
    """A change: the first point of the new level is ``at``; a drift goes from ``at`` to ``until``
    (for a step the same). ``before`` and ``after`` are the levels.
    """

    shape: Shape
    at: int
    until: int
    before: float
    after: float


def deviation(values: Sequence[float] | Floats) -> float:
    """Return the standard deviation from point to point, which steps of the level do not move."""
    steps = np.diff(np.asarray(values, dtype=np.float64))
    if not steps.size:
        return 0.0
    spread = float(np.median(np.abs(steps - np.median(steps)))) * TO_DEVIATION / math.sqrt(2)
    # Of a series that rarely moves the median is no measure.
    return spread or float(np.std(steps)) / math.sqrt(2)


def changes(values: Sequence[float], *, penalty: float = PENALTY) -> list[Change]:
    """Return the changes of a series of points at equal distances, in their order."""
    raw = np.asarray(values, dtype=np.float64)
    spread = deviation(raw)
    if len(raw) < 2 * MIN_SEGMENT or spread == 0.0:
        return []
    series = _without_outliers(raw, spread) / spread
    cost = penalty * math.log(len(series))
    bounds = [0, *_partition(series, cost)]
    return _described(series * spread, bounds, _drifts(series, bounds, cost))


def _without_outliers(raw: Floats, spread: float) -> Floats:
    half = NEIGHBOURS // 2
    padded = np.pad(raw, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS)
    middle = np.median(windows, axis=1)
    drawn: Floats = np.clip(raw, middle - OUTLIER * spread, middle + OUTLIER * spread)
    return drawn


def _partition(series: Floats, cost: float) -> list[int]:
    """Return the ends of the segments of the optimal partition, the last one the length."""
    from ruptures import KernelCPD

    search = KernelCPD(kernel="linear", min_size=MIN_SEGMENT).fit(series.reshape(-1, 1))
    return [int(end) for end in search.predict(pen=cost)]


def _scatter(series: Floats) -> float:
    return float(((series - series.mean()) ** 2).sum()) if series.size else 0.0


@attrs.frozen(kw_only=True)
class _Drift:
    """A slope in place of the changes ``first`` to ``last`` of the partition (places in its list of
    bounds); from ``start`` to ``end``, and what it saves.
    """

    first: int
    last: int
    start: int
    end: int
    gain: float


def _drifts(series: Floats, bounds: list[int], cost: float) -> list[_Drift]:
    """Return the slopes that fit better than the steps that they replace, the best first, none over
    another.
    """
    means = [series[a:b].mean() for a, b in itertools.pairwise(bounds)]
    found: list[_Drift] = []
    inner = range(1, len(bounds) - 1)
    for first in inner:
        for last in range(first, len(bounds) - 1):
            jumps = [means[at] - means[at - 1] for at in range(first, last + 1)]
            if len({jump > 0 for jump in jumps}) > 1:
                break
            slope = _sloped(series, bounds, first, last, cost)
            if slope is not None:
                found.append(slope)
    kept: list[_Drift] = []
    for slope in sorted(found, key=lambda each: -each.gain):
        if all(slope.last < other.first or slope.first > other.last for other in kept):
            kept.append(slope)
    return kept


def _sloped(series: Floats, bounds: list[int], first: int, last: int, cost: float) -> _Drift | None:
    """Return the slope that replaces the changes ``first`` to ``last``, if it fits better: its two
    ends count as two changes.
    """
    low, high = bounds[first - 1], bounds[last + 1]
    part = series[low:high]
    steps = (
        sum(
            _scatter(series[a:b])
            for a, b in zip(bounds[first - 1 : last + 1], bounds[first : last + 2], strict=True)
        )
        + (last - first + 1) * cost
    )
    start, end, scatter = _fitted(part)
    gain = steps - scatter - 2 * cost
    if gain <= 0 or end - start < MIN_DRIFT:
        return None
    return _Drift(
        first=first, last=last, start=low + start, end=min(low + end, high - 1), gain=gain
    )


def _fitted(part: Floats) -> tuple[int, int, float]:
    """Return the begin and the end of the slope between two levels that fits ``part`` best, and
    what it leaves of its scatter.
    """
    count = len(part)
    best = _best(part, range(0, count - 1, COARSE), range(COARSE, count + COARSE, COARSE))
    near = [
        range(max(0, best[0] - COARSE), min(count - 1, best[0] + COARSE) + 1),
        range(max(1, best[1] - COARSE), min(count, best[1] + COARSE) + 1),
    ]
    return _best(part, near[0], near[1])


def _best(part: Floats, starts: range, ends: range) -> tuple[int, int, float]:
    at = np.arange(len(part), dtype=np.float64)
    centred = part - part.mean()
    total = float((centred**2).sum())
    best = (0, len(part), math.inf)
    for start in starts:
        after = np.asarray([end for end in ends if end > start + 1], dtype=np.float64)
        if not after.size:
            continue
        ramps = np.clip((at[None, :] - start) / (after[:, None] - start), 0.0, 1.0)
        middles = ramps.mean(axis=1)
        shifted = ramps - middles[:, None]
        weights = (shifted**2).sum(axis=1)
        rises = np.divide(shifted @ centred, weights, out=np.zeros_like(weights), where=weights > 0)
        scatters = total - rises**2 * weights
        place = int(np.argmin(scatters))
        if scatters[place] < best[2]:
            best = (start, int(after[place]), float(scatters[place]))
    return best


def _described(series: Floats, bounds: list[int], drifts: Sequence[_Drift]) -> list[Change]:
    """Return the steps that no drift replaced, and the drifts, in order, with their levels."""
    within = {at for drift in drifts for at in range(drift.first, drift.last + 1)}
    edges = sorted(
        [
            (bounds[at], bounds[at], Shape.STEP)
            for at in range(1, len(bounds) - 1)
            if at not in within
        ]
        + [(drift.start, drift.end, Shape.DRIFT) for drift in drifts]
    )
    found = []
    for number, (at, until, shape) in enumerate(edges):
        since = edges[number - 1][1] if number else 0
        upto = edges[number + 1][0] if number + 1 < len(edges) else len(series)
        found.append(
            Change(
                shape=shape,
                at=at,
                until=until,
                before=_level(series, since, at),
                after=_level(series, until, upto),
            )
        )
    return found


def _level(series: Floats, begin: int, end: int) -> float:
    """Return the middle of a stretch; at the ends of a series it may be a single point."""
    part = series[begin:end] if end > begin else series[max(0, begin - 1) : begin + 1]
    return float(np.median(part))
