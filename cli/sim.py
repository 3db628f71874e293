"""``firedrill sim``: the same drill under many seeds, simulated, on all cores."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from cli import quantities
from cli.campaign_course import Announcer, conclude
from cli.campaign_plans import (
    flags_given,
    markers_of,
    refuse_unrunnable,
    seed_plans,
    swarm_plans,
)
from cli.cells import code_digest, simulation_pool
from cli.run import naming_source
from cli.run_pages import refresh_index
from cli.served_baseline import Comparison
from cli.session import PlanFile, PluginName, PluginNames, Session, runs_option, say
from harness.campaigns.campaign_summary import MAX_UNKNOWN_SHARE, overall, totals
from harness.campaigns.cell import CELL_LIMIT_S, CellResult, simulated_cell
from harness.campaigns.ledger import RESULTS_FILE, Ledger
from harness.campaigns.marker_counts import MustReach, load_must_reach, table
from harness.campaigns.pool import in_turn
from harness.errors import PlanError, UsageError
from harness.exit_codes import Outcome, worst
from harness.plan.overrides import Overrides, said
from harness.plan.plan import MAX_SEED, Plan
from results.store.store import RunStore


@click.command()
@click.argument("plan", required=False, type=PlanFile())
@click.option("--seeds", type=click.IntRange(1), default=100, show_default=True, help="How many.")
@click.option("--seed", "first", type=click.IntRange(0, MAX_SEED), default=0, help="The first (0).")
@click.option(
    "--workload",
    "workloads",
    type=PluginName("workloads"),
    multiple=True,
    help="What clients do; seeds take turns among them.",
)
@click.option(
    "--faults",
    type=PluginNames("faults"),
    multiple=True,
    metavar="KIND[,KIND]",
    help="The random mix; repeatable.",
)
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
    type=quantities.Range(0, 1),
    default=MAX_UNKNOWN_SHARE,
    show_default=True,
    help="The share of seeds that may show nothing; with more the campaign is unknown.",
)
@click.option("--jobs", type=click.IntRange(1), help="Seeds at once (as many as cores).")
@click.option(
    "--limit",
    "limit_s",
    type=quantities.Range(min=1),
    default=CELL_LIMIT_S,
    show_default=True,
    help="Seconds of a core that one seed may take.",
)
@click.option(
    "--time-budget",
    "budget_s",
    callback=quantities.seconds,
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
    make = seed_plans if swarm is False or plan is not None else swarm_plans

    def plans_of(flags: Overrides) -> list[Plan]:
        made = make(plan, flags, workloads, range(first, first + seeds))
        refuse_unrunnable(made)
        return made

    with naming_source(plan, given, plans_of):
        plans = plans_of(given)
    comparison = Comparison.of(
        plans if swarm is False and plan is None else (), baseline_path, record_path
    )
    known = markers_of(plans[0])
    must_reach = load_must_reach(must_reach_path, known) if must_reach_path else None
    cells = [simulated_cell(plan, limit_s=limit_s) for plan in plans]
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
    refresh_index(store)
    for line in totals(done, time.monotonic() - began_s):
        click.echo(line)
    outcome = comparison.outcome(done, overall(done, max_unknown), finished=finished)
    if known and not _reached(done, known, must_reach):
        outcome = worst((outcome, Outcome.HARNESS_ERROR))
    return conclude(outcome, store.root, interrupted=not finished)


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
