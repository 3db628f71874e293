"""The figures of two sides, cell by cell and over all cells: tested, corrected, and called.

Runs of one cell and seed have one schedule of faults: where both sides have enough seeds in common
they are compared pair by pair (``sign_flip``), else as two samples (``rank_sum``). A change is
called where its p-value, corrected for all tests of the comparison (Holm), is at most the level,
and it is as large as the smallest effect that matters. Tests that no figures could bring to the
level are told, and not counted: they can call nothing, falsely or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import msgspec
import pandas as pd

from results.compare.effect_thresholds import Figure, Rules, Scale
from results.compare.significance import (
    Group,
    holm,
    least_paired,
    least_unpaired,
    rank_sum,
    sign_flip,
)

ALL_CELLS = "all cells"
MIN_PAIRS = 5  # fewer are no sample; six are the least that come to 2 %
PAIRED, UNPAIRED = "sign flip", "Mann-Whitney"
LEAST_VALUE = 1e-9  # of a figure whose logarithm is taken


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in ``cell`` (or ``ALL_CELLS``): medians of ratios' figures, means of others, over
    ``of_new`` and ``of_base`` runs; ``pairs`` is 0 where they are not paired.

    ``change`` is the share of the base by which the figure rose, ``None`` where the base is zero.
    ``p_value`` is that of a change for the worse, ``corrected`` for all tests. ``worse`` and
    ``better`` are calls. ``counts``: it was tested; ``untested`` says why not. ``least`` is the
    least p-value that so many runs could come to.
    """

    cell: str
    figure: str
    words: str
    unit: str
    new: float
    base: float
    change: float | None
    of_new: int
    of_base: int
    pairs: int
    test: str
    p_value: float
    corrected: float
    least: float
    worse: bool = False
    better: bool = False
    untested: str = ""

    @property
    def sentence(self) -> str:
        """The change in one sentence."""
        paired = f"{self.pairs} pairs" if self.pairs else f"{self.of_new} and {self.of_base} runs"
        tested = f"{self.test} over {paired}, p {self.corrected:.2g} after correction"
        return (
            f"{self.words}: {shown(self.new, self.unit)}, {shown(self.base, self.unit)} in the "
            f"base ({percent(self.change)}; {tested}) in {self.cell}"
        )


def shown(value: float, unit: str) -> str:
    """Format a value of a figure with its unit."""
    text = f"{value:,.4g}"
    return f"{text} {unit}" if unit else text


def percent(change: float | None) -> str:
    """Format a relative change with its sign."""
    return "from zero" if change is None else f"{change:+.1%}"


def resolvable(found: Sequence[FigureChange], level: float) -> bool:
    """Whether any test of ``found`` could have been significant."""
    counted = [each.least for each in found if not each.untested]
    return bool(counted) and min(counted) * len(counted) <= level


@attrs.frozen(kw_only=True)
class _Sample:
    """A figure's values of one cell: by seed where they are paired, else of all runs."""

    cell: str
    new: tuple[float, ...]
    base: tuple[float, ...]
    new_seeds: tuple[str, ...]
    base_seeds: tuple[str, ...]
    pairs: tuple[tuple[float, float], ...]

    def turned(self) -> Group:
        """The base in the place of the new side."""
        return Group(self.base, self.new, self.base_seeds, self.new_seeds)

    def group(self) -> Group:
        """Both sides with their seeds."""
        return Group(self.new, self.base, self.new_seeds, self.base_seeds)


def figure_changes(table: pd.DataFrame, rules: Rules, apart: frozenset[str]) -> list[FigureChange]:
    """Return the changes of every figure that both sides have, cell by cell, those over all cells
    first; ``table`` is as ``cells.frame`` makes it. In cells ``apart`` the hosts differ: figures
    are told and not tested.
    """
    measured: list[tuple[FigureChange, float]] = []
    for figure in rules.figures:
        samples = [
            sample
            for cell, rows in table.groupby("cell", sort=True)
            if (sample := _sample(str(cell), rows, figure)) is not None
        ]
        alike = [sample for sample in samples if sample.cell not in apart]
        if len(alike) > 1:
            measured.append(_change(ALL_CELLS, alike, figure, rules.level))
        for sample in samples:
            found = _change(sample.cell, [sample], figure, rules.level)
            if sample.cell in apart:
                found = (msgspec.structs.replace(found[0], untested="the hosts differ"), found[1])
            measured.append(found)
    return _called(measured, rules)


