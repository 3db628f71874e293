"""What some repetitions say of the next one."""

from __future__ import annotations

CONFIDENCE = 0.95
METHOD = f"Clopper-Pearson, {CONFIDENCE:.0%} confidence"


def between(found: int, times: int) -> str:
    """The share that ``found`` of ``times`` independent repetitions speak for, as an interval."""
    from scipy.stats import binomtest  # half a second to import

    bounds = binomtest(found, times).proportion_ci(CONFIDENCE, method="exact")
    return f"between {bounds.low:.0%} and {bounds.high:.0%}"
