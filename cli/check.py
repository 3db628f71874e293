"""``firedrill check``: judge a recorded history again, or one that another tool recorded."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from checkers.engine.hadoop import is_remote
from checkers.engine.spark_options import SparkOptions
from cli.importing import is_history, opened
from cli.judging import judge
from cli.judging.limits import LimitOptions
from cli.run_pages import refresh_index
from cli.session import (
    RunName,
    Session,
    executor_option,
    limits_options,
    runs_option,
    spark_options,
)
from harness.errors import UsageError
from harness.importers.jepsen.import_limits import MAX_MONEY
from harness.plan.plan import MAX_SEARCH_LIMIT
from harness.protocols.models import canonical
from harness.run.directory import BankRules, RunDirectory
from results.store.store import RunStore


@click.command()
@click.argument("path", type=RunName(), default="latest")
@runs_option
@executor_option
@spark_options
@click.option("--workload", help="What to judge a history file as (found out when not given).")
@click.option(
    "--model",
    help="What to judge against: strict-serializable, serializable, snapshot-isolation, "
    "read-committed, ... (what the run's system declares when not given). A model that no anomaly "
    "defines is proven by a stronger one or unknown.",
)
@click.option(
    "--search-limit",
    type=click.IntRange(1, MAX_SEARCH_LIMIT),
    help="Configurations that the search of one register may try (the plan's when not given); half "
    "a million take a few seconds.",
)
@click.option(
    "--bank-total",
    type=click.IntRange(-MAX_MONEY, MAX_MONEY),
    help="What the accounts of a bank in a history file hold together (what its first read saw "
    "when not given).",
)
@click.option(
    "--negative-balances", is_flag=True, help="Accounts of a bank may hold less than nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON and nothing else.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where verdict, tables and report go instead of into the run.",
)
@click.option("--no-report", is_flag=True, help="Leave the report as it is.")
@click.option(
    "--explain-cost",
    is_flag=True,
    help="Tell what each stage of the analysis read and took, and what ten times the history would "
    "take.",
)
@limits_options
@click.pass_obj
def check(
    session: Session,
    path: str,
    store: RunStore,
    executor: str | None,
    workload: str | None,
    model: str | None,
    search_limit: int | None,
    bank_total: int | None,
    negative_balances: bool,
    as_json: bool,
    output: Path | None,
    no_report: bool,
    explain_cost: bool,
    limits: LimitOptions,
    spark: SparkOptions | None,
) -> int:
    """Judge PATH and write its report: a run (a path, an identifier or its beginning, "latest", or
    its archive, which is brought into the store), or a history recorded by Jepsen (EDN or JSON
    lines; "-" reads it from stdin).

    PATH may lie in any store that Hadoop reads (hdfs://HOST/DIR, s3a://BUCKET/DIR): it is fetched,
    and what was found of a run is put beside it.

    A run whose controller was killed is recovered first, and judged as the prefix that it is. A
    history becomes a run of the store; with --json or --no-report it is only judged. A run that
    can only be read is judged all the same: that its verdict is not stored is said.
    """
    if spark is not None and executor is None:
        executor = "spark"
    if spark is not None and executor != "spark":
        raise UsageError(f"--spark-...: expected --executor spark (got {executor})")
    if model is not None:
        canonical(model)  # to import a long history first would be wasted on a name mistyped
    only_judged = is_history(path) and (as_json or no_report)
    bank = None
    if bank_total is not None or negative_balances:
        bank = BankRules(total=bank_total, negative_balances=negative_balances)
    with opened(path, store, workload, bank=bank, keep=not only_judged) as found:
        directory, history = found
        if output is not None:
            directory = attrs.evolve(directory, output=_made(output))
        session.run = directory
        drawn = not (no_report or only_judged)
        # Of a run that was fetched, the copy is gone with this command.
        fetched = is_remote(path) and history is None
        judged = judge.judge(
            directory,
            executor,
            model,
            search_limit,
            report=drawn,
            history=history,
            kept=not (only_judged or fetched),
            limits=limits,
            spark=spark,
            explain_cost=explain_cost,
        )
        # Before it is printed: the exit code holds even where stdout refuses the findings.
        session.found(judged.outcome)
        # Before it, too: the outcome is the last line.
        if _lies_in(directory, store):
            refresh_index(store)
        if as_json:
            from harness.protocols.verdict import encode

            click.echo(encode(judged.verdict), nl=False)
        else:
            # A history that is only judged leaves no directory behind.
            shown: Path | str | None = Path(path) if only_judged else None
            if fetched:
                shown = f"{path.rstrip('/')}/report.html" if judged.drawn else path
            judge.announce(directory, judged, shown)
    return judged.outcome.exit_code


def _made(output: Path) -> Path:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        expected = "expected a directory that can be made and written"
        raise UsageError(f"--output: {expected} (got {output}: {error.strerror})") from error
    return output


def _lies_in(run: RunDirectory, store: RunStore) -> bool:
    try:
        return run.root.parent.samefile(store.root)
    except OSError:  # there is no store, or the working directory that it is relative to is gone
        return False
