"""Statistics over the results of a campaign: rates with their confidence, and cells per finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from harness.campaigns.cell import CellResult

CONFIDENCE = 0.95
METHOD = f"Clopper-Pearson, {CONFIDENCE:.0%} confidence"

# Whether a result is a finding of what the campaign looks for.
Hit = Callable[[CellResult], bool]


def bounds(found: int, times: int) -> tuple[float, float]:
    """Return the confidence interval of the share, given ``found`` of ``times`` independent
    repetitions (Clopper and Pearson, 1934).
    """
    from scipy.stats import binomtest  # half a second to import

    interval = binomtest(found, times).proportion_ci(CONFIDENCE, method="exact")
    return interval.low, interval.high


def between(found: int, times: int) -> str:
    """Format ``bounds`` for a sentence."""
    low, high = bounds(found, times)
    return f"between {low:.0%} and {high:.0%}"


def until_found(
    results: Iterable[CellResult], hit: Hit, findings: int, most: int
) -> Iterator[CellResult]:
    """Yield ``results``, in the order of their cells, up to the one that ends a hunt: with so many
    ``findings``, or after ``most`` cells without any.
    """
    found = vain = 0
    for result in results:
        yield result
        found, vain = (found + 1, 0) if hit(result) else (found, vain + 1)
        if found >= findings or vain >= most:
            return


def cells_per_finding(results: Iterable[CellResult], hit: Hit) -> tuple[int, ...]:
    """Return for each finding, in the order of the cells, how many cells it took since the one
    before.
    """
    taken, since = [], 0
    for result in results:
        since += 1
        if hit(result):
            taken.append(since)
            since = 0
    return tuple(taken)
