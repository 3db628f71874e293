"""Strings that nodes write, from the history to the screen: shown, bounded, and never obeyed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import synthetic_run
from synthetic_run import new_run, valid, violation, write_verdict
from test_results_browser import opened
from test_results_report import Elements, assert_inert

from harness.history.chunks import ChunkWriter
from harness.history.manifest import read_manifest, write_manifest
from harness.history.records import (
    Complete,
    EventKind,
    FaultState,
    FaultTransition,
    Invoke,
    MicroOp,
    Note,
    OpType,
    PhaseMark,
    StoreEvent,
)
from harness.history.run_directory import RunDirectory
from harness.history.seal import seal
from harness.protocols.fault_kinds import RecordedFaultKind
from harness.protocols.finding import Finding
from harness.protocols.promise import Declaration, LogPattern, Promise
from harness.protocols.verdict import Anomaly
from results.report.render import LIMIT_BYTES, write_report

ACTIVE = (
    '</pre></script><script>document.title="owned"</script>"><img src=x onerror=alert(1)>'
    "<svg onload=alert(1)><a href=javascript:alert(1)>{{ 7 * 7 }}\x1b]0;owned\x07\x1b[2J\u202e\0"
)
HUGE = 10_000_000
FIREDRILL = [sys.executable, "-c", "from cli.main import main; main()"]
LIMIT_S = 120


def hostile_run(root: Path) -> RunDirectory:
    """A run in which every string that anybody but us may write is hostile, and the error, the
    event and a line of the log are ten megabytes long.
    """
    run = new_run(root)
    (run.plan).write_text("[check]\nmin_ok = 1\n")
    long = ACTIVE * (HUGE // len(ACTIVE))
    logs = (
        LogPattern(name="panic" + ACTIVE, regex="^panic", breaks=True),
        LogPattern(name="error", regex="ERROR"),
    )
    declared = Declaration(
        system="reference" + ACTIVE,
        mode=ACTIVE,
        promises=(Promise(kind="read-write"),),
        logs=logs,
    )
    manifest = msgspec.structs.replace(
        read_manifest(run),
        declaration=declared,
        checkers=("list-append", "statistics", "availability"),
        versions={"reference" + ACTIVE: ACTIVE},
        machine={ACTIVE: ACTIVE},
        trouble=(ACTIVE, long),
        arsenal=(RecordedFaultKind(kind="kill" + ACTIVE),),
        checksums={},
    )
    write_manifest(run, manifest)
    (run.node("n1") / "node.log").write_text(f"panic {long}\nERROR {ACTIVE}\n" * 2, "utf-8")
    (run.node("n2") / "<img src=x onerror=alert(1)>.log").write_text("panic\n")
    writer = ChunkWriter(run.chunks)
    for record in (
        PhaseMark(name="drive", at_ns=0),
        PhaseMark(name=ACTIVE, at_ns=1),
        Note(at_ns=1, text=ACTIVE),
        *_operations(long),
        *_fault(),
        _event(EventKind.NODE_EXITED, long),
        _event(EventKind.LEASE_GRANTED, ACTIVE),
    ):
        writer.append(record)
    writer.close()
    seal(run, partition_of=None)
    return run


def _operations(long: str) -> list[Invoke | Complete]:
    found: list[Invoke | Complete] = []
    for index, (kind, error) in enumerate(
        ((OpType.OK, None), (OpType.FAIL, ACTIVE), (OpType.INFO, long))
    ):
        ops = (MicroOp("append", 1, index), MicroOp("r", 1, () if index else (0,)))
        times = {"process": index, "at_ns": 10 * index}
        found += [
            Invoke(index=2 * index, kind="read-write", node="n1" + ACTIVE, intended_ns=0,
                   wall_ns=0, ops=(ops[0],), **times),
            Complete(index=2 * index + 1, invoke=2 * index, type=kind, ops=(ops[0],), error=error,
                     **times),
        ]  # fmt: skip
    return found


def _fault() -> list[FaultTransition]:
    return [
        FaultTransition(
            fault=0,
            kind="kill" + ACTIVE,
            target=ACTIVE,
            state=state,
            at_ns=5,
            nodes=("n1" + ACTIVE,),
            roles=("leader of partition " + ACTIVE,),
            text=ACTIVE,
        )
        for state in (FaultState.INJECTING, FaultState.INJECTED, FaultState.EFFECTIVE)
    ]


def _event(kind: EventKind, text: str) -> StoreEvent:
    return StoreEvent(
        kind=kind,
        node="n1" + ACTIVE,
        wall_ns=synthetic_run.WALL_NS,
        boot=ACTIVE,
        at_ns=6,
        uncertainty_ns=0,
        partition=1,
        text=text,
    )


@pytest.mark.browser
def test_a_browser_finds_nothing_to_run_in_a_page_about_hostile_strings(
    chromium: str, tmp_path: Path
) -> None:
    run = hostile_run(tmp_path / "run")

    done = subprocess.run(
        [*FIREDRILL, "check", str(run.root), "--executor", "local"],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    page = write_report(run)
    content, said = opened(chromium, page, tmp_path / "profile")

    seen = Elements(content)
    assert_inert(seen)
    assert said == ""
    assert "<title>violation: run</title>" in content
    for told in (
        "Kinds that hit none of these roles",
        "What their logs say",
        "node-exit",
        "\\x1b[2J\\u202e\\x00",
        "{{ 7 * 7 }}",
    ):
        assert told in seen.text
    assert page.stat().st_size < LIMIT_BYTES
    assert done.returncode == 1
    shown = (done.stdout + done.stderr).decode()
    assert "VIOLATION: a promise of the store was broken" in shown
    assert len(shown) < 20_000
    assert all(char == "\n" or char.isprintable() for char in shown), "nothing acts on a terminal"


def test_a_night_of_faults_and_a_hundred_thousand_anomalies_stay_below_the_limit(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path / "run")
    writer = ChunkWriter(run.chunks)
    for number in range(4000):
        for state in (
            FaultState.INJECTING,
            FaultState.INJECTED,
            FaultState.EFFECTIVE,
            FaultState.HEALED,
        ):
            at_ns = number * 400_000_000 + 90_000_000 * list(FaultState).index(state)
            writer.append(
                FaultTransition(
                    fault=number, kind=f"kind {number % 9}", target="leader of any partition",
                    state=state, at_ns=at_ns, nodes=(f"n{number % 5 + 1}",),
                    roles=tuple(f"leader of partition {p}" for p in range(8)), text="proof " * 80,
                )
            )  # fmt: skip
        event = _event(EventKind.LEASE_GRANTED, "told " * 90)
        moved = {
            "node": f"n{number % 5 + 1}",
            "at_ns": number * 400_000_000,
            "partition": number % 8,
        }
        writer.append(msgspec.structs.replace(event, **moved))
    writer.close()
    seal(run, partition_of=None)
    example = Finding(
        text="lost write: " + "x" * 5000,
        txns=(),
        keys=tuple(range(9)),
        details={"path": ["y" * 900] * 500},
    )
    anomalies = {f"name {i}": Anomaly(count=100_000, examples=(example,) * 5) for i in range(30)}
    reasons = tuple(f"reason {i} " + "z" * 900 for i in range(5000))
    write_verdict(
        run, msgspec.structs.replace(violation((0, 1)), anomalies=anomalies, reasons=reasons)
    )

    page = write_report(run)

    assert page.stat().st_size < LIMIT_BYTES
    text = Elements(page.read_text()).text
    assert "more in faults.parquet" in text
    assert "more reasons, in analysis/verdict.json" in text


def test_a_page_that_is_too_large_loses_rows_before_drawings_and_drawings_before_the_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic_run.build(tmp_path / "run", duration_s=10.0, rate_per_s=20.0, breaks=())
    write_verdict(run, valid())
    whole = write_report(run).stat().st_size
    monkeypatch.setattr("results.report.render.LIMIT_BYTES", whole - 1)

    page = write_report(run)

    assert page.stat().st_size < whole
    assert "The plot is left out" in page.read_text()
