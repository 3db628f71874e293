"""The report of a run: complete, self-contained, and inert whatever the nodes wrote."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import synthetic_run
from synthetic_run import BREAKS, NS, Break, build, new_run, valid, violation, write_verdict

from harness.errors import MalformedHistory
from harness.exit_codes import Outcome
from harness.history.chunks import ChunkWriter
from harness.history.records import (
    Complete,
    EventKind,
    FaultState,
    FaultTransition,
    Invoke,
    MicroOp,
    OpType,
    PhaseMark,
    StoreEvent,
)
from harness.history.run_directory import RunDirectory
from harness.history.seal import recover, seal
from harness.protocols.finding import Dependency, Finding
from harness.protocols.promise import Promise
from harness.protocols.roles import COVERED
from harness.protocols.verdict import (
    Anomaly,
    Coverage,
    JudgedLimit,
    LimitState,
    LogLines,
    Takeover,
    Verdict,
)
from results.drawing import plots
from results.report import fault_recovery, fault_rows, limit_rows, sections
from results.report import page as pages
from results.report.finding_cards import FACTS_MAX, QUOTES_MAX
from results.report.render import LEAN_LINES, write_report
from results.report.run_data import gather

HOSTILE = '</script><script>alert(1)</script>"><img src=x onerror=alert(1)>\x1b[31m\u202e\0'
SMALL = {"duration_s": 30.0, "rate_per_s": 20.0, "breaks": BREAKS[:2]}
LIMIT_BYTES = 2 << 20
SCRIPT = resources.files("results").joinpath("templates", "report.js").read_text()


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all of its text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.scripts: list[str] = []  # that run; a block of data is none
        self._within = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self._within = tag
        if tag == "script" and "type" not in self.found[-1][1]:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within != "script":
            self.text += data
        elif "type" not in self.found[-1][1]:
            self.scripts[-1] += data

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def report(run: RunDirectory, verdict: Verdict | None = None) -> Elements:
    if verdict is not None:
        write_verdict(run, verdict)
    return Elements(write_report(run).read_text())


def assert_inert(page: Elements) -> None:
    """Nothing in the page runs, loads or styles but what the policy names."""
    tags = {tag for tag, _ in page.found}
    assert page.scripts == [SCRIPT]
    assert not tags & {"iframe", "object", "embed", "link", "base", "form", "img"}
    for tag, attributes in page.found:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "src"):
            target = attributes.get(name, "")
            assert re.match(r"^(#|nodes/|data:image/png;base64,|$)", target), (tag, target)


def test_a_valid_run_is_told_from_verdict_to_rerun(tmp_path: Path) -> None:
    run = build(tmp_path / "20261121-104500-drill-1a2b", **SMALL)

    page = report(run, valid())

    assert page.named("header")[0]["class"] == "outcome-valid"
    for told in (
        "every promise that was tested was kept",
        "list-append against reference in mode sc, which promises strict-serializable",
        "2 faults (1 kill, 1 partition), all proven effective and healed.",
        "boot 2 answers, pid 4811",
        "leader of partition 3",
        "TX-CONFLICT",
        "whole drive phase",
        "firedrill run 20261121-104500-drill-1a2b/plan.toml",
        "drive it again: the same faults, as they came",
        "firedrill export ./20261121-104500-drill-1a2b --edn",
        "firedrill replay ./20261121-104500-drill-1a2b",
        ", seed 4711 on 2026-11-21 at 10:45 UTC.",
        "seed = 4711",
        "reference",
    ):
        assert told in page.text
    assert "Anomalies" not in page.text
    assert "firedrill shrink" not in page.text
    assert_inert(page)


def limit(name: str, state: LimitState, measured: float | None, **more: Any) -> JudgedLimit:
    return JudgedLimit(name=name, allowed=2.0, state=state, measured=measured, **more)


def limited(*limits: JudgedLimit, texts: tuple[str, ...] = ()) -> Verdict:
    """A verdict on ``limits``; of the broken ones with a finding for each of ``texts``."""
    broken = next((each for each in limits if each.state is LimitState.BROKEN), None)
    examples = tuple(
        Finding(
            text=text,
            txns=(10,),
            keys=(),
            details={"limit": broken.name, "window_start_ns": 8 * NS, "window_end_ns": 11 * NS},
        )
        for text in texts
        if broken
    )
    anomalies = {"longest-gap": Anomaly(count=2, examples=examples)} if examples else {}
    return msgspec.structs.replace(valid(), limits=limits, anomalies=anomalies)


def test_each_limit_of_the_plan_stands_with_its_figure_and_leads_to_its_window_and_its_proof(
    tmp_path: Path,
) -> None:
    run = build(tmp_path / "run", **SMALL)
    kept = limit(
        "promise.p99_ms", LimitState.KEPT, 0.5, start_ns=2 * NS, end_ns=30 * NS, partition=None
    )
    broken = limit(
        "promise.kill.longest_gap_s", LimitState.BROKEN, 3.0, broken=2,
        start_ns=8 * NS, end_ns=11 * NS, partition=4,
    )  # fmt: skip
    untested = limit("promise.pause.p99_ms", LimitState.NOT_TESTED, None, reason="no such fault")

    page = report(run, limited(kept, broken, untested, texts=("gap: eight to eleven",)))

    for told in (
        "kill.longest_gap_s", "broken 2 times", "3 s", "8.000 to 11.000 s, partition 4",
        "0.5 ms", "2.000 to 30.000 s", "not tested", "no such fault",
    ):  # fmt: skip
        assert told in page.text
    first, second = (each for each in page.named("a") if each.get("class") == "window")
    assert (first["data-from"], first["data-to"]) == ("2.0", "30.0")
    assert (second["data-from"], second["data-to"], second["href"]) == ("8.0", "11.0", "#time")
    ids = {attributes.get("id") for _, attributes in page.found}
    assert {"limits", "time", "anomaly-1-longest-gap-1"} <= ids
    assert any(each.get("href") == "#anomaly-1-longest-gap-1" for each in page.named("a"))
    met, over = (
        float(each["width"])
        for each in page.named("rect")
        if each.get("class") in ("m-met", "m-over")
    )
    assert (met, over) == (limit_rows.ALLOWED_PX / 4, limit_rows.METER_PX)
    assert_inert(page)


def test_figures_of_a_breach_stand_with_the_unit_of_their_limit(tmp_path: Path) -> None:
    for name, measured, allowed in (
        ("promise.kill.longest_gap_s", "3.5 s", "2 s"),
        ("promise.p99_ms", "3.5 ms", "2 ms"),
        ("promise.indefinite_share", "3.5", "2"),
    ):
        verdict = limited(limit(name, LimitState.BROKEN, 3.5), texts=("one",))
        (example,) = verdict.anomalies["longest-gap"].examples
        details = {**example.details, "measured": 3.5, "allowed": 2.0}
        shown = msgspec.structs.replace(example, details=details)
        anomalies = {"longest-gap": Anomaly(count=1, examples=(shown,))}
        told = msgspec.structs.replace(verdict, anomalies=anomalies)

        page = report(build(tmp_path / name, **SMALL), told)

        assert f"measured{measured}" in page.text.replace("\n", "")
        assert f"allowed{allowed}" in page.text.replace("\n", "")


def test_a_recovery_that_came_late_is_drawn_until_it_came(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    verdict = limited(limit("promise.recovered_within_s", LimitState.BROKEN, 9.0), texts=("one",))
    (example,) = verdict.anomalies["longest-gap"].examples

    def drawn(measured: float, start_ns: int, end_ns: int) -> plots.Breach:
        window = {"window_start_ns": start_ns, "window_end_ns": end_ns}
        details = {**example.details, **window, "measured": measured}
        shown = Anomaly(count=1, examples=(msgspec.structs.replace(example, details=details),))
        write_verdict(run, msgspec.structs.replace(verdict, anomalies={"recovery": shown}))
        (found,) = pages.breaches(gather(run))
        return found

    assert drawn(9.0, 8 * NS, 8 * NS + NS // 10).end_s == 17.0
    assert drawn(0.05, 8 * NS, 8 * NS + NS // 10).end_s == 8.1
    assert drawn(1e300, 8 * NS, 9 * NS).end_s < 100.0


def test_a_breach_of_a_moment_is_as_wide_as_the_eye_needs() -> None:
    breach = plots.Breach(label="p99_ms", start_s=1.0, end_s=1.0)

    assert breach.bar(1200.0) == (1.0, 10.0)
    assert attrs.evolve(breach, end_s=21.0).bar(1200.0) == (1.0, 20.0)


def test_a_run_without_limits_has_no_place_for_them(tmp_path: Path) -> None:
    page = report(build(tmp_path / "run", **SMALL), valid())

    assert not any(attributes.get("id") == "limits" for _, attributes in page.found)
    assert "broken limits" not in page.text


def test_limits_of_a_stranger_are_inert_and_counted(tmp_path: Path) -> None:
    many = (limit(f"promise.{HOSTILE}.p99_ms", LimitState.KEPT, 0.0),) * (limit_rows.LIMITS_MAX + 5)

    page = report(build(tmp_path / "run", **SMALL), limited(*many))

    assert "and 5 more in" in page.text
    assert_inert(page)


def test_what_an_example_leaves_out_is_counted(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    details = {f"detail {number}": number for number in range(FACTS_MAX + 3)}
    log = tuple(f"line {number}" for number in range(QUOTES_MAX + 2))
    example = Finding(text="odd", txns=(), keys=(), details=details, log=log)
    anomaly = Anomaly(count=1, examples=(example,))

    page = report(
        run, msgspec.structs.replace(violation(txns=(10, 11)), anomalies={"odd-one": anomaly})
    )

    assert "and3 more" in page.text.replace("\n", "")
    assert "… and 2 more lines" in page.text
    assert "line 9" in page.text
    assert "line 10" not in page.text


def test_a_simulated_run_is_replayed_byte_for_byte(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    run.plan.write_text(run.plan.read_text().replace('provider = "docker"', 'provider = "sim"'))

    page = report(run, valid())

    assert "drive it again: the same, byte for byte" in page.text


def test_a_violation_shows_the_operations_that_prove_it_and_the_fault(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)

    page = report(run, violation(txns=(10, 11)))

    assert page.named("header")[0]["class"] == "outcome-violation"
    assert "lost write: an acknowledged append to key 7 (value 31) is in no later read" in page.text
    assert "fault 0, kill of n3 (leader of partition 3), 0.4 s before" in page.text
    assert re.search(r"append \d+ \d+", page.text)
    assert "1 of 3 shown" in page.text
    assert len(page.named("svg")) == 1 + 3, "the plot, two timelines and a cycle"
    assert "T10  r" in page.text
    assert "ww, a contradiction" in page.text
    assert "0 kill n3" in page.text
    assert "ruled out by no promise of the store" in page.text


def test_wrong_balances_come_with_the_write_that_was_missed(tmp_path: Path) -> None:
    run = bank_of_one(tmp_path / "run", found=5)
    honest = bank_of_one(tmp_path / "honest", found=7)
    example = Finding(text="wrong total: 5 instead of 7", txns=(1,), keys=(16,))
    verdict = msgspec.structs.replace(
        violation(), anomalies={"bank-total": Anomaly(count=1, examples=(example,))}, observed={}
    )

    page, other = report(run, verdict), report(honest, verdict)

    told = "T1 found 5 in account 16, after T0 was acknowledged to leave 7"
    assert told in page.text
    assert "T0  w 16 7" in page.text
    assert "was acknowledged to leave" not in other.text


def bank_of_one(root: Path, found: int) -> RunDirectory:
    """A transfer that leaves 7 in account 16, then a read that finds ``found`` there."""
    run = new_run(root)
    writer = ChunkWriter(run.chunks)
    for number, ops in enumerate(((MicroOp("w", 16, 7),), (MicroOp("r", 16, found),))):
        at_ns = (1 + number) * 1_000_000_000
        writer.append(
            Invoke(
                index=2 * number, process=number, kind="read-write", node="n1",
                intended_ns=at_ns, at_ns=at_ns, wall_ns=at_ns, ops=ops,
            )
        )  # fmt: skip
        writer.append(
            Complete(
                index=2 * number + 1, invoke=2 * number, process=number, type=OpType.OK,
                at_ns=at_ns + 1_000_000, ops=ops,
            )
        )  # fmt: skip
    writer.close()
    seal(run, partition_of=lambda key: 0)
    return run


def test_the_policy_allows_the_one_style_sheet_the_one_script_and_nothing_else(
    tmp_path: Path,
) -> None:
    run = build(tmp_path / "run", **SMALL)

    content = write_report(run).read_text()

    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', content)
    ran = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    expected = (
        f"default-src 'none'; style-src 'sha256-{digest}'; script-src 'sha256-{ran}'; img-src data:"
    )
    assert policy.replace("&#39;", "'") == expected


def test_the_same_run_gives_the_same_page_byte_for_byte(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    write_verdict(run, violation(txns=(10, 11)))

    first = write_report(run).read_bytes()

    assert write_report(run).read_bytes() == first


def test_many_operations_stay_below_the_limit_and_the_page_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.drawing.plots.POINTS_MAX", 500)
    run = build(tmp_path / "run", duration_s=40.0, rate_per_s=100.0)

    page = report(run, valid())

    assert run.report.stat().st_size < LIMIT_BYTES
    assert re.search(r"Of the ok operations one in \d+ is drawn; the lines count all\.", page.text)
    assert len(page.named("image")) > 0


def test_a_prefix_of_a_killed_run_is_shown_as_one(tmp_path: Path) -> None:
    run = build(tmp_path / "run", close=False, **SMALL)
    recover(run)
    reason = "the history is a prefix: the controller died before it was sealed"

    page = report(run, Verdict(outcome=Outcome.UNKNOWN, model="serializable", reasons=(reason,)))

    assert page.named("header")[0]["class"] == "outcome-unknown"
    assert reason in page.text


def test_a_run_in_which_nothing_succeeded_still_has_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    writer = ChunkWriter(run.chunks)
    writer.append(PhaseMark(name="drive", at_ns=0))
    for record in _operation(0, OpType.INFO, "TIMEOUT"):
        writer.append(record)
    writer.close()
    seal(run, partition_of=None)

    page = report(run, Verdict(outcome=Outcome.UNKNOWN, model="serializable"))

    assert "1 transactions: 0 ok, 0 fail, 1 info (TIMEOUT 1)." in page.text
    assert "No faults were injected." in page.text
    assert page.named("svg")


def test_a_run_without_a_single_record_still_has_a_page(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    ChunkWriter(run.chunks).close()
    seal(run, partition_of=None)

    assert "0 transactions" in report(run).text


def test_an_unproven_fault_stands_out(tmp_path: Path) -> None:
    breaks = (
        *BREAKS[:1],
        Break(kind="partition", target="half", nodes=("n2",), start_s=20, end_s=24, proven=False),
    )
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=20.0, breaks=breaks)

    page = report(run, valid())

    assert "1 not proven or not healed" in page.text
    assert [c["class"] for c in page.named("span") if "bad" in c.get("class", "")] == ["chip bad"]
    assert "every link still carried bytes" in page.text


def test_what_each_fault_met_and_who_took_over_stands_beside_it(tmp_path: Path) -> None:
    verdict = valid()
    first, second, *rest = verdict.availability.windows
    roles = ("leader of partition 3", "metastorage leader")
    taken = (
        Takeover(role=roles[0], node="n4", after_ns=812_000_000),
        Takeover(role=roles[1], node="n5", after_ns=1_290_000_000),
        Takeover(role="leader of partition 6", node="n4", after_ns=700_000_000),
    )
    missing = (Takeover(role=roles[0], node=None, after_ns=None),)
    windows = (
        msgspec.structs.replace(first, open_at_injection=9, takeovers=taken),
        msgspec.structs.replace(second, open_at_injection=0, takeovers=missing),
        *rest,
    )
    told = msgspec.structs.replace(verdict.availability, windows=windows)

    page = report(
        build(tmp_path / "run", **SMALL), msgspec.structs.replace(verdict, availability=told)
    )

    assert "leader of partitions 3, 6 by n4 after at most 0.812 s" in page.text
    assert "metastorage leader by n5 after 1.290 s" in page.text
    assert "leader of partition 3 by nobody while it was in force" in page.text
    rows = fault_rows.rows(gather(RunDirectory(tmp_path / "run")))
    assert [(row.met, row.taken_over) for row in rows] == [("9", "1.290"), ("0", "nobody")]


def test_a_run_that_was_not_analyzed_says_so(tmp_path: Path) -> None:
    page = report(build(tmp_path / "run", **SMALL))

    assert page.named("header")[0]["class"] == "outcome-no-verdict"
    assert "this run was not analyzed yet" in page.text


def test_a_plot_that_fails_leaves_a_sentence_and_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_scene: object) -> None:
        raise ValueError("no ink")

    monkeypatch.setattr(pages.plots, "draw", broken)

    page = report(build(tmp_path / "run", **SMALL), valid())

    assert "The plot could not be drawn (ValueError: no ink)." in page.text
    assert "every promise that was tested was kept" in page.text
    assert page.named("svg") == []


def test_whatever_nodes_and_checkers_write_is_shown_and_never_active(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    (run.node("n1") / "<img src=x onerror=alert(1)>.log").write_text("")
    writer = ChunkWriter(run.chunks)
    writer.append(PhaseMark(name=HOSTILE, at_ns=0))
    for record in _operation(0, OpType.FAIL, HOSTILE, node=HOSTILE):
        writer.append(record)
    for state in (FaultState.PLANNED, FaultState.INJECTED, FaultState.EFFECTIVE):
        fault = FaultTransition(
            fault=0,
            kind=HOSTILE,
            target=HOSTILE,
            state=state,
            at_ns=5,
            nodes=(HOSTILE,),
            roles=(HOSTILE,),
            text=HOSTILE,
        )
        writer.append(fault)
    writer.append(_event(HOSTILE + "x" * 1_000_000))
    writer.close()
    seal(run, partition_of=None)
    run.plan.write_text(f"name = '''{HOSTILE.replace(chr(0), '')}'''\n")
    hostile = Finding(text=HOSTILE, txns=(0,), keys=(), details={HOSTILE: [HOSTILE]})
    anomaly = Anomaly(count=1, examples=(hostile,))
    verdict = msgspec.structs.replace(
        valid(),
        outcome=Outcome.VIOLATION,
        anomalies={HOSTILE: anomaly},
        reasons=(HOSTILE,),
        statistics={HOSTILE: {HOSTILE: {HOSTILE: HOSTILE}}},
    )

    page = report(run, verdict)

    assert_inert(page)
    assert run.report.stat().st_size < LIMIT_BYTES
    assert "\\x1b[31m\\u202e\\x00" in page.text
    assert not set("\x1b\u202e\0") & set(run.report.read_text())
    assert "more characters)" in page.text


def test_events_and_faults_are_capped_and_counted(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    writer = ChunkWriter(run.chunks)
    for _ in range(pages.EVENTS_MAX + 7):
        writer.append(_event("tick"))
    writer.close()
    seal(run, partition_of=None)

    page = report(run, valid())

    assert "and 7 more in events.parquet" in page.text


def test_a_changed_history_gets_no_report(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    path = run.history / "transactions.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with pytest.raises(MalformedHistory, match=r"transactions\.parquet"):
        write_report(run)


def test_a_verdict_that_is_none_is_named(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    run.analysis.mkdir()
    run.verdict.write_text("{")

    with pytest.raises(MalformedHistory, match=r"verdict\.json: expected a verdict"):
        write_report(run)


def _operation(
    index: int, kind: OpType, error: str | None, node: str = "n1"
) -> tuple[Invoke, Complete]:
    ops = (MicroOp("append", 1, 2),)
    invoke = Invoke(
        index=2 * index,
        process=0,
        kind="read-write",
        node=node,
        intended_ns=1,
        at_ns=1,
        wall_ns=1,
        ops=ops,
    )
    complete = Complete(
        index=2 * index + 1, invoke=2 * index, process=0, type=kind, at_ns=9, ops=ops, error=error
    )
    return invoke, complete


def _event(text: str) -> StoreEvent:
    return StoreEvent(
        kind=EventKind.RESET,
        node="n1",
        wall_ns=synthetic_run.WALL_NS,
        boot="b",
        at_ns=1,
        uncertainty_ns=0,
        text=text,
    )


def test_many_anomalies_stay_below_the_limit_and_the_page_says_what_is_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=100.0, breaks=BREAKS[:2])
    verdict = many_cycles(names=40)

    page = report(run, verdict)

    assert run.report.stat().st_size < LIMIT_BYTES
    assert page.text.count("a cycle of many") == 40 * 5 + pages.REASONS_MAX, "and in the header"
    assert len(page.named("svg")) > 40
    monkeypatch.setattr("results.report.finding_cards.DRAWN_MAX_BYTES", 50_000)
    shorter = report(run, verdict)
    assert len(shorter.named("svg")) < 20
    assert "the drawings above fill the page" in shorter.text
    assert_inert(shorter)


def many_cycles(names: int) -> Verdict:
    """A violation with cycles of twelve transactions under each of many names."""
    txns = tuple(100 + 7 * n for n in range(12))
    steps = tuple(
        Dependency(kind="ww", source=txn, target=txns[(n + 1) % 12], key=n, element=n)
        for n, txn in enumerate(txns)
    )
    example = Finding(text="a cycle of many", txns=txns, keys=tuple(range(12)), cycle=steps)
    anomalies = {f"G{n}": Anomaly(count=5, examples=(example,) * 5) for n in range(names)}
    return msgspec.structs.replace(violation(), anomalies=anomalies, reasons=())


def test_lists_that_are_too_long_by_themselves_go_last_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path / "run")
    writer = ChunkWriter(run.chunks)
    for _ in range(pages.EVENTS_MAX):
        writer.append(_event("&<>" * 100))
    writer.close()
    seal(run, partition_of=None)
    report(run, valid())
    limit = run.report.stat().st_size // 2
    monkeypatch.setattr("results.report.render.LIMIT_BYTES", limit)

    page = report(run)

    assert run.report.stat().st_size < limit
    assert f"and {pages.EVENTS_MAX - LEAN_LINES} more in events.parquet" in page.text
    assert "The list of what was collected is left out" in page.text
    assert "Nothing was collected" not in page.text


def test_that_a_run_broke_off_before_its_faults_is_not_that_it_had_none(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL | {"breaks": ()})
    unplanned = build(tmp_path / "unplanned", **SMALL | {"breaks": ()})
    unplanned.plan.write_text(unplanned.plan.read_text().partition("[[nemesis")[0])

    assert "The run ended before the fault that was planned." in report(run, valid()).text
    assert "No faults were planned." in report(unplanned, valid()).text


def test_what_a_page_has_no_room_for_is_counted(tmp_path: Path) -> None:
    faults = tuple(
        Break(kind="kill", target="n1", nodes=("n1",), start_s=4.0 + at, end_s=4.5 + at)
        for at in range(fault_recovery.RECOVERIES_MAX + 3)
    )
    run = build(tmp_path / "run", duration_s=80.0, rate_per_s=5.0, breaks=faults)
    lines = {"panic": LogLines(lines=1, first="panic: out of memory")}
    kinds = [f"kind-{number:03}" for number in range(sections.CELLS_MAX + 2)]
    told = msgspec.structs.replace(
        valid(),
        coverage=Coverage(hit=0, of=0, cells={kind: {COVERED[0]: 1} for kind in kinds}),
        node_logs={f"n{number}": lines for number in range(sections.LOG_ROWS_MAX + 4)},
    )

    page = report(run, told)

    assert "and 3 more faults" in page.text
    assert "and 2 more kinds in analysis/verdict.json" in page.text
    assert "and 4 more in analysis/verdict.json" in page.text


def test_whatever_an_anomaly_is_called_its_place_on_the_page_is_its_own(tmp_path: Path) -> None:
    run = build(tmp_path / "run", duration_s=10.0, rate_per_s=20.0, breaks=())
    names = ("time", "Time", "faults", 'x" onclick="y', "a b", "a-b", "日本")
    example = Finding(text="told", txns=(), keys=())
    anomalies = {name: Anomaly(count=1, examples=(example,)) for name in names}
    page = report(run, msgspec.structs.replace(violation((0, 1)), anomalies=anomalies))

    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in ids)
    assert sum(name.startswith("anomaly-") for name in ids) >= 2 * len(names)


def test_one_fault_is_one_and_a_violation_can_be_shrunk(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL | {"breaks": BREAKS[:1]})

    page = report(run, violation(txns=(10, 11)))

    assert "1 fault (1 " in page.text
    assert "firedrill shrink ./" in page.text


def test_several_promised_models_are_told_with_what_they_are_promised_to(tmp_path: Path) -> None:
    run = build(tmp_path / "run", **SMALL)
    run_data = gather(run)
    declared = run_data.manifest.declaration
    promises = (*declared.promises, Promise(kind="snapshot", model="serializable"))
    changed = msgspec.structs.replace(
        run_data.manifest, declaration=msgspec.structs.replace(declared, promises=promises)
    )
    history = attrs.evolve(run_data.history, manifest=changed)

    told = pages.page(attrs.evolve(run_data, history=history)).tested[0]

    assert "which promises serializable (snapshot), strict-serializable (read-write): " in told
