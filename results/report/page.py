"""The page about a run as values: every text, row and number of the template."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from string import hexdigits
from typing import Any

import attrs
import pyarrow.compute as pc
from markupsafe import Markup

from harness.clock import NS_PER_S
from harness.history.records import FaultState, OpType
from harness.history.run_directory import Origin
from harness.protocols.conflicts import ends
from harness.protocols.fault_kinds import by_name, possible
from harness.protocols.fault_spans import fault_spans
from harness.protocols.procedures import NodeStep, StepEvents
from harness.protocols.promise import Declaration
from harness.protocols.verdict import LimitState, Verdict
from harness.run.change_recorder import read_changes
from harness.text import inert
from results.drawing import plots, resources, series
from results.drawing.assignments_over_time import Placement, placement_over_time
from results.drawing.node_roles import RolesOverTime, roles_over_time
from results.report import (
    event_context,
    fault_recovery,
    fault_rows,
    finding_cards,
    harness_actions,
    plot_data,
    sections,
    tabulate,
)
from results.report.fault_rows import FaultRow
from results.report.finding_cards import Card, Event
from results.report.harness_actions import HarnessActions
from results.report.html import MARKS
from results.report.limit_rows import (
    LIMITS_MAX,
    RECOVERY_LIMIT,
    LimitRow,
    limit_rows,
    shortest_gap_s,
)
from results.report.next_commands import Command, next_commands
from results.report.run_data import NodeFiles, RunData
from results.report.tabulate import Grid
from results.store.retention import begun_at

EVENTS_MAX = 150
REASONS_MAX = 12
ERRORS_SHOWN = 3
REASON_CHARS = 320  # in the banner; what is longer stands below in full
HEADLINE_CHARS = 560  # of an anomaly: the promise, the fault and the chain of resets behind it
KINDS_SHOWN = 8  # acts of an imported history's nemesis, in the head
PLAN_LINES_MAX = 600
HASH_CHARS = 16  # of a version in the head; the table of versions has all of it
HEADINGS = {
    "restarts": "rolling restarts",
    "transactions": "transactions",
    "f": "micro-operations by f",
    "error": "transactions by error",
    "node": "transactions by node",
    "kind": "transactions by kind",
}
UNJUDGED = "this run was not analyzed yet; check it to get a verdict"


@attrs.frozen(kw_only=True)
class Page:
    """Everything on the page."""

    run_id: str
    under_test: str
    unit: str
    clock: str
    imported: bool
    again: str
    outcome: str
    mark: str
    meaning: str
    tested: tuple[str, ...]
    reasons: tuple[str, ...]
    model: str
    ruled_out: tuple[str, ...]
    ruled_out_too: tuple[str, ...]
    cards: tuple[Card, ...]
    cards_more: int
    limits: tuple[LimitRow, ...]
    limits_more: int
    picture: Markup | None
    picture_notes: tuple[str, ...]
    diagram: str
    plot_data: Markup | None
    latency: Grid | None
    faults: tuple[FaultRow, ...]
    faults_more: int
    no_faults: str
    actions: HarnessActions
    coverage: sections.Coverage | None
    recoveries: tuple[fault_recovery.RecoveryRow, ...]
    recoveries_more: int
    availability: tuple[Grid, ...]
    statistics: tuple[Grid, ...]
    events: tuple[Event, ...]
    events_more: int
    event_kinds: tuple[tuple[str, int], ...]
    nodes: tuple[NodeFiles, ...]
    no_nodes: str
    logs: tuple[sections.LogRow, ...]
    logs_more: int
    controller: str
    plan_lines: tuple[str, ...]
    plan_more: int
    versions: Grid
    machine: Grid
    commands: tuple[Command, ...]


def page(run_data: RunData) -> Page:
    """Return the page about ``run_data``; a picture that can't be drawn becomes a sentence in its
    place.
    """
    verdict, manifest = run_data.verdict, run_data.manifest
    outcome = verdict.outcome if verdict else None
    picture, notes, figures = _picture(run_data)
    events, _ = finding_cards.event_rows(
        event_context.rarest(run_data.events, EVENTS_MAX), EVENTS_MAX
    )
    kinds = event_context.counts(run_data.events)
    lines = run_data.plan_text.splitlines()
    cards = finding_cards.cards(run_data)
    recoveries = fault_recovery.recoveries(run_data)
    log_rows, logs_more = sections.logs(verdict)
    return Page(
        run_id=manifest.run_id,
        under_test=_under_test(run_data),
        unit=run_data.scale.unit,
        clock=_clock(run_data),
        imported=run_data.origin is not None,
        again="Run it again" if run_data.plan_text else "Judge it again",
        outcome=outcome.value if outcome else "no verdict",
        mark=MARKS[outcome] if outcome else tabulate.DASH,
        meaning=outcome.meaning if outcome else UNJUDGED,
        tested=_tested(run_data),
        reasons=banner(verdict) if verdict else (),
        model=verdict.model if verdict else "",
        ruled_out=verdict.not_ if verdict else (),
        ruled_out_too=verdict.also_not if verdict else (),
        cards=cards,
        cards_more=max(0, _named_anomalies(verdict) - finding_cards.CARDS_MAX),
        limits=limit_rows(verdict, _proofs(verdict, cards)),
        limits_more=max(0, len(verdict.limits) - LIMITS_MAX) if verdict else 0,
        picture=picture,
        picture_notes=notes,
        plot_data=figures,
        diagram=run_data.diagram,
        latency=_latency(run_data),
        faults=fault_rows.rows(run_data),
        faults_more=max(0, len(run_data.faults) - fault_rows.FAULTS_MAX),
        no_faults=_no_faults(run_data),
        actions=harness_actions.harness_actions(run_data),
        coverage=sections.coverage(verdict),
        recoveries=fault_recovery.recovery_rows(recoveries),
        recoveries_more=max(0, len(recoveries) - fault_recovery.RECOVERIES_MAX),
        availability=fault_recovery.availability(verdict.availability) if verdict else (),
        statistics=tabulate.grids(_headed(verdict.statistics)) if verdict else (),
        events=events,
        events_more=run_data.events.num_rows - len(events),
        event_kinds=tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
        nodes=run_data.nodes,
        no_nodes="Nothing was collected from them.",
        logs=log_rows,
        logs_more=logs_more,
        controller=sections.controller(verdict),
        plan_lines=tuple(lines[:PLAN_LINES_MAX]),
        plan_more=max(0, len(lines) - PLAN_LINES_MAX),
        versions=_pairs("Versions", manifest.versions),
        machine=_pairs("Machine", manifest.machine),
        commands=_commands(run_data),
    )


def _proofs(verdict: Verdict | None, cards: Sequence[Card]) -> dict[str, str]:
    """Return the anchor of the first finding that shows a limit broken, by the limit's name."""
    found: dict[str, str] = {}
    for card in cards if verdict else ():
        anomaly = verdict.anomalies.get(card.name) if verdict else None
        examples = anomaly.examples[: len(card.examples)] if anomaly else ()
        for number, example in enumerate(examples, start=1):
            found.setdefault(str(example.details.get("limit", "")), f"{card.anchor}-{number}")
    return found


