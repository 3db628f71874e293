"""``firedrill check``: judge a recorded history again."""

from __future__ import annotations

import click

from harness.cli import judging
from harness.cli.session import Session, executor_option, runs_option
from results.store import RunStore


@click.command()
@click.argument("run", default="latest")
@runs_option
@executor_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON and nothing else.")
@click.option("--no-report", is_flag=True, help="Leave the report as it is.")
@click.pass_obj
def check(
    session: Session,
    run: str,
    store: RunStore,
    executor: str | None,
    as_json: bool,
    no_report: bool,
) -> int:
    """Judge RUN (a path, an identifier or its beginning, or "latest") and write its report.

    A run whose controller was killed is recovered first, and judged as the prefix that it is.
    """
    session.run = directory = store.resolve(run)
    verdict = judging.judge(directory, executor)
    outcome = judging.settle(verdict, None if no_report else judging.publish(directory))
    if as_json:
        click.echo(directory.verdict.read_bytes(), nl=False)
    else:
        judging.announce(directory, verdict, outcome, directory.report.exists())
    return outcome.exit_code
