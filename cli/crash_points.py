"""``firedrill crash-points``: one simulated execution, then one for each of its crash points."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import click
from msgspec import to_builtins
from msgspec.structs import replace

from cli import duration
from cli.cells import code_digest, simulation_pool
from cli.run import naming_source
from cli.session import Session, runs_option, say
from harness.campaigns.cell import CELL_LIMIT_S, Cell, CellResult
from harness.campaigns.ledger import RESULTS_FILE, Ledger
from harness.campaigns.points import (
    NodePoint,
    every_point,
    point_totals,
    read_points,
    sampled,
)
from harness.campaigns.pool import in_turn
from harness.campaigns.summary import overall
from harness.errors import HarnessError, PlanError
from harness.outcome import Outcome, exit_code
from harness.plan.overrides import merged
from harness.plan.plan import MAX_SEED, Plan, load, resolved
from harness.protocols.faults import PlannedFault
from harness.run.directory import RunDirectory
from harness.text import inert
from results.store.store import RunStore

SAMPLE = 300  # runs of a few seconds each: some minutes on a few cores
HOLD_S = 1.5  # longer than a lease and an election, so that others take over
FIXED: dict[str, object] = {"cluster.provider": "sim", "check.executor": "local"}
NAME_CHARS, LINE_CHARS = 48, 400
NOTE_EVERY_S = 15.0


@click.command("crash-points")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--sample", type=click.IntRange(1), default=SAMPLE, show_default=True,
              help="How many points at most, of each kind alike.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Every point, however many.")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), help="Of the plan and the sample.")
@click.option("--hold", "hold_s", type=click.FloatRange(min=0.1), default=HOLD_S,
              show_default=True, help="Seconds until the node starts again.")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan.")
@click.option("--jobs", type=click.IntRange(1), help="Runs at once (as many as cores).")
@click.option("--limit", "limit_s", type=click.FloatRange(min=1), default=CELL_LIMIT_S,
              show_default=True, help="Wall seconds that one run may take.")  # fmt: skip
@click.option("--time-budget", "budget_s", callback=duration.seconds, metavar="TIME",
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
        Cell(plan=_crashing(base, point, hold_s, number), limit_s=limit_s)
        for number, point in enumerate(points)
    ]
    began_s = time.monotonic()
    end_s = math.inf if budget_s is None else began_s + budget_s
    done, finished = _tried(cells, points, ledger, store, jobs, end_s)
    for line in point_totals(list(zip(points, done, strict=False)), there):
        click.echo(line)
    if finished and len(done) < len(points):
        click.echo(f"the time is over: {len(points) - len(done)} points were not tried")
    outcome = overall(done)
    if finished:
        click.echo(f"{outcome.value.upper()}: {outcome.meaning}: {store.root}")
    else:
        click.echo("interrupted: the same command goes on where it was")
    return exit_code(outcome, interrupted=not finished)


def _base(path: Path, sets: Sequence[str], seed: int | None, hold_s: float) -> Plan:
    """Return the plan with its schedule. Raises ``PlanError``."""
    from cli.wiring import build_fault, build_system, materialised
    from nemesis.aims import HEAL_S

    given = merged({"seed": seed}, sets) | FIXED
    with naming_source(path, given):
        plan = load(path, given, seed=0)
        kinds = {*plan.nemesis.mix, *(fault.kind for fault in plan.nemesis.schedule)}
        faults = {kind: build_fault(kind) for kind in sorted(kinds)}
        schedule = materialised(plan, build_system(plan), faults)
        if plan.drive.duration_s <= hold_s + HEAL_S:
            expected = f"expected more than {hold_s + HEAL_S:g} s: --hold, and to heal"
            raise PlanError("drive.duration_s", f"{expected} (got {plan.drive.duration_s:g})")
    return resolved(plan, schedule)


def _census(plan: Plan, hold_s: float, store: RunStore, limit_s: float) -> list[NodePoint]:
    """Run the reference execution, and return its points. Raises ``HarnessError`` where it is not
    valid: a crash would prove nothing.
    """
    from cli.wiring import node_names
    from nemesis.aims import HEAL_S

    span_s = plan.drive.duration_s - hold_s - HEAL_S
    options = plan.cluster.options | {"census_s": span_s}
    counting = replace(plan, cluster=replace(plan.cluster, options=options))
    cell = Cell(plan=counting, limit_s=limit_s)
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


def _tried(
    cells: Sequence[Cell],
    points: Sequence[NodePoint],
    ledger: Ledger,
    store: RunStore,
    jobs: int | None,
    end_s: float,
) -> tuple[list[CellResult], bool]:
    """Announce the results of ``cells`` and return them; false where the user interrupted."""
    done: list[CellResult] = []
    noted_s = time.monotonic()
    pool = simulation_pool(store.root, jobs=jobs)
    try:
        with closing(pool.results(in_turn(cells), ledger, begin_until_s=end_s)) as work:
            for result in work:
                _announce(points[len(done)], result)
                done.append(result)
                if time.monotonic() - noted_s >= NOTE_EVERY_S:
                    noted_s = time.monotonic()
                    say(f"{len(done)} of {len(cells)} points tried")
    except KeyboardInterrupt:
        return done, False
    return done, True


def _announce(point: NodePoint, result: CellResult) -> None:
    if result.outcome is Outcome.VALID:
        return
    found = ", ".join(f"{name} ({count})" for name, count in sorted(result.anomalies.items()))
    why = found or "; ".join(result.reasons)
    line = f"{point.node} {point.point}: {result.outcome.value.upper()}: {why}"
    click.echo(inert(line, LINE_CHARS))
    if result.run:
        click.echo(f"  firedrill replay {shlex.quote(result.run)}")
