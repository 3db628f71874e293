"""``firedrill selftest``: finds planted bugs, clears a sound node, and tests the
checkers' alarms.
"""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import click
import msgspec

from cli.cells import simulation_pool
from cli.mutants import MutantChoice, campaign, mutant_options
from cli.session import Session, runs_option, say
from harness.campaigns.campaign_summary import outcome_counts, overall
from harness.campaigns.cell import CRASHES, CellResult, simulated_cell
from harness.campaigns.marker_counts import MustReach, load_must_reach
from harness.campaigns.pool import in_turn
from harness.campaigns.rates import cells_per_finding, until_found
from harness.errors import UsageError
from harness.exit_codes import FAILED, Outcome
from harness.history.durable_files import disk_failure, write_atomically
from harness.history.run_directory import RunDirectory
from harness.plan.plan import MAX_SEED, Plan, load
from harness.protocols.consistency_models import BANK_TOTAL, LIVENESS, LOST_WRITE, NEGATIVE_BALANCE
from harness.scratch import scratch_directory, sweep
from results.store.store import RunStore

RESULTS = "selftest.json"
CHECKERS = {
    **{LOST_WRITE: "lost-write", BANK_TOTAL: "bank", NEGATIVE_BALANCE: "bank"},
    LIVENESS: "liveness",
}


class BugResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one bug. ``tries``: the number of seeds of each finding, in their order;
    ``names``: the count of each anomaly; ``unknown`` seeds showed nothing, ``broken`` ones came to
    no verdict; ``run``: of the first finding.
    """

    bug: str
    seeds: int
    tries: tuple[int, ...]
    names: dict[str, int]
    unknown: int
    broken: int = 0
    run: str = ""

    @property
    def median(self) -> float | None:
        """The median number of seeds of a finding."""
        return statistics.median(self.tries) if self.tries else None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole campaign. ``clean_outcome`` is that of all seeds of the sound node together: a node
    that was hardly observed was not found clean. ``not_reached`` are markers that it had to reach.
    """

    bugs: tuple[BugResult, ...]
    clean_seeds: int
    clean_outcome: Outcome
    clean_unknown: int
    clean_broken: int
    clean_anomalies: dict[str, int]
    canary_rings: bool
    not_reached: tuple[str, ...] = ()


@click.command()
@click.option("--bug", "bugs", multiple=True, help="Only this bug; repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True,
              help="Findings of each bug, for the median.")  # fmt: skip
@click.option("--max-seeds", type=click.IntRange(1), default=50, show_default=True,
              help="Seeds for one finding; then the bug counts as not found.")  # fmt: skip
@click.option("--clean", type=click.IntRange(1), default=100, show_default=True,
              help="Seeds of the sound node, over the same plans.")  # fmt: skip
@click.option("--seed", "first", type=click.IntRange(0, MAX_SEED), default=1,
              help="The first (1); of mutants, what the sample is drawn by.")  # fmt: skip
@click.option("--must-reach", "must_reach_path", type=click.Path(path_type=Path), metavar="FILE",
              help="Markers of the node that the seeds of the sound one must reach.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Seeds at once (as many as cores).")
@click.option("--mutants", is_flag=True, help="Try mutants, made by rule from the store's source.")
@mutant_options
@runs_option
@click.pass_obj
def selftest(
    _session: Session,
    /,
    bugs: tuple[str, ...],
    rounds: int,
    max_seeds: int,
    clean: int,
    first: int,
    must_reach_path: Path | None,
    jobs: int | None,
    mutants: bool,
    choice: MutantChoice,
    store: RunStore,
) -> int:
    """Hunt every planted bug of the reference store in simulated drills, and none in a sound one.

    A bug is found when a checker of histories or of replicas names something; that a node died of
    it is not enough, nor that a partition stood still, but for bugs that do nothing else. Exit code
    0: all found, the sound node clean (2 where more than a few of its seeds can't tell), and the
    canary rings.

    With --mutants the store's own source is changed in one place at a time, and each mutant drilled
    until a drill tells it from the sound store, or a test of the store's own does. Exit code 0:
    nine of ten were, beside those that a review calls equivalent.
    """
    if mutants or choice.given:
        if bugs:
            raise UsageError("--bug: planted bugs are one campaign, --mutants is another")
        return campaign(choice, store, seed=first, jobs=jobs)
    from clusters.reference.marker_index import known_markers
    from clusters.reference.node.bugs import KNOWN

    for bug in bugs:
        if bug not in KNOWN:
            raise UsageError(f"--bug: expected one of {', '.join(sorted(KNOWN))} (got {bug!r})")
    known = known_markers()
    must_reach = load_must_reach(must_reach_path, known) if must_reach_path else None
    store.root.mkdir(parents=True, exist_ok=True)
    rings = _canary(store.root, first, jobs)
    chosen = bugs or tuple(sorted(KNOWN))
    found = []
    click.echo(row("bug", "found", "seeds", "median", "checker", "reported as"))
    for bug in chosen:
        found.append(hunt(bug, store.root, rounds, max_seeds, first, jobs))
        click.echo(described(found[-1]))
    seeds = range(first, first + clean)
    summary = _with_clean(found, rings, store.root, seeds, jobs, must_reach)
    write_atomically(store.root / RESULTS, msgspec.json.format(msgspec.json.encode(summary)))
    return _conclude(summary, store.root)


