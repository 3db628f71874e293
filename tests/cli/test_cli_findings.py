"""What stays on the terminal once a run was judged: findings, what was driven, what to do next."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import msgspec
import pytest

from cli import verdict_lines
from cli.main import execute
from harness.protocols.verdict import read_verdict
from harness.run.directory import RunDirectory

RUNS = Path(__file__).parents[1] / "evidence" / "runs"


def told(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    run = shutil.copytree(RUNS / name, root)
    execute(["check", str(run), "--no-report"])
    return capsys.readouterr().out.splitlines()


def test_a_valid_run_says_what_was_driven_before_its_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven, last = told("sim-valid", tmp_path / "run", capsys)

    assert driven == (
        "list-append, seed 3, 3 nodes (sim), 13 s: 1,520 ok, 1,490 fail, 0 info (TX-CONFLICT "
        "1,476, CONNECT-FAILED 12, CONNECTION-LOST 2); p50 17.4 ms, p99 88.9 ms; longest gap "
        "140 ms; 1 fault, 1 with proven effect"
    )
    assert last.startswith("VALID: ")


def test_a_violation_names_the_commands_that_go_on_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a run"

    *_, following, last = told("sim-forgotten-vote", root, capsys)

    where = shlex.quote(str(root))
    assert following == f"next: firedrill replay {where}; firedrill shrink {where}"
    assert last.startswith("VIOLATION: ")


def test_a_sentence_is_told_whole_up_to_its_bound(tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")))
    execute(["check", str(run.root), "--no-report"])
    verdict = read_verdict(run)
    assert verdict is not None
    ((name, anomaly),) = verdict.anomalies.items()
    for size, cut in ((verdict_lines.LINE_CHARS, False), (verdict_lines.LINE_CHARS + 1, True)):
        long = msgspec.structs.replace(anomaly.examples[0], text="x" * size)
        lengthened = msgspec.structs.replace(anomaly, examples=(long,))
        changed = msgspec.structs.replace(verdict, anomalies={name: lengthened})
        lines = verdict_lines.findings_of(run, changed)
        assert ("  " + "x" * verdict_lines.LINE_CHARS in lines) is not cut
        assert any("… (1 more characters)" in line for line in lines) is cut
