"""``firedrill cleanup``: remove what killed controllers left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from functools import partial

import click

from harness.cli.session import Session, runs_option, say
from harness.errors import FiredrillError, MalformedHistory, UsageError
from harness.history.files import lock_directory
from harness.history.manifest import read_manifest
from harness.outcome import Outcome
from harness.rundir import RunDirectory
from harness.text import inert
from results.store import RunStore


@click.command()
@click.argument("runs", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Also the clusters that were kept up on purpose."
)
@runs_option
@click.pass_obj
def cleanup(session: Session, runs: tuple[str, ...], everything: bool, store: RunStore) -> int:
    """Remove containers, networks, rules and processes of RUNS, or of all runs that nobody drives
    any more. A cluster that was kept up (--keep) goes only by its name, or with --all. Works
    without a Docker daemon.
    """
    if runs and everything:
        raise UsageError("name runs or say --all, not both")
    named = [store.resolve(name) for name in runs]
    for directory in named:
        if driven(directory):
            raise UsageError(f"run {directory.root.name} is still driven: stop it first (Ctrl-C)")
    known = [known_as(run) for run in named]
    directories = named or [run for run in store.runs() if not driven(run)]
    work = [partial(_processes, run, bool(named) or everything) for run in directories]
    work += [partial(_containers, run_id, True) for run_id in known] or [
        partial(_containers, None, everything)
    ]
    removed, failures = _each(work)
    if not failures:
        for run in directories if named or everything else ():
            run.kept.unlink(missing_ok=True)
    if not removed and not failures:
        click.echo("nothing to remove")
    return Outcome.HARNESS_ERROR.exit_code if failures else 0


def known_as(run: RunDirectory) -> str:
    """The identifier that stands on what the run made: a directory may have been moved since.

    Where no manifest tells it, traces of a run must: a directory that is none is no order to clean.
    Raises ``MalformedHistory``.
    """
    try:
        return read_manifest(run).run_id
    except MalformedHistory:
        if run.chunks.is_dir() or run.undo.is_dir():
            return run.root.name
        raise


def _each(work: Iterable[Callable[[], list[str]]]) -> tuple[int, int]:
    """Do all of ``work``, saying what was removed; what fails keeps nothing else from going.

    Returns how many things were removed and how many pieces of work failed.
    """
    removed = failures = 0
    for remove in work:
        try:
            lines = remove()
        except FiredrillError as error:
            say(str(error))
            failures += 1
            continue
        for line in lines:
            click.echo(f"removed {inert(line)}")
        removed += len(lines)
    return removed, failures


def driven(run: RunDirectory) -> bool:
    """Whether a living controller writes to ``run``, or judges it while its nodes are up."""
    from clusters.providers.process.cleanup import driven as runs_nodes

    with contextlib.suppress(MalformedHistory):  # said by whoever cleans up
        if runs_nodes(run.undo):
            return True
    try:
        handle = lock_directory(run.chunks, shared=False)
    except OSError:  # sealed, or never begun
        return False
    if handle is None:
        return True
    os.close(handle)
    return False


def _processes(run: RunDirectory, kept_too: bool) -> list[str]:
    from clusters.providers.process.cleanup import cleanup as remove
    from clusters.providers.process.cleanup import kept

    if not kept_too and kept(run.undo):
        _tell_kept(run.root.name)
        return []
    return [f"{line} ({run.root.name})" for line in remove(run.undo)]


def _containers(run_id: str | None, kept_too: bool) -> list[str]:
    """Containers and networks of ``run_id``, or of every dead controller. That no daemon answers is
    said and is no failure: most machines never had one.
    """
    from clusters.providers.docker.cleanup import cleanup as remove
    from clusters.providers.docker.cleanup import kept_runs
    from clusters.providers.docker.daemon import NoDaemon

    try:
        if run_id is None and not kept_too:
            for kept in kept_runs():
                _tell_kept(kept)
        return list(remove(run_id, kept=kept_too))
    except NoDaemon as error:
        say(f"containers were not looked at: {error}")
        return []


def _tell_kept(run_id: str) -> None:
    say(f"{run_id} was kept up on purpose: name it, or say --all, to take it down")
