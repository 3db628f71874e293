"""``firedrill explore``: simulated runs, varied from those that reached something new."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
import click
from msgspec.structs import replace

from cli import quantities
from cli.campaign_course import GOES_ON, Announcer, conclude
from cli.campaign_plans import flags_given, markers_of, refuse_unrunnable, seed_plans, swarm_plans
from cli.cells import code_digest, simulate, simulation_pool
from cli.run import naming_source
from cli.session import PlanFile, PluginName, PluginNames, Session, runs_option, say
from harness.campaigns.campaign_summary import overall, totals
from harness.campaigns.cell import CELL_LIMIT_S, CRASHES, Cell, CellResult
from harness.campaigns.corpus import Corpus, Entry
from harness.campaigns.coverage_log import CoverageLog
from harness.campaigns.guided import CHILD, GUIDED_AHEAD, Guided, rarest
from harness.campaigns.ledger import RESULTS_FILE, Ledger
from harness.campaigns.marker_counts import table
from harness.campaigns.pool import Pool, RunStarted
from harness.campaigns.variation import Repertoire, Variation
from harness.errors import FiredrillError, Interrupted, UsageError
from harness.exit_codes import Outcome
from harness.history.directory_locks import locked
from harness.history.durable_files import disk_failure
from harness.history.run_directory import RunDirectory
from harness.plan.overrides import PLUGINS, Overrides, applied
from harness.plan.plan import MAX_SEED, Plan, dumps, loads, resolved
from harness.protocols.cluster import OF_SYSTEMS, Capability
from harness.protocols.coverage import Features
from harness.protocols.fault_kinds import BUILT_IN, PROCEDURES
from harness.protocols.moments import Moment
from results.store.store import RunStore

USUAL_BUDGET_S = 600.0
SHRINK_BUDGET = "2m"  # of each failure
SHRUNK_MOST = 5  # failures: more are mostly the same again
MAX_UNKNOWN_RUNS = 0.25  # a schedule of a variation may come to nothing
TELL_FROM = 40  # plans in the corpus on: before that every run reaches something
TOLD_NEW = 3  # of what a run reached first
TOLD_RAREST = 10
RANDOM = "explore-random"  # with a number, the name of a random plan
SLUGS = re.compile(rf"{RANDOM}-\d+|{CHILD}")  # of all plans of searches
FROM_CORPUS = "the same command searches on from the corpus as it is now"


@click.command()
@click.argument("plan", required=False, type=PlanFile())
@click.option("--runs", type=click.IntRange(1), help="How many; as many as the time allows.")
@click.option("--time-budget", "budget_s", callback=quantities.seconds, metavar="TIME",
              help="Begin no run after that time: 90s, 30m, 8h (without --runs 10m).")  # fmt: skip
@click.option("--corpus", "corpus_path", type=click.Path(path_type=Path), metavar="DIR",
              help="Plans that reached something: read, made smaller, and grown.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, MAX_SEED), default=0, show_default=True,
              help="Of every choice.")  # fmt: skip
@click.option("--workload", "workloads", type=PluginName("workloads"), multiple=True,
              help="What clients do; repeatable.")  # fmt: skip
@click.option("--faults", type=PluginNames("faults"), multiple=True, metavar="KIND[,KIND]",
              help="Draw only these; plans of the corpus keep theirs; repeatable.")  # fmt: skip
@click.option("--bug", "bugs", multiple=True, help="A planted bug of the store; repeatable.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan.")
@click.option("--keep-runs", is_flag=True, help="Keep the runs that are valid, too.")
@click.option("--max-unknown", type=quantities.Range(0, 1), default=MAX_UNKNOWN_RUNS,
              show_default=True, help="The share of runs that may show nothing.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), help="Runs at once (as many as cores).")
@click.option("--limit", "limit_s", type=quantities.Range(min=1), default=CELL_LIMIT_S,
              show_default=True, help="Seconds of a core that one run may take.")  # fmt: skip
@click.option("--shrink", "shrink_s", callback=quantities.seconds, default=SHRINK_BUDGET,
              show_default=True, metavar="TIME", help="For each failure, afterwards.")  # fmt: skip
@click.option("--no-shrink", is_flag=True, help="Leave what fails as it is.")
@runs_option
@click.pass_obj
def explore(
    _session: Session,
    /,
    plan: Path | None,
    runs: int | None,
    budget_s: float | None,
    corpus_path: Path | None,
    seed: int,
    workloads: tuple[str, ...],
    faults: tuple[str, ...],
    bugs: tuple[str, ...],
    sets: tuple[str, ...],
    keep_runs: bool,
    max_unknown: float,
    jobs: int | None,
    limit_s: float,
    shrink_s: float,
    no_shrink: bool,
    store: RunStore,
) -> int:
    """Search simulated runs for a broken promise, guided by what they reach.

    The search begins with random plans, as 'firedrill sim' draws them (from PLAN, where one is
    given), and with the plans of the corpus. A plan that reached something new is kept, and varied:
    its faults are moved, added, aimed at rare moments, its settings crossed with another's. The
    same seed, number of runs and corpus make the same search with any number of jobs. A run that
    fails is shrunk.
    """
    given = flags_given(faults, bugs, sets)
    if runs is None and budget_s is None:
        budget_s = USUAL_BUDGET_S

    def source_of(flags: Overrides) -> Source:
        source = Source(path=plan, given=flags, workloads=workloads, seed=seed)
        refuse_unrunnable([source.fresh(0)])
        return source

    with naming_source(plan, given, source_of):
        source = source_of(given)
    corpus = read_corpus(corpus_path)
    began_s = time.monotonic()
    end_s = math.inf if budget_s is None else began_s + budget_s
    ledger = Ledger.read(store.root / RESULTS_FILE, code_digest())
    store.root.mkdir(parents=True, exist_ok=True)
    if gone := store.sweep(SLUGS, {result.run for result in ledger.known.values()}):
        say(f"removed {gone} runs that were broken off")
    guided = search(source, corpus, runs=runs, limit_s=limit_s, kinds=_kinds(given))
    if aside := len(corpus.entries) - len(guided.parents):
        say(f"{aside} plans of the corpus do other work or can't have these settings: left aside")
    found = Failures()
    announcer = Announcer(
        title=lambda result: f"run of {result.name} ({result.workload})",
        progress=lambda count: f"{count} runs: {_state(guided)}",
        take=partial(_take, guided, found),
    )
    pool = exploring_pool(store.root, keep=keep_runs, jobs=jobs)
    done, finished = announcer.run(pool, guided.choose, ledger, end_s=end_s)
    with contextlib.suppress(OSError):  # a name for convenience
        store.mend_latest()
    for line in totals(done, time.monotonic() - began_s, unit="run"):
        click.echo(line)
    if guided.refused:
        click.echo(f"{guided.refused} random plans could not be drawn: {guided.refusal}")
    if known := markers_of(source.fresh(0)):
        for line in table([result.stats.markers for result in done if result.judged], known):
            click.echo(line)
    click.echo(f"coverage: {_state(guided)}")
    for feature in rarest(guided.reached, found.new, TOLD_RAREST):
        click.echo(f"  new in this search: {feature}")
    outcome = overall(done, max_unknown)
    # The outcome stands however the shrinking ends: what was found is proven.
    if finished and not no_shrink:
        finished = found.shrink(shrink_s, jobs)
    again = GOES_ON if corpus_path is None else FROM_CORPUS
    return conclude(outcome, store.root, interrupted=not finished, again=again)


@attrs.frozen(kw_only=True)
class Source:
    """Random plans: of ``path``, or drawn, with what is ``given``; the search's ``seed`` decides
    which.
    """

    path: Path | None = None
    given: Mapping[str, object]
    workloads: Sequence[str] = ()
    seed: int = 0

    def fresh(self, number: int) -> Plan:
        """Return the plan of ``number``, with its schedule. Raises ``PlanError``."""
        from cli.plan_schedule import schedule_of

        make = swarm_plans if self.path is None else seed_plans
        # Not beside those of another search's seed: two searches are to share no plan.
        seed = (self.seed * 1_000_003 + number) % MAX_SEED
        [plan] = make(self.path, self.given, self.workloads, [seed])
        # Named for the search: a run that it leaves is none of a campaign's, whose plan it may be.
        plan = replace(plan, name=f"{RANDOM}-{seed}")
        return resolved(plan, schedule_of(plan))


@attrs.define
class Failures:
    """What broke a promise, the first run of each set of anomalies; and all that was new."""

    runs: dict[frozenset[str], RunDirectory] = attrs.field(factory=dict)
    new: set[str] = attrs.field(factory=set)

    def take(self, result: CellResult, new: Features) -> None:
        """Take in the next result, and what it was the first to reach."""
        self.new |= new
        names = frozenset(result.anomalies)
        if result.outcome is Outcome.VIOLATION and result.run:
            self.runs.setdefault((names - CRASHES) or names, RunDirectory(Path(result.run)))

    def shrink(self, budget_s: float, jobs: int | None) -> bool:
        """Shrink the first of them, as ``firedrill shrink`` does, and say which could not be;
        return false where the user interrupted.
        """
        for run in list(self.runs.values())[:SHRUNK_MOST]:
            try:
                _shrink(run, budget_s, jobs)
            except (Interrupted, KeyboardInterrupt) as error:
                say(str(error) or "interrupted")
                return False
            except FiredrillError as error:
                say(f"{run.root.name} is not shrunk: {error}")
        return True


def _shrink(run: RunDirectory, budget_s: float, jobs: int | None) -> None:
    from cli.shrinking.shrink_run import SHRUNK, counted_faults, failures, shrink_run

    names = failures(run)
    say(f"shrinking {run.root.name}: {', '.join(sorted(names))}")
    found = shrink_run(run, names, budget_s=budget_s, jobs=jobs)
    click.echo(f"shrunk to {counted_faults(found.small)}: {run.root / SHRUNK}")


def read_corpus(path: Path | None) -> Corpus:
    """Return the corpus in ``path``, without the plans that add nothing to it. Raises
    ``HarnessError``, and ``UsageError`` where there is something else.
    """
    if path is None:
        return Corpus()
    if path.exists() and not path.is_dir():
        raise UsageError(f"--corpus: expected a directory (got {path})")
    if not path.exists():
        return Corpus(path)
    # Two searches that read different plans would each remove what the other one keeps.
    try:
        with locked(path) as alone:
            corpus = Corpus.read(path)
            gone = corpus.minimise() if alone else 0
    except OSError as error:
        raise disk_failure("lock", path, error, "no plan of the corpus is known") from error
    if corpus.damaged:
        names = ", ".join(each.name for each in corpus.damaged[:3])
        say(f"{path}: {len(corpus.damaged)} files are no plans of a corpus: {names}")
    smaller = f"{gone} others added nothing and are gone"
    busy = "another search makes it smaller now"
    say(f"{path}: {len(corpus.entries)} plans, {smaller if alone else busy}")
    return corpus


def under(
    corpus: Corpus, given: Mapping[str, object], workloads: Sequence[str] = ()
) -> list[Entry]:
    """Return the entries of ``corpus`` as parents of plans with what is ``given``, without those
    that can't have it, nor those of other than these ``workloads``, where there are any.
    """
    # The faults are what a corpus is kept for.
    settings = {key: value for key, value in given.items() if not key.startswith("nemesis")}
    found = []
    # Sorted, since the same corpus must make the same search in any order of reading.
    for key in sorted(corpus.entries):
        entry = corpus.entries[key]
        if workloads and entry.plan.workload.name not in workloads:
            continue
        if settings:
            try:
                entry = attrs.evolve(entry, plan=loads(dumps(entry.plan), settings))
            except UsageError:
                continue
        found.append(entry)
    return found


def search(
    source: Source,
    corpus: Corpus,
    *,
    runs: int | None,
    limit_s: float = CELL_LIMIT_S,
    kinds: Sequence[str] = (),
) -> Guided:
    """Return the search for plans of ``source``, which grows ``corpus``; only with faults of
    ``kinds``, where there are any.
    """
    return Guided(
        seed=source.seed,
        fresh=source.fresh,
        variation=Variation(repertoire=_repertoire(kinds), acceptable=_acceptable),
        corpus=corpus,
        parents=under(corpus, source.given, source.workloads),
        runs=runs,
        limit_s=limit_s,
    )


def exploring_pool(runs_dir: Path, *, keep: bool = False, jobs: int | None = None) -> Pool:
    """Return the pool whose results have their coverage."""
    pool = simulation_pool(runs_dir, jobs=jobs)
    work = partial(covered, runs_dir=runs_dir, keep=keep)
    return attrs.evolve(pool, work=work, ahead=GUIDED_AHEAD)


def covered(cell: Cell, run_started: RunStarted, *, runs_dir: Path, keep: bool) -> CellResult:
    """Simulate ``cell`` with its coverage."""
    return simulate(cell, run_started, runs_dir=runs_dir, keep=keep, coverage=CoverageLog())


def _take(guided: Guided, found: Failures, result: CellResult) -> None:
    new = guided.take(result)
    found.take(result, new)
    if new and len(guided.corpus.entries) > TELL_FROM:
        told = "; ".join(rarest(guided.reached, new, TOLD_NEW))
        say(f"{result.name} reached {len(new)} for the first time: {told}")


def _state(guided: Guided) -> str:
    return (
        f"{len(guided.reached)} features reached, {guided.added} plans added, "
        f"{len(guided.corpus.entries)} in the corpus"
    )


def _kinds(given: Mapping[str, object]) -> tuple[str, ...]:
    nemesis = applied({}, dict(given)).get("nemesis", {})
    return tuple(nemesis.get("mix", ()))


def _repertoire(kinds: Sequence[str]) -> Repertoire:
    from cli.plan_plugins import build_fault
    from harness import plugins
    from nemesis.schedule import COUNTED_TARGETS, LEADER_TARGET

    # Of another's kinds only a plan that names them can know what they need.
    # How long a procedure takes depends on its nodes: a drawn hold would break most of them off.
    drawn = frozenset(BUILT_IN) - PROCEDURES
    names = kinds or [name for name in plugins.names("faults") if name in drawn]
    # What a statement or a command says is the plan's, and nothing draws it.
    said = OF_SYSTEMS | {Capability.COMMANDS}
    return Repertoire(
        kinds={n: kind for n in names if not (kind := build_fault(n).kind).needs & said},
        targets=(LEADER_TARGET, "follower of any partition", *COUNTED_TARGETS),
        moments=tuple(Moment),
    )


def _acceptable(plan: Plan) -> bool:
    from cli.wiring import can_run
    from clusters.reference.swarm import within_drift

    reference = plan.system.name == PLUGINS["system"]
    return (not reference or within_drift(plan.nemesis.schedule)) and can_run(plan)
