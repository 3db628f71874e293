"""``firedrill replay``: drive the schedule of a run again; simulated, it is the same run again."""

from __future__ import annotations

import attrs
import click

from cli.archived import run_of
from cli.drill import RunOptions, one
from cli.environment import SIMULATED, TRACE
from cli.judging import judge
from cli.run_pages import refresh_index
from cli.session import RunName, Session, runs_option, say
from cli.trace_figure import View, draw_figure
from harness.clock import NS_PER_S
from harness.errors import PlanError, UsageError
from harness.exit_codes import Outcome
from harness.history.evidence import damaged
from harness.history.manifest import SEALED, read_manifest
from harness.history.run_directory import DIAGRAM, Manifest, RunDirectory
from harness.mutation.loading import CHANGE, MUTANT, Mutation, load_mutant
from harness.mutation.target import mutation_named
from harness.plan.plan import Plan, load, machine_names
from harness.protocols.roles import classes, parsed
from harness.run.progress import Silent
from harness.run.stop import Stop
from harness.text import in_seconds, seconds
from results.drawing.spacetime import CHOICES
from results.store.store import RunStore

WINDOW_FORM = "FROM_S:TO_S"


@click.command()
@click.argument("name", type=RunName(), metavar="RUN", default="latest")
@runs_option
@click.option(
    "--trace",
    is_flag=True,
    help=f"Keep every message and disk operation ({TRACE}) and draw some ({DIAGRAM}); simulated "
    "runs only.",
)
@click.option(
    "--window",
    "windows",
    multiple=True,
    metavar=WINDOW_FORM,
    help="What of the trace to draw; repeatable. By default what proves the failure: the "
    "operations, the fault before them, and what the store did between.",
)
@click.option("--lane", "lanes", multiple=True, metavar="NODE", help="Draw only this node's lane.")
@click.option(
    "--show",
    multiple=True,
    type=click.Choice(CHOICES),
    help="Draw only these messages; all but pings and the observer's by default.",
)
@click.option("--no-report", is_flag=True, help="Write the verdict, but no report.")
@click.pass_obj
def replay(
    session: Session,
    name: str,
    store: RunStore,
    trace: bool,
    windows: tuple[str, ...],
    lanes: tuple[str, ...],
    show: tuple[str, ...],
    no_report: bool,
) -> int:
    """Drive the plan of RUN again, into a new run.

    A simulated run comes out the same, byte for byte, as long as the code is the same; where it did
    not, or where there is nothing to compare, a run that is valid ends with 2. On real
    nodes the faults come at the same offsets to the same roles, and clients draw the same
    operations; what happens between is the machines' own.
    """
    old = run_of(store, name)
    plan = load(old.plan)
    simulated = plan.cluster.provider == SIMULATED
    view = View(windows=_windows(windows), nodes=lanes, show=show)
    trace = trace or view != View()
    _refuse_strangers(plan, lanes)
    if trace and not simulated:
        raise UsageError(f"--trace needs a simulated run (its provider is {plan.cluster.provider})")
    if not simulated:
        if key := read_manifest(old).versions.get(MUTANT):
            raise UsageError(f"on real nodes: firedrill selftest --plan {old.plan} --mutant {key}")
        ended = one(session, plan, store, RunOptions(report=not no_report))
        click.echo(faults_compared(old, ended.run))
        return ended.outcome.exit_code
    manifest = read_manifest(old)  # an impossible comparison is reported before the run
    view = attrs.evolve(view, windows=clipped(manifest, view.windows))
    mutation = mutation_of(manifest)
    if mutation:
        # Before the run imports the store: a module that is there already takes no mutant.
        load_mutant(mutation.module, mutation.source)
    new, outcome = _again(session, plan, store, view if trace else None, not no_report, mutation)
    same, sentence = compared(old, new)
    click.echo(sentence)
    # What was found counts more than whether the history is the same.
    return outcome.exit_code or (0 if same else Outcome.UNKNOWN.exit_code)


def _again(
    session: Session,
    plan: Plan,
    store: RunStore,
    view: View | None,
    report: bool,
    mutation: Mutation | None,
) -> tuple[RunDirectory, Outcome]:
    """Simulate ``plan`` once more, with a trace where ``view`` says what to draw of it, and report
    the result.
    """
    from cli.wiring import run_plan

    trace = view is not None
    session.run = run = run_plan(plan, store.root, Silent(), Stop(), trace=trace, mutation=mutation)
    if view is not None:
        _draw(run, view)  # before the report, which links it
    judged = judge.judge(run, None, report=report)
    judge.announce(run, judged)
    refresh_index(store)
    return run, judged.outcome


