"""``firedrill run``: one drill, from plan to report."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from harness.cli import judging
from harness.cli.display import choose
from harness.cli.session import Session, executor_option, runs_option
from harness.cli.signals import stopping
from harness.errors import FiredrillError, Interrupted, MissingCapability, PlanError
from harness.history.manifest import read_manifest
from harness.outcome import EXIT_INTERRUPTED, Outcome
from harness.plan import MAX_SEED, Plan, load, override
from harness.rundir import RunDirectory
from results.store import RunStore

SCHEDULE_FORM = "AT_S:KIND:TARGET[:HOLD_S]"


@click.command()
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.option("--name", help="Name of the run; part of its identifier.")
@click.option("--seed", type=int, help="Seed of every random choice (drawn when not given).")
@click.option("--provider", help="Where nodes come from: auto, docker, process, ...")
@click.option("--nodes", type=int, help="How many nodes.")
@click.option("--duration", type=float, help="Seconds of the drive phase.")
@click.option("--concurrency", type=int, help="Logical client processes.")
@click.option("--system", help="The store under test.")
@click.option("--workload", help="What clients do.")
@click.option(
    "--fault", "faults", multiple=True, help="A fault kind of the random mix; repeatable."
)
@click.option("--schedule", multiple=True, metavar=SCHEDULE_FORM, help="A fault; repeatable.")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan, dotted."
)
@executor_option
@runs_option
@click.option("--no-report", is_flag=True, help="Write the verdict, but no report.")
@click.pass_obj
def run(
    session: Session,
    /,
    plan: Path | None,
    store: RunStore,
    no_report: bool,
    **flags: Any,  # noqa: ANN401
) -> int:
    """Run PLAN (a TOML file; flags override its keys) and judge what happened.

    The first Ctrl-C heals, collects and seals, the second stops at once.
    """
    given = overrides(flags)
    with naming_source(plan, given):
        chosen = load(plan, given, seed=secrets.randbelow(MAX_SEED))
        _refuse_without_java(chosen)
        session.run = directory = _drive(session, chosen, store)
    verdict = judging.judge(directory, None)
    outcome = judging.settle(verdict, None if no_report else judging.publish(directory))
    judging.announce(directory, verdict, outcome, directory.report.exists())
    if read_manifest(directory).interrupted and outcome is not Outcome.VIOLATION:
        return EXIT_INTERRUPTED
    return outcome.exit_code


def overrides(flags: dict[str, Any]) -> dict[str, object]:
    """The plan's keys that flags name, dotted path -> value; later ``--set`` win. Raises
    ``PlanError``.
    """
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
    given = {path: value for path, value in named.items() if value is not None}
    return given | dict(override(text) for text in flags["sets"])


@contextmanager
def naming_source(plan: Path | None, given: Mapping[str, object]) -> Iterator[None]:
    """Within the block a ``PlanError`` says whether the file or a flag is to be mended."""
    try:
        yield
    except PlanError as error:
        if not error.path:  # it names what it could not read
            raise
        flagged = any(_within(error.path, key) for key in given)
        source = "flags" if flagged or plan is None else str(plan)
        raise PlanError(error.path, error.problem, source) from error


def _within(path: str, key: str) -> bool:
    """Whether ``path`` is the key, or a part of what stands there."""
    return path == key or path.startswith((f"{key}.", f"{key}["))


def planned(text: str) -> dict[str, object]:
    """One row of ``nemesis.schedule`` from ``AT_S:KIND:TARGET[:HOLD_S]``. Raises ``PlanError``."""
    parts = [part.strip() for part in text.split(":")]
    try:
        at, kind, target, *hold = parts
        numbers = [float(number) for number in (at, *hold)]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise PlanError("nemesis.schedule", f"expected {SCHEDULE_FORM} (got {text!r})")
    row: dict[str, object] = {"at_s": numbers[0], "kind": kind, "target": target}
    return row | ({"hold_s": numbers[1]} if len(numbers) == 2 else {})


def _refuse_without_java(plan: Plan) -> None:
    """A drill that nobody could judge afterwards does not start. Raises ``MissingCapability``."""
    if plan.check.executor != "spark":
        return
    from checkers.executors import java

    choice = java.find_java()
    if choice.home is None:
        remedy = f"{choice.reason}; or judge in this process with --executor local"
        raise MissingCapability("the executor 'spark'", f"Java {java.JAVA_MIN}", remedy)


def _drive(session: Session, plan: Plan, store: RunStore) -> RunDirectory:
    """Everything up to the sealed history, watched and stoppable."""
    from harness.cli.wiring import run_plan
    from harness.run import Stop

    stop, known = Stop(), store.runs()
    with choose(sys.stderr, plan.drive.duration_s) as display:
        hint = f"'firedrill cleanup --runs-dir {store.root}' removes what the run left"
        try:
            with stopping(stop, display.note, hint):
                return run_plan(plan, store.root, display, stop)
        except FiredrillError as error:
            session.run = _new(store.runs(), known)
            if stop.cut_short:
                raise Interrupted(f"interrupted: {error}") from error
            raise
        except Exception:
            session.run = _new(store.runs(), known)
            raise


def _new(runs: Iterable[RunDirectory], known: Iterable[RunDirectory]) -> RunDirectory | None:
    """The run that this command began, if it came that far."""
    before = frozenset(known)
    return next((run for run in runs if run not in before), None)
