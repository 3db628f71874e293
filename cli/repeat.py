"""Many runs of one plan, each under a seed of its own: until one fails, or the time is over."""

from __future__ import annotations

import time

import attrs
import click
import msgspec

from cli.drill import Budget, RunOptions, one
from cli.session import Session, broken, say
from harness.campaigns.campaign_summary import outcome_counts
from harness.campaigns.cell import Cell, CellResult, result_of
from harness.campaigns.pool import RunStarted, in_this_process
from harness.campaigns.rates import METHOD, between
from harness.clock import substream
from harness.errors import Interrupted, UsageError
from harness.exit_codes import FAILED, Outcome, exit_code, worst
from harness.plan.plan import MAX_SEED, Plan
from harness.text import long_duration
from results.store.store import RunStore

MAX_REPEAT = 100_000


@attrs.frozen(kw_only=True)
class Bounds:
    """The end of a series: after so many runs, with the first that failed, or in time."""

    runs: int
    until_failure: bool = False
    budget: Budget | None = None


def seed_of(first: int, number: int) -> int:
    """Return the seed of run ``number`` (from 1) of a series that began with seed ``first``: the
    first run is the one of the plan itself.
    """
    return first if number == 1 else substream(first, "repeat", number).randrange(MAX_SEED)


def series(
    session: Session, plan: Plan, store: RunStore, options: RunOptions, bounds: Bounds
) -> int:
    """Make runs until a bound is met, print a table of them, and return the worst exit code.

    A run that the environment broke is one row; an error that would refuse every run is raised.
    """
    from cli.wiring import without_untestable

    rows: list[CellResult] = []
    kept, why = False, ""

    def choose() -> Cell | None:
        nonlocal why
        if rows and (why := over(rows, bounds, kept=kept)):
            return None
        number = len(rows) + 1
        seed = seed_of(plan.seed, number)
        say(f"run {number} of at most {bounds.runs}, seed {seed}")
        own, untested = without_untestable(msgspec.structs.replace(plan, seed=seed))
        if untested:
            say(f"seed {seed} draws nothing that tests {', '.join(untested)}: left out of this run")
        return Cell(plan=own, repetition=number)

    def work(cell: Cell, _run_started: RunStarted) -> CellResult:
        nonlocal kept
        result, kept = _run(session, cell, store, options, bounds.budget)
        return result

    # In this process: a run shows how it goes on the terminal, and hears Ctrl-C.
    for result in in_this_process(work, choose):
        rows.append(result)
    _show(rows, why)
    if not bounds.until_failure and (said := rate(rows)):
        click.echo(said)
    return series_code(rows)


def _run(
    session: Session, cell: Cell, store: RunStore, options: RunOptions, budget: Budget | None
) -> tuple[CellResult, bool]:
    """Make one run of the series; tell also whether its cluster is still up."""
    began_s = time.monotonic()
    # A traceback of this run must not go into the directory of the one before.
    session.run, kept, interrupted = None, False, False
    try:
        ended = one(session, cell.plan, store, options, budget)
        outcome, kept = ended.outcome, ended.kept
    # Nothing reads what further runs would find.
    except BrokenPipeError:
        raise
    except Exception as error:
        # Before a run began: every further one would be refused as well.
        if isinstance(error, UsageError) and session.run is None:
            raise
        outcome, interrupted = broken(session, error), isinstance(error, Interrupted)
    result = result_of(
        cell,
        outcome,
        run=str(session.run.root) if session.run else "",
        interrupted=interrupted,
        wall_s=time.monotonic() - began_s,
    )
    return result, kept


def over(rows: list[CellResult], bounds: Bounds, *, kept: bool = False) -> str:
    """Return why the series ends after ``rows``; empty where it goes on. ``kept``: the cluster of
    the last run is up.
    """
    last = rows[-1]
    if last.interrupted:
        return "interrupted"
    if kept:
        return "the cluster of the last run is kept up"
    if bounds.until_failure and last.outcome in FAILED:
        return "the last run failed"
    if len(rows) >= bounds.runs:
        return "all runs were made"
    if bounds.budget is not None:
        left_s, longest_s = bounds.budget.left_s, max(row.wall_s for row in rows)
        if left_s < longest_s:
            return (
                f"{long_duration(left_s)} are left of the time budget of "
                f"{long_duration(bounds.budget.length_s)}, "
                f"and a run may take {long_duration(longest_s)}"
            )
    return ""


def series_code(rows: list[CellResult]) -> int:
    """Return the exit code of the worst run: a violation or a harness error outweighs an
    interruption.
    """
    interrupted = any(row.interrupted for row in rows)
    return exit_code(
        worst(row.outcome for row in rows), interrupted=interrupted, outweighed_by=FAILED
    )


def rate(rows: list[CellResult]) -> str:
    """Describe the rate of violations among the runs that came to a verdict; empty for fewer than
    two. A run that shows nothing counts as one without.

    Only for a series whose end does not depend on its findings: else the rate would be too high.
    """
    judged = [row for row in rows if row.judged]
    if len(judged) < 2:
        return ""
    found = outcome_counts(judged).get(Outcome.VIOLATION, 0)
    share = f"{between(found, len(judged))} of such runs end in one ({METHOD})"
    return f"violations in {found} of {len(judged)} runs, {found / len(judged):.0%}: {share}"


def _show(rows: list[CellResult], why: str) -> None:
    click.echo(f"{'run':>4}  {'seed':<19}  {'outcome':<13}  {'took':>8}  directory")
    for number, row in enumerate(rows, start=1):
        said = "interrupted" if row.interrupted else row.outcome.value
        took, where = long_duration(row.wall_s), row.run or "nothing was recorded"
        click.echo(f"{number:>4}  {row.seed:<19}  {said:<13}  {took:>8}  {where}")
    tally = ", ".join(f"{count} {outcome.value}" for outcome, count in outcome_counts(rows).items())
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    click.echo(f"{runs}: {tally}; {why}")
