"""``firedrill report``: write a run's page again."""

from __future__ import annotations

import click

from checkers.engine.spark.hadoop import is_remote, one_jvm, remote_store
from cli.archived import run_of
from cli.judging import judge
from cli.judging.resource_limits import LimitOptions
from cli.remote_runs import RemoteRuns, fetched
from cli.session import RunName, Session, anywhere_option, limits_options
from harness.errors import UsageError
from harness.history.run_directory import RunDirectory
from harness.text import inert
from results.store.store import RunStore


@click.command()
@click.argument("run", type=RunName(), default="latest")
@anywhere_option
@limits_options
@click.pass_obj
def report(session: Session, run: str, store: RunStore | RemoteRuns, limits: LimitOptions) -> int:
    """Write the report of RUN, or of its archive, again: from its verdict and its history."""
    if isinstance(store, RemoteRuns) or is_remote(run):
        with one_jvm():
            address = store.named(run) if isinstance(store, RemoteRuns) else run.rstrip("/")
            with remote_store(address) as remote:
                # Before all of what may be a long history is fetched.
                if not remote.is_directory(address):
                    raise UsageError(f"{address}: expected the directory of a run")
            with fetched(address) as (copy, remote):
                session.run = directory = RunDirectory(copy)
                judge.draw(directory, limits)
                remote.put(directory.report, f"{address}/{directory.report.name}")
        click.echo(f"{address}/{directory.report.name}")
        return 0
    session.run = directory = run_of(store, run)
    judge.draw(directory, limits)
    click.echo(inert(str(directory.report), judge.PATH_CHARS))
    return 0
