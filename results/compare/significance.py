"""The tests of comparisons, one-sided and without assumptions about how figures are distributed.

====================  ===========================================================================
paired by seed        the sign of each difference is as likely as the other: exact over all signs
                      (Fisher, 1935), by chance over some where there are many
not paired            Mann and Whitney (1947): exact of few without ties; of several cells ranks
                      within each, relabelled within each (a stratified permutation)
shares                Fisher's exact test
many comparisons      Holm (1979)
====================  ===========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EXACT_PAIRS = 16  # 65,536 combinations of signs
DRAWS = 9_999  # of a test by chance: its least p-value is one in 10,000
SEED = 1  # of the draws: the same comparison comes to the same result
CHUNK = 1_000

Floats = npt.NDArray[np.float64]


def sign_flip(differences: Sequence[float]) -> float:
    """Return the chance that differences as large on average come from equal sides: the p-value
    that their mean is greater than zero.
    """
    found = np.asarray(differences, dtype=np.float64)
    found = found[found != 0.0]  # the sign of nothing changes nothing
    if not found.size:
        return 1.0
    # Rounding must not tell apart sums that are equal.
    observed = found.sum() - 1e-12 * np.abs(found).sum()
    if found.size <= EXACT_PAIRS:
        signs = 1 - 2 * ((np.arange(1 << found.size)[:, None] >> np.arange(found.size)) & 1)
        return float(np.mean(signs @ found >= observed))
    stream = np.random.default_rng(SEED)
    hits = 1
    for begin in range(0, DRAWS, CHUNK):
        count = min(CHUNK, DRAWS - begin)
        signs = stream.choice((-1, 1), size=(count, found.size))
        hits += int(np.sum(signs @ found >= observed))
    return hits / (DRAWS + 1)


def rank_sum(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the chance that the first of each pair of ``groups``, one a cell, ranks so much higher
    than the second, if both are alike.
    """
    kept = [(one, other) for one, other in groups if one and other]
    if not kept:
        return 1.0
    if len(kept) == 1:
        from scipy.stats import mannwhitneyu

        one, other = kept[0]
        if len({*one, *other}) == 1:
            return 1.0
        return float(mannwhitneyu(one, other, alternative="greater").pvalue)
    return _stratified(kept)


def _stratified(groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    from scipy.stats import rankdata

    stream = np.random.default_rng(SEED)
    observed, drawn = 0.0, np.zeros(DRAWS)
    for one, other in groups:
        whole = np.asarray([*one, *other], dtype=np.float64)
        # As many ranks as a cell has runs: so weighed, each cell counts by what it knows.
        ranks = np.asarray(rankdata(whole)) / (whole.size + 1)
        centred = ranks - ranks.mean()
        observed += float(centred[: len(one)].sum())
        shuffled = stream.permuted(np.tile(centred, (DRAWS, 1)), axis=1)
        drawn += shuffled[:, : len(one)].sum(axis=1)
    return float((1 + np.sum(drawn >= observed - 1e-9)) / (DRAWS + 1))


def least_paired(pairs: int) -> float:
    """The least p-value that ``sign_flip`` can come to."""
    return 1.0 if pairs == 0 else max(0.5**pairs, 1 / (DRAWS + 1) if pairs > EXACT_PAIRS else 0.0)


def least_unpaired(sizes: Sequence[tuple[int, int]]) -> float:
    """The least p-value that ``rank_sum`` can come to with cells of these sizes."""
    ways = math.prod(math.comb(one + other, one) for one, other in sizes)
    return max(1 / ways, 1 / (DRAWS + 1) if len(sizes) > 1 else 0.0)


def share_fell(new: int, of_new: int, base: int, of_base: int) -> float:
    """Return Fisher's p-value that the share ``new`` of ``of_new`` is less than the base's."""
    if not of_new or not of_base:
        return 1.0
    from scipy.stats import fisher_exact

    table = np.array([[new, of_new - new], [base, of_base - base]])
    return float(fisher_exact(table, alternative="less").pvalue)


def share_changed(new: int, of_new: int, base: int, of_base: int) -> float:
    """Return Fisher's p-value, two-sided, that the two shares differ."""
    if not of_new or not of_base:
        return 1.0
    from scipy.stats import fisher_exact

    return float(fisher_exact(np.array([[new, of_new - new], [base, of_base - base]])).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return ``p_values`` corrected for their number, in their order: those at most a level are
    significant together, with the chance of any false one among them at most that level.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        corrected[at] = largest
    return corrected
