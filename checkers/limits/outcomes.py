"""The limits ``p99_ms`` and ``indefinite_share``: how transactions ended, and after how long."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from checkers.engine.arrays import Bools
from checkers.limits.served import Broken, Figure, Served, Stretch, Untested, open_in
from harness.protocols.checker import EXAMPLES_MAX
from harness.protocols.models import INDEFINITE, P99
from harness.text import seconds

MIN_SAMPLES = 100  # below this the 99th percentile is the slowest transaction of all


def p99(got: Served, stretches: tuple[Stretch, ...], allowed_ms: float) -> Figure:
    """Measure the latency of the acknowledged transactions, of all stretches together: one alone
    holds too few to tell a percentile. Raises ``Untested`` where all do.
    """
    inside = _within(got, stretches) & got.ok
    latency = got.ended - got.intended
    took = latency[inside]
    if len(took) < MIN_SAMPLES:
        raise Untested(f"{len(took)} transactions were acknowledged, of {MIN_SAMPLES} at least")
    p99_ns = float(np.percentile(took, 99))
    p99_ms, is_kept = p99_ns / 1e6, p99_ns / 1e6 <= allowed_ms
    # Where several faults are taken together, the window is that with most of the slow ones.
    slow = latency >= p99_ns if is_kept else latency > allowed_ms * 1e6
    worst = _fullest(got, stretches, inside & slow)
    figure = Figure(measured=p99_ms, start_ns=worst.start_ns, end_ns=worst.end_ns)
    if is_kept:
        return figure
    slowest = got.txn[inside][np.argsort(-took, kind="stable")[:EXAMPLES_MAX]]
    one = Broken(
        name=P99,
        text=f"p99: 1 in 100 of {len(took)} acknowledged transactions took longer than "
        f"{p99_ms:.1f} ms, from {seconds(worst.start_ns)} to {seconds(worst.end_ns)}",
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        measured=p99_ms,
        txns=tuple(sorted(slowest.tolist())),
    )
    return attrs.evolve(figure, broken=(one,))


def indefinite_share(got: Served, stretches: tuple[Stretch, ...], allowed: float) -> Figure:
    """Measure the share of the transactions of which the outcome is not known. Raises ``Untested``
    where they are too few to tell.
    """
    inside = _within(got, stretches)
    unknown = inside & got.unknown
    total = int(inside.sum())
    # With so many more that ended with an outcome, the share might still be kept.
    if total < MIN_SAMPLES and unknown.sum() <= allowed * MIN_SAMPLES:
        raise Untested(f"{total} transactions ended, of {MIN_SAMPLES} at least")
    share = int(unknown.sum()) / total
    worst = _fullest(got, stretches, unknown)
    figure = Figure(measured=share, start_ns=worst.start_ns, end_ns=worst.end_ns)
    if share <= allowed:
        return figure
    one = Broken(
        name=INDEFINITE,
        text=f"indefinite share: the outcome of {int(unknown.sum())} of {total} transactions "
        f"({share:.2%}) is not known, from {seconds(worst.start_ns)} to {seconds(worst.end_ns)}",
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        measured=share,
        txns=tuple(got.txn[unknown].tolist()[:EXAMPLES_MAX]),
    )
    return attrs.evolve(figure, broken=(one,))


def _within(got: Served, stretches: Sequence[Stretch]) -> Bools:
    """Which transactions were wanted and not over at some time of one of ``stretches``: what a
    fault delays may end long after it.
    """
    return open_in(got.intended, got.ended, [(s.start_ns, s.end_ns) for s in stretches])


def _fullest(got: Served, stretches: Sequence[Stretch], guilty: Bools) -> Stretch:
    """The one of ``stretches`` in which most of the ``guilty`` transactions were open; of several
    the first.
    """
    begun, ended = np.sort(got.intended[guilty]), np.sort(got.ended[guilty])
    starts = np.asarray([stretch.start_ns for stretch in stretches])
    ends = np.asarray([stretch.end_ns for stretch in stretches])
    # All that had begun by its end, without those that were over before its start.
    counts = np.searchsorted(begun, ends, side="right") - np.searchsorted(ended, starts)
    return stretches[int(np.argmax(counts))]
