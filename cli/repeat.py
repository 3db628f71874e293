"""Many runs of one plan, each under a seed of its own: until one fails, or the time is over."""

from __future__ import annotations

import time

import attrs
import click
import msgspec

from cli.campaigns.summary import METHOD, between
from cli.drill import FAILED, Budget, RunOptions, one
from cli.duration import words
from cli.session import Session, say
from harness.clock import substream
from harness.errors import FiredrillError, HarnessBug, Interrupted, UsageError
from harness.outcome import EXIT_INTERRUPTED, Outcome, worst
from harness.plan.plan import MAX_SEED, Plan
from results.store.store import RunStore

MAX_REPEAT = 100_000


@attrs.frozen(kw_only=True)
class Bounds:
    """The end of a series: after so many runs, with the first that failed, or in time."""

    runs: int
    until_failure: bool = False
    budget: Budget | None = None


@attrs.frozen(kw_only=True)
class Row:
    """One run of a series. ``name`` is its directory, or the reason why there is none."""

    number: int
    seed: int
    outcome: Outcome
    code: int
    took_s: float
    name: str
    kept: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it."""
        return self.code == EXIT_INTERRUPTED


def seed_of(first: int, number: int) -> int:
    """Return the seed of run ``number`` (from 1) of a series that began with seed ``first``: the
    first run is the one of the plan itself.
    """
    return first if number == 1 else substream(first, "repeat", number).randrange(MAX_SEED)


def series(
    session: Session, plan: Plan, store: RunStore, wishes: RunOptions, bounds: Bounds
) -> int:
    """Make runs until a bound is met, print a table of them, and return the worst exit code.

    A run that the environment broke is one row; an error that would refuse every run is raised.
    """
    rows: list[Row] = []
    why = ""
    while not why:
        number = len(rows) + 1
        seed = seed_of(plan.seed, number)
        say(f"run {number} of at most {bounds.runs}, seed {seed}")
        rows.append(_row(session, plan, store, wishes, bounds, number, seed))
        why = over(rows, bounds)
    _show(rows, why)
    if not bounds.until_failure and (said := rate(rows)):
        click.echo(said)
    return exit_code(rows)


def _row(
    session: Session,
    plan: Plan,
    store: RunStore,
    wishes: RunOptions,
    bounds: Bounds,
    number: int,
    seed: int,
) -> Row:
    began_s = time.monotonic()
    session.run, kept = None, False
    try:
        ended = one(session, msgspec.structs.replace(plan, seed=seed), store, wishes, bounds.budget)
        outcome, code, kept = ended.outcome, ended.code, ended.kept
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, UsageError) and session.run is None:
            raise
        outcome, code = _broken(session, error)
    return Row(
        number=number,
        seed=seed,
        outcome=outcome,
        code=code,
        took_s=time.monotonic() - began_s,
        name=str(session.run.root) if session.run else "nothing was recorded",
        kept=kept,
    )


def _broken(session: Session, error: Exception) -> tuple[Outcome, int]:
    """Report the error that broke one run of many: the others go on all the same."""
    if isinstance(error, Interrupted):
        say(str(error))
        return Outcome.UNKNOWN, EXIT_INTERRUPTED
    if isinstance(error, FiredrillError) and not isinstance(error, HarnessBug):
        say(str(error))
    else:
        where = session.keep_traceback(error) or "nowhere: there is no run directory"
        say(f"unexpected {type(error).__name__}: {error} (the traceback is in {where})")
    return Outcome.HARNESS_ERROR, Outcome.HARNESS_ERROR.exit_code


def over(rows: list[Row], bounds: Bounds) -> str:
    """Return why the series ends after ``rows``; empty where it goes on."""
    last = rows[-1]
    if last.interrupted:
        return "interrupted"
    if last.kept:
        return "the cluster of the last run is kept up"
    if bounds.until_failure and last.outcome in FAILED:
        return "the last run failed"
    if len(rows) >= bounds.runs:
        return "all runs were made"
    if bounds.budget is not None:
        left_s, longest_s = bounds.budget.left_s, max(row.took_s for row in rows)
        if left_s < longest_s:
            return (
                f"{words(left_s)} are left of the time budget of {words(bounds.budget.length_s)}, "
                f"and a run may take {words(longest_s)}"
            )
    return ""


def exit_code(rows: list[Row]) -> int:
    """Return the exit code of the worst run: a violation or a harness error outweighs an
    interruption.
    """
    outcome = worst(row.outcome for row in rows)
    interrupted = any(row.interrupted for row in rows)
    return EXIT_INTERRUPTED if interrupted and outcome not in FAILED else outcome.exit_code


def rate(rows: list[Row]) -> str:
    """Describe the rate of violations among the runs that came to a verdict; empty for fewer than
    two. A run that shows nothing counts as one without.

    Only for a series whose end does not depend on its findings: else the rate would be too high.
    """
    judged = [r for r in rows if r.outcome is not Outcome.HARNESS_ERROR and not r.interrupted]
    if len(judged) < 2:
        return ""
    found = sum(row.outcome is Outcome.VIOLATION for row in judged)
    share = f"{between(found, len(judged))} of such runs end in one ({METHOD})"
    return f"violations in {found} of {len(judged)} runs, {found / len(judged):.0%}: {share}"


def _show(rows: list[Row], why: str) -> None:
    click.echo(f"{'run':>4}  {'seed':<19}  {'outcome':<13}  {'took':>8}  directory")
    for row in rows:
        said = "interrupted" if row.interrupted else row.outcome.value
        took = words(row.took_s)
        click.echo(f"{row.number:>4}  {row.seed:<19}  {said:<13}  {took:>8}  {row.name}")
    counts = {outcome: sum(row.outcome is outcome for row in rows) for outcome in Outcome}
    tally = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    runs = "1 run" if len(rows) == 1 else f"{len(rows)} runs"
    click.echo(f"{runs}: {tally}; {why}")
