"""``firedrill export``: a run's history for other tools, and back to ``check``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from cli import streams
from cli.judging.analysis import exported
from cli.judging.child_messages import Export
from cli.run_state import ON, driven
from cli.session import RunName, Session, runs_option, say
from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.history import durable_files, regular_files
from harness.history.manifest import RUNNING, read_manifest
from harness.history.run_directory import RunDirectory
from results.store.store import RunStore

if TYPE_CHECKING:
    from harness.history.load import History

CSV_CHOICES = ("operations", "faults", "events")


@click.command()
@click.argument("run", type=RunName(), default="latest")
@click.option("--edn", is_flag=True, help="Operations as Jepsen records them: Elle, Knossos.")
@click.option("--jsonl", is_flag=True, help="The same operations as JSON, one a line.")
@click.option("--csv", "table", type=click.Choice(CSV_CHOICES), help="One table as CSV.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Instead of stdout."
)
@runs_option
@click.pass_obj
def export(
    session: Session,
    run: str,
    store: RunStore,
    edn: bool,
    jsonl: bool,
    table: str | None,
    output: Path | None,
) -> int:
    """Write the history of RUN (a path, an identifier or its beginning, or "latest") to stdout.

    EDN and JSON lines hold invocations and completions in Jepsen's form, those of the nemesis too,
    and in records of the process "firedrill" all else that a verdict rests on: `firedrill check
    FILE` comes to the same verdict.
    """
    if edn + jsonl + (table is not None) != 1:
        raise UsageError("say in what form: one of --edn, --jsonl and --csv TABLE")
    session.run = directory = store.resolve(run)
    if driven(directory):
        raise UsageError(f"run {directory.root.name} is {ON}: export it once it is over")
    form = table or ("edn" if edn else "jsonl")
    # In a process with limits: the run may be a stranger's.
    exported(directory, say, Export(form=form, output=None if output is None else str(output)))
    if output is not None:
        say(f"wrote {output}")
    return 0


def write_export(run: RunDirectory, export: Export) -> None:
    """Write the history of ``run`` in another form, in this process. Raises ``FiredrillError``, and
    ``BrokenPipeError`` where the reader of stdout is gone.
    """
    history = _loaded(run)
    if export.form in CSV_CHOICES:
        lines = _table(history, export.form)
    else:
        lines = _operations(history, edn=export.form == "edn")
    with _target(Path(export.output) if export.output else None) as stream:
        stream.writelines(_read(lines, run))
        # Before the file appears: the tables may be of another run than its sums.
        history.require_unchanged()


def _read(lines: Iterator[bytes], run: RunDirectory) -> Iterator[bytes]:
    """Yield ``lines``, which are read as they are asked for: what fails then is no write."""
    try:
        yield from lines
    except OSError as error:
        raise HarnessError(f"{run.root}: can't be read: {error.strerror or error}") from error


def _loaded(run: RunDirectory) -> History:
    if read_manifest(run).state == RUNNING:
        again = f"'firedrill check {run.root}' recovers and judges it"
        raise UsageError(
            f"run {run.root.name}: expected a sealed run, found one that is not: {again}"
        )
    from harness.history.load import load

    return load(run)


def _operations(history: History, *, edn: bool) -> Iterator[bytes]:
    from results.export.notation import edn_lines, json_lines

    found = operations_of(history)
    return edn_lines(found) if edn else json_lines(found)


def operations_of(history: History) -> Iterator[dict[str, Any]]:
    """Return the operations of a run, with all else that its verdict rests on. Raises
    ``MalformedHistory``, also where the run has files that its manifest does not name, or one that
    explains it is damaged: the export would be of another verdict.
    """
    from checkers.promises.always_on import log_lines
    from harness.history.layout import table_names, table_path
    from harness.history.parquet import read_summed
    from harness.plan.planfile import read_text
    from harness.run.side_tables import LINES, SIDE_TABLES
    from results.export.operations import operations

    run, sums, explaining = history.run, history.manifest.checksums, history.manifest.explaining
    if not isinstance(explaining, msgspec.UnsetType):
        sums = sums | explaining
    for reason in (*history.unnamed, *history.logs.unsealed, *history.unexplained):
        raise MalformedHistory(str(run.root), "", reason)
    exported = {table.file for table in SIDE_TABLES.values()} | {run.plan.name}
    tables = {
        table_path(run, name).relative_to(run.root).as_posix()
        for name in table_names(history.manifest.splits)
    }
    for file in sorted(sums.keys() - exported - tables):
        raise MalformedHistory(str(run.root), "", f"expected no sum of {file}, which is no table")
    beside = {LINES: log_lines(history)}
    for name, table in SIDE_TABLES.items():
        if name != LINES and table.file in sums:
            found = read_summed(run.root, sums, {table.file: table.columns})
            beside[name] = next(iter(found.values()))
    plan = read_text(run.plan) if history.planned and run.plan.exists() else ""
    return operations(history, plan, beside)


def _table(history: History, table: str) -> Iterator[bytes]:
    from results.export.rows import csv_lines

    return csv_lines(history, table)


@contextlib.contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears under its name once it is whole."""
    if output is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except OSError as error:
            streams.settle()
            if isinstance(error, BrokenPipeError):
                raise
            raise HarnessError(f"stdout: {error.strerror or error}") from error
        return
    if not os.path.isdir(output.parent):
        raise UsageError(f"--output: expected a file in a directory that is there (got {output})")
    if os.path.lexists(output) and not regular_files.is_regular(output):
        raise UsageError(f"--output: expected a file (got {output})")
    try:
        unfinished = durable_files.begin(output)
        try:
            with unfinished.open("wb") as stream:
                yield stream
            durable_files.publish(unfinished, output)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise durable_files.disk_failure("write", output, error, "nothing was exported") from error
