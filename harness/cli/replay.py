"""``firedrill replay``: drive the schedule of a run again; simulated, it is the same run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from harness.cli import judging
from harness.cli.drill import Wishes, one
from harness.cli.ground import SIMULATED, TRACE
from harness.cli.session import Session, runs_option, say
from harness.clock import NS_PER_S
from harness.errors import PlanError, UsageError
from harness.history.manifest import read_manifest
from harness.outcome import Outcome
from harness.plan import Plan, load
from harness.progress import Silent
from harness.rundir import RunDirectory
from harness.stop import Stop
from results.store import RunStore

if TYPE_CHECKING:
    from results.spacetime import Stretch

DIAGRAM = "trace.svg"
WINDOW_FORM = "FROM_S:TO_S"
AROUND_S = 0.25  # drawn before and after the first fault, where no window is given


@click.command()
@click.argument("name", metavar="RUN", default="latest")
@runs_option
@click.option(
    "--trace",
    is_flag=True,
    help=f"Keep every message and disk operation ({TRACE}) and draw some ({DIAGRAM}); simulated "
    "runs only.",
)
@click.option("--window", metavar=WINDOW_FORM, help="What of the trace to draw.")
@click.option("--no-report", is_flag=True, help="Write the verdict, but no report.")
@click.pass_obj
def replay(
    session: Session, name: str, store: RunStore, trace: bool, window: str | None, no_report: bool
) -> int:
    """Drive the plan of RUN again, into a new run.

    A simulated run comes out the same, byte for byte, as long as the code is the same. On real
    nodes the faults come at the same offsets to the same roles, and clients draw the same
    operations; what happens between is the machines' own.
    """
    old = store.resolve(name)
    plan = load(old.plan)
    simulated = plan.cluster.provider == SIMULATED
    if (trace or window) and not simulated:
        raise UsageError(f"--trace needs a simulated run (its provider is {plan.cluster.provider})")
    span = _window(window)
    if not simulated:
        return one(session, plan, store, Wishes(report=not no_report)).code
    new, outcome = _again(session, plan, store, trace or span is not None, not no_report)
    if trace or span is not None:
        _draw(new, span)
    click.echo(compared(old, new))
    return outcome.exit_code


def _again(
    session: Session, plan: Plan, store: RunStore, trace: bool, report: bool
) -> tuple[RunDirectory, Outcome]:
    """Simulate ``plan`` once more, and say what came of it."""
    from harness.cli.wiring import run_plan

    session.run = run = run_plan(plan, store.root, Silent(), Stop(), trace=trace)
    verdict = judging.judge(run, None)
    outcome = judging.settle(verdict, judging.publish(run) if report else None)
    judging.announce(run, verdict, outcome, run.report.exists())
    return run, outcome


def compared(old: RunDirectory, new: RunDirectory) -> str:
    """Whether the two histories are the same, in a sentence that says why not."""
    from harness.cli.seeds import digest

    if digest(old) == digest(new):
        return f"the same history as {old.root.name}, byte for byte"
    before, now = read_manifest(old).versions, read_manifest(new).versions
    other = [
        name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)
    ]
    why = f"other versions: {', '.join(other)}" if other else "the versions are the same"
    return f"NOT the same history as {old.root.name} ({why})"


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        start_s, end_s = (float(part) for part in text.split(":"))
    except ValueError:
        start_s = end_s = 0.0
    if not start_s < end_s:
        raise PlanError("--window", f"expected {WINDOW_FORM} (got {text!r})", "flags")
    return start_s, end_s


def _draw(run: RunDirectory, span: tuple[float, float] | None) -> None:
    """Write the diagram beside the trace."""
    from results.spacetime import draw

    faults = _faults(run)
    if span is None:
        first_s = min((fault.start_s for fault in faults), default=0.0)
        span = (max(0.0, first_s - AROUND_S), first_s + AROUND_S)
    decoder = msgspec.json.Decoder()
    with (run.root / TRACE).open("rb") as lines:
        svg, left_out = draw(map(decoder.decode, lines), faults, start_s=span[0], end_s=span[1])
    path = run.root / DIAGRAM
    path.write_text(svg)
    if left_out:
        say(f"{path.name}: {left_out} more messages and disk operations had no room in it")
    click.echo(f"trace: {run.root / TRACE}")
    click.echo(f"from {span[0]:g} s to {span[1]:g} s: {path}")


def _faults(run: RunDirectory) -> list[Stretch]:
    from harness.history.load import load as load_history
    from results.spacetime import Stretch

    return [
        Stretch(
            start_s=row["injecting_ns"] / NS_PER_S,
            end_s=(row["healed_ns"] or row["injecting_ns"]) / NS_PER_S,
            nodes=tuple(row["nodes"]),
            text=f"{row['kind']} of {row['target']}",
        )
        for row in load_history(run).faults().to_pylist()
        if row["injecting_ns"] is not None
    ]
