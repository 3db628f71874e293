"""Whether ``trend`` finds what changed in a year of nights, and nothing else.

``python benchmarks/trend_year.py RUNS [--years 5]``. ``RUNS`` is a directory of judged runs of one
build (``benchmarks/comparison.py --keep DIR`` leaves one in ``DIR/pool``). A year has ``NIGHTS``
nights of ``CELLS`` cells with ``SEEDS`` runs each, every one of them a verdict and the figures of a
real run, drawn at random; three steps and one slow drift are planted. The bar: each step within 2
nights, the drift within 21, at most 3 changes in all series that nobody planted. Years differ by
their seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import click
import msgspec

from results.store.index import Query, opened
from results.store.run_entry import RunEntry
from results.store.store import RunStore, run_id
from results.trend.change_points import Shape
from results.trend.trends import Trend, trend

NIGHTS, CELLS, SEEDS = 400, 16, 4
FIRST = datetime(2025, 10, 1, 1, tzinfo=UTC)
STEP_WITHIN, DRIFT_WITHIN, FALSE_MOST = 2, 21, 3
NS_PER_S = 1_000_000_000


@attrs.frozen(kw_only=True)
class Planted:
    """A change of ``figure`` in ``cell``: from the night ``at``, of a drift until ``until``, the
    values are ``factor`` times as large.
    """

    cell: int
    figure: str
    at: int
    factor: float
    until: int | None = None

    def of(self, night: int) -> float:
        """The factor of ``night``."""
        if self.until is None:
            return self.factor if night >= self.at else 1.0
        share = min(1.0, max(0.0, (night - self.at) / (self.until - self.at)))
        return 1.0 + (self.factor - 1.0) * share


CHANGES = (
    Planted(cell=3, figure="p50_ms", at=121, factor=1.2),
    Planted(cell=8, figure="takeover_s", at=260, factor=1.5),
    Planted(cell=12, figure="ok_per_s", at=333, factor=0.85),
    Planted(cell=5, figure="p50_ms", at=90, factor=1.35, until=240),
)


def year(real: Sequence[RunEntry], seed: int) -> Iterator[RunEntry]:
    """Yield the runs of a year."""
    stream = random.Random(seed)
    workloads = sorted({entry.workload for entry in real})
    of = {workload: [e for e in real if e.workload == workload] for workload in workloads}
    for night in range(NIGHTS):
        for cell in range(CELLS):
            workload = workloads[cell % len(workloads)]
            for number in range(SEEDS):
                begun = FIRST + timedelta(days=night, minutes=5 * cell + number)
                drawn = stream.choice(of[workload])
                assert drawn.figures is not None  # noqa: S101 (``main`` leaves others out)
                changed = {
                    each.figure: value * each.of(night)
                    for each in CHANGES
                    if each.cell == cell
                    and (value := getattr(drawn.figures, each.figure)) is not None
                }
                yield msgspec.structs.replace(
                    drawn,
                    run=run_id("night", int(begun.timestamp()) * NS_PER_S, bytes([cell, number])),
                    begun=begun,
                    mode=f"M{cell:02}",
                    figures=msgspec.structs.replace(drawn.figures, **changed),
                )


def judged(found: Trend) -> bool:
    """Print how far what was found is from what was planted; return whether the bars are met."""
    left = [(series, turn) for series, turn in found.turns()]
    met = True
    for each in CHANGES:
        shape = Shape.STEP if each.until is None else Shape.DRIFT
        within = STEP_WITHIN if each.until is None else DRIFT_WITHIN
        planted = (FIRST + timedelta(days=each.at)).date()
        near = [
            (abs((turn.at - planted).days), series, turn)
            for series, turn in left
            if series.figure == each.figure and f"M{each.cell:02}" in series.cell
        ]
        if not near:
            print(f"  {shape.value} of {each.figure} in cell {each.cell}: not found")
            met = False
            continue
        away, series, turn = min(near, key=lambda found: found[0])
        left.remove((series, turn))
        right = away <= within and turn.shape is shape and turn.worse
        met &= right
        print(
            f"  {shape.value} of {each.figure} in cell {each.cell}: found as {turn.shape.value}, "
            f"{away} nights away{'' if right else ': MISSED'}"
        )
    print(f"  {len(found.series)} series, {len(left)} changes that nobody planted")
    for series, turn in left:
        print(f"    {turn.shape.value} of {series.figure} at {turn.at} in {series.cell}")
    return met and len(left) <= FALSE_MOST


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--years", type=click.IntRange(1), default=5, show_default=True)
def main(runs: Path, years: int) -> None:
    """Make years, look at them, and compare with the bars."""
    with opened(RunStore(runs)) as index:
        real = [entry for entry in index.entries(Query()) if entry.figures is not None]
    passed = []
    for seed in range(years):
        entries = list(year(real, seed))
        begun_s = time.perf_counter()
        found = trend(entries)
        took_s = time.perf_counter() - begun_s
        print(f"year {seed}: {len(entries)} runs made of {len(real)}, {took_s:.1f} s", flush=True)
        passed.append(judged(found))
    print(f"bars met in {sum(passed)} of {years} years")
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
