"""``firedrill cleanup``: remove what killed controllers left behind."""

from __future__ import annotations

import os

import click

from harness.cli.session import Session, runs_option, say
from harness.errors import HarnessError, UsageError
from harness.history.files import lock_directory
from harness.rundir import RunDirectory
from harness.text import inert
from results.store import RunStore


@click.command()
@click.argument("runs", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Every run whose controller is dead (default)."
)
@runs_option
@click.pass_obj
def cleanup(session: Session, runs: tuple[str, ...], everything: bool, store: RunStore) -> int:
    """Remove containers, networks, rules and processes of RUNS, or of all runs that nobody drives
    any more. Works without a Docker daemon.
    """
    if runs and everything:
        raise UsageError("name runs or say --all, not both")
    directories = [store.resolve(name) for name in runs] or [
        r for r in store.runs() if not driven(r)
    ]
    for directory in directories:
        if driven(directory):
            raise UsageError(f"run {directory.root.name} is still driven: stop it first (Ctrl-C)")
    removed, trouble = _processes(directories), []
    for run_id in [directory.root.name for directory in directories] if runs else [None]:
        try:
            removed += _containers(run_id)
        except HarnessError as error:
            trouble.append(str(error))
            break
    for line in removed:
        click.echo(f"removed {inert(line)}")
    for text in trouble:
        say(f"containers were not looked at: {text}")
    if not removed:
        click.echo("nothing to remove")
    return 0


def driven(run: RunDirectory) -> bool:
    """Whether a living controller writes to ``run``."""
    try:
        handle = lock_directory(run.chunks, shared=False)
    except OSError:  # sealed, or never begun
        return False
    if handle is None:
        return True
    os.close(handle)
    return False


def _processes(runs: list[RunDirectory]) -> list[str]:
    from clusters.providers.process.cleanup import cleanup as remove

    return [f"{line} ({run.root.name})" for run in runs for line in remove(run.undo)]


def _containers(run_id: str | None) -> list[str]:
    from clusters.providers.docker.cleanup import cleanup as remove

    return list(remove(run_id))
