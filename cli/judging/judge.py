"""From a run directory to its verdict, as ``run`` and ``check`` have it made: by a process of its
own (``cli.judging.analysis``), whose findings are shown here and whose death is a finding, too.
What that process does is in ``cli.judging.steps``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import click

from checkers.engine.spark.options import SparkOptions
from cli.judging.analysis import analyzed
from cli.judging.child_messages import Drawing, HistoryFile, JudgeOptions
from cli.judging.children import Children
from cli.judging.keep import keep_first_verdict
from cli.judging.resource_limits import LimitOptions
from cli.run_state import holding
from cli.session import say
from harness.errors import HarnessError
from harness.exit_codes import FAILED, Outcome, worst
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import Verdict
from harness.text import inert

PATH_CHARS = 4096  # the longest path that Linux takes
COLORS = {
    Outcome.VALID: "green",
    Outcome.VIOLATION: "red",
    Outcome.UNKNOWN: "yellow",
    Outcome.REGRESSION: "yellow",
    Outcome.HARNESS_ERROR: "magenta",
}
"""Of the outcome, on a terminal; click leaves them out elsewhere."""


@attrs.frozen(kw_only=True)
class Judgement:
    """A verdict; the lines that a terminal shows of it, and those that name the next commands;
    whether a report of it was drawn; and the outcome of one that failed.
    """

    verdict: Verdict
    findings: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    drawn: bool = False
    report: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """The worst of the verdict's outcome and the report's."""
        return worst([self.verdict.outcome, *([self.report] if self.report else [])])


def judge(
    run: RunDirectory,
    executor: str | None,
    model: str | None = None,
    search_limit: int | None = None,
    *,
    report: bool = True,
    history: HistoryFile | None = None,
    kept: bool = True,
    limits: LimitOptions | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    spark: SparkOptions | None = None,
    explain_cost: bool = False,
    children: Children | None = None,
) -> Judgement:
    """Have a process of its own import ``history`` into ``run``, if it is given, judge it and, if
    requested, draw its report; one of ``children``, where they are given, which judge other runs
    as well.

    As ``judge_here``. A process that dies, or exceeds its limits, proves nothing: ``unknown``,
    which is stored only where no verdict is; nor does one that leaves out what a process died of
    replace a violation. Raises ``Interrupted`` soon after ``interrupted``
    returns true.
    """
    asked = JudgeOptions(
        executor=executor,
        model=model,
        search_limit=search_limit,
        spark=spark or SparkOptions(),
        explain_cost=explain_cost,
    )
    with holding(run):
        found = analyzed(
            run,
            say,
            asked,
            report=report,
            history=history,
            kept=kept,
            asked=limits,
            interrupted=interrupted,
            children=children,
        )
    verdict = found.verdict
    if verdict is None:
        reason = f"the analysis did not end: {found.death}"
        say(reason)
        verdict = _undecided(run, model, reason)
        # One that was proven before, or by another analysis meanwhile, is not proven wrong by one
        # that came to nothing.
        if not keep_first_verdict(run, verdict, say):
            say(f"the verdict that is stored stays: {inert(str(run.verdict), PATH_CHARS)}")
        return Judgement(verdict=verdict, findings=(f"because: {inert(reason)}",))
    if report and found.drawing is None and found.death:
        say(f"no report was written: {found.death}")
    # A full disk keeps the page, and no verdict, from being there.
    told = found.drawing in (Drawing.DONE, Drawing.REFUSED)
    failed = Outcome.HARNESS_ERROR if report and not told else None
    return Judgement(
        verdict=verdict,
        findings=found.findings,
        following=found.following,
        drawn=found.drawing is Drawing.DONE,
        report=failed,
    )


def _undecided(run: RunDirectory, model: str | None, reason: str) -> Verdict:
    from checkers.engine.analyze import declared_model

    asked = model or declared_model(read_manifest(run).declaration)
    return Verdict(outcome=Outcome.UNKNOWN, model=asked, reasons=(reason,))


def draw(run: RunDirectory, limits: LimitOptions | None = None) -> None:
    """Have a process of its own write the report of ``run``. Raises ``FiredrillError``."""
    found = analyzed(run, say, None, asked=limits)
    if found.drawing is not Drawing.DONE:
        raise HarnessError(f"no report was written: {found.death or 'see above'}")


def announce(
    run: RunDirectory,
    judged: Judgement,
    path: Path | str | None = None,
    *,
    one_of_many: bool = False,
) -> None:
    """Print the findings and the next commands on stdout, of ``one_of_many`` those alone of a run
    that failed; the last line is outcome, meaning and path: see ``announce_outcome``.
    """
    announce_findings(judged, one_of_many=one_of_many)
    announce_outcome(run, judged, path)


def announce_findings(judged: Judgement, *, one_of_many: bool = False) -> None:
    """Print all but the last line of ``announce``."""
    following = () if one_of_many and judged.outcome not in FAILED else judged.following
    for line in (*judged.findings, *following):
        click.echo(line)


def announce_outcome(run: RunDirectory, judged: Judgement, path: Path | str | None = None) -> None:
    """Print outcome, meaning and path: ``path`` where it is given, for a directory that is removed
    by then or a copy; else the report, where it is of this verdict.
    """
    line = last_line(run, judged.outcome, judged.drawn, path)
    outcome, rest = line.split(":", 1)
    click.echo(f"{click.style(outcome, fg=COLORS[judged.outcome], bold=True)}:{rest}")
    sys.stdout.flush()


def last_line(
    run: RunDirectory, outcome: Outcome, report: bool, path: Path | str | None = None
) -> str:
    """Format ``OUTCOME: meaning: path``; the path is ``path``, or that of the report or the run."""
    path = path or (run.report if report else run.root)
    return f"{outcome.value.upper()}: {outcome.meaning}: {inert(str(path), PATH_CHARS)}"
