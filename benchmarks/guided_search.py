"""Runs until a planted bug is found, guided and at random, without the simulation's own oracles:
``python benchmarks/guided_search.py [--bugs 6] [--repeats 3] [--cap 30] [--warm 100]``.

At random is ``firedrill sim`` as it comes: a swarm plan for each seed. Guided is ``firedrill
explore``, from an empty corpus, or with ``--warm`` from one that so many runs of the sound store
have grown before, as a CI keeps it. Both count runs, which a busy machine does not change, and
seconds of a core. A hunt that reaches the cap counts as one more than that, so ratios with such
hunts are bounds.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import click
from calibrator import calibrate

from cli.cells import code_digest, simulation_pool
from cli.explore import Source, exploring_pool, search
from cli.selftest import anomalies_naming
from harness.campaigns.cell import Cell, CellResult
from harness.campaigns.corpus import Corpus
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import Pool
from harness.campaigns.rates import until_found

# Those that six seeds of ``firedrill sim`` did not find, the oracles off.
HARD = (
    *("in-doubt-aborted", "locks-not-rebuilt", "prepared-forgotten", "lost-hold-ignored"),
    *("prepared-times-out", "lease-past-end", "term-not-checked", "vote-ignores-log"),
    *("clock-not-advanced", "torn-tail-accepted", "prepared-not-saved", "wiped-node-votes"),
    "old-term-counted",
)
BAR = 3.0
WITHOUT_ORACLES: dict[str, object] = {"cluster.options.oracles": False}
WARM_SEED = 99  # no hunt's own: those are counted from 1
LIMIT_S = 900.0  # wall time of one run: a machine with other work must not end it


@attrs.frozen(kw_only=True)
class Hunt:
    """How one hunt ended: after so many ``runs``, which took ``cpu_s`` seconds of a core."""

    runs: int
    cpu_s: float
    found: bool

    def counted(self, cap: int) -> int:
        """The runs; one more than the cap where nothing was found."""
        return self.runs if self.found else cap + 1


@click.command()
@click.option("--bugs", default=6, show_default=True, help="How many of the hard ones.")
@click.option("--bug", "chosen", multiple=True, help="This one; repeatable.")
@click.option("--repeats", default=3, show_default=True, help="Hunts of each bug.")
@click.option("--cap", default=30, show_default=True, help="Runs of one hunt at most.")
@click.option("--warm", default=0, help="Runs of the sound store that grow the corpus first.")
@click.option(
    "--corpus", "corpus_path", type=click.Path(path_type=Path), help="Kept from before, only read."
)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--ledger", type=click.Path(path_type=Path), help="Go on from the results in it.")
def main(
    bugs: int,
    chosen: tuple[str, ...],
    repeats: int,
    cap: int,
    warm: int,
    corpus_path: Path | None,
    jobs: int,
    ledger: Path | None,
) -> None:
    """Measure, and compare with the bar."""
    click.echo(f"{platform.platform()}, {jobs} processes; {calibrate()}")
    known = Ledger.read(ledger, code_digest()) if ledger else Ledger()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(scratch=Path(scratch), ledger=known, jobs=jobs, cap=cap)
        corpus = attrs.evolve(Corpus.read(corpus_path), root=None) if corpus_path else Corpus()
        if warm:
            click.echo(bench.grow(corpus, warm))
        corpus.minimise()
        click.echo(f"corpus: {len(corpus.entries)} plans")
        click.echo(f"{'bug':20} {'random':>22} {'guided':>22} {'runs':>6} {'cpu':>6}")
        ratios = [bench.compared(bug, corpus, repeats) for bug in chosen or HARD[:bugs]]
    runs, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    click.echo(f"median over bugs: {runs:.1f}x fewer runs, {cpu:.1f}x less of a core")
    click.echo(f"bar {BAR:g}: {'met' if runs >= BAR else 'missed'}")
    raise SystemExit(0 if runs >= BAR else 1)


@attrs.frozen(kw_only=True)
class Bench:
    """The hunts of one comparison."""

    scratch: Path
    ledger: Ledger
    jobs: int
    cap: int

    def grow(self, corpus: Corpus, runs: int) -> str:
        """Grow ``corpus`` with ``runs`` of the sound store."""
        guided = search(
            Source(given=WITHOUT_ORACLES, seed=WARM_SEED), corpus, runs=runs, limit_s=LIMIT_S
        )
        cpu_s, broken = 0.0, []
        with closing(
            self._few(exploring_pool(self.scratch)).results(guided.choose, self.ledger)
        ) as work:
            for result in work:
                guided.take(result)
                cpu_s += result.cpu_s
                if result.anomalies:
                    broken.append(f"{result.name}: {', '.join(result.anomalies)}")
        told = "; ".join(broken) or "no violation"
        return (
            f"grown in {runs} runs of the sound store, {cpu_s:.0f} s of a core: "
            f"{len(guided.reached)} features, {told}"
        )

    def compared(self, bug: str, corpus: Corpus, repeats: int) -> tuple[float, float]:
        """Hunt ``bug`` both ways, print a line, and return the ratios of runs and of CPU time."""
        at_random = [self._hunt(bug, self._at_random(bug, n)) for n in range(repeats)]
        guided = [self._hunt(bug, self._guided(bug, corpus, n)) for n in range(repeats)]
        columns = (at_random, guided)
        runs = [statistics.median(hunt.counted(self.cap) for hunt in some) for some in columns]
        cpu = [statistics.median(hunt.cpu_s for hunt in some) for some in columns]
        shown = [
            f"{_listed(some)} ({median:g})" for some, median in zip(columns, runs, strict=True)
        ]
        ratio = runs[0] / runs[1], cpu[0] / cpu[1]
        click.echo(f"{bug:20} {shown[0]:>22} {shown[1]:>22} {ratio[0]:6.1f} {ratio[1]:6.1f}")
        return ratio

    def _hunt(self, bug: str, results: Iterator[CellResult]) -> Hunt:
        def hit(result: CellResult) -> bool:
            return bool(anomalies_naming(bug, result))

        with closing(results):  # type: ignore[type-var]
            tried = list(until_found(results, hit, 1, self.cap))
        return Hunt(runs=len(tried), cpu_s=sum(each.cpu_s for each in tried), found=hit(tried[-1]))

    def _at_random(self, bug: str, number: int) -> Iterator[CellResult]:
        source = _source(bug, number)
        cells = (Cell(plan=source.fresh(run), limit_s=LIMIT_S) for run in range(self.cap))
        pool = self._few(simulation_pool(self.scratch))
        yield from pool.results(lambda: next(cells, None), self.ledger)

    def _guided(self, bug: str, corpus: Corpus, number: int) -> Iterator[CellResult]:
        guided = search(
            _source(bug, number),
            # A copy: what one hunt adds must not help the next.
            attrs.evolve(corpus, root=None, entries=dict(corpus.entries)),
            runs=self.cap,
            limit_s=LIMIT_S,
        )
        with closing(
            self._few(exploring_pool(self.scratch)).results(guided.choose, self.ledger)
        ) as work:
            for result in work:
                guided.take(result)
                yield result

    def _few(self, pool: Pool) -> Pool:
        # How far ahead it chooses decides what it chooses: that stays, whatever the jobs.
        return attrs.evolve(pool, workers=self.jobs)


def _source(bug: str, number: int) -> Source:
    return Source(given={**WITHOUT_ORACLES, "system.bugs": [bug]}, seed=number + 1)


def _listed(hunts: list[Hunt]) -> str:
    return " ".join(f"{hunt.runs}" if hunt.found else f">{hunt.runs}" for hunt in hunts)


if __name__ == "__main__":
    main()