def banner(verdict: Verdict) -> tuple[str, ...]:
    """Explain the outcome: the anomalies in short, then everything else."""
    others = verdict.other_reasons
    found = chain(
        (inert(told, HEADLINE_CHARS) for told in finding_cards.headlines(verdict.anomalies)),
        (inert(reason, REASON_CHARS) for reason in others),
    )
    more = len(verdict.anomalies) + len(others) - REASONS_MAX
    rest = [f"and {more} more reasons, in analysis/verdict.json"] if more > 0 else []
    return (*islice(found, REASONS_MAX), *rest)


def _no_faults(run_data: RunData) -> str:
    """Say why no fault is on the page, where none is."""
    planned = len(run_data.planned_faults)
    if not planned:
        return "No faults were planned."
    which = "the fault that was" if planned == 1 else f"any of the {planned} faults that were"
    return f"The run ended before {which} planned."


def _named_anomalies(verdict: Verdict | None) -> int:
    return len(verdict.anomalies) + len(verdict.observed) if verdict else 0


def _under_test(run_data: RunData) -> str:
    """Return the tested software: the versions and content hashes that the system reported."""
    system = run_data.manifest.declaration.system
    told = sorted(run_data.manifest.versions.items())
    return ", ".join(f"{name} {_shorter(text)}" for name, text in told if name.startswith(system))


def _shorter(version: str) -> str:
    """Return a long hash by its beginning; any other version as it is."""
    hashed = len(version) > HASH_CHARS and not set(version) - set(hexdigits)
    return version[:HASH_CHARS] if hashed else version


