"""``firedrill runs``: lists the runs of the store, and removes old ones."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from cli.cleanup import driven
from cli.duration import seconds
from cli.session import runs_option, say
from harness.errors import HarnessError, MalformedHistory, PlanError, UsageError
from harness.exit_codes import Outcome
from harness.history.manifest import RUNNING, read_manifest
from harness.plan import planfile
from harness.plan.plan import MAX_DURATION_S, MAX_SEED
from harness.protocols.verdict import read_outcome
from harness.run.directory import RunDirectory, require_plain
from harness.run.disk_budget import MIB, used_bytes
from harness.text import inert
from results.store.retention import Rule, RunRecord, begun_at, to_prune
from results.store.store import RunStore

FAILED = frozenset({Outcome.VIOLATION.value, Outcome.HARNESS_ERROR.value})
ON = "still driven"
UP = "its cluster is kept up"
COLUMNS = ("run", "outcome", "workload", "begun (UTC)", "nodes", "seed", "drive", "faults", "size")
NUMBERS = ("nodes", "seed", "drive", "faults", "size")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. ``state`` is the outcome, or the reason why there is none; ``held``
    says why the run can't be removed. ``begun`` is a time in UTC, ``duration_s`` the length of the
    drive phase, ``faults`` the number of those planned; what can't be read is ``None``.
    """

    run: str
    state: str
    outcome: str | None
    workload: str
    nodes: int | None
    size_bytes: int
    held: str
    begun: datetime | None = None
    seed: int | None = None
    duration_s: float | None = None
    faults: int | None = None


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@runs_option
@click.pass_context
def runs(context: click.Context, store: RunStore, as_json: bool) -> int:
    """List the runs of the store, oldest first; see also its command prune."""
    if context.invoked_subcommand is not None:
        return 0
    rows = [summary(run) for run in store.runs()]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
    else:
        _show(rows, store)
    return 0


