"""How often ``compare`` calls what is not there, and whether it names what is.

``python benchmarks/comparison.py [--pool 48] [--keep DIR] [--containers]``. A pool of simulated
runs of one build, two cells with as many seeds, is compared with itself: ``COMPARISONS`` times two
sides of ten seeds a cell are drawn that share no run, half of them as two samples, half as pairs
(the pairs are of different seeds, so that their differences are not zero, as they would be in
simulation). Then ten seeds of a build in which one thing was changed are compared with the same
ten of the pool: 10 % slower commits, elections that begin 1 s later, a planted bug, a cut that no
longer cuts. With ``--keep`` runs stay there, and are not made again.

With ``--containers`` the pool is of short runs of one cell in containers, one after the other, and
only compared with itself, ``IN_CONTAINERS`` times. Their times are real, so that it matters when a
run was made: the older half is compared with the newer one, too, which counts in no bar.
"""

from __future__ import annotations

import contextlib
import functools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import click
import msgspec

from cli.cells import pool_of, run_on_nodes, simulation_pool
from clusters.providers.sim import disk
from clusters.providers.sim import simulated_links as links
from clusters.providers.sim.provider import SimProvider
from harness.campaigns.cell import Cell
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import Pool, in_turn
from harness.exit_codes import Outcome
from harness.plan.plan import Plan, load
from results.compare.comparison import Comparison, compare
from results.store.index import Query, opened
from results.store.run_entry import RunEntry
from results.store.store import RunStore

COMPARISONS, MOST = 200, 4
IN_CONTAINERS, MOST_IN_CONTAINERS = 20, 1
SEEDS = 10  # of a side
LIMIT_S = 900.0  # of a run: whatever else the machine does
PLAN: dict[str, object] = {
    "cluster.provider": "sim",
    "cluster.nodes": 3,
    "check.executor": "local",
    "check.min_ok": 50,
    "system.partitions": 4,
    "drive.duration_s": 16.0,
    "drive.rate_per_s": 40.0,
    "nemesis.first_s": 2.0,
    "nemesis.hold_s": 3.0,
    "nemesis.quiet_s": 3.0,
}
CELLS: tuple[dict[str, object], ...] = (
    {"workload.name": "list-append", "nemesis.mix": ["kill", "partition"]},
    {"workload.name": "bank", "nemesis.mix": ["kill"]},
)
NODES_PLAN: dict[str, object] = {
    "cluster.provider": "docker",
    "cluster.nodes": 3,
    "check.executor": "local",
    "check.min_ok": 50,
    "drive.duration_s": 8.0,
    "drive.rate_per_s": 40.0,
    "workload.name": "list-append",
    "nemesis.mix": ["kill"],
    "nemesis.first_s": 1.5,
    "nemesis.hold_s": 1.5,
    "nemesis.quiet_s": 2.0,
}
SLOWER = 1.1
LATER_TICKS = 13  # of 0.1 s, in place of 6: an election begins about 1 s later
EXPECTED = {
    "slow": (Outcome.REGRESSION, "latency p50"),
    "later": (Outcome.REGRESSION, "time to"),
    "bug": (Outcome.VIOLATION, "new finding"),
    "blunt": (Outcome.UNKNOWN, "partition no longer takes effect"),
}


@contextlib.contextmanager
def slower() -> Iterator[None]:
    """Simulated disks and links take ``SLOWER`` times as long."""
    with contextlib.ExitStack() as stack:
        for module, names in (
            (disk, ("SYNC_S", "CALL_S")),
            (links, ("BASE_S", "JITTER_S")),
        ):
            for name in names:
                usual = getattr(module, name)
                longer = tuple(SLOWER * each for each in usual)
                stack.enter_context(mock.patch.object(module, name, longer))
        yield


@contextlib.contextmanager
def blunt() -> Iterator[None]:
    """A cut of links does nothing."""

    async def cut(self: SimProvider, grudge: object) -> None:
        return

    with mock.patch.object(SimProvider, "cut", cut):
        yield


CHANGES: dict[str, tuple[dict[str, object], contextlib.AbstractContextManager[None]]] = {
    "slow": ({}, slower()),
    "later": ({"system.election_ticks": LATER_TICKS}, contextlib.nullcontext()),
    "bug": ({"system.bugs": ["ack-before-quorum"]}, contextlib.nullcontext()),
    "blunt": ({}, blunt()),
}


def runs(root: Path, name: str, seeds: Sequence[int], given: dict[str, object]) -> list[RunEntry]:
    """Return the runs of every cell under ``seeds``, those that are not there yet simulated now."""
    store = RunStore(root / name)
    plans = [
        load(None, PLAN | cell | given | {"name": name, "seed": seed})
        for cell in CELLS
        for seed in seeds
    ]
    return _made(store, plans, simulation_pool(store.root, keep=True))