def hunt(
    bug: str, root: Path, rounds: int, max_seeds: int, first: int, jobs: int | None
) -> BugResult:
    """Drill seed after seed until ``bug`` was found ``rounds`` times, or not for ``max_seeds``.

    Seeds count in their order, however they end; only the run of the first finding is kept.
    """
    # Made when the pool asks for them: a bug that is found early needs few.
    plans = (plan_of(bug, seed, on=True) for seed in range(first, first + rounds * max_seeds))
    with _scratch_directory(root) as scratch:
        with drilled(plans, scratch, jobs) as work:
            found = summed(bug, work, rounds, max_seeds)
        return msgspec.structs.replace(found, run=_kept(found.run, root))


def summed(bug: str, work: Iterable[CellResult], rounds: int, max_seeds: int) -> BugResult:
    """Sum the findings among the results, in the order of their seeds, that the hunt needs."""

    def hit(result: CellResult) -> bool:
        return bool(anomalies_naming(bug, result))

    results = list(until_found(work, hit, rounds, max_seeds))
    hits = [result for result in results if hit(result)]
    names = Counter(name for result in hits for name in anomalies_naming(bug, result))
    counts = outcome_counts(results)
    return BugResult(
        bug=bug,
        seeds=len(results),
        tries=cells_per_finding(results, hit),
        names=dict(sorted(names.items(), key=lambda item: (-item[1], item[0]))),
        unknown=counts.get(Outcome.UNKNOWN, 0),
        broken=counts.get(Outcome.HARNESS_ERROR, 0),
        run=hits[0].run if hits else "",
    )


def anomalies_naming(bug: str, result: CellResult) -> tuple[str, ...]:
    """Return the anomalies that name ``bug``."""
    from clusters.reference.node.bugs import STALLING

    beside = CRASHES - {LIVENESS} if bug in STALLING else CRASHES
    return tuple(name for name in sorted(result.anomalies) if name not in beside)


def plan_of(bug: str, seed: int, *, on: bool) -> Plan:
    """Return the drill that suits ``bug``, with the bug or without it."""
    from clusters.reference.planted_bug_drills import overrides

    name = bug if on else f"clean-{bug}"
    given = {**overrides(bug), "seed": seed, "name": f"{name}-{seed}"[:48]}
    return load(None, given | {"system.bugs": [bug] if on else []})


def checker_of(name: str) -> str:
    """Return the checker that names this anomaly of a list-append drill."""
    from harness.protocols.consistency_models import OF_CLAIMS, OF_PLACEMENT, OF_REPLICAS, OF_RESETS

    if name in OF_CLAIMS:
        return "claims"
    if name in OF_PLACEMENT:
        return "data-nodes" if name.endswith("data-nodes") else "assignments"
    if name in OF_RESETS:
        return "resets"
    return "replicas" if name in OF_REPLICAS else CHECKERS.get(name, "list-append")


def row(*cells: str) -> str:
    """Format one line of the table."""
    return "{:<24} {:>7} {:>6} {:>7}  {:<24} {}".format(*cells).rstrip()


def described(found: BugResult) -> str:
    """Format one bug as a line."""
    checkers = dict.fromkeys(checker_of(name) for name in found.names)
    median = "-" if found.median is None else f"{found.median:g}"
    names = " ".join(f"{name}({count})" for name, count in found.names.items()) or "NOT FOUND"
    tries = str(len(found.tries))
    return row(found.bug, tries, str(found.seeds), median, ",".join(checkers) or "-", names)


