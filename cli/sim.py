"""``firedrill sim``: the same drill under many seeds, simulated, on all cores."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from cli import duration
from cli.campaign import FIXED, NAME_CHARS, Announcer, conclude
from cli.cells import code_digest, simulation_pool
from cli.run import naming_source
from cli.served import Comparison
from cli.session import Session, runs_option, say
from harness.campaigns.cell import CELL_LIMIT_S, Cell, CellResult
from harness.campaigns.ledger import RESULTS_FILE, Ledger
from harness.campaigns.markers import MustReach, load_must_reach, table
from harness.campaigns.pool import in_turn
from harness.campaigns.summary import MAX_UNKNOWN_SHARE, overall, totals
from harness.clock import substream
from harness.errors import PlanError, UsageError
from harness.exit_codes import Outcome, worst
from harness.plan.overrides import PLUGINS, merged, said
from harness.plan.plan import MAX_SEED, Plan, load, resolved
from results.store.store import RunStore

WORKLOADS = ("list-append", "bank")
# Of swarm: operations of one key are judged more sharply, and meet fewer of a store's paths.
SWARM_WORKLOADS = (*WORKLOADS, *WORKLOADS, "register")
MOST_KINDS = 4  # of a seed's mix: few, and then some more than once, find more than all at once
FAULTS = (
    *("kill", "restart", "pause", "host-loss", "wipe"),
    *("partition", "one-way", "loss", "delay"),
    *("disk-slow", "disk-full", "disk-error", "bit-flip"),
    *("clock-jump", "clock-fast", "clock-slow"),
)
# About 500 operations and a handful of faults: a seed is short, so that there can be many.
DEFAULTS: dict[str, object] = {
    "name": "sim",
    "cluster.nodes": 5,
    # Of which the last 7 s are calm: whether a store is back within its bound is shown by what is
    # begun after that.
    "drive.duration_s": 28.4,
    "drive.rate_per_s": 19.0,
    "drive.concurrency": 20,
    "nemesis.mix": list(FAULTS),
    "nemesis.first_s": 1.5,
    "nemesis.hold_s": 2.0,
    "nemesis.quiet_s": 2.5,
    "cluster.options.rare": 0.35,
    "cluster.options.weather": {
        **{"loss": 0.002, "reorder": 0.02, "duplicate": 0.01},
        **{"slow": 0.05, "resets_per_s": 0.1},
    },
}


@click.command()
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many.")
@click.option("--seed", "first", type=click.IntRange(0, MAX_SEED), default=0, help="The first (0).")
@click.option(
    "--workload", "workloads", multiple=True, help="What clients do; seeds take turns among them."
)
@click.option("--faults", multiple=True, metavar="KIND[,KIND]", help="The random mix; repeatable.")
@click.option("--bug", "bugs", multiple=True, help="A planted bug of the store; repeatable.")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan, dotted."
)
@click.option(
    "--swarm/--no-swarm",
    default=None,
    help="Each seed draws its own settings of the reference store (by default, without PLAN).",
)
@click.option("--keep-runs", is_flag=True, help="Keep the runs of valid seeds, too.")
@click.option("--again", is_flag=True, help="Simulate also the seeds whose results are known.")
@click.option(
    "--max-unknown",
    type=click.FloatRange(0, 1),
    default=MAX_UNKNOWN_SHARE,
    show_default=True,
    help="The share of seeds that may show nothing; with more the campaign is unknown.",
)
@click.option("--jobs", type=click.IntRange(1), help="Seeds at once (as many as cores).")
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    default=CELL_LIMIT_S,
    show_default=True,
    help="Wall seconds that one seed may take.",
)
@click.option(
    "--time-budget",
    "budget_s",
    callback=duration.seconds,
    metavar="TIME",
    help="Begin no seed after that time: 90s, 30m, 8h.",
)
@click.option(
    "--must-reach",
    "must_reach_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Markers of the node, one a line, that the seeds must reach, or firedrill has failed.",
)
@click.option(
    "--baseline",
    "baseline_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What --no-swarm served when FILE was recorded; by default the one that comes along.",
)
@click.option(
    "--record-baseline",
    "record_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Record what the seeds served in calm, to compare later campaigns with.",
)
@runs_option
@click.pass_obj
def sim(
    _session: Session,
    /,
    plan: Path | None,
    seeds: int,
    first: int,
    workloads: tuple[str, ...],
    faults: tuple[str, ...],
    bugs: tuple[str, ...],
    sets: tuple[str, ...],
    swarm: bool | None,
    keep_runs: bool,
    again: bool,
    max_unknown: float,
    jobs: int | None,
    limit_s: float,
    budget_s: float | None,
    must_reach_path: Path | None,
    baseline_path: Path | None,
    record_path: Path | None,
    store: RunStore,
) -> int:
    """Simulate PLAN (a TOML file; by default a short drill) under many seeds and judge each.

    A line for every seed that is not valid, with the command that replays it, then the sums. Broken
    off and started again, it goes on where it was.
    """
    given = flags_given(faults, bugs, sets)
    if workloads and (name := said(given, "workload.name")) is not None:
        raise PlanError("workload.name", f"expected --workload or --set, not both (got {name!r})")
    if swarm and plan is not None:
        raise UsageError("--swarm: expected no PLAN, which is the same for every seed")
    with naming_source(plan, given):
        make = seed_plans if swarm is False or plan is not None else swarm_plans
        plans = make(plan, given, workloads, range(first, first + seeds))
        refuse_unrunnable(plans)
    comparison = Comparison.of(
        plans if swarm is False and plan is None else (), baseline_path, record_path
    )
    known = markers_of(plans[0])
    must_reach = load_must_reach(must_reach_path, known) if must_reach_path else None
    cells = [Cell(plan=plan, limit_s=limit_s) for plan in plans]
    path, code = store.root / RESULTS_FILE, code_digest()
    ledger = Ledger(path, code) if again else Ledger.read(path, code)
    left = {cell.plan.name for cell in cells if cell.key not in ledger.known}
    if len(left) < seeds:
        say(f"{seeds - len(left)} of {seeds} seeds are known from {path}")
    if gone := store.sweep(left, {result.run for result in ledger.known.values()}):
        say(f"removed {gone} runs that were broken off")
    cells.sort(key=lambda cell: cell.key not in ledger.known)  # no time budget leaves these out
    began_s = time.monotonic()
    end_s = math.inf if budget_s is None else began_s + budget_s
    pool = simulation_pool(store.root, keep=keep_runs, jobs=jobs)
    fresh = len(left)
    announcer = Announcer(
        title=lambda result: f"seed {result.seed} ({result.workload})",
        # Known results come first, and are not simulated.
        progress=lambda count: f"{count + fresh - seeds} of {fresh} seeds simulated",
    )
    done, finished = announcer.run(pool, in_turn(cells), ledger, end_s=end_s)
    if finished and len(done) < seeds:
        click.echo(f"the time is over: {seeds - len(done)} of {seeds} seeds were not simulated")
    with contextlib.suppress(OSError):  # a name for convenience
        store.mend_latest()
    for line in totals(done, time.monotonic() - began_s):
        click.echo(line)
    outcome = comparison.outcome(done, overall(done, max_unknown), finished=finished)
    if known and not _reached(done, known, must_reach):
        outcome = worst((outcome, Outcome.HARNESS_ERROR))
    return conclude(outcome, store.root, interrupted=not finished)


def seed_plans(
    path: Path | None,
    overrides: Mapping[str, object],
    workloads: Sequence[str],
    seeds: Iterable[int],
) -> list[Plan]:
    """Return the plan of every seed: the file (by default a short drill) with ``overrides``; of
    several ``workloads`` seeds take turns, of the mix each takes a few kinds. Raises ``PlanError``.
    """
    given = dict(overrides) | FIXED
    usual = WORKLOADS if path is None and said(given, "workload.name") is None else ()
    turns = workloads or usual
    plans = []
    for seed in seeds:
        own: dict[str, object] = {"seed": seed}
        if turns:
            own["workload.name"] = turns[seed % len(turns)]
        # Loaded for its name first, which the file may set.
        plan = load(path, given | own, usual=DEFAULTS)
        own["name"] = f"{plan.name}-{seed}"
        plans.append(_with_some_kinds(load(path, given | own, usual=DEFAULTS)))
    return plans


def swarm_plans(
    path: Path | None,
    overrides: Mapping[str, object],
    workloads: Sequence[str],
    seeds: Iterable[int],
) -> list[Plan]:
    """Return the plan of every seed, each with settings of its own where ``overrides`` leave them
    open: see ``clusters.reference.swarm``. Another system has ``seed_plans``. Raises ``PlanError``.
    """
    if said(overrides, "system.name") not in (None, PLUGINS["system"]):
        return seed_plans(path, overrides, workloads, seeds)
    name = said(overrides, "workload.name")
    turns = workloads or ((str(name),) if name else SWARM_WORKLOADS)
    return [swarm_plan(seed, turns[seed % len(turns)], overrides) for seed in seeds]


def swarm_plan(seed: int, workload: str, overrides: Mapping[str, object]) -> Plan:
    """Return the plan that ``seed`` draws, with its schedule. Raises ``PlanError``."""
    from cli.wiring import named, schedule_of
    from clusters.reference.swarm import settings, sharpened

    drawn = settings(seed, workload, overrides)
    own = {"seed": seed, "workload.name": workload}
    given = dict(overrides) | FIXED | own
    # The name with them: options of a workload go where another one is named.
    plan = load(None, given, usual=DEFAULTS | drawn | {"workload.name": workload})
    plan = replace(plan, name=f"{plan.name}-{seed}"[:NAME_CHARS])
    if plan.nemesis.schedule or not plan.nemesis.mix:
        return plan
    for kind in plan.nemesis.mix:
        named("nemesis.mix", "faults", kind)
    return resolved(plan, sharpened(plan, schedule_of(plan)))


def _with_some_kinds(plan: Plan) -> Plan:
    """Return ``plan`` with a few kinds of its mix, drawn by its seed."""
    mix = plan.nemesis.mix
    if not mix:
        return plan
    stream = substream(plan.seed, "sim-kinds")
    count = stream.randint(1, min(MOST_KINDS, len(mix)))
    # Sorted: the order in which a plan lists its kinds must not change what its seed draws.
    some = tuple(sorted(stream.sample(sorted(mix), count)))
    return replace(plan, nemesis=replace(plan.nemesis, mix=some))


def refuse_unrunnable(plans: Sequence[Plan]) -> None:
    """Report an error that would refuse every seed once, before any. Raises ``UsageError``."""
    from cli.wiring import build_system, build_workload, named
    from clusters.providers.sim.provider import build

    kinds = dict.fromkeys(kind for plan in plans for kind in plan.nemesis.mix)
    for kind in kinds:
        named("nemesis.mix", "faults", kind)
    for plan in {plan.workload.name: plan for plan in plans}.values():
        build_workload(plan, build_system(plan))
    for plan in plans[:1]:
        # For its options alone: nothing is provisioned.
        build("none", {"seed": plan.seed, **plan.cluster.options}, Path())


def markers_of(plan: Plan) -> Mapping[str, str]:
    """Return the markers of the system in ``plan`` with their places; empty for one without."""
    if plan.system.name != PLUGINS["system"]:
        return {}
    from clusters.reference.marked import known_markers

    return known_markers()


def _reached(
    done: Sequence[CellResult], known: Mapping[str, str], must_reach: MustReach | None
) -> bool:
    """Print which markers the seeds reached, and return whether those are that must be."""
    runs = [result.stats.markers for result in done if result.judged]
    for line in table(runs, known):
        click.echo(line)
    if must_reach is None:
        return True
    lacking = must_reach.lacking(runs)
    if lacking is None:
        few = f"{len(runs)} seeds are too few to ask for markers: {must_reach.seeds} would do"
        click.echo(few)
        return True
    for marker in lacking:
        click.echo(f"MUST BE REACHED, and was not: {marker} ({known[marker]})")
    return not lacking


def flags_given(
    faults: Sequence[str], bugs: Sequence[str], sets: Sequence[str]
) -> dict[str, object]:
    """Return the plan's keys that flags name. Raises ``PlanError``."""
    flags = {
        "nemesis.mix": [kind.strip() for text in faults for kind in text.split(",")] or None,
        "system.bugs": list(bugs) or None,
    }
    given = merged(flags, sets)
    for path, only in FIXED.items():
        if (value := said(given, path)) not in (None, only):
            raise PlanError(path, f"expected {only!r}: seeds are simulated (got {value!r})")
    if "seed" in given:
        raise PlanError("seed", f"expected --seed for the first (got {given['seed']!r})")
    return given
