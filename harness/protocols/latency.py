"""Percentiles of latencies: the one definition for limits, reports and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_SAMPLES = 100  # below this the 99th percentile is the slowest transaction of all


def percentiles(values: npt.NDArray[Any], percents: Sequence[int]) -> list[Any]:
    """Return for each of ``percents`` the least of ``values``, of which there is at least one, that
    so many in a hundred do not exceed. It is one of them, and exceeds a limit where, and only
    where, more than the other values in a hundred do.
    """
    # By integers: a float may round a rank up.
    ranks = [max(0, -(-len(values) * percent // 100) - 1) for percent in percents]
    placed = np.partition(values, ranks)
    return [placed[rank] for rank in ranks]
