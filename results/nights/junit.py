"""A night as JUnit XML, which every CI shows: a suite for each place in the matrix, a case for each
seed, and a suite for the comparison with the night before.

A violation is a failure, a harness error an error; a cell that showed nothing is an error where
the campaign is ``unknown`` for it, else skipped, as cells are that were not run and those that are
quarantined. A comparison that can't tell is an error: no night is better than ``unknown`` with it;
and so is what went wrong with the night, or is missing of it, beside its cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import FinalResult

from harness.campaigns.cell_table import CampaignTable, CellRow
from harness.exit_codes import Outcome
from harness.history.durable_files import write_atomically
from harness.text import inert
from results.nights.summary import NightSummary, axes_of, why

JUNIT = "junit.xml"
HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'
COMPARISON = "compared with the night before"
WHOLE = "the night as a whole"


def write_junit(directory: Path, summary: NightSummary, table: CampaignTable) -> Path:
    """Write ``junit.xml`` into ``directory``, and return its path. Raises ``HarnessError``."""
    path = directory / JUNIT
    text: bytes = junit(summary, table).tostring()  # type: ignore[no-untyped-call]
    write_atomically(path, HEAD + text + b"\n")
    return path


def junit(summary: NightSummary, table: CampaignTable) -> JUnitXml:
    """Return the document of a night with the cells of ``table``."""
    document = JUnitXml(inert(summary.campaign))
    suites: dict[str, TestSuite] = {}
    for row in table.cells:
        axes = axes_of(row)
        if axes not in suites:
            suites[axes] = TestSuite(f"{summary.campaign}: {axes}")
        suites[axes].add_testcase(_case(row, axes, summary))
    for suite in suites.values():
        document.add_testsuite(suite)
    if summary.comparison is not None:
        document.add_testsuite(_comparison(summary))
    if lacks := [*summary.trouble, *filter(None, [_lacking(summary)])]:
        document.add_testsuite(_whole(summary, lacks))
    return document


def _lacking(summary: NightSummary) -> str:
    """Why the night can't tell where no cell says so: a part of it that did not arrive."""
    return summary.note if summary.campaign_outcome is Outcome.UNKNOWN else ""


def _whole(summary: NightSummary, lacks: Sequence[str]) -> TestSuite:
    suite = TestSuite(f"{summary.campaign}: {WHOLE}")
    case = TestCase("nothing is missing", classname=WHOLE, time=0.0)
    failure = Error(inert(lacks[0]), summary.outcome.value)
    failure.text = "\n".join(map(inert, lacks))
    case.result = [failure]
    suite.add_testcase(case)
    return suite


def _case(row: CellRow, axes: str, summary: NightSummary) -> TestCase:
    case = TestCase(f"seed {row.seed}", classname=axes, time=row.wall_s)
    result = _result(row, summary)
    if result is not None:
        text = [*map(inert, row.reasons), row.label]
        if row.run:
            text.append(f"firedrill replay {inert(Path(row.run).name)}")
        result.text = "\n".join(filter(None, text))
        case.result = [result]
    return case


def _result(row: CellRow, summary: NightSummary) -> FinalResult | None:
    if row.outcome is None:
        return Skipped("not run")
    if row.outcome is Outcome.VALID:
        return None
    message, kind = why(row), row.outcome.value
    if row.quarantine:
        return Skipped(f"quarantined {inert(row.quarantine)}: {kind}: {message}", kind)
    if row.outcome is Outcome.UNKNOWN and summary.campaign_outcome is not Outcome.UNKNOWN:
        return Skipped(f"{kind}: {message}", kind)
    if row.outcome in (Outcome.VIOLATION, Outcome.REGRESSION):
        return Failure(message, kind)
    return Error(message, kind)


def _comparison(summary: NightSummary) -> TestSuite:
    suite = TestSuite(f"{summary.campaign}: {COMPARISON}")
    case = TestCase(f"no worse than {summary.base}", classname=COMPARISON, time=0.0)
    if summary.comparison not in (None, Outcome.VALID):
        kind = summary.comparison.value if summary.comparison else ""
        lines: Iterable[str] = map(inert, summary.changes)
        text = "\n".join(lines)
        failure: FinalResult
        if summary.comparison is Outcome.UNKNOWN:
            failure = Error("the comparison can't tell", kind)
        else:
            failure = Failure(inert(summary.changes[0] if summary.changes else kind), kind)
        failure.text = text
        case.result = [failure]
    suite.add_testcase(case)
    return suite
