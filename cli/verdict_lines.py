"""A verdict in the lines that a terminal shows: what was found, why, what was driven, and the
commands that come next.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.clock import NS_PER_S
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.history.layout import FAULTS, TRANSACTIONS, table_path
from harness.history.manifest import read_manifest
from harness.history.records import OpType
from harness.history.regular_files import regular
from harness.history.run_directory import Manifest, RunDirectory
from harness.plan import plan as plans
from harness.protocols.conflicts import ends
from harness.protocols.finding import Finding
from harness.protocols.verdict import Verdict
from harness.text import duration, inert
from results.drawing import series
from results.report.finding_cards import plainest_first
from results.report.limit_rows import LIMITS_MAX, in_words, short_name
from results.report.next_commands import next_commands, run_before

EXAMPLES_SHOWN = 2  # of each anomaly, in words; the report shows more
REASONS_SHOWN = 10
PATH_CHARS = 4096  # the longest path that Linux takes
LINE_CHARS = 600  # of one sentence: half a contradiction is none
ERRORS_SHOWN = 3
COMMANDS_SHOWN = 3  # the report has all of them
PLACES_SHOWN = 6  # of one example's transactions
NEEDED = [
    *("txn", "type", "error", "invoke_ns", "complete_ns", "intended_ns"),
    *("invoke_index", "complete_index"),
]
FIRST, LAST = "p50", "p99"


def findings_of(run: RunDirectory, verdict: Verdict) -> tuple[str, ...]:
    """Return the lines about ``verdict``, and one about the load and the faults of its run. Raises
    ``MalformedHistory``.
    """
    manifest = read_manifest(run)
    with pq.ParquetFile(regular(table_path(run, TRANSACTIONS))) as file:
        table = file.read(columns=NEEDED)
    imported = not isinstance(manifest.origin, msgspec.UnsetType)
    lines = []
    for name, anomaly in plainest_first(verdict.anomalies):
        lines.append(f"{inert(name)}: {anomaly.count}")
        for example in anomaly.examples[:EXAMPLES_SHOWN]:
            lines += _example(example)
            lines += _places(example, table) if imported else ()
        if anomaly.count > EXAMPLES_SHOWN:
            lines.append(f"  and {anomaly.count - EXAMPLES_SHOWN} more")
    driven = _driven(run, verdict, manifest, table)
    return (*lines, *beside(verdict), driven, *_limits(verdict))


def following_of(run: RunDirectory, verdict: Verdict) -> tuple[str, ...]:
    """Return the lines that name the commands that go on from a run that is kept."""
    before = run_before(run)
    nodes = {e.node for a in verdict.anomalies.values() for e in a.examples if e.node is not None}
    imported = not isinstance(read_manifest(run).origin, msgspec.UnsetType)
    if imported:
        nodes = set()  # a history from elsewhere brings no logs, and no plan drove it
    commands = next_commands(
        str(run.root),
        verdict.outcome,
        provider=None if imported else _provider(run),
        node=min(nodes, default=None),
        before=None if before is None else str(before.root),
    )[:COMMANDS_SHOWN]
    return tuple(
        f"{'      ' if at else 'next: '}{inert(command.line, PATH_CHARS)}  # {inert(command.does)}"
        for at, command in enumerate(commands)
    )


def beside(verdict: Verdict) -> Iterator[str]:
    """Yield the lines about what decides nothing, and about the reasons of the outcome."""
    if verdict.observed:
        kinds = ", ".join(f"{name} ({found.count})" for name, found in verdict.observed.items())
        yield f"observed, ruled out by no promise: {inert(kinds)}"
    reasons = verdict.other_reasons
    lead = "note" if verdict.outcome is Outcome.VALID else "because"
    for reason in reasons[:REASONS_SHOWN]:
        yield f"{lead}: {inert(reason, LINE_CHARS)}"
    if len(reasons) > REASONS_SHOWN:
        yield f"{lead}: and {len(reasons) - REASONS_SHOWN} more"


def _example(finding: Finding) -> Iterator[str]:
    yield f"  {inert(finding.text, LINE_CHARS)}"
    if (explained := finding.explained_by) is not None:
        lead = "" if explained.no_fault else "explained by: "
        yield f"    {lead}{inert(explained.text, LINE_CHARS)}"


def _places(finding: Finding, table: pa.Table) -> Iterator[str]:
    """Say where the transactions of a finding stand in the file that was imported."""
    wanted = finding.txns[:PLACES_SHOWN]
    rows = table.filter(pc.is_in(table["txn"], value_set=pa.array(wanted, pa.int64())))
    columns = ["txn", "invoke_index", "complete_index"]
    told = [
        f"T{row['txn']} is :index {row['invoke_index']} and {row['complete_index']}"
        for row in rows.select(columns).to_pylist()
    ]
    if told:
        yield f"    in the file {', '.join(told)}"


def _driven(run: RunDirectory, verdict: Verdict, manifest: Manifest, table: pa.Table) -> str:
    """Say in one line what was driven, how it ended, how long it took, and what was broken."""
    parts = [ends(manifest.declaration, table).text(ERRORS_SHOWN)]
    if isinstance(manifest.origin, msgspec.UnsetType) or manifest.origin.real_time:
        took = series.overall(series.by_type(table)[OpType.OK])
        if took:
            first, last = (duration(took[at] * NS_PER_S) for at in (0.5, 0.99))
            parts.append(f"{FIRST} {first}, {LAST} {last} of all ok")
        if verdict.availability.drive is not None:
            gap_ns = verdict.availability.drive.longest_gap_ns
            parts.append(f"longest gap of the store {duration(gap_ns)}")
    parts.append(_broken(run))
    return f"{_plan(run, manifest)}: {'; '.join(parts)}"


def _plan(run: RunDirectory, manifest: Manifest) -> str:
    if not isinstance(manifest.origin, msgspec.UnsetType):
        return inert(f"{manifest.workload}, imported")
    try:
        plan = plans.load(run.plan)
    except PlanError:  # of a run of tests, or of a version before
        return inert(manifest.workload)
    cluster, drive = plan.cluster, plan.drive
    return inert(
        f"{manifest.workload}, seed {plan.seed}, {cluster.nodes} nodes ({cluster.provider}), "
        f"{drive.duration_s:g} s"
    )


def _broken(run: RunDirectory) -> str:
    """Count the faults, and those whose effect was proven."""
    with pq.ParquetFile(regular(table_path(run, FAULTS))) as file:
        faults = file.read(columns=["effective_ns"])["effective_ns"]
    count: int = faults.length()
    if not count:
        return "no faults"
    proven = count - faults.null_count
    return f"{count} fault{'s' * (count > 1)}, {proven} with proven effect"


def _limits(verdict: Verdict) -> Iterator[str]:
    """Say what was measured for each limit of the plan, and whether that is broken. The figures
    have the limit's scope, which is no other line's: a gap may be one partition's.
    """
    told = [f"{short_name(limit)} {in_words(limit)}" for limit in verdict.limits[:LIMITS_MAX]]
    if told:
        yield f"limits: {'; '.join(told)}"


def _provider(run: RunDirectory) -> str | None:
    """Return the provider of the run's plan; ``None`` without one that can be driven again."""
    try:
        return plans.load(run.plan).cluster.provider
    except PlanError:
        return None


__all__ = ["beside", "findings_of", "following_of"]
