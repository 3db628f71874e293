"""A night in the forms of a CI: what a node says is text in all of them, and nothing else."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml
from markdown_it import MarkdownIt

from harness.campaigns.cell import MAX_REASON_CHARS, MAX_REASONS
from harness.campaigns.cell_table import CampaignTable, CellRow, read_table
from harness.campaigns.matrix import MAX_CELLS
from harness.exit_codes import Outcome
from harness.text import inert
from results.nights.annotations import code_quality, workflow_commands
from results.nights.junit import junit, write_junit
from results.nights.markdown import code, markdown
from results.nights.summary import (
    NightFinding,
    NightRun,
    NightSummary,
    counts_of,
    directory_name,
    findings_of,
    missed_of,
    nights_before,
    read_night,
    read_runs,
    red_cells,
    tried_again,
    write_night,
    write_runs,
)
from results.store.run_entry import RecordedFinding, RunEntry
from results.store.run_figures import VERSION, RunFigures

NIGHT = date(2026, 11, 22)
HOSTILE = [
    "::error file=x::owned",
    "x\n::set-env name=PATH::/tmp\r\n::stop-commands::t",
    "##[error]owned ##vso[task.setvariable]x ##teamcity[a]",
    "%0A::error::owned",
    "\x1b[2J\x1b]0;owned\x07\u202egnirts",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "</code></td></tr></table><h1>owned</h1>",
    "`` ` ``` | a | b |\n|---|---|",
    "\\| \\\\| `|` ``\\``",
    "[link](javascript:alert(1)) ![i](http://198.18.0.1/x.png) @everyone #1 https://x.example",
    "]]><failure/><![CDATA[ & \x00 \x08 \ufffe \ud800 \U0001f600",
    "# owned\n\n* a\n> b\n---\n    code",
    " ` ",
    "`",
    "a" * 100_000,
]
LINE = MarkdownIt("commonmark", {"html": True}).enable("table")


def night(text: str, **changes: object) -> tuple[NightSummary, CampaignTable]:
    """A night with ``text`` wherever a node or a stranger's run may say something."""
    rows = (
        CellRow(
            axes={"workload": "bank", "faults": text},
            seed=3,
            key="k1",
            outcome=Outcome.VIOLATION,
            anomalies={text: 2},
            reasons=(text, "and more"),
            failed=2,
            times=3,
            label="flaky 2 of 3",
            wall_s=1.5,
            run=f"runs/{text}",
        ),
        CellRow(axes={"workload": "bank"}, seed=4, key="k2", outcome=Outcome.VALID),
        CellRow(
            axes={"workload": "bank"},
            seed=5,
            key="k3",
            outcome=Outcome.HARNESS_ERROR,
            reasons=(text,),
        ),
        CellRow(axes={}, seed=6, key="k4", outcome=Outcome.VIOLATION, quarantine=f"until: {text}"),
        CellRow(axes={}, seed=7, key="k5", outcome=Outcome.UNKNOWN, reasons=(text,)),
        CellRow(axes={}, seed=8, key="k6"),
    )
    table = CampaignTable(name="night", outcome=Outcome.VIOLATION, cells=rows)
    # As ``entry_of`` hands texts of runs on.
    shown = inert(text, 200)
    finding = NightFinding(
        fingerprint="0123456789ab",
        anomaly=shown,
        fault=shown,
        role=shown,
        system=shown,
        known_since=NIGHT,
        count=3,
        run_count=2,
        runs=(shown,),
        example=shown,
    )
    fields: dict[str, object] = {
        "campaign": "night",
        "night": NIGHT,
        "outcome": Outcome.VIOLATION,
        "exit_code": 1,
        "meaning": Outcome.VIOLATION.meaning,
        "campaign_outcome": Outcome.VIOLATION,
        "comparison": Outcome.REGRESSION,
        "base": date(2026, 11, 21),
        "changes": (text,),
        "begun": datetime(2026, 11, 22, tzinfo=UTC),
        "took_s": 60.0,
        "counts": counts_of(table),
        "cell_count": 6,
        "findings": (finding,),
        "findings_gone": (finding,),
        "cells": red_cells(table),
        "note": text,
        "artifacts": (f"artifacts/{text}",),
        "trouble": (inert(text),),
    }
    return NightSummary(**{**fields, **changes}), table  # type: ignore[arg-type]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_night_that_is_unknown_says_in_an_annotation_what_it_lacks(text: str) -> None:
    harmless, _ = night("2 of 8 cells were not run", campaign_outcome=Outcome.UNKNOWN)
    hostile, _ = night(text, campaign_outcome=Outcome.UNKNOWN)

    told = [line for line in workflow_commands(harmless, "a.toml") if "unknown%3A night" in line]
    lines = list(workflow_commands(hostile, "a.toml"))

    assert told == [
        "::warning file=a.toml,line=1,title=unknown%3A night::2 of 8 cells were not run"
    ]
    assert len(lines) == 5
    assert all(line.startswith("::") and line.isprintable() for line in lines)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_line_but_our_own_is_a_workflow_command(text: str) -> None:
    summary, _ = night(text)

    lines = [
        line for each in workflow_commands(summary, f"{text}.toml") for line in each.split("\n")
    ]

    # One line each: what the runner takes for a command begins with two colons, or has ##[ in it.
    for line in lines:
        head = re.fullmatch(
            r"::(error|warning|notice)(?: file=([^:,\r\n]*),line=1,title=([^:,\r\n]*))?::(.*)", line
        )
        assert head is not None
        assert "##[" not in line
        assert line.isprintable()
    assert len(lines) == 4  # a finding, a harness error, a trouble, a change


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_xml_is_read_back_with_every_case(text: str, tmp_path: Path) -> None:
    summary, table = night(text)

    path = write_junit(tmp_path, summary, table)

    read = JUnitXml.fromfile(str(path))
    cases = {case.name: case for suite in read for case in suite}
    beside = {"no worse than 2026-11-21", "nothing is missing"}
    assert set(cases) == {*(f"seed {row.seed}" for row in table.cells), *beside}
    kinds = {name: [type(r).__name__ for r in case.result] for name, case in cases.items()}
    assert kinds == {
        "seed 3": ["Failure"],
        "seed 4": [],
        "seed 5": ["Error"],
        "seed 6": ["Skipped"],
        "seed 7": ["Skipped"],
        "seed 8": ["Skipped"],
        "no worse than 2026-11-21": ["Failure"],
        "nothing is missing": ["Error"],
    }
    suites = list(read)
    assert sum(suite.failures for suite in suites) == 2
    assert sum(suite.errors for suite in suites) == 2
    assert sum(suite.skipped for suite in suites) == 3
    tags = set(re.findall(r"<(\w+)", path.read_text()))
    assert tags == {"testsuites", "testsuite", "testcase", "failure", "error", "skipped"}


