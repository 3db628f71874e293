"""When a rate counts as back: the one rule of the limit ``recovered_within_s`` and of the report.

The rate before a fault is that of the last time without any, ``MIN_CALM_NS`` to ``BEFORE_NS`` of
it; where that ended with another fault's begin, too little was free of faults since. ``MIN_BEFORE``
acknowledgements at least tell it. In an open loop it is at most the rate that is asked for: what is
more is a backlog that it catches up with. After the heal an open loop owes what it meant to begin
before; that doesn't count either. The rate is back at the first moment from which on ``SHARE`` of
it is acknowledged over ``counting_ns``: as long as 200 acknowledgements take at the rate before,
since a second of few says little. What the limit adds is chance: it breaks only where less came
than chance explains, over that time or its beginning, so that no later service hides a silence.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import NS_PER_S
from harness.protocols.fault_spans import FaultSpan

SHARE = 0.9
BEFORE_NS = 10 * NS_PER_S
MIN_CALM_NS = NS_PER_S  # of the time before a fault: a shorter one tells no rate
MIN_BEFORE = 20  # acknowledgements before a fault: fewer tell no rate
NOTICED_NS = 3 * NS_PER_S  # a store may take so long to notice a loss of nodes
COUNTED, MIN_COUNT_NS, MAX_COUNT_NS = 200, NS_PER_S, 5 * NS_PER_S


def calms_before(
    spans: Sequence[FaultSpan], drive_ns: int, over_ns: int
) -> dict[int, tuple[int, int]]:
    """Return from when to when the rate before each fault is counted, by the fault's number; none
    where no time before it was long enough free of faults. ``spans`` are all faults of a drive from
    ``drive_ns`` to ``over_ns``, in the order of their begin.
    """
    found, clear_ns, calm = dict[int, tuple[int, int]](), drive_ns, None
    for span in spans:
        if span.begin_ns - clear_ns >= MIN_CALM_NS:
            calm = max(clear_ns, span.begin_ns - BEFORE_NS), span.begin_ns
        if calm is not None:
            found[span.fault] = calm
        clear_ns = max(clear_ns, span.end_ns(over_ns))
    return found


def rate_before(acknowledged: int, length_ns: int, asked_per_s: float | None) -> float | None:
    """Return the rate, in acknowledgements a nanosecond, of so many within ``length_ns``; ``None``
    where they are too few to tell it. ``asked_per_s`` is what an open loop was asked for, ``None``
    of a closed one.
    """
    if acknowledged < MIN_BEFORE:
        return None
    rate = acknowledged / length_ns
    return rate if asked_per_s is None else min(rate, asked_per_s / NS_PER_S)


def counting_ns(rate: float) -> int:
    """Return over how long acknowledgements are counted at a ``rate`` of so many a nanosecond."""
    return int(min(MAX_COUNT_NS, max(MIN_COUNT_NS, COUNTED / rate)))
