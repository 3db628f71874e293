"""``firedrill report``: write a run's page again."""

from __future__ import annotations

import click

from cli.archived import run_of
from cli.judging import judge
from cli.judging.limits import LimitOptions
from cli.session import RunName, Session, limits_options, runs_option
from harness.text import inert
from results.store.store import RunStore


@click.command()
@click.argument("run", type=RunName(), default="latest")
@runs_option
@limits_options
@click.pass_obj
def report(session: Session, run: str, store: RunStore, limits: LimitOptions) -> int:
    """Write the report of RUN, or of its archive, again: from its verdict and its history."""
    session.run = directory = run_of(store, run)
    judge.draw(directory, limits)
    click.echo(inert(str(directory.report), judge.PATH_CHARS))
    return 0
