"""``firedrill run``: one drill, from plan to report."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cli import quantities
from cli.drill import Budget, Keep, RunOptions, one
from cli.remote_runs import RemoteRuns
from cli.repeat import MAX_REPEAT, Bounds, series
from cli.run_modes import compare, modes_of
from cli.session import PlanFile, PluginName, Session, anywhere_option, executor_option
from harness.errors import FiredrillError, MissingCapability, PlanError, UsageError
from harness.plan import planfile
from harness.plan.overrides import Overrides, merged
from harness.plan.plan import MAX_SEED, Plan, load
from results.store.store import RunStore

C = TypeVar("C", bound=Callable[..., Any])

SCHEDULE_FORM = "AT_S:KIND:TARGET[:HOLD_S]"


class _Keeping(click.Command):
    """Lets ``--keep`` stand alone: click would take the next word, which is the plan."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As ``click.Command``."""
        return super().parse_args(ctx, ["--keep=failed" if a == "--keep" else a for a in args])


PLAN_FLAGS = (
    click.option("--name", help="Name of the run; part of its identifier."),
    click.option("--seed", type=int, help="Seed of every random choice (drawn when not given)."),
    click.option(
        "--provider",
        type=PluginName("providers"),
        help="Where nodes come from: auto, docker, process, ...",
    ),
    click.option("--nodes", type=int, help="How many nodes."),
    click.option("--duration", type=float, help="Seconds of the drive phase."),
    click.option("--concurrency", type=int, help="Logical client processes."),
    click.option("--system", type=PluginName("systems"), help="The store under test."),
    click.option("--workload", type=PluginName("workloads"), help="What clients do."),
    click.option(
        "--fault",
        "faults",
        multiple=True,
        type=PluginName("faults"),
        help="A fault kind of the random mix; repeatable.",
    ),
    click.option("--schedule", multiple=True, metavar=SCHEDULE_FORM, help="A fault; repeatable."),
    click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan, dotted."
    ),
    executor_option,
)
"""The flags that name keys of a plan, for every command that reads one: see ``overrides``."""


def plan_flags(command: C) -> C:
    """``PLAN`` and the flags that override its keys."""
    for flag in reversed(PLAN_FLAGS):
        command = flag(command)
    return click.argument("plan", required=False, type=PlanFile())(command)


@click.command(cls=_Keeping)
@plan_flags
@anywhere_option
@click.option("--no-report", is_flag=True, help="Write the verdict, but no report.")
@click.option(
    "--keep",
    type=click.Choice([when.value for when in Keep]),
    default=Keep.NEVER.value,
    help="Leave the cluster up where the run failed (--keep), or in any case (--keep=always); "
    "not that of a controller that died.",
)
@click.option(
    "--repeat", type=click.IntRange(1, MAX_REPEAT), default=1, metavar="N", help="Make N runs."
)
@click.option("--until-failure", is_flag=True, help="End with the first run that failed.")
@click.option(
    "--time-budget",
    callback=quantities.seconds,
    metavar="TIME",
    help="For all runs together: 90s, 30m, 8h. Ends what is under way then.",
)
@click.option(
    "--modes",
    metavar="SC,HA",
    help="A run in each of these modes of the store, under one seed and schedule, and one page "
    "that compares what each costs, gives and loses.",
)
@click.pass_obj
def run(
    session: Session,
    /,
    plan: Path | None,
    store: RunStore | RemoteRuns,
    no_report: bool,
    keep: str,
    repeat: int,
    until_failure: bool,
    time_budget: float | None,
    modes: str | None,
    **flags: Any,  # noqa: ANN401
) -> int:
    """Run PLAN (a TOML file; flags override its keys) and judge what happened.

    The first Ctrl-C, SIGTERM or SIGHUP heals, collects and seals, and leaves the verdict to
    ``firedrill check``; a second Ctrl-C or SIGTERM stops at once. A run failed where it is no valid
    one and not unknown. With --repeat the seeds of later runs follow from the first.

    With an address as --runs-dir the run is driven into ./runs, and moved there once it is judged.
    """
    from cli.wiring import refuse_impossible  # heavy

    given = overrides(flags)
    several = modes is not None or repeat > 1 or until_failure
    there = store if isinstance(store, RemoteRuns) else None
    options = RunOptions(report=not no_report, keep=Keep(keep), one_of_many=several, moves_to=there)
    if isinstance(store, RemoteRuns):
        if several:
            raise UsageError(f"--runs-dir {store.address}: expected one run, which is moved there")
        store = RunStore()
    seed = secrets.randbelow(MAX_SEED)
    with naming_source(plan, given, partial(require_possible, plan, seed=seed)):
        chosen = load(plan, given, seed=seed)
        refuse_without_java(chosen)
        refuse_impossible(chosen)
        if there is not None:
            there.require_reached()  # before the drive, not after it
        if modes is not None:
            if repeat > 1 or until_failure:
                raise UsageError("--modes makes a run a mode: leave --repeat and the like out")
            budget = Budget(time_budget) if time_budget else None
            return compare(session, chosen, store, options, modes_of(modes), budget)
        if repeat == 1 and not until_failure:
            budget = Budget(time_budget) if time_budget else None
            return one(session, chosen, store, options, budget).outcome.exit_code
        bounds = Bounds(
            # ``--until-failure`` alone sets no number.
            runs=repeat if repeat > 1 else MAX_REPEAT,
            until_failure=until_failure,
            budget=Budget(time_budget) if time_budget else None,
        )
        return series(session, chosen, store, options, bounds)


