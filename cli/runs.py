"""``firedrill runs``: lists, tags, archives and moves runs of the store, and removes old ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from checkers.engine.spark.hadoop import is_remote, one_jvm
from cli.quantities import seconds, size_bytes
from cli.remote_runs import RemoteRuns
from cli.run_pages import refresh_index
from cli.run_state import held_by
from cli.run_summary import RunRow
from cli.session import RunName, anywhere_option, runs_option, say
from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory, require_plain
from harness.protocols.verdict import Verdict, read_verdict
from harness.run.disk_budget import MIB, used_bytes
from harness.text import inert, inert_json
from results.store.archive import SUFFIX, alone, archive, left_out, require_all_of, restore
from results.store.index import Condition, Query, opened
from results.store.retention import Rule, RunRecord, to_prune
from results.store.run_entry import record_of
from results.store.run_tags import change_tags, read_tags
from results.store.store import RunStore, is_run_id

FAILED = frozenset({Outcome.VIOLATION.value, Outcome.HARNESS_ERROR.value})
COLUMNS = ("run", "outcome", "workload", "begun (UTC)", "nodes", "seed", "drive", "faults", "size")
NAMED_MAX = 5  # of the files that no archive holds
NUMBERS = ("nodes", "seed", "drive", "faults", "size")


@click.group(invoke_without_command=True)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="List those alone: outcome=violation, fault=kill, tag=nightly, 'begun>=2026-11', "
    "'longest_gap_s>2', != for the others; repeatable, all must hold.",
)
@click.option("--sort", default="run", show_default=True, metavar="NAME", help="Of a column.")
@click.option("--reverse", is_flag=True, help="Last first.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The first N of them.")
@click.option("--rebuild", is_flag=True, help="Read every run again, not those that changed.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@anywhere_option
@click.pass_context
def runs(
    context: click.Context,
    store: RunStore | RemoteRuns,
    conditions: tuple[str, ...],
    sort: str,
    reverse: bool,
    limit: int | None,
    rebuild: bool,
    as_json: bool,
) -> int:
    """List the runs of the store, oldest first; see also its commands."""
    if context.invoked_subcommand is not None:
        return 0
    query = Query(
        conditions=tuple(map(Condition.parse, conditions)),
        order=sort,
        descending=reverse,
        limit=limit,
    )
    if isinstance(store, RemoteRuns):
        with store.listed() as (copies, size_of), opened(copies, size_of=size_of) as index:
            rows = [RunRow(entry=each, held="") for each in index.entries(query)]
    else:
        with opened(store, rebuild=rebuild) as index:
            found = index.entries(query)
        rows = [RunRow(entry=e, held=held_by(RunDirectory(store.root / e.run))) for e in found]
    if as_json:
        told = msgspec.json.encode([row.as_row() for row in rows])
        click.echo(inert_json(msgspec.json.format(told, indent=2)))
    else:
        _show(rows, store, some=bool(conditions))
    if isinstance(store, RunStore) and (left := len(store.broken_off())):
        runs_were = "1 run was" if left == 1 else f"{left} runs were"
        broken_off = "being removed when its command was broken off"
        say(f"{runs_were} {broken_off}: 'firedrill runs prune' finishes that")
    return 0


@runs.command()
@click.argument("run", type=RunName())
@click.argument("tags", nargs=-1)
@click.option("--remove", multiple=True, metavar="TAG", help="Take a tag off; repeatable.")
@runs_option
def tag(store: RunStore, run: str, tags: tuple[str, ...], remove: tuple[str, ...]) -> int:
    """Attach TAGS to RUN, each NAME or NAME=VALUE (release=3.1.0, commit=1f3a9c0), and print all
    that it has. A tag replaces the one of its name.
    """
    directory = store.resolve(run)
    if tags or remove:
        change_tags(directory, tags, remove)
    for each in read_tags(directory):
        click.echo(each)
    return 0


@runs.command(name="archive")
@click.argument("names", type=RunName(), nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the files go (here by default); made if it is not there.",
)
@click.option("--remove", is_flag=True, help="Remove each run once it is archived.")
@runs_option
def archive_runs(store: RunStore, names: tuple[str, ...], directory: Path, remove: bool) -> int:
    """Write each of RUNS as one file with the sums of all its parts.

    Links and special files in a run are left out, and named; a run with any is not removed.
    """
    found = [store.resolve(name) for name in names]
    for run in found:
        if held := held_by(run):
            raise UsageError(f"run {run.root.name} can't be archived: {held}")
        if some := left_out(run):
            told = f"{_named(some)}, which no archive holds"
            if remove:
                raise UsageError(f"run {run.root.name} can't be removed: it has {told}")
            say(f"run {run.root.name}: left out: {told}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--to {directory}: {error.strerror}") from error
    for run in found:
        # Again: since the first look a command may have begun to work on it.
        if held := held_by(run):
            raise UsageError(f"run {run.root.name} can't be archived: {held}")
        # One hold, so that nothing is removed that was written after the archive.
        with alone(run):
            target = archive(run, directory / f"{run.root.name}{SUFFIX}", held=True)
            if remove:
                require_all_of(target, run)
                store.remove(run, held=True)
        click.echo(target)
    if remove:
        refresh_index(store)
    return 0


def _named(files: Sequence[str]) -> str:
    """Name links and special files, of many the first."""
    shown = ", ".join(inert(name) for name in files[:NAMED_MAX])
    more = f" and {len(files) - NAMED_MAX} more" if len(files) > NAMED_MAX else ""
    return f"links or special files: {shown}{more}"


@runs.command(name="restore")
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@runs_option
def restore_runs(store: RunStore, files: tuple[Path, ...]) -> int:
    """Bring the runs of archives back into the store, once every sum was found right."""
    for file in files:
        click.echo(restore(file, store).root)
    refresh_index(store)
    return 0


@runs.command(name="export")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--csv", "as_csv", is_flag=True, help="Each table also as one CSV file.")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="Those alone, as of the list; what else is in the export stays.",
)
@runs_option
def export_runs(store: RunStore, directory: Path, as_csv: bool, conditions: tuple[str, ...]) -> int:
    """Write runs and their verdicts as tables into DIRECTORY: Parquet, by month and system.

    An export is added to: runs that are gone from the store stay in it.
    """
    query = Query(conditions=tuple(map(Condition.parse, conditions)))
    count, changed = export_store(store, directory, query, as_csv=as_csv)
    click.echo(f"{count} runs, {changed} files written: {inert(str(directory), 4096)}")
    return 0


def export_store(
    store: RunStore, directory: Path, query: Query, *, as_csv: bool = False
) -> tuple[int, int]:
    """Export the runs that ``query`` asks for; return how many they are, and how many files
    changed. Raises ``UsageError`` and ``HarnessError``.
    """
    from results.export.run_tables import export

    with opened(store) as index:
        found = index.entries(query)
    told = ((each, _verdict_of(RunDirectory(store.root / each.run))) for each in found)
    return len(found), export(told, directory, as_csv=as_csv)


def _verdict_of(run: RunDirectory) -> Verdict | None:
    try:
        require_plain(run)
        return read_verdict(run)
    except MalformedHistory:
        return None


@runs.command()
@click.argument("names", type=RunName(), nargs=-1, required=True, metavar="RUNS...")
@click.option(
    "--to",
    "address",
    metavar="ADDRESS",
    required=True,
    help="A directory of runs in a store that Hadoop reads (hdfs://HOST/DIR, s3a://BUCKET/DIR).",
)
@runs_option
def move(store: RunStore, names: tuple[str, ...], address: str) -> int:
    """Move RUNS, judged or not, to another store, as `firedrill run --runs-dir ADDRESS` does.

    Each is removed here once all of it is there; a run of its name that is there stays.
    """
    if not is_remote(address):
        raise UsageError(
            f"--to {address}: expected an address (hdfs://HOST/DIR); within this machine move the "
            "directory of the run"
        )
    there = RemoteRuns(address.rstrip("/"))
    # A run that is named twice is moved once.
    found = list({run.root: run for run in map(store.resolve, names)}.values())
    for run in found:
        _require_free(run)
        if not is_run_id(run.root.name):
            raise UsageError(
                f"run {run.root.name} can't be moved: a store there lists identifiers alone, and "
                "this is a name of your own"
            )
        if not run.history.exists():
            recovers = f"'firedrill check {run.root}' recovers and judges it"
            raise UsageError(f"run {run.root.name} can't be moved: it is not sealed: {recovers}")
    try:
        with one_jvm():
            for run in found:
                _require_free(run)  # again: a command may have begun to work on it meanwhile
                click.echo(there.move(run))
    finally:
        refresh_index(store)  # those that were moved before one could not be are gone
    return 0


def _require_free(run: RunDirectory) -> None:
    if held := held_by(run):
        raise UsageError(f"run {run.root.name} can't be moved: {held}")


@runs.command()
@click.option("--keep-last", type=click.IntRange(0), metavar="N", help="Keep the newest N runs.")
@click.option(
    "--older-than", callback=seconds, metavar="TIME", help="Let go only of older ones: 14d, 12h."
)
@click.option(
    "--keep-failed", is_flag=True, help="Keep violations, harness errors and runs without verdict."
)
@click.option(
    "--max-size",
    callback=size_bytes,
    metavar="SIZE",
    help="Remove, oldest first, no more than brings all runs down to this size: 500M, 20G.",
)
@click.option(
    "--forget-findings",
    is_flag=True,
    help="Remove also the last run that proves a finding, which stays otherwise.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and let it stay.")
@runs_option
def prune(
    store: RunStore,
    keep_last: int | None,
    older_than: float | None,
    keep_failed: bool,
    max_size: int | None,
    forget_findings: bool,
    dry_run: bool,
) -> int:
    """Remove old run directories. One that is still driven, or whose cluster is kept up, stays.

    Every rule that is given must let a run go.
    """
    if keep_last is None and older_than is None and max_size is None:
        wanted = "--keep-last N, --older-than TIME, --max-size SIZE, or several"
        raise UsageError(f"say which runs may go: {wanted}")
    rule = Rule(
        keep_last=keep_last,
        older_than_s=older_than,
        max_bytes=max_size,
        keep_proofs=not forget_findings,
        keep_failed=keep_failed,
        failed=FAILED,
    )
    known = _known(store)
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
        run = RunDirectory(store.root / chosen.run_id)
        # Again: since the list was made a command may have begun to work on it.
        if held := held_by(run):
            say(f"{chosen.run_id} stays: {held}")
            continue
        size = used_bytes(run.root)
        if not dry_run:
            try:
                store.remove(run)
            except HarnessError as error:
                if not run.root.exists():
                    say(f"{chosen.run_id} is gone: another command removed it")
                    continue
                say(str(error))
                failures += 1
                continue
        click.echo(f"{'would remove' if dry_run else 'removed'} {chosen.run_id}")
        freed, count = freed + size, count + 1
    if not dry_run:
        refresh_index(store)
    said = "would go" if dry_run else "removed"
    click.echo(f"{count} of {len(known)} runs {said}, {freed / MIB:,.0f} MiB")
    return Outcome.HARNESS_ERROR.exit_code if failures else 0


def _known(store: RunStore) -> list[RunRecord]:
    with opened(store) as index:
        found = index.entries(Query())
    return [record_of(each, held_by(RunDirectory(store.root / each.run))) for each in found]


def _show(rows: list[RunRow], store: RunStore | RemoteRuns, *, some: bool) -> None:
    if not rows:
        where = store.address if isinstance(store, RemoteRuns) else store.root
        click.echo(f"no {'such ' if some else ''}runs in {where}")
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
    total = sum(row.entry.size_bytes for row in rows)
    click.echo(f"{len(rows)} runs, {total / MIB:,.0f} MiB")


def _cells(row: RunRow) -> tuple[str, ...]:
    entry = row.entry
    return (
        inert(entry.run),
        inert(row.state),
        inert(entry.workload),
        "" if entry.begun is None else f"{entry.begun:%Y-%m-%d %H:%M}",
        "" if entry.nodes is None else str(entry.nodes),
        "" if entry.seed is None else str(entry.seed),
        "" if entry.duration_s is None else f"{entry.duration_s:g} s",
        "" if entry.planned_faults is None else str(entry.planned_faults),
        f"{entry.size_bytes / MIB:,.1f} MiB",
    )