def _sample(cell: str, rows: pd.DataFrame, figure: Figure) -> _Sample | None:
    known = rows.dropna(subset=[figure.name])
    new, base = (known[known["side"] == side] for side in ("new", "base"))
    if new.empty or base.empty:
        return None
    means = [side[side["seed"] != ""].groupby("seed")[figure.name].mean() for side in (new, base)]
    joined = pd.concat(means, axis=1, join="inner", keys=["new", "base"]).sort_index()
    return _Sample(
        cell=cell,
        new=tuple(new[figure.name].tolist()),
        base=tuple(base[figure.name].tolist()),
        new_seeds=tuple(new["seed"].tolist()),
        base_seeds=tuple(base["seed"].tolist()),
        pairs=tuple(zip(joined["new"].tolist(), joined["base"].tolist(), strict=True)),
    )


def _change(
    cell: str, samples: Sequence[_Sample], figure: Figure, level: float
) -> tuple[FigureChange, float]:
    """Return the change over ``samples``, and the p-value that it is for the better."""
    pairs = [pair for sample in samples for pair in sample.pairs]
    new = [value for sample in samples for value in sample.new]
    base = [value for sample in samples for value in sample.base]
    paired = len(pairs) >= MIN_PAIRS and 2 * len(pairs) >= min(len(new), len(base))
    sign = 1.0 if figure.more_is_worse else -1.0
    if paired:
        differences = [sign * _difference(figure, *pair) for pair in pairs]
        p_value, p_better = sign_flip(differences), sign_flip([-d for d in differences])
        least = least_paired(len(pairs))
    else:
        up, down = [each.group() for each in samples], [each.turned() for each in samples]
        worse, better = (up, down) if figure.more_is_worse else (down, up)
        p_value, p_better = rank_sum(worse), rank_sum(better)
        least = least_unpaired(up)
    of_new, of_base, change = _effect(figure, pairs if paired else None, samples)
    found = FigureChange(
        cell=cell,
        figure=figure.name,
        words=figure.words,
        unit=figure.unit,
        new=of_new,
        base=of_base,
        change=change,
        of_new=len(new),
        of_base=len(base),
        pairs=len(pairs) if paired else 0,
        test=PAIRED if paired else UNPAIRED,
        p_value=p_value,
        corrected=1.0,
        least=least,
        untested="" if least <= level else "too few runs",
    )
    return found, p_better


def _difference(figure: Figure, new: float, base: float) -> float:
    if figure.scale is Scale.DIFFERENCE:
        return new - base
    return math.log(max(new, LEAST_VALUE) / max(base, LEAST_VALUE))


def _effect(
    figure: Figure,
    pairs: Sequence[tuple[float, float]] | None,
    samples: Sequence[_Sample],
) -> tuple[float, float, float | None]:
    """Return the figure on both sides, and its change as a share of the base: of ratios the median
    over pairs, or the ratio of medians, averaged over cells; of differences that of the means.
    """
    if figure.scale is Scale.RATIO:
        if pairs is not None:
            new, base = (pd.Series(side).median() for side in zip(*pairs, strict=True))
            ratio = pd.Series([_difference(figure, *pair) for pair in pairs]).median()
        else:
            middles = [(pd.Series(s.new).median(), pd.Series(s.base).median()) for s in samples]
            new, base = (float(pd.Series(side).mean()) for side in zip(*middles, strict=True))
            ratio = pd.Series([_difference(figure, *pair) for pair in middles]).mean()
        return float(new), float(base), math.expm1(float(ratio))
    if pairs is not None:
        new, base = (float(pd.Series(side).mean()) for side in zip(*pairs, strict=True))
    else:
        new, base = (
            float(pd.Series([pd.Series(getattr(s, side)).mean() for s in samples]).mean())
            for side in ("new", "base")
        )
    return new, base, (new - base) / base if base > 0 else (None if new > 0 else 0.0)


def _called(measured: Sequence[tuple[FigureChange, float]], rules: Rules) -> list[FigureChange]:
    """Return the changes with corrected p-values and calls. Changes for the better are a family of
    their own: they decide nothing.
    """
    by_name = {figure.name: figure for figure in rules.figures}
    counted = [at for at, (change, _) in enumerate(measured) if not change.untested]
    worse = dict(zip(counted, holm([measured[at][0].p_value for at in counted]), strict=True))
    better = dict(zip(counted, holm([measured[at][1] for at in counted]), strict=True))
    found = []
    for at, (change, _) in enumerate(measured):
        figure = by_name[change.figure]
        matters = _matters(figure, change)
        up = (change.change is None or change.change > 0) == figure.more_is_worse
        found.append(
            msgspec.structs.replace(
                change,
                corrected=worse.get(at, 1.0),
                worse=matters and up and worse.get(at, 1.0) <= rules.level,
                better=matters and not up and better.get(at, 1.0) <= rules.level,
            )
        )
    return found


def _matters(figure: Figure, change: FigureChange) -> bool:
    relative = math.inf if change.change is None else abs(change.change)
    if figure.scale is Scale.DIFFERENCE and abs(change.new - change.base) < figure.absolute:
        return False
    return relative >= figure.relative