def _tested(run_data: RunData) -> tuple[str, ...]:
    """Describe the test in two lines: the system and its environment, and the amount of work."""
    if run_data.origin is not None:
        return _imported(run_data, run_data.origin), _happened(run_data)
    plan, manifest = run_data.plan, run_data.manifest
    cluster, drive = _table(plan, "cluster"), _table(plan, "drive")
    declared = manifest.declaration
    promised = ", ".join(_promises(declared)) or "nothing"
    where = f"{cluster.get('nodes', len(run_data.nodes))} nodes ({cluster.get('provider', '?')})"
    load = f"{drive.get('concurrency', '?')} clients for {_plain(drive.get('duration_s'))} s"
    load += _rate(run_data, drive)
    begun = begun_at(manifest.run_id)
    when = "" if begun is None else f" on {begun:%Y-%m-%d at %H:%M} UTC"
    first = (
        f"{manifest.workload} against {declared.system} in mode {declared.mode}, which promises"
        f" {promised}: {where}, {load}, seed {plan.get('seed', '?')}{when}."
    )
    return first, f"{_happened(run_data)} {_broken(run_data)}"


def _rate(run_data: RunData, drive: dict[str, Any]) -> str:
    """Tell what load an open loop was asked for, and what it came to."""
    asked, marks = drive.get("rate_per_s"), dict(run_data.manifest.phases)
    if not isinstance(asked, int | float) or not {"drive", "heal"} <= marks.keys():
        return ""
    start_ns, end_ns = marks["drive"], marks["heal"]
    invoked = run_data.transactions["invoke_ns"]
    inside = pc.and_(pc.greater_equal(invoked, start_ns), pc.less(invoked, end_ns))
    begun = (pc.sum(inside).as_py() or 0) * NS_PER_S / max(1, end_ns - start_ns)
    began = f"{begun:,.0f}" if begun >= 1000 else f"{begun:.4g}"
    return f" at {asked:,.10g} transactions a second, of which {began} were begun"


def _promises(declared: Declaration) -> list[str]:
    """Name the promised models; where there are several, with the transactions they are for."""
    models = {promise.kind: promise.model for promise in declared.promises}
    if len(set(models.values())) < 2:
        return sorted(set(models.values()))
    return sorted(f"{model} ({kind})" for kind, model in models.items())


def _plain(number: object) -> str:
    """Format a number of a plan."""
    return f"{number:g}" if isinstance(number, int | float) else "?"


def _clock(run_data: RunData) -> str:
    """Describe the times on the page."""
    if not run_data.scale.timed:
        return "Places are indices of the imported history, whose times are missing or go back."
    if run_data.origin is not None:
        return "Times are the imported history's own, moved apart by nanoseconds where they tie."
    return (
        "Times are seconds since the run began, on the controller's monotonic clock. Times of store"
        " events are mapped from the nodes' wall clocks: they explain, and prove nothing."
    )


def _imported(run_data: RunData, origin: Origin) -> str:
    """Describe a history that was recorded elsewhere."""
    rest = [f"{origin.incomplete:,} of them without a completion"] if origin.incomplete else []
    rest += (
        [f"{origin.remarks:,} of a nemesis or another that is no client"] if origin.remarks else []
    )
    count = f"{origin.operations:,} records{''.join(f', {part}' for part in rest)}"
    times = (
        "" if origin.real_time else " Its times are missing or go back: what counts is the index."
    )
    recorder = run_data.manifest.declaration.system.capitalize()
    return (
        f"{run_data.manifest.workload}, recorded by {recorder} and imported from {origin.file}:"
        f" {count}.{times}{_recorded(run_data)}"
    )


def _recorded(run_data: RunData) -> str:
    """Describe the actions of an imported history's nemesis."""
    kinds = sorted(Counter(row["kind"] for row in run_data.faults).items())
    named = ", ".join(f"{count} {kind}" for kind, count in kinds[:KINDS_SHOWN])
    more = ", ..." if len(kinds) > KINDS_SHOWN else ""
    return f" Its nemesis recorded {named}{more}; nobody proved the effects." if named else ""


def _happened(run_data: RunData) -> str:
    table, final = run_data.transactions, _final_reads(run_data)
    of_ok = f"{final:,} of them final reads" if final else ""
    told = ends(run_data.manifest.declaration, table).text(ERRORS_SHOWN, of_ok)
    return f"{table.num_rows:,} transactions: {told}."


