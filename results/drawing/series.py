"""Time series from the transactions of a history: the data of the plots.

Everything is vectorised, times are seconds on the run's axis, latencies seconds from the intended
start, so that an open-loop client's queueing shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.history.records import OpType
from harness.protocols.latency import percentiles

Floats = npt.NDArray[np.float64]

WINDOWS_MAX = 240  # of a quantile or rate line; more are finer than a pixel
WINDOW_MIN_S = 1.0
WINDOWS_SHORT = 40  # over a history of less than some seconds
SHORT_S = 3.0
LATENCY_MIN_S = 1e-9  # a logarithmic axis has no zero
PERCENTS = (50, 95, 99)
QUANTILES = tuple(percent / 100 for percent in PERCENTS)


@attrs.frozen(kw_only=True, eq=False)
class Outcomes:
    """The operations that ended in one way, in order of invocation."""

    invoke_s: Floats
    complete_s: Floats
    latency_s: Floats


NO_OUTCOMES = Outcomes(invoke_s=np.empty(0), complete_s=np.empty(0), latency_s=np.empty(0))


@attrs.frozen(kw_only=True, eq=False)
class Line:
    """One value per window: ``at_s`` is the middle of the window."""

    at_s: Floats
    value: Floats


def by_type(
    transactions: pa.Table, without: pa.ChunkedArray | None = None
) -> dict[OpType, Outcomes]:
    """Return the transactions of each type; every type is there, maybe empty. Those of the mask
    ``without`` are left out.
    """
    kept = transactions if without is None else transactions.filter(pc.invert(without))
    return {kind: _outcomes(kept, pc.equal(kept["type"], kind.value)) for kind in OpType}


def chosen(transactions: pa.Table, mask: pa.ChunkedArray) -> Outcomes:
    """Return the transactions of ``mask``."""
    return _outcomes(transactions, mask)


def from_foot(groups: Sequence[Outcomes]) -> list[Outcomes]:
    """Return ``groups`` with those that took no time, as one that a simulation refuses, at half of
    the shortest time that any took: a logarithmic axis has no zero, and one that began near it had
    no room for the others.
    """
    taken = np.concatenate([outcomes.latency_s for outcomes in groups])
    taken = taken[taken > LATENCY_MIN_S]
    if not taken.size:
        return list(groups)
    foot_s = taken.min() / 2
    return [
        attrs.evolve(outcomes, latency_s=np.maximum(outcomes.latency_s, foot_s))
        for outcomes in groups
    ]


def window_s(span_s: float) -> float:
    """Return the length of a window over ``span_s``: whole seconds, few enough to draw; less where
    the span is less than some seconds.
    """
    if span_s < SHORT_S:
        return span_s / WINDOWS_SHORT
    return float(max(WINDOW_MIN_S, np.ceil(span_s / WINDOWS_MAX)))


def rate(outcomes: Outcomes, start_s: float, end_s: float) -> Line:
    """Return completions a second from ``start_s`` to ``end_s``, windows without any as 0."""
    width = window_s(end_s - start_s)
    count = max(1, int(np.ceil((end_s - start_s) / width)))
    edges = start_s + width * np.arange(count + 1)
    edges[-1] = max(edges[-1], end_s)  # rounding must not lose the last of them
    found, _ = np.histogram(outcomes.complete_s, bins=edges)
    return Line(at_s=(edges[:-1] + width / 2).astype(np.float64), value=found / width)


def quantiles(outcomes: Outcomes, start_s: float, end_s: float) -> dict[float, Line]:
    """Return exact latency quantiles per window of invocation; windows without
    operations are NaN.
    """
    width = window_s(end_s - start_s)
    count = max(1, int(np.ceil((end_s - start_s) / width)))
    # Rounding may put the last operations beyond the last window.
    place = np.clip(((outcomes.invoke_s - start_s) // width).astype(np.int64), 0, count - 1)
    # Sorted once and cut by bounds: a mask for each window would read all operations each time.
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(count + 1))
    found = np.full((len(QUANTILES), count), np.nan)
    for window in range(count):
        inside = outcomes.latency_s[order[bounds[window] : bounds[window + 1]]]
        if inside.size:
            found[:, window] = percentiles(inside, PERCENTS)
    at_s = (start_s + width * (np.arange(count) + 0.5)).astype(np.float64)
    return {q: Line(at_s=at_s, value=found[i]) for i, q in enumerate(QUANTILES)}


def overall(outcomes: Outcomes) -> dict[float, float]:
    """Return exact latency quantiles of all operations, the longest as 1.0; empty where there are
    none.
    """
    if not outcomes.latency_s.size:
        return {}
    found = percentiles(outcomes.latency_s, (*PERCENTS, 100))
    return dict(zip((*QUANTILES, 1.0), (float(value) for value in found), strict=True))


def _outcomes(transactions: pa.Table, which: pa.ChunkedArray) -> Outcomes:
    chosen = transactions.filter(which)
    invoke, complete, intended = (
        chosen[name].to_numpy().astype(np.float64) / NS_PER_S
        for name in ("invoke_ns", "complete_ns", "intended_ns")
    )
    latency = np.maximum(complete - intended, LATENCY_MIN_S)
    return Outcomes(invoke_s=invoke, complete_s=complete, latency_s=latency)
