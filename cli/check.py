"""``firedrill check``: judge a recorded history again, or one that another tool recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import msgspec

from checkers.engine.spark.hadoop import is_remote, one_jvm
from checkers.engine.spark.options import SparkOptions
from cli.importing import is_history, opened
from cli.judging import judge
from cli.judging.children import Children
from cli.judging.judge import Judgement
from cli.judging.resource_limits import LimitOptions
from cli.remote_runs import RemoteRuns
from cli.run_pages import refresh_index
from cli.session import (
    RunName,
    Session,
    anywhere_option,
    broken,
    executor_option,
    limits_options,
    say,
    spark_options,
)
from harness.errors import FiredrillError, Interrupted, UsageError
from harness.exit_codes import EXIT_USAGE, FAILED, Outcome, worst
from harness.history.run_directory import BankRules, RunDirectory
from harness.importers.jepsen.import_limits import MAX_MONEY
from harness.plan.plan import MAX_SEARCH_LIMIT
from harness.protocols.consistency_models import canonical
from results.store.store import LATEST, RunStore

if TYPE_CHECKING:
    from harness.protocols.verdict import Verdict


@click.command()
@click.argument("paths", metavar="[PATH]...", type=RunName(), nargs=-1)
@anywhere_option
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
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the verdict as JSON and nothing else; of several, a line each with its path.",
)
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
    paths: tuple[str, ...],
    store: RunStore | RemoteRuns,
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

    Several are judged one after another, on Spark in one session; one that can't be judged lets
    the others go on. The exit code is that of the worst.

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
    if output is not None and len(paths) > 1:
        raise UsageError(f"--output: expected one PATH, whose results go there (got {len(paths)})")
    paths, bank = paths or (LATEST,), None
    if bank_total is not None or negative_balances:
        bank = BankRules(total=bank_total, negative_balances=negative_balances)
    one = _Check(
        session=session,
        # What lies elsewhere is fetched by its address, and comes into no store of this machine.
        store=RunStore() if isinstance(store, RemoteRuns) else store,
        remote=store if isinstance(store, RemoteRuns) else None,
        workload=workload,
        bank=bank,
        executor=executor,
        model=model,
        search_limit=search_limit,
        output=output,
        no_report=no_report,
        as_json=as_json,
        several=len(paths) > 1,
        explain_cost=explain_cost,
        limits=limits,
        spark=spark,
    )
    with one_jvm():
        if not one.several:
            return one.of(paths[0], Children(lasting=False)).exit_code
        return _of_several(one, paths)


def _of_several(one: _Check, paths: Sequence[str]) -> int:
    """Judge all, say how many ended how, and return the exit code of the worst."""
    outcomes: list[Outcome] = []
    refused = 0
    with Children(lasting=True) as children:
        for path in paths:
            # A traceback of this one must not go into the directory of the one before.
            one.session.run = None
            try:
                outcomes.append(one.of(path, children))
            except (Interrupted, BrokenPipeError):
                raise
            except UsageError as error:
                refused += 1
                say(f"{path}: {error}" if path not in str(error) else str(error))
            except FiredrillError as error:
                say(f"{path}: it was not judged")
                outcomes.append(broken(one.session, error))
    if not one.as_json:
        counts = [f"{outcomes.count(each)} {each.value}" for each in Outcome if each in outcomes]
        counts += [f"{refused} refused"] if refused else []
        click.echo(f"{len(paths)} judged: {', '.join(counts)}")
    found = worst(outcomes) if outcomes else None
    # What was refused is told by the code where nothing failed: else the failure is.
    if found not in FAILED and refused:
        return EXIT_USAGE
    return worst(outcomes).exit_code


@attrs.frozen(kw_only=True)
class _Check:
    """What one PATH is judged as, and where its results go."""

    session: Session
    store: RunStore
    remote: RemoteRuns | None
    workload: str | None
    bank: BankRules | None
    executor: str | None
    model: str | None
    search_limit: int | None
    output: Path | None
    no_report: bool
    as_json: bool
    several: bool
    explain_cost: bool
    limits: LimitOptions
    spark: SparkOptions | None

    def of(self, path: str, children: Children) -> Outcome:
        """Judge ``path`` and print what was found."""
        if self.remote is not None:
            path = self.remote.named(path)
        store, only_judged = self.store, is_history(path) and (self.as_json or self.no_report)
        with opened(path, store, self.workload, bank=self.bank, keep=not only_judged) as found:
            directory, history = found.run, found.history
            if self.remote is not None and history is not None and not only_judged:
                moves = f"'firedrill runs move' moves it to {self.remote.address}"
                say(f"what is imported becomes a run of {store.root}: {moves}")
            if self.output is not None:
                directory = attrs.evolve(directory, output=_made(self.output))
            self.session.run = directory
            # Of a run that was fetched, the copy is gone with this command.
            fetched = is_remote(path) and history is None
            judged = judge.judge(
                directory,
                self.executor,
                self.model,
                self.search_limit,
                report=not (self.no_report or only_judged),
                history=history,
                kept=not (only_judged or fetched),
                limits=self.limits,
                spark=self.spark,
                explain_cost=self.explain_cost,
                children=children,
            )
            # Before it is printed: the exit code holds even where stdout refuses the findings.
            self.session.found(judged.outcome)
            # Before it, too: the outcome is the last line.
            if _lies_in(directory, store):
                refresh_index(store)
            if self.as_json:
                click.echo(self._json(path, judged.verdict), nl=False)
            else:
                judge.announce_findings(judged, one_of_many=self.several)
        if not self.as_json:
            # A history that is only judged leaves no directory behind.
            shown: Path | str | None = Path(path) if only_judged else None
            if fetched:
                shown = self._report_of(path, directory, judged, found.put_back)
            judge.announce_outcome(directory, judged, shown)
        return judged.outcome

    def _report_of(
        self, address: str, copy: RunDirectory, judged: Judgement, put_back: Sequence[str]
    ) -> Path | str:
        """Return where the report of a fetched run is by now; else the address of the run."""
        if copy.report.name in put_back:
            return f"{address.rstrip('/')}/{copy.report.name}"
        return copy.report if judged.drawn and self.output is not None else address

    def _json(self, path: str, verdict: Verdict) -> bytes:
        from harness.protocols.verdict import encode

        if not self.several:
            return encode(verdict)
        line = {
            "path": path,
            "verdict": msgspec.Raw(msgspec.json.format(encode(verdict), indent=-1)),
        }
        return msgspec.json.encode(line) + b"\n"


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