def runs_in_containers(root: Path, seeds: Sequence[int]) -> list[RunEntry]:
    """Return the runs in containers under ``seeds``, those that are not there yet made now."""
    store, name = RunStore(root / "containers"), "containers"
    plans = [load(None, NODES_PLAN | {"name": name, "seed": seed}) for seed in seeds]
    pool = pool_of(functools.partial(run_on_nodes, runs_dir=store.root), jobs=1)
    return _made(store, plans, pool)


def _made(store: RunStore, plans: Sequence[Plan], pool: Pool) -> list[RunEntry]:
    ledger = Ledger.read(store.root / "ledger.jsonl", "any")
    cells = [Cell(plan=plan, limit_s=LIMIT_S) for plan in plans]
    left = [cell for cell in cells if cell.key not in ledger.known]
    name = store.root.name
    for result in pool.results(in_turn(left), ledger):
        print(f"{name}: seed {result.seed} {result.workload}: {result.outcome.value}", flush=True)
    # A run that broke off, and was made again, is none of the pool.
    names = {Path(each.run).name for each in ledger.known.values() if each.judged}
    with opened(store) as index:
        return [entry for entry in index.entries(Query()) if entry.run in names]


def sides(pool: Sequence[RunEntry], number: int) -> tuple[list[RunEntry], list[RunEntry]]:
    """Return two sides of ``SEEDS`` runs a cell that share none; of an even ``number`` as pairs."""
    stream = random.Random(number)
    new: list[RunEntry] = []
    base: list[RunEntry] = []
    for workload in sorted({entry.workload for entry in pool}):
        drawn = stream.sample([e for e in pool if e.workload == workload], 2 * SEEDS)
        for side, some in ((new, drawn[:SEEDS]), (base, drawn[SEEDS:])):
            for seed, entry in enumerate(some):
                paired = msgspec.structs.replace(entry, seed=seed)
                side.append(paired if number % 2 == 0 else entry)
    return new, base


def against_itself(pool: Sequence[RunEntry], count: int = COMPARISONS, most: int = MOST) -> bool:
    """Compare the pool with itself ``count`` times, print what was called, and return whether at
    ``most`` so many are a regression.
    """
    begun_s = time.perf_counter()
    outcomes: Counter[str] = Counter()
    called: Counter[str] = Counter()
    unjudged = 0
    for number in range(count):
        found = compare(*sides(pool, number))
        unjudged += any(pair.differ for pair in found.hosts)
        outcomes[found.outcome.value] += 1
        called.update(each.words for each in found.figures if each.worse)
    took_s = time.perf_counter() - begun_s
    regressions = outcomes[Outcome.REGRESSION.value]
    print(
        f"{count} comparisons of {len(pool)} runs of one build in {took_s:.0f} s: "
        f"{dict(outcomes)}; called: {dict(called)}; in {unjudged} hosts seem to differ, so that "
        f"times are not judged; bar {most} regressions: "
        f"{'met' if regressions <= most else 'missed'}"
    )
    return regressions <= most and set(outcomes) <= {"valid", "regression"}


def older_and_newer(pool: Sequence[RunEntry]) -> None:
    """Print what a comparison of the newer half of the pool with the older one says."""
    ordered = sorted(pool, key=lambda entry: entry.run)
    half = len(ordered) // 2
    found = compare(ordered[half:], ordered[:half])
    print(f"the newer half against the older one: {found.outcome.value}")
    for text in (*found.reasons, *found.notes):
        print(f"  {text}")


def named(name: str, found: Comparison) -> bool:
    """Print what was found of a change, and return whether it is what was planted."""
    outcome, words = EXPECTED[name]
    right = found.outcome is outcome and any(words in reason for reason in found.reasons)
    print(f"{name}: exit {found.outcome.exit_code} {'as it should' if right else 'MISSED'}")
    for reason in found.reasons:
        print(f"  {reason}")
    return right


@click.command()
@click.option("--pool", "size", default=48, show_default=True, help="Seeds of each of two cells.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep runs there.")
@click.option("--containers", is_flag=True, help="A pool in containers, against itself alone.")
def main(size: int, keep: Path | None, containers: bool) -> None:
    """Measure both, and compare with the bars."""
    with tempfile.TemporaryDirectory(prefix="firedrill-comparison-") as scratch:
        root = keep or Path(scratch)
        if containers:
            pool = runs_in_containers(root, range(size))
            older_and_newer(pool)
            raise SystemExit(not against_itself(pool, IN_CONTAINERS, MOST_IN_CONTAINERS))
        pool = runs(root, "pool", range(size), {})
        base = [entry for entry in pool if entry.seed is not None and entry.seed < SEEDS]
        met = []
        for name, (given, change) in CHANGES.items():
            with change:
                changed = runs(root, name, range(SEEDS), given)
            met.append(named(name, compare(changed, base)))
        met.append(against_itself(pool))
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