def _final_reads(run_data: RunData) -> int:
    """Return the ok transactions from the phase of final reads on: they are no load, and no
    evidence of one.
    """
    since_ns = dict(run_data.manifest.phases).get("final-reads")
    if since_ns is None:
        return 0
    late = pc.greater_equal(run_data.transactions["invoke_ns"], since_ns)
    good = pc.equal(run_data.transactions["type"].cast("string"), OpType.OK.value)
    return int(pc.sum(pc.and_(late, good)).as_py() or 0)


def _broken(run_data: RunData) -> str:
    if not run_data.faults:
        return "No faults were injected."
    kinds = Counter(row["kind"] for row in run_data.faults)
    named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    bad = [row for row in run_data.faults if row["state"] != FaultState.HEALED]
    proven = (
        "all proven effective and healed" if not bad else f"{len(bad)} not proven or not healed"
    )
    count = len(run_data.faults)
    return f"{count} fault{'s' * (count != 1)} ({named}), {proven}."


def _picture(
    run_data: RunData,
) -> tuple[Markup | None, tuple[str, ...], Markup | None]:
    """Return the plot, its notes and its figures for the page's script, or a note on why there is
    no plot: a broken one must never cost a verdict.
    """
    if not run_data.scale.timed:
        return None, ("The history tells no times: there is nothing to plot over them.",), None
    try:
        scene = plots.Scene(
            operations=run_data.outcomes,
            conflicts=run_data.conflicts,
            faults=tuple(_windows(run_data)),
            phases=tuple((name, at_ns / NS_PER_S) for name, at_ns in run_data.manifest.phases),
            scale=run_data.scale,
            since="the run began" if run_data.origin is None else "the history's own zero",
            roles=_roles(run_data),
            touches=run_data.touches(),
            placement=_placement(run_data),
            resources=resources.panels(run_data.usage),
            breaches=tuple(breaches(run_data)),
            allowed_gap_s=shortest_gap_s(run_data.verdict),
        )
        drawn = plots.draw(scene)
        figures = plot_data.of(scene, drawn)
    except Exception as error:
        return None, (f"The plot could not be drawn ({type(error).__name__}: {error}).",), None
    notes = (*drawn.notes, *plot_data.notes(scene))
    return Markup(drawn.svg), notes, figures  # noqa: S704 (our own SVG; its texts are escaped)


def breaches(run_data: RunData) -> Iterator[plots.Breach]:
    """Yield the breaches of limits that the findings show, of each limit the worst where these do
    not.
    """
    verdict, shown = run_data.verdict, set[str]()
    for anomaly in verdict.anomalies.values() if verdict else ():
        for found in anomaly.examples[: finding_cards.EXAMPLES_MAX]:
            name = found.details.get("limit")
            start_ns, end_ns = (found.details.get(each) for each in finding_cards.WINDOW)
            if isinstance(name, str) and isinstance(start_ns, int) and isinstance(end_ns, int):
                shown.add(name)
                measured = found.details.get("measured")
                if name.endswith(RECOVERY_LIMIT) and isinstance(measured, int | float):
                    # The window ends where the rate was due, the breach where it came back.
                    longest_s = run_data.last_ns / NS_PER_S  # a stranger's figure may be any
                    end_ns = max(end_ns, start_ns + round(min(measured, longest_s) * NS_PER_S))
                yield _breach(name, start_ns, end_ns)
    for limit in verdict.limits[:LIMITS_MAX] if verdict else ():
        if limit.state is not LimitState.BROKEN or limit.name in shown:
            continue
        if limit.start_ns is not None and limit.end_ns is not None:
            yield _breach(limit.name, limit.start_ns, limit.end_ns)


def _breach(name: str, start_ns: int, end_ns: int) -> plots.Breach:
    label = name.removeprefix("promise.")
    return plots.Breach(label=label, start_s=start_ns / NS_PER_S, end_s=end_ns / NS_PER_S)


def _roles(run_data: RunData) -> RolesOverTime | None:
    """Return the roles of the nodes of a run of ours."""
    if run_data.origin is not None or not run_data.nodes:
        return None
    names = [node.name for node in run_data.nodes]
    kinds = by_name(possible(run_data.manifest.arsenal))
    return roles_over_time(run_data.events, run_data.faults, names, run_data.last_ns, kinds)


