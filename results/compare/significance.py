"""The tests of comparisons, one-sided and without assumptions about how figures are distributed.

====================  ===========================================================================
paired by seed        the sign of each difference is as likely as the other: exact over all signs
                      (Fisher, 1935), by chance over some where there are many
not paired            Mann and Whitney (1947): exact of few without ties; of several cells, or
                      seeds that ran more than once, ranks within each cell, relabelled by seed
                      over all of them (a cluster permutation)
shares                Fisher's exact test
many comparisons      Holm (1979)
====================  ===========================================================================
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import attrs
import numpy as np

EXACT_PAIRS = 16  # 65,536 combinations of signs
DRAWS = 9_999  # of a test by chance: its least p-value is one in 10,000
SEED = 1  # of the draws: the same comparison comes to the same result
CHUNK = 1_000


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


@attrs.frozen
class Group:
    """The values of one cell, on both sides, and the seed of each: empty where it has none."""

    new: Sequence[float]
    base: Sequence[float]
    new_seeds: Sequence[str]
    base_seeds: Sequence[str]

    @property
    def clustered(self) -> bool:
        """Whether a seed ran several times, and not as often on the other side: what it drew then
        tells the sides apart as surely as a change of the store.
        """
        new, base = (Counter(filter(None, side)) for side in (self.new_seeds, self.base_seeds))
        return new != base and max((new | base).values(), default=0) > 1


def rank_sum(groups: Sequence[Group]) -> float:
    """Return the chance that the new values of ``groups``, one a cell, rank so much higher than
    the base's, if both are alike.
    """
    kept = [group for group in groups if group.new and group.base]
    if not kept:
        return 1.0
    if len(kept) > 1 or kept[0].clustered:
        return _by_seed(kept)
    from scipy.stats import mannwhitneyu

    one, other = kept[0].new, kept[0].base
    if len({*one, *other}) == 1:
        return 1.0
    return float(mannwhitneyu(one, other, alternative="greater").pvalue)


def _by_seed(groups: Sequence[Group]) -> float:
    """Relabel seeds, with all their runs: cells share theirs, and a seed that draws long faults
    draws them in every cell. Run by run, two nights of one other seed each would differ surely.
    """
    from scipy.stats import rankdata

    scores: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for number, group in enumerate(groups):
        whole = np.asarray([*group.new, *group.base], dtype=np.float64)
        # As many ranks as a cell has runs: so weighed, each cell counts by what it knows.
        ranks = np.asarray(rankdata(whole)) / (whole.size + 1)
        centred = (ranks - ranks.mean()).tolist()
        found = zip(_units(group, number), centred, strict=True)
        for (side, unit), score in found:
            scores[side][unit] = scores[side].get(unit, 0.0) + score
    new, base = (list(side.values()) for side in scores)
    stream = np.random.default_rng(SEED)
    shuffled = stream.permuted(np.tile([*new, *base], (DRAWS, 1)), axis=1)
    drawn = shuffled[:, : len(new)].sum(axis=1)
    return float((1 + np.sum(drawn >= sum(new) - 1e-9)) / (DRAWS + 1))


def _units(group: Group, number: int) -> list[tuple[int, str]]:
    """Name the side and the seed of each value of a cell: what has none is a unit of its own."""
    return [
        (side, seed or f"{number} {at}")
        for side, seeds in enumerate((group.new_seeds, group.base_seeds))
        for at, seed in enumerate(seeds)
    ]


def least_paired(pairs: int) -> float:
    """The least p-value that ``sign_flip`` can come to."""
    return 1.0 if pairs == 0 else max(0.5**pairs, 1 / (DRAWS + 1) if pairs > EXACT_PAIRS else 0.0)


def least_unpaired(groups: Sequence[Group]) -> float:
    """The least p-value that ``rank_sum`` can come to."""
    if len(groups) == 1 and not groups[0].clustered:
        return 1 / math.comb(len(groups[0].new) + len(groups[0].base), len(groups[0].new))
    units = {unit for number, group in enumerate(groups) for unit in _units(group, number)}
    new = sum(side == 0 for side, _ in units)
    return max(1 / math.comb(len(units), new), 1 / (DRAWS + 1))


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
