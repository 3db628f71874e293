"""``firedrill crash-points``: one simulated execution, then one for each of its crash points."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click
from msgspec import to_builtins
from msgspec.structs import replace

from cli import quantities
from cli.campaign_course import Announcer, conclude
from cli.campaign_plans import FIXED, NAME_CHARS, refuse_unrunnable
from cli.cells import code_digest, simulation_pool
from cli.run import naming_source
from cli.session import PlanFile, Session, runs_option, say
from harness.campaigns.campaign_summary import overall
from harness.campaigns.cell import CELL_LIMIT_S, simulated_cell
from harness.campaigns.ledger import RESULTS_FILE, Ledger
from harness.campaigns.point_census import (
    NodePoint,
    every_point,
    point_totals,
    read_points,
    sampled,
)
from harness.campaigns.pool import in_turn
from harness.errors import HarnessError, PlanError
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.plan.overrides import Overrides, merged
from harness.plan.plan import MAX_SEED, Plan, load, node_names, resolved
from harness.protocols.faults import PlannedFault
from results.store.store import RunStore

SAMPLE = 300  # runs of a few seconds each: some minutes on a few cores
HOLD_S = 1.5  # longer than a lease and an election, so that others take over


@click.command("crash-points")
@click.argument("plan", type=PlanFile())
@click.option("--sample", type=click.IntRange(1), default=SAMPLE, show_default=True,
              help="How many points at most, of each kind alike.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Every point, however many.")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), help="Of the plan and the sample.")
@click.option("--hold", "hold_s", type=quantities.Range(min=0.1), default=HOLD_S,
              show_default=True, help="Seconds until the node starts again.")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at once (as many as cores).")
@click.option("--limit", "limit_s", type=quantities.Range(min=1), default=CELL_LIMIT_S,
              show_default=True, help="Seconds of a core that one run may take.")  # fmt: skip
@click.option("--time-budget", "budget_s", callback=quantities.seconds, metavar="TIME",
              help="Begin no run after that time: 90s, 30m, 8h.")  # fmt: skip
@runs_option
@click.pass_obj
def crash_points(
    _session: Session,
    /,
    plan: Path,
    sample: int,
    every: bool,
    seed: int | None,
    hold_s: float,
    sets: tuple[str, ...],
    jobs: int | None,
    limit_s: float,
    budget_s: float | None,
    store: RunStore,
) -> int:
    """Simulate PLAN and count its crash points; then once for each of them, with a crash there.

    A point is a sync, a rename, or a message between nodes, before, in the middle of and after it.
    Each run is the same up to its crash, goes on to the end and is judged. Broken off and started
    again, it goes on where it was.
    """
    base = _base(plan, sets, seed, hold_s)
    store.root.mkdir(parents=True, exist_ok=True)
    there = _census(base, hold_s, store, limit_s)
    points = there if every else sampled(there, sample, base.seed)
    say(f"{len(there)} crash points, {len(points)} of them are tried")
    ledger = Ledger.read(store.root / RESULTS_FILE, code_digest())
    cells = [
        simulated_cell(_crashing(base, point, hold_s, number), limit_s=limit_s)
        for number, point in enumerate(points)
    ]
    began_s = time.monotonic()
    end_s = math.inf if budget_s is None else began_s + budget_s
    point_of = dict(zip((cell.key for cell in cells), points, strict=True))
    announcer = Announcer(
        title=lambda result: f"{point_of[result.key].node} {point_of[result.key].point}",
        progress=lambda count: f"{count} of {len(cells)} points tried",
    )
    pool = simulation_pool(store.root, jobs=jobs)
    done, finished = announcer.run(pool, in_turn(cells), ledger, end_s=end_s)
    for line in point_totals([(point_of[result.key], result) for result in done], there):
        click.echo(line)
    if finished and len(done) < len(points):
        click.echo(f"the time is over: {len(points) - len(done)} points were not tried")
    return conclude(overall(done), store.root, interrupted=not finished)


def _base(path: Path, sets: Sequence[str], seed: int | None, hold_s: float) -> Plan:
    """Return the plan with its schedule. Raises ``PlanError``."""
    from cli.plan_schedule import schedule_of
    from nemesis.aims import HEAL_S

    given = merged({"seed": seed}, sets)

    def plan_of(flags: Overrides) -> Plan:
        plan = load(path, {**flags, **FIXED}, seed=0)
        refuse_unrunnable([plan])
        schedule = schedule_of(plan)
        if plan.drive.duration_s <= hold_s + HEAL_S:
            expected = f"expected more than {hold_s + HEAL_S:g} s: --hold, and to heal"
            raise PlanError("drive.duration_s", f"{expected} (got {plan.drive.duration_s:g})")
        return resolved(plan, schedule)

    with naming_source(path, given, plan_of):
        return plan_of(given)


def _census(plan: Plan, hold_s: float, store: RunStore, limit_s: float) -> list[NodePoint]:
    """Run the reference execution, and return its points. Raises ``HarnessError`` where it is not
    valid: a crash would prove nothing.
    """
    from nemesis.aims import HEAL_S

    # A crash any later could not heal before the drive ends.
    span_s = plan.drive.duration_s - hold_s - HEAL_S
    options = plan.cluster.options | {"census_s": span_s}
    counting = replace(plan, cluster=replace(plan.cluster, options=options))
    cell = simulated_cell(counting, limit_s=limit_s)
    # Kept although it is valid: the points are read from its directory.
    with closing(simulation_pool(store.root, keep=True, jobs=1).results(in_turn([cell]))) as work:
        result = next(work)
    if result.outcome is not Outcome.VALID:
        why = "; ".join(result.reasons)
        raise HarnessError(f"the reference execution is {result.outcome.value}: {why}")
    return every_point(read_points(RunDirectory(Path(result.run)), node_names(plan)))


def _crashing(plan: Plan, point: NodePoint, hold_s: float, number: int) -> Plan:
    """Return ``plan`` with a crash at ``point``, behind its own faults."""
    chosen = to_builtins(point.point)
    row = PlannedFault(
        at_s=0.0,
        kind="crash",
        target=point.node,
        hold_s=hold_s,
        options={name: value for name, value in chosen.items() if value is not None},
    )
    changed = resolved(plan, (*plan.nemesis.schedule, row))
    suffix = f"-point-{number}"
    return replace(changed, name=f"{plan.name[: NAME_CHARS - len(suffix)]}{suffix}")
