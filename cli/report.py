"""``firedrill report``: write a run's page again."""

from __future__ import annotations

import click

from checkers.engine.hadoop import one_jvm
from cli.archived import run_of
from cli.judging import judge
from cli.judging.limits import LimitOptions
from cli.remote_runs import RemoteRuns, fetched_run
from cli.session import RunName, Session, anywhere_option, limits_options
from harness.text import inert
from results.store.store import RunStore


@click.command()
@click.argument("run", type=RunName(), default="latest")
@anywhere_option
@limits_options
@click.pass_obj
def report(session: Session, run: str, store: RunStore | RemoteRuns, limits: LimitOptions) -> int:
    """Write the report of RUN, or of its archive, again: from its verdict and its history."""
    if isinstance(store, RemoteRuns):
        with one_jvm():
            address = store.named(run)
            with fetched_run(address) as (copy, remote):
                session.run = copy
                judge.draw(copy, limits)
                remote.put(copy.report, f"{address}/{copy.report.name}")
        click.echo(f"{address}/{copy.report.name}")
        return 0
    session.run = directory = run_of(store, run)
    judge.draw(directory, limits)
    click.echo(inert(str(directory.report), judge.PATH_CHARS))
    return 0