def overrides(flags: dict[str, Any]) -> dict[str, object]:
    """Return the plan's keys that flags name, dotted path -> value. Raises ``PlanError``."""
    named = {
        "name": flags["name"],
        "seed": flags["seed"],
        "cluster.provider": flags["provider"],
        "cluster.nodes": flags["nodes"],
        "drive.duration_s": flags["duration"],
        "drive.concurrency": flags["concurrency"],
        "system.name": flags["system"],
        "workload.name": flags["workload"],
        "check.executor": flags["executor"],
        "nemesis.mix": list(flags["faults"]) or None,
        "nemesis.schedule": [planned(text) for text in flags["schedule"]] or None,
    }
    return merged(named, flags["sets"])


def require_possible(path: Path | None, given: Overrides, *, seed: int) -> None:
    """Raise ``UsageError`` for a plan that is refused on any machine."""
    from cli.wiring import refuse_impossible, resolve  # heavy

    plan = load(path, given, seed=seed)
    refuse_impossible(plan)
    resolve(plan)


@contextmanager
def naming_source(
    plan: Path | None, given: Overrides, again: Callable[[Overrides], object]
) -> Iterator[None]:
    """Within the block a ``PlanError`` says whether the file is to be corrected, or which flags.
    ``again`` does the block's work, up to where it raises those, with fewer of the flags.
    """
    try:
        yield
    except PlanError as error:
        if not error.path:  # it names what it could not read
            raise
        source = _source(error, plan, given, again)
        raise PlanError(error.path, error.problem, source) from error


def _source(
    error: PlanError, plan: Path | None, given: Overrides, again: Callable[[Overrides], object]
) -> str:
    """Name the flags where the value is theirs, the file where it is, and both where what the file
    has contradicts a flag.
    """
    flags = {key: value for key, value in given.items() if value is not None}
    if plan is None or any(_within(error.path, key) for key in flags):
        return "flags"
    if planfile.is_read_once(plan):  # by what is left, of which no second look comes
        return f"{plan} or flags ({', '.join(flags)})" if flags else str(plan)
    alone = _refused_at(again, {})
    if alone == error.path:
        return str(plan)
    left = {key: {k: v for k, v in flags.items() if k != key} for key in flags}
    without = {key: _refused_at(again, others) for key, others in left.items()}
    causes = [key for key, refused in without.items() if refused is None]
    if alone is not None and not causes:
        return str(plan)  # refused without any flag, for a mistake that comes before this one
    # Where another mistake is left behind this one, this one is mended.
    causes = causes or [key for key, refused in without.items() if refused != error.path]
    # Of several that each are enough none mends it alone.
    return f"{plan} and flags ({', '.join(causes or flags)})" if flags else str(plan)


def _refused_at(again: Callable[[Overrides], object], given: Overrides) -> str | None:
    """The path of the key for which ``again`` refuses the plan; ``None`` where it does not."""
    try:
        again(given)
    except PlanError as error:
        return error.path
    except FiredrillError:
        return ""
    return None


def _within(path: str, key: str) -> bool:
    """Tell whether ``path`` is the key, or a part of its value."""
    return path == key or path.startswith((f"{key}.", f"{key}["))


def planned(text: str) -> dict[str, object]:
    """Return one row of ``nemesis.schedule`` from ``AT_S:KIND:TARGET[:HOLD_S]``. Raises
    ``PlanError``.
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) not in (3, 4):
        raise _unplanned(text, f"it has {len(parts)} parts, not 3 or 4")
    at, kind, target, *hold = parts
    row: dict[str, object] = {"at_s": _number(text, "AT_S", at), "kind": kind, "target": target}
    return row | ({"hold_s": _number(text, "HOLD_S", hold[0])} if hold else {})


def _number(text: str, name: str, part: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise _unplanned(text, f"{name} is {part!r}, no number of seconds") from None


def _unplanned(text: str, why: str) -> PlanError:
    problem = f"expected {SCHEDULE_FORM} (got {text!r}: {why})"
    return PlanError("nemesis.schedule", problem, "flags")


def refuse_without_java(plan: Plan) -> None:
    """Refuse a drill that could not be judged afterwards. Raises ``MissingCapability``."""
    if plan.check.executor != "spark":
        return
    from checkers.engine.spark import java

    choice = java.find_java()
    if choice.home is None:
        remedy = f"{choice.reason}; or judge in this process with --executor local"
        raise MissingCapability("the executor 'spark'", f"Java {java.JAVA_MIN}", remedy)