def _placement(run_data: RunData) -> Placement | None:
    """Return where data was in a run of ours, as far as its system told."""
    if run_data.origin is not None or not run_data.nodes:
        return None
    tables = read_changes(run_data.run.root, run_data.manifest.checksums)
    assignments, topology = tables["assignments"], tables["topology"]
    names = [node.name for node in run_data.nodes]
    return placement_over_time(
        assignments.to_pylist(), topology.to_pylist(), names, run_data.last_ns
    )


def _windows(run_data: RunData) -> list[plots.FaultWindow]:
    kinds = {row["fault"]: row["kind"] for row in run_data.faults}
    steps = _steps(run_data)
    return [
        plots.FaultWindow(
            number=window.number,
            kind=kinds[window.number],
            label=window.label,
            start_s=window.start / NS_PER_S,
            end_s=window.end / NS_PER_S,
            unsure=tuple((a / NS_PER_S, b / NS_PER_S) for a, b in window.unsure),
            steps=steps.get(window.number, ()),
        )
        for window in run_data.windows()
    ]


def _steps(run_data: RunData) -> dict[int, tuple[plots.StepWindow, ...]]:
    """Return the steps of procedures by the number of their fault. A stage that was not reached
    ends with the fault.
    """
    spans, told = fault_spans(run_data.faults), StepEvents.in_table(run_data.events)
    ends = {span.fault: span.end_ns(run_data.last_ns) for span in spans}
    return {
        fault: tuple(_step_window(step, ends[fault]) for step in steps)
        for fault, steps in told.by_procedure(spans, run_data.last_ns).items()
    }


def _step_window(step: NodeStep, end_ns: int) -> plots.StepWindow:
    up_ns = end_ns if step.up_ns is None else step.up_ns
    over_ns = up_ns if step.over_ns is None else step.over_ns
    return plots.StepWindow(
        node=step.node,
        start_s=step.begun_ns / NS_PER_S,
        up_s=up_ns / NS_PER_S,
        end_s=max(up_ns, over_ns) / NS_PER_S,
    )


def _latency(run_data: RunData) -> Grid | None:
    if not run_data.scale.timed:
        return None
    rows = []
    scale = plots.latency_scale(run_data.scale)
    per_s = NS_PER_S / scale.per_unit
    every = {kind.value: outcomes for kind, outcomes in run_data.outcomes.items()}
    every["conflict"] = run_data.conflicts
    for kind, outcomes in every.items():
        found = series.overall(outcomes)
        if found:
            values = (f"{value * per_s:,.1f}" for value in found.values())
            rows.append((kind, f"{outcomes.invoke_s.size:,}", *values))
    if not rows:
        return None
    columns = (
        "",
        "operations",
        *(f"p{q * 100:g} ({scale.unit})" for q in series.QUANTILES),
        f"longest ({scale.unit})",
    )
    title = "Latency" if run_data.origin else "Latency from the intended start"
    return Grid(title=title, columns=columns, rows=tuple(rows))


def _headed(statistics: dict[str, Any]) -> dict[str, Any]:
    """Use the checkers' short names as headings, the most important ones first."""
    known = {title: statistics[name] for name, title in HEADINGS.items() if name in statistics}
    return known | {name: value for name, value in statistics.items() if name not in HEADINGS}


def _pairs(title: str, data: dict[str, Any]) -> Grid:
    rows = tuple((name, tabulate.cell("", value)) for name, value in sorted(data.items()))
    return Grid(title=title, columns=("", ""), rows=rows)


def _commands(run_data: RunData) -> tuple[Command, ...]:
    """Return the commands for the run directory's parent: the directory can be moved."""
    name = run_data.manifest.run_id
    here = shlex.quote(name)
    planned = bool(run_data.plan_text)
    provider = str(_table(run_data.plan, "cluster").get("provider", "")) if planned else None
    outcome = run_data.verdict.outcome if run_data.verdict else None
    again = Command(does="run its plan again", line=f"firedrill run {here}/plan.toml")
    return (
        *((again,) if planned else ()),
        *next_commands(f"./{name}", outcome, provider=provider),
        Command(does="write this page again", line=f"firedrill report ./{here}"),
        Command(does="give its history to other tools", line=f"firedrill export ./{here} --edn"),
    )


def _table(plan: dict[str, Any], name: str) -> dict[str, Any]:
    found = plan.get(name)
    return found if isinstance(found, dict) else {}