def mutation_of(manifest: Manifest) -> Mutation | None:
    """Return the mutant that the run was one of. Raises ``UsageError`` where the source has changed
    since.
    """
    key = manifest.versions.get(MUTANT)
    if key is None:
        return None
    mutation = mutation_named(key)
    if mutation.change != manifest.versions.get(CHANGE):
        raise UsageError(f"mutant {key!r}: the source has changed: it is {mutation.change!r} now")
    say(f"mutant {key}: {mutation.change}")
    return mutation


def compared(old: RunDirectory, new: RunDirectory) -> tuple[bool, str]:
    """Tell whether the two histories are the same, and describe the difference."""
    from cli.cells import digest

    if harmed := damaged(old, read_manifest(old)):
        return False, f"nothing to compare: {old.root.name} is damaged ({', '.join(harmed)})"
    if digest(old) == digest(new):
        return True, f"the same history as {old.root.name}, byte for byte"
    before, now = read_manifest(old).versions, read_manifest(new).versions
    other = [
        name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)
    ]
    why = f"other versions: {', '.join(other)}" if other else "the versions are the same"
    return False, f"NOT the same history as {old.root.name} ({why})"


def faults_compared(old: RunDirectory, new: RunDirectory) -> str:
    """Describe the difference between the faults of two runs of one schedule: their times after the
    drive began, and their targets.
    """
    before, now = _injected(old), _injected(new)
    both = sorted(before.keys() & now.keys())
    if not both:
        return f"no fault of {old.root.name} came again"
    late_s = max(abs(before[fault][0] - now[fault][0]) for fault in both)
    alike = sum(bool(set(before[fault][1]) & set(now[fault][1])) for fault in both)
    return (
        f"{len(both)} of {len(before)} faults of {old.root.name} came again, "
        f"at most {late_s:.2f} s off; {alike} of them met a node of a kind of role as then"
    )


def _injected(run: RunDirectory) -> dict[int, tuple[float, tuple[str, ...]]]:
    """Return by fault: seconds after the drive began, and the kinds of roles that it hit."""
    from harness.history.load import load as load_history

    history = load_history(run)
    began_ns = dict(history.manifest.phases).get("drive", 0)
    return {
        row["fault"]: ((row["injecting_ns"] - began_ns) / NS_PER_S, classes(parsed(row["roles"])))
        for row in history.faults().to_pylist()
        if row["injecting_ns"] is not None
    }


def _refuse_strangers(plan: Plan, lanes: tuple[str, ...]) -> None:
    names = machine_names(plan)
    for lane in lanes:
        if lane not in names:
            known = ", ".join(names)
            raise PlanError("--lane", f"expected one of {known} (got {lane!r})", "flags")


def _windows(texts: tuple[str, ...]) -> tuple[tuple[float, float], ...]:
    found = []
    for text in texts:
        try:
            start_s, end_s = (float(part) for part in text.split(":"))
        except ValueError:
            start_s = end_s = 0.0
        if not 0 <= start_s < end_s < float("inf"):
            raise PlanError("--window", f"expected {WINDOW_FORM} (got {text!r})", "flags")
        found.append((start_s, end_s))
    return tuple(found)


def clipped(
    manifest: Manifest, windows: tuple[tuple[float, float], ...]
) -> tuple[tuple[float, float], ...]:
    """Return ``windows`` as far as the run goes. Raises ``PlanError`` for one that begins after the
    run's end; the length of an interrupted run is unknown, so its windows are not checked.
    """
    if manifest.state != SEALED or not manifest.phases:
        return windows
    span_s = max(at_ns for _, at_ns in manifest.phases) / NS_PER_S
    for start_s, end_s in windows:
        if start_s >= span_s:
            expected = f"expected a window within the run, 0:{in_seconds(span_s * NS_PER_S)}"
            raise PlanError("--window", f"{expected} (got {start_s:g}:{end_s:g})", "flags")
    return tuple((start_s, min(end_s, span_s)) for start_s, end_s in windows)


def _draw(run: RunDirectory, view: View) -> None:
    """Write the diagram beside the trace, and describe its content."""
    path, stretches, left_out = draw_figure(run, view)
    if left_out:
        say(f"{path.name}: {left_out} more messages and disk operations had no room in it")
    click.echo(f"trace: {run.root / TRACE}")
    shown = ", ".join(
        f"{in_seconds(start_s * NS_PER_S)} to {seconds(end_s * NS_PER_S)}"
        for start_s, end_s in stretches
    )
    click.echo(f"drawn: {shown}: {path}")
