"""Findings of a night as a CI shows them beside the code: workflow commands of GitHub, and GitLab's
report of code quality.

A workflow command is a line that the runner takes from what a step prints, so that any text in one
is escaped by its rules: nothing that a node said begins another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import PurePath

import msgspec

from harness.campaigns.cell_table import CellRow
from harness.exit_codes import Outcome
from harness.text import inert
from results.nights.summary import NightSummary, axes_of, failed, why

ANNOTATIONS_MAX = 10  # errors of one step; GitHub shows no more
CODE_QUALITY = "code-quality.json"
_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}


def workflow_commands(summary: NightSummary, file: str) -> Iterator[str]:
    """Yield a line for each failure and each change of a night, which GitHub shows at ``file``, the
    campaign's, relative to the repository.
    """
    said = list(_said(summary))
    for level, title, text in said[:ANNOTATIONS_MAX]:
        yield (f"::{level} file={_property(file)},line=1,title={_property(title)}::{_data(text)}")
    if len(said) > ANNOTATIONS_MAX:
        yield f"::notice::{_data(f'and {len(said) - ANNOTATIONS_MAX} more: see the summary')}"


class _Lines(msgspec.Struct, frozen=True):
    begin: int


class _Location(msgspec.Struct, frozen=True):
    path: str
    lines: _Lines


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a report of code quality, as GitLab reads it: of two reports, an equal
    ``fingerprint`` is the same issue.
    """

    description: str
    check_name: str
    fingerprint: str
    severity: str
    location: _Location


def code_quality(summary: NightSummary, file: str) -> bytes:
    """Return GitLab's report: an issue for each finding that counts, for each cell that the harness
    could not judge, and for each change; all of them at ``file``.
    """
    where = _Location(PurePath(inert(file)).as_posix(), _Lines(1))
    issues = [
        Issue(
            description=f"{each.anomaly} ({each.cause}), {summary.status(each)}: {each.example}",
            check_name=each.anomaly,
            fingerprint=each.fingerprint,
            severity="critical",
            location=where,
        )
        for each in summary.findings
        if not each.quarantined
    ]
    others = [
        *((f"{axes_of(row)}, seed {row.seed}: {why(row)}", "harness error") for row in summary.cells
          if row.counts and row.outcome is Outcome.HARNESS_ERROR),
        *((text, "regression") for text in summary.changes
          if summary.comparison not in (None, Outcome.VALID)),
    ]  # fmt: skip
    issues += [
        Issue(
            description=inert(text),
            check_name=name,
            fingerprint=hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32],
            severity="major",
            location=where,
        )
        for text, name in others
    ]
    return msgspec.json.format(msgspec.json.encode(issues), indent=1) + b"\n"


def _said(summary: NightSummary) -> Iterator[tuple[str, str, str]]:
    for finding in summary.findings:
        if not finding.quarantined:
            title = f"{finding.anomaly}, {summary.status(finding)}"
            text = f"{finding.cause}; {finding.run_count} runs, as {finding.runs[0]}"
            yield "error", title, f"{text}: {finding.example}" if finding.example else text
    for row in summary.cells:
        if failed(row) and not row.anomalies:
            yield "error", _title(row), why(row)
    for text in summary.trouble:
        yield "error", "firedrill", text
    if summary.note and summary.campaign_outcome is Outcome.UNKNOWN:
        yield "warning", f"unknown: {summary.campaign}", summary.note
    if summary.comparison not in (None, Outcome.VALID):
        for text in summary.changes:
            yield "warning", f"against {summary.base}", text


def _title(row: CellRow) -> str:
    outcome = row.outcome.value if row.outcome else ""
    return f"{outcome}: {axes_of(row)}, seed {row.seed}"


def _data(text: str) -> str:
    return "".join(_DATA.get(char, char) for char in inert(text))


def _property(text: str) -> str:
    return "".join(_PROPERTY.get(char, char) for char in inert(text))
