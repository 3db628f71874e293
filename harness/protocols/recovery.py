"""When a rate counts as back: the one rule of the limit ``recovered_within_s`` and of the report.

The rate before is that of up to ``BEFORE_NS`` without a fault, and in an open loop at most the rate
that it is asked for: what is more is a backlog that it catches up with. After the heal an open loop
owes what it meant to begin before; that doesn't count either. The rate is back at the first moment
from which on ``SHARE`` of it is acknowledged over ``counting_ns``: as long as 200 acknowledgements
take at the rate before, since a second of few says little. What the limit adds is chance: it breaks
only where less came than chance explains.
"""

from __future__ import annotations

from harness.clock import NS_PER_S

SHARE = 0.9
BEFORE_NS = 10 * NS_PER_S
MIN_CALM_NS = NS_PER_S  # of the time before a fault: a shorter one tells no rate
COUNTED, MIN_COUNT_NS, MAX_COUNT_NS = 200, NS_PER_S, 5 * NS_PER_S


def rate_before(acknowledged: int, length_ns: int, asked_per_s: float | None) -> float:
    """Return the rate, in acknowledgements a nanosecond, of so many within ``length_ns``;
    ``asked_per_s`` is what an open loop was asked for, ``None`` of a closed one.
    """
    rate = acknowledged / length_ns
    return rate if asked_per_s is None else min(rate, asked_per_s / NS_PER_S)


def counting_ns(rate: float) -> int:
    """Return over how long acknowledgements are counted at a ``rate`` of so many a nanosecond."""
    return int(min(MAX_COUNT_NS, max(MIN_COUNT_NS, COUNTED / rate)))