def _canary(root: Path, first: int, jobs: int | None) -> bool:
    plan = plan_of("no-fsync", first, on=False)
    with _scratch_directory(root) as scratch:
        with drilled([plan], scratch, jobs, keep=True) as work:
            result = next(work)
        from cli.canary import run_canary  # imports table readers, which --help must not wait for

        heard = run_canary(RunDirectory(Path(result.run)))
    named = ", ".join(heard.after) or "nothing"
    click.echo(f"canary: a falsified run was reported as {named}")
    return heard.rings


def _with_clean(
    found: Sequence[BugResult],
    rings: bool,
    root: Path,
    seeds: range,
    jobs: int | None,
    must_reach: MustReach | None,
) -> Summary:
    """Drill the sound node over the plans of all bugs in turn."""
    names = [each.bug for each in found]
    plans = (plan_of(names[at % len(names)], seed, on=False) for at, seed in enumerate(seeds))
    anomalies: Counter[str] = Counter()
    with _scratch_directory(root) as scratch:
        with drilled(plans, scratch, jobs) as work:
            results = list(work)
        for result in results:
            anomalies.update(result.anomalies.keys())
            if result.anomalies or result.outcome in FAILED:
                kept = _kept(result.run, root)
                say(f"the sound node: {result.name}: {'; '.join(result.reasons)}: {kept}")
    counts = outcome_counts(results)
    reached = [result.stats.markers for result in results if result.judged]
    return Summary(
        bugs=tuple(found),
        clean_seeds=len(results),
        clean_outcome=overall(results),
        clean_unknown=counts.get(Outcome.UNKNOWN, 0),
        clean_broken=counts.get(Outcome.HARNESS_ERROR, 0),
        clean_anomalies=dict(anomalies),
        canary_rings=rings,
        not_reached=(must_reach.lacking(reached) or ()) if must_reach else (),
    )


@contextmanager
def _scratch_directory(root: Path) -> Iterator[Path]:
    """Yield a directory for this command's runs alone, and remove it afterwards, with those that
    killed commands left: other directories below ``root`` belong to the user, under any name.
    """
    sweep(root)
    # Below ``root``, so that a run is kept by a rename, which stays within one file system.
    with scratch_directory("selftest", root) as made:
        yield made.path


def _kept(run: str, root: Path) -> str:
    """Move the directory ``run`` out of its temporary parent to ``root``, and return its new path;
    empty where there is none.
    """
    if not run:
        return ""
    place = root / Path(run).name
    try:
        Path(run).rename(place)
    except OSError as error:
        raise disk_failure("move", Path(run), error, "what was found is not kept") from error
    return str(place)


@contextmanager
def drilled(
    plans: Iterable[Plan], root: Path, jobs: int | None, *, keep: bool = False
) -> Iterator[Iterator[CellResult]]:
    """Yield the results in the order of ``plans``; leaving the block ends the workers."""
    cells = (simulated_cell(plan) for plan in plans)
    with closing(simulation_pool(root, keep=keep, jobs=jobs).results(in_turn(cells))) as work:
        yield work


def _conclude(summary: Summary, root: Path) -> int:
    missed = [each.bug for each in summary.bugs if not each.tries]
    clean = ", ".join(f"{name} in {n}" for name, n in summary.clean_anomalies.items()) or "nothing"
    click.echo(
        f"the sound node: {clean} found in {summary.clean_seeds} seeds, {summary.clean_unknown} of "
        f"them unknown, {summary.clean_broken} broken off"
    )
    click.echo(f"found {len(summary.bugs) - len(missed)} of {len(summary.bugs)} planted bugs")
    if missed:
        click.echo(f"not found: {', '.join(missed)}")
    if broken := {each.bug: each.broken for each in summary.bugs if each.broken}:
        click.echo("broken off: " + ", ".join(f"{bug} in {n}" for bug, n in broken.items()))
    if not summary.canary_rings:
        click.echo("the canary is silent: nothing that was found or not found counts")
    for marker in summary.not_reached:
        click.echo(f"MUST BE REACHED, and was not: {marker}")
    if summary.clean_outcome is Outcome.UNKNOWN:
        click.echo("the sound node showed too little to be called clean")
    for each in summary.bugs:
        if each.run:
            click.echo(f"{each.bug}: firedrill replay {shlex.quote(each.run)}")
    click.echo(f"results: {root / RESULTS}")
    if summary.clean_anomalies:
        return Outcome.VIOLATION.exit_code
    if missed or not summary.canary_rings or summary.not_reached:
        return Outcome.HARNESS_ERROR.exit_code
    return summary.clean_outcome.exit_code
