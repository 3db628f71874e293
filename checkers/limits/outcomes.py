"""The limits ``p99_ms`` and ``indefinite_share``: how transactions ended, and after how long."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from checkers.engine.arrays import Bools
from checkers.limits.client_outcomes import Breach, ClientOutcomes, Figure, Scope, Untested, open_in
from harness.protocols.checker import EXAMPLES_MAX
from harness.protocols.consistency_models import INDEFINITE, P99
from harness.protocols.latency import MIN_SAMPLES, percentiles
from harness.text import seconds

# As rare as four standard deviations, by which the other limits are broken.
BY_CHANCE = 3e-5
SLOW_SHARE = 0.01  # of the transactions that may take longer than their 99th percentile


def p99(got: ClientOutcomes, scopes: tuple[Scope, ...], allowed_ms: float) -> Figure:
    """Measure the latency of the acknowledged transactions, of all scopes together: one alone
    holds too few to tell a percentile. It is too large where so many slower ones would hardly come
    by chance of 1 in 100; where chance explains them, that is left open. Raises ``Untested`` where
    the transactions are too few to tell.
    """
    inside = _within(got, scopes) & got.ok
    latency = got.ended - got.intended
    took, allowed_ns = latency[inside], allowed_ms * 1e6
    count = int((took > allowed_ns).sum())
    is_broken = count > 0 and chance_of(count, len(took), SLOW_SHARE) < BY_CHANCE
    if len(took) < MIN_SAMPLES and not is_broken:
        raise Untested(f"{len(took)} transactions were acknowledged, of {MIN_SAMPLES} at least")
    (p99_ns,) = percentiles(took, [99])
    p99_ms, is_kept = float(p99_ns) / 1e6, p99_ns <= allowed_ns
    # Where several faults are taken together, the window is that with most of the slow ones.
    slow = latency >= p99_ns if is_kept else latency > allowed_ns
    worst = _fullest(got, scopes, inside & slow)
    figure = Figure(measured=p99_ms, start_ns=worst.start_ns, end_ns=worst.end_ns)
    told = (
        f"{count} of {len(took)} acknowledged transactions took longer than {allowed_ms:g} ms, "
        f"1 in 100 of all {p99_ms:.1f} ms or more"
    )
    if not is_broken:
        doubt = f"{told}, which chance explains where 1 in 100 may"
        return attrs.evolve(figure, doubts=() if is_kept else (doubt,))
    slowest = got.txn[inside][np.argsort(-took, kind="stable")[:EXAMPLES_MAX]]
    one = Breach(
        name=P99,
        text=f"p99: {told}, from {seconds(worst.start_ns)} to {seconds(worst.end_ns)}",
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        measured=p99_ms,
        txns=tuple(sorted(slowest.tolist())),
    )
    return attrs.evolve(figure, broken=(one,))


def indefinite_share(got: ClientOutcomes, scopes: tuple[Scope, ...], allowed: float) -> Figure:
    """Measure the share of the transactions of which the outcome is not known. It is too large
    where so many would hardly come by chance of what is allowed; where chance explains them, that
    is left open. Raises ``Untested`` where the transactions are too few to tell.
    """
    inside = _within(got, scopes)
    unknown = inside & got.unknown
    total, count = int(inside.sum()), int(unknown.sum())
    share = count / total if total else 0.0
    is_broken = share > allowed and chance_of(count, total, allowed) < BY_CHANCE
    if total < MIN_SAMPLES and not is_broken:
        raise Untested(f"{total} transactions ended, of {MIN_SAMPLES} at least")
    worst = _fullest(got, scopes, unknown)
    figure = Figure(measured=share, start_ns=worst.start_ns, end_ns=worst.end_ns)
    told = f"the outcome of {count} of {total} transactions ({share:.2%}) is not known"
    if not is_broken:
        doubt = f"{told}, which chance explains where {allowed:.2%} are allowed"
        return attrs.evolve(figure, doubts=(doubt,) if share > allowed else ())
    one = Breach(
        name=INDEFINITE,
        text=f"indefinite share: {told}, from {seconds(worst.start_ns)} to {seconds(worst.end_ns)}",
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        measured=share,
        txns=tuple(got.txn[unknown].tolist()[:EXAMPLES_MAX]),
    )
    return attrs.evolve(figure, broken=(one,))


def chance_of(count: int, total: int, share: float) -> float:
    """Return how likely at least ``count``, which is positive, of ``total`` are by chance, where
    each is with the probability ``share``.
    """
    from scipy.special import bdtrc  # a tenth of a second to import

    return float(bdtrc(count - 1, total, share))


def _within(got: ClientOutcomes, scopes: Sequence[Scope]) -> Bools:
    """Which transactions were wanted and not over at some time of one of ``scopes``: what a
    fault delays may end long after it.
    """
    return open_in(got.intended, got.ended, [(s.start_ns, s.end_ns) for s in scopes])


def _fullest(got: ClientOutcomes, scopes: Sequence[Scope], guilty: Bools) -> Scope:
    """The one of ``scopes`` in which most of the ``guilty`` transactions were open; of several
    the first.
    """
    begun, ended = np.sort(got.intended[guilty]), np.sort(got.ended[guilty])
    starts = np.asarray([scope.start_ns for scope in scopes])
    ends = np.asarray([scope.end_ns for scope in scopes])
    # All that had begun by its end, without those that were over before its start.
    counts = np.searchsorted(begun, ends, side="right") - np.searchsorted(ended, starts)
    return scopes[int(np.argmax(counts))]
