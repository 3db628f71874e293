"""``firedrill run --modes``: one plan in several modes of its store, compared on one page."""

from __future__ import annotations

import click
import msgspec

from cli.drill import Budget, RunOptions, one
from cli.session import Session, say
from cli.untestable import of_other_modes, without
from harness.errors import HarnessError, Interrupted, PlanError
from harness.exit_codes import worst
from harness.plan.plan import Plan, resolved
from harness.protocols.verdict import read_verdict
from harness.text import inert
from results.store.store import RunStore

PATH_CHARS = 4096  # the longest path that Linux takes


def modes_of(text: str) -> tuple[str, ...]:
    """Return the modes that ``--modes`` names, each once: ``sc,ha`` is SC and HA. Raises
    ``PlanError``.
    """
    found = tuple(dict.fromkeys(part.strip().upper() for part in text.split(",")))
    if len(found) < 2 or not all(found):
        raise PlanError("system.mode", f"expected two modes or more (got {text!r})", "--modes")
    return found


def in_modes(plan: Plan, modes: tuple[str, ...]) -> dict[str, Plan]:
    """Return by mode ``plan`` in it, with one seed and one schedule for all, and those limits that
    the mode can break or no other of them can. Raises ``PlanError`` where a run of one of them
    would be refused: before anything starts.
    """
    from cli.plan_plugins import build_system
    from cli.plan_schedule import schedule_of
    from cli.wiring import resolve

    given = {mode: _in_mode(plan, mode) for mode in modes}
    may_lose = {mode: build_system(own).declaration.may_lose for mode, own in given.items()}
    schedule = None
    found = {}
    for mode, own in given.items():
        if (not may_lose[mode]) in may_lose.values():
            own = _without_other_limits(own, may_lose[mode])
        # Drawn once: what a mode does to roles must not change which faults come.
        schedule = schedule_of(own) if schedule is None else schedule
        found[mode] = resolved(own, schedule)
        resolve(found[mode])
    return found


def _in_mode(plan: Plan, mode: str) -> Plan:
    system = msgspec.structs.replace(plan.system, options={**plan.system.options, "mode": mode})
    return msgspec.structs.replace(plan, name=f"{plan.name}-{mode.lower()}", system=system)


def _without_other_limits(plan: Plan, may_lose: bool) -> Plan:
    """``plan`` without the limit that only modes of the other kind can break."""
    key = of_other_modes(may_lose)
    paths = [f"{path}.{key}" for path, of in plan.promise.sections.items() if key in of.given]
    return msgspec.structs.replace(plan, promise=without(plan.promise, paths))


def compare(
    session: Session,
    plan: Plan,
    store: RunStore,
    options: RunOptions,
    modes: tuple[str, ...],
    budget: Budget | None = None,
) -> int:
    """Make a run in each mode, write one page over them and print it; return the exit code of the
    worst. Raises ``FiredrillError``.
    """
    from results.report.mode_comparison import ModeRun, compared, lines, write_comparison

    rows, results = [], []
    for mode, given in in_modes(plan, modes).items():
        say(f"mode {mode}, seed {given.seed}")
        try:
            result = one(session, given, store, options, budget)
        except Interrupted as error:
            raise Interrupted(f"{error}; the modes are not compared") from error
        results.append(result)
        verdict = read_verdict(result.run)
        if verdict is None:
            raise HarnessError(f"no verdict of the run in mode {mode}: it can't be compared")
        rows.append(ModeRun(mode=mode, run=result.run, verdict=verdict))
    found = compared(rows)
    path = write_comparison(found, rows[-1].run.root)
    for line in lines(found):
        click.echo(inert(line))
    outcome = worst([result.outcome for result in results])
    told = ", ".join(
        f"{row.mode} {result.outcome.value}" for row, result in zip(rows, results, strict=True)
    )
    click.echo(f"{outcome.value.upper()}: {told}: {inert(str(path), PATH_CHARS)}")
    return outcome.exit_code