# What the schema of Jenkins' reader (junit-10.xsd of its xunit plug-in) has of what we write: for
# each element the attributes that it needs, those that it may have, and its children.
_TEXT = (set(), {"type", "message"}, set())
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (
        set(),
        {"name", "time", "tests", "failures", "disabled", "errors"},
        {"testsuite"},
    ),
    "testsuite": (
        {"tests"},
        {"name", "failures", "errors", "time", "skipped", "timestamp", "hostname"},
        {"testcase"},
    ),
    "testcase": ({"name"}, {"classname", "time"}, {"failure", "error", "skipped"}),
    "failure": _TEXT,
    "error": _TEXT,
    "skipped": _TEXT,
}


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_xml_keeps_to_the_schema_of_jenkins(text: str, tmp_path: Path) -> None:
    summary, table = night(text)

    path = write_junit(tmp_path, summary, table)
    root = ElementTree.fromstring(path.read_bytes())  # noqa: S314 (we wrote it)

    assert root.tag == "testsuites"
    for element in root.iter():
        needed, allowed, children = SCHEMA[element.tag]
        assert needed <= set(element.attrib) <= needed | allowed, element.tag
        assert {child.tag for child in element} <= children, element.tag
        if children:
            assert not (element.text or "").strip()


def test_cells_that_show_nothing_are_errors_where_the_campaign_is_unknown_for_them() -> None:
    summary, table = night("a", campaign_outcome=Outcome.UNKNOWN, comparison=None)

    cases = {case.name: case for suite in junit(summary, table) for case in suite}

    assert [type(each).__name__ for each in cases["seed 7"].result] == ["Error"]
    assert "no worse than 2026-11-21" not in cases


def test_what_a_night_lacks_is_an_error_though_no_cell_is_one() -> None:
    def lacking(**changes: object) -> list[tuple[str, str]]:
        summary, table = night("a", comparison=None, trouble=(), **changes)
        cases = {case.name: case for suite in junit(summary, table) for case in suite}
        told = cases["nothing is missing"].result if "nothing is missing" in cases else []
        return [(type(each).__name__, each.message) for each in told]

    note = "part-2 is not there: its cells count as not run"

    assert lacking(campaign_outcome=Outcome.UNKNOWN, note=note) == [("Error", note)]
    assert lacking(campaign_outcome=Outcome.VALID, note="1664 of 1680 cells were not run") == []
    assert lacking(campaign_outcome=Outcome.UNKNOWN, note="") == []