@runs.command()
@click.option("--keep-last", type=click.IntRange(0), metavar="N", help="Keep the newest N runs.")
@click.option(
    "--older-than", callback=seconds, metavar="TIME", help="Let go only of older ones: 14d, 12h."
)
@click.option(
    "--keep-failed", is_flag=True, help="Keep violations, harness errors and runs without verdict."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and let it stay.")
@runs_option
def prune(
    store: RunStore,
    keep_last: int | None,
    older_than: float | None,
    keep_failed: bool,
    dry_run: bool,
) -> int:
    """Remove old run directories. One that is still driven, or whose cluster is kept up, stays.

    Every rule that is given must let a run go.
    """
    if keep_last is None and older_than is None:
        raise UsageError("say which runs may go: --keep-last N, --older-than TIME, or both")
    rule = Rule(
        keep_last=keep_last, older_than_s=older_than, keep_failed=keep_failed, failed=FAILED
    )
    every = {run.root.name: run for run in store.runs()}
    known = [_known(run) for run in every.values()]
    freed = count = failures = 0
    # These are no runs any more: no rule protects them.
    for left in store.broken_off():
        freed += used_bytes(left.root)
        if not dry_run:
            try:
                store.finish(left)
            except HarnessError as error:
                say(str(error))
                failures += 1
                continue
        name = left.root.name.removeprefix(".").removesuffix(".removing")
        click.echo(f"{'would finish' if dry_run else 'finished'} removing {name}")
    for chosen in to_prune(known, rule, datetime.now(UTC)):
        run = every[chosen.run_id]
        size = used_bytes(run.root)
        if not dry_run:
            try:
                store.remove(run)
            except HarnessError as error:
                say(str(error))
                failures += 1
                continue
        click.echo(f"{'would remove' if dry_run else 'removed'} {chosen.run_id}")
        freed, count = freed + size, count + 1
    said = "would go" if dry_run else "removed"
    click.echo(f"{count} of {len(every)} runs {said}, {freed / MIB:,.0f} MiB")
    return Outcome.HARNESS_ERROR.exit_code if failures else 0


def summary(run: RunDirectory) -> Summary:
    """Summarize the run for the list; unreadable parts are named, not raised."""
    return msgspec.structs.replace(described(run), size_bytes=used_bytes(run.root))


def described(run: RunDirectory) -> Summary:
    """As ``summary``, but without the size, for which the whole directory is walked."""
    outcome = outcome_of(run)
    held = held_by(run)
    try:
        manifest = read_manifest(run)
        unjudged = "not sealed" if manifest.state == RUNNING else "not judged"
        workload = manifest.workload
        nodes = sum(path.is_dir() for path in run.node("any").parent.glob("*")) or None
    except MalformedHistory:
        unjudged, workload, nodes = "no history", "", None
    seed, duration_s, faults = _planned(run)
    # The outcome says nothing yet while the run is driven.
    state = ON if held == ON else outcome or unjudged
    return Summary(
        run=run.root.name,
        state=f"{state}, {held}" if held not in ("", ON) else state,
        outcome=outcome,
        workload=workload,
        nodes=nodes,
        size_bytes=0,
        held=held,
        begun=begun_at(run.root.name),
        seed=seed,
        duration_s=duration_s,
        faults=faults,
    )


def _planned(run: RunDirectory) -> tuple[int | None, float | None, int | None]:
    """Return the plan's seed, its length and the number of its faults, each ``None`` where it is
    not a number of a plan: the directory may come from elsewhere.
    """
    try:
        require_plain(run)
        table = planfile.parse(planfile.read_text(run.plan), run.plan.name)
    except (MalformedHistory, PlanError):
        return None, None, None
    drive, nemesis = table.get("drive"), table.get("nemesis")
    seed = table.get("seed")
    length = drive.get("duration_s") if isinstance(drive, dict) else None
    schedule = nemesis.get("schedule") if isinstance(nemesis, dict) else None
    return (
        # A bool is an instance of int.
        seed if type(seed) is int and 0 <= seed <= MAX_SEED else None,
        float(length)
        if isinstance(length, int | float) and 0 <= length <= MAX_DURATION_S
        else None,
        len(schedule) if isinstance(schedule, list) else None,
    )


def outcome_of(run: RunDirectory) -> str | None:
    """Return the outcome of the run's verdict; ``None`` where there is no readable one."""
    try:
        require_plain(run)
        found = read_outcome(run)
    except MalformedHistory:
        return None
    return found.value if found else None


def held_by(run: RunDirectory) -> str:
    """Return why the run can't be removed now; empty where nothing holds it, or where the directory
    has links in place of files, and so comes from elsewhere.
    """
    try:
        require_plain(run)
    except MalformedHistory:
        return ""
    if run.kept.exists():
        return UP
    return ON if driven(run) else ""


def _known(run: RunDirectory) -> RunRecord:
    return RunRecord(run_id=run.root.name, outcome=outcome_of(run), held=held_by(run))


def _show(rows: list[Summary], store: RunStore) -> None:
    if not rows:
        click.echo(f"no runs in {store.root}")
        return
    table = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(cells[at]) for cells in table) for at in range(len(COLUMNS))]
    for cells in table:
        texts = zip(cells, widths, COLUMNS, strict=True)
        line = "  ".join(
            text.rjust(width) if name in NUMBERS else text.ljust(width)
            for text, width, name in texts
        )
        click.echo(line.rstrip())
    total = sum(row.size_bytes for row in rows)
    click.echo(f"{len(rows)} runs, {total / MIB:,.0f} MiB")


def _cells(row: Summary) -> tuple[str, ...]:
    return (
        row.run,
        inert(row.state),
        inert(row.workload),
        "" if row.begun is None else f"{row.begun:%Y-%m-%d %H:%M}",
        "" if row.nodes is None else str(row.nodes),
        "" if row.seed is None else str(row.seed),
        "" if row.duration_s is None else f"{row.duration_s:g} s",
        "" if row.faults is None else str(row.faults),
        f"{row.size_bytes / MIB:,.1f} MiB",
    )
