"""``firedrill report``: write the page of a run again."""

from __future__ import annotations

import click

from harness.cli.judging import PATH_CHARS
from harness.cli.session import Session, runs_option
from harness.text import inert
from results.store import RunStore


@click.command()
@click.argument("run", default="latest")
@runs_option
@click.pass_obj
def report(session: Session, run: str, store: RunStore) -> int:
    """Write the report of RUN again, from its verdict and its history."""
    from results.report import write_report

    session.run = directory = store.resolve(run)
    click.echo(inert(str(write_report(directory)), PATH_CHARS))
    return 0