@pytest.mark.parametrize("text", HOSTILE)
def test_in_markdown_it_stands_in_code_alone(text: str) -> None:
    harmless, _ = night("a")
    summary, _ = night(text)

    wanted, found = (LINE.parse(markdown(each)) for each in (harmless, summary))

    # The same blocks, tables and cells, whatever the texts are.
    assert [token.type for token in found] == [token.type for token in wanted]
    for plain, token in zip(wanted, found, strict=True):
        kinds = [child.type for child in token.children or ()]
        assert kinds == [child.type for child in plain.children or ()]
        words = [c.content for c in token.children or () if c.type == "text"]
        assert words == [c.content for c in plain.children or () if c.type == "text"]
    assert len(markdown(summary)) < 100_000


@given(st.text(max_size=60))
def test_a_code_span_holds_any_text_in_a_cell_of_a_table(text: str) -> None:
    table = f"| a | b |\n|---|---|\n| x{code(text)} | y |\n"

    tokens = LINE.parse(table)

    inline = [token for token in tokens if token.type == "inline"]
    assert len(inline) == 4
    spans = [child for child in inline[2].children or () if child.type == "code_inline"]
    shown = inert(text, 300).replace("|", "\N{BROKEN BAR}")
    assert [span.content for span in spans] == ([shown] if shown.strip() else [])


@pytest.mark.parametrize("text", HOSTILE)
def test_gitlab_reads_an_issue_for_each_finding(text: str) -> None:
    summary, _ = night(text)

    issues = json.loads(code_quality(summary, ".ci/night.toml"))

    assert [issue["severity"] for issue in issues] == ["critical", "major", "major"]
    assert issues[0]["fingerprint"] == "0123456789ab"
    assert len({issue["fingerprint"] for issue in issues}) == 3
    for issue in issues:
        assert issue["location"] == {"path": ".ci/night.toml", "lines": {"begin": 1}}
        assert issue["description"].isprintable()


def entry(run: str, *fingerprints: str) -> RunEntry:
    findings = tuple(
        RecordedFinding(fingerprint=each, anomaly="lost-write", fault="kill", role="", count=2)
        for each in fingerprints
    )
    return RunEntry(run=run, state="sealed", findings=findings)


def test_a_finding_is_known_since_the_first_night_that_had_it_over_gaps() -> None:
    def of(day: int, *fingerprints: str, earlier: list[NightSummary]) -> NightSummary:
        when = date(2026, 11, day)
        known = [each for night in earlier for each in night.known_findings()]
        found = findings_of(when, [NightRun(entry=entry("r", *fingerprints))], known)
        base, _ = night("a")
        return msgspec.structs.replace(base, night=when, findings=found)

    first = of(1, "a", earlier=[])
    second = of(2, "b", earlier=[first])
    third = of(3, "a", "b", "c", earlier=[first, second])

    since = {each.fingerprint: each.known_since.day for each in third.findings}
    assert since == {"a": 1, "b": 2, "c": 3}
    assert [each.fingerprint for each in third.findings] == ["c", "b", "a"]
    assert [third.is_new(each) for each in third.findings] == [True, False, False]
    assert [each.fingerprint for each in missed_of(second.findings, base=first)] == ["a"]


def test_what_a_night_found_before_its_code_changed_is_not_forgotten() -> None:
    told, _ = night("a")
    (found,) = findings_of(NIGHT, [NightRun(entry=entry("r", "a"))])
    closed = msgspec.structs.replace(told, night=NIGHT, findings=(found,), findings_gone=())

    # Closed again with results of other code, which met nothing.
    (missed,) = missed_of((), same=closed)
    assert missed == found
    again = msgspec.structs.replace(closed, findings=(), findings_gone=(missed,))
    (later,) = findings_of(
        date(2026, 11, 23), [NightRun(entry=entry("s", "a"))], again.known_findings()
    )
    assert later.known_since == NIGHT
    assert missed_of((found,), same=closed) == ()


def test_what_no_night_tries_stays_untried_and_known(tmp_path: Path) -> None:
    told, _ = night("a")
    (found,) = findings_of(date(2026, 11, 20), [NightRun(entry=entry("r", "a"), place="p")])
    untried = msgspec.structs.replace(
        told, night=date(2026, 11, 21), findings=(), findings_gone=(), findings_untried=(found,)
    )

    assert missed_of((), base=untried) == (found,)
    (later,) = findings_of(NIGHT, [NightRun(entry=entry("s", "a"))], untried.known_findings())
    assert later.known_since == date(2026, 11, 20)


def test_the_runs_of_a_night_are_recorded_without_figures_of_another_version(
    tmp_path: Path,
) -> None:
    new = msgspec.structs.replace(entry("r"), figures=RunFigures(version=VERSION, p50_ms=1.0))
    old = msgspec.structs.replace(entry("s"), figures=RunFigures(version=VERSION - 1, p50_ms=1.0))

    assert read_runs(tmp_path) == {}
    write_runs(tmp_path, [new, old])
    assert read_runs(tmp_path) == {"r": new, "s": msgspec.structs.replace(old, figures=None)}
    (tmp_path / "runs.json").write_text("[1]")
    assert read_runs(tmp_path) == {}


def test_a_finding_whose_cells_were_not_run_is_told_apart_from_one_that_was_not_found() -> None:
    def row(mode: str, outcome: Outcome | None) -> CellRow:
        return CellRow(axes={"mode": mode}, seed=1, key=mode, outcome=outcome)

    now = CampaignTable(
        name="n", outcome=Outcome.VALID, cells=(row("SC", Outcome.VALID), row("HA", None))
    )
    of = {
        place: findings_of(NIGHT, [NightRun(entry=entry("r", "f"), place=place)])[0]
        for place in ("mode=SC", "mode=HA")
    }
    unplaced = msgspec.structs.replace(of["mode=HA"], places=())

    broken = msgspec.structs.replace(
        now, cells=(row("SC", Outcome.VALID), row("HA", Outcome.HARNESS_ERROR))
    )

    assert tried_again(of["mode=SC"], now)
    assert not tried_again(of["mode=HA"], now)
    assert not tried_again(of["mode=HA"], broken)
    assert tried_again(unplaced, now)
    base, _ = night("a")
    told = msgspec.structs.replace(
        base, findings_gone=(of["mode=SC"],), findings_untried=(of["mode=HA"],)
    )
    said = [(each.run_count, status) for each, status in told.missed()]
    assert said == [
        (0, "not found tonight"),
        (0, "not tried tonight: no cell that had it came to a verdict"),
    ]
    assert all(status in markdown(told) for _, status in said)


def test_runs_of_one_finding_are_joined_and_quarantine_holds_only_where_all_are() -> None:
    runs = [
        NightRun(entry=entry("r1", "a", "q"), place="p", quarantined=True),
        NightRun(entry=entry("r2", "a"), place="q"),
    ]

    found = {each.fingerprint: each for each in findings_of(NIGHT, runs)}

    assert (found["a"].count, found["a"].run_count, found["a"].runs) == (4, 2, ("r1", "r2"))
    assert found["a"].places == ("p", "q")
    assert not found["a"].quarantined
    assert found["q"].quarantined


def test_a_night_of_as_many_cells_as_there_may_be_is_read_back(tmp_path: Path) -> None:
    reasons = ("a node said: " + "x" * (MAX_REASON_CHARS - 13),) * MAX_REASONS
    row = CellRow(axes={}, seed=1, key="k", outcome=Outcome.HARNESS_ERROR, reasons=reasons)
    table = CampaignTable(name="n", outcome=Outcome.HARNESS_ERROR, cells=(row,) * MAX_CELLS)
    summary = msgspec.structs.replace(night("a")[0], cells=red_cells(table))
    (tmp_path / "campaign.json").write_bytes(msgspec.json.encode(table))

    write_night(tmp_path, summary)

    assert read_night(tmp_path) == summary
    assert read_table(tmp_path / "campaign.json") == table


def test_nights_are_found_by_their_names_and_read_back(tmp_path: Path) -> None:
    summary, _ = night("a")
    for name in ("night-20261120", "night-20261121", "night-20261122", "night-20261399", "night-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "night-long-20261119").mkdir()
    (tmp_path / "night-20261101").symlink_to(tmp_path / "night-20261120")

    before = nights_before(tmp_path, "night", NIGHT)

    assert [path.name for _, path in before] == ["night-20261120", "night-20261121"]
    assert directory_name("night", NIGHT) == "night-20261122"
    write_night(before[1][1], summary)
    assert read_night(before[1][1]) == summary
    assert read_night(before[0][1]) is None
    (before[0][1] / "night.json").write_text('{"schema_version": 1}')
    assert read_night(before[0][1]) is None
