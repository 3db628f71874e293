"""What stays on the terminal once a run was judged: findings, what was driven, what to do next."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cli import verdict_lines
from cli.judging.child_messages import JudgeOptions, Request
from cli.judging.judge import Judgement, announce
from cli.main import execute
from harness.exit_codes import Outcome
from harness.history.manifest import read_manifest, write_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import (
    JudgedLimit,
    LimitState,
    Verdict,
    decode,
    encode,
    read_verdict,
)
from harness.text import inert_json
from results.report.next_commands import run_before

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUNS = Path(__file__).parents[1] / "evidence" / "runs"


def told(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    run = shutil.copytree(RUNS / name, root)
    execute(["check", str(run), "--no-report"])
    return capsys.readouterr().out.splitlines()


def test_a_valid_run_says_what_was_driven_before_its_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driven, *_, last = told("sim-valid", tmp_path / "run", capsys)

    assert driven == (
        "list-append, seed 3, 3 nodes (sim), 13 s: 1,520 ok, 1,476 refused by "
        "conflict, 14 fail, 0 info (CONNECT-FAILED 12, CONNECTION-LOST 2); p50 17.3 ms, p99 89 "
        "ms of all ok; longest gap of the store 49.5 ms; 1 fault, 1 with proven effect"
    )
    assert last.startswith("VALID: ")


def test_the_report_of_another_verdict_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))
    run.report.write_text("VIOLATION")

    execute(["check", str(run.root), "--no-report"])

    assert capsys.readouterr().out.splitlines()[-1].endswith(f": {run.root}")


def test_the_figures_of_limits_stay_on_the_terminal(tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))
    execute(["check", str(run.root), "--no-report"])
    verdict = read_verdict(run)
    assert verdict is not None
    kept, broken, untested = (
        JudgedLimit(name="promise.p99_ms", allowed=250.0, measured=88.9, state=LimitState.KEPT),
        JudgedLimit(
            name="promise.kill.longest_gap_s", allowed=0.1, measured=0.14, state=LimitState.BROKEN
        ),
        JudgedLimit(name="promise.longest_gap_s", allowed=9.0, state=LimitState.NOT_TESTED),
    )
    promised = msgspec.structs.replace(verdict, limits=(kept, broken, untested))

    assert verdict_lines.findings_of(run, promised)[-1] == (
        "limits: p99_ms 88.9 ms of at most 250 ms; kill.longest_gap_s 0.14 s of at most 0.1 s, "
        "BROKEN; longest_gap_s not tested"
    )


def test_a_violation_names_the_commands_that_go_on_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a run"

    *_, replay, shrink, check, last = told("sim-forgotten-vote", root, capsys)

    where = shlex.quote(str(root))
    assert replay == f"next: firedrill replay {where}  # drive it again: the same, byte for byte"
    assert shrink == f"      firedrill shrink {where}  # find the smallest plan that fails so"
    assert check == f"      firedrill check {where}  # judge its history again"
    assert last.startswith("VIOLATION: ")


def test_a_valid_run_names_the_commands_that_come_next_and_none_to_shrink_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, replay, check, last = told("sim-valid", tmp_path / "run", capsys)

    where = tmp_path / "run"
    assert replay == f"next: firedrill replay {where}  # drive it again: the same, byte for byte"
    assert check == f"      firedrill check {where}  # judge its history again"
    assert last.startswith("VALID: ")


OLDEST, OTHER, OLDER, NEWEST = (f"20261126-02000{at}-drill-000{at}" for at in range(4))


def test_a_run_is_compared_with_the_newest_one_before_it_that_is_of_its_cell_and_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told("sim-valid", tmp_path / OLDEST, capsys)
    told("sim-forgotten-vote", tmp_path / OTHER, capsys)
    told("sim-valid", tmp_path / OLDER, capsys)
    (tmp_path / OLDER / "analysis" / "verdict.json").unlink()

    _, compare, replay, *_ = told("sim-valid", tmp_path / NEWEST, capsys)

    line = f"firedrill compare {tmp_path / NEWEST} {tmp_path / OLDEST}"
    assert compare == f"next: {line}  # compare it with the run before"
    assert replay.startswith("      firedrill replay ")
    assert execute(shlex.split(line)[1:]) in (0, 2), "a command that was named is refused"
    first = told("sim-valid", tmp_path / "20261126-010000-drill-0004", capsys)
    assert not any("firedrill compare" in line for line in first), "there is no run before it"


def test_a_run_before_that_had_other_faults_of_the_same_kinds_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where they were drawn from one mix, each seed has others."""
    for name in (OLDER, NEWEST):
        told("sim-valid", tmp_path / name, capsys)
    run = RunDirectory(tmp_path / NEWEST)
    plan = run.plan.read_text()
    assert plan.count("at_s = ") == 1
    run.plan.write_text(re.sub(r"at_s = [\d.]+", "at_s = 0.25", plan))
    written = run_before(run)
    for name in (OLDER, NEWEST):
        manifest = read_manifest(RunDirectory(tmp_path / name))
        mixed = msgspec.structs.replace(manifest, mix=("kill",))
        write_manifest(RunDirectory(tmp_path / name), mixed)
    execute(["check", str(tmp_path / OLDER), "--no-report"])

    assert written is None
    assert run_before(run) == RunDirectory(tmp_path / OLDER)


def test_a_run_before_that_had_other_limits_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that it did not have would be a finding that is new."""
    for name in (OLDEST, OLDER, NEWEST):
        told("sim-valid", tmp_path / name, capsys)
    for name in (OLDER, NEWEST):
        plan = tmp_path / name / "plan.toml"
        limit = 5 if name == NEWEST else 7
        plan.write_text(f"{plan.read_text()}\n[promise]\nlongest_gap_s = {limit}.0\n")

    before = [run_before(RunDirectory(tmp_path / name)) for name in (NEWEST, OLDER)]
    plan.write_text(plan.read_text().replace("longest_gap_s = 5.0", "longest_gap_s = 7.0"))
    again = run_before(RunDirectory(tmp_path / NEWEST))

    assert before == [None, None]
    assert again is not None
    assert again.root.name == OLDER


def test_of_a_series_only_a_run_that_failed_names_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    following = ("next: firedrill replay x",)
    for outcome, shown in ((Outcome.VALID, False), (Outcome.VIOLATION, True)):
        verdict = Verdict(outcome=outcome, model="serializable")
        announce(run, Judgement(verdict=verdict, following=following), one_of_many=True)
        assert ("next: firedrill replay x" in capsys.readouterr().out) is shown


def test_a_sentence_is_told_whole_up_to_its_bound(tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")))
    execute(["check", str(run.root), "--no-report"])
    verdict = read_verdict(run)
    assert verdict is not None
    ((name, anomaly),) = verdict.anomalies.items()
    for size, cut in ((verdict_lines.LINE_CHARS, False), (verdict_lines.LINE_CHARS + 100, True)):
        long = msgspec.structs.replace(anomaly.examples[0], text="x" * size)
        lengthened = msgspec.structs.replace(anomaly, examples=(long,))
        changed = msgspec.structs.replace(verdict, anomalies={name: lengthened})
        lines = verdict_lines.findings_of(run, changed)
        assert ("  " + "x" * verdict_lines.LINE_CHARS in lines) is not cut
        assert any("… (100 more characters)" in line for line in lines) is cut


def test_a_history_that_is_only_judged_names_no_commands_on_a_directory_that_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")
    path = tmp_path / "x.edn"
    assert execute(["export", str(run), "--edn", "-o", str(path)]) == 0
    capsys.readouterr()

    code = execute(["check", str(path), "--no-report", "--runs-dir", str(tmp_path / "runs")])

    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert lines[-1].startswith("VIOLATION: ")
    assert lines[-1].endswith(f": {path}")
    assert not any(line.startswith("next: ") for line in lines)


def test_times_that_go_back_are_said_not_to_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "back.edn"
    ops = (("invoke", 0, 100, "[:append 3 1]"), ("ok", 0, 20, "[:append 3 1]")), (
        ("invoke", 1, 15, "[:r 3 nil]"), ("ok", 1, 3, "[:r 3 [1]]"),
    )  # fmt: skip
    path.write_text(
        "".join(
            f"{{:type :{kind}, :f :txn, :value [{value}], :process {process}, :time {at}}}\n"
            for pair in ops
            for kind, process, at, value in pair
        )
    )

    execute(["check", str(path), "--json", "--runs-dir", str(tmp_path / "runs")])

    said = "the times in back.edn are missing or go back: its operations are ordered by index alone"
    assert said in capsys.readouterr().err


def test_json_does_nothing_to_a_terminal_and_holds_the_same_texts(tmp_path: Path) -> None:
    hostile = "\x9b31m \u202e \x7f \U000e0001 \u2028 日本"
    found = Verdict(outcome=Outcome.UNKNOWN, model="serializable", reasons=(hostile,))
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))
    manifest = msgspec.structs.replace(read_manifest(run), trouble=(hostile,))
    write_manifest(run, manifest)

    for content in (encode(found), run.manifest.read_bytes(), inert_json(b'"%s"' % b"\xc2\x9b")):
        assert content.decode().replace("\n", "").isprintable()
    assert "日本" in encode(found).decode()
    assert decode(encode(found)) == found
    assert read_manifest(run) == manifest


def test_a_page_over_the_runs_that_can_not_be_written_is_said_before_the_outcome(
    tmp_path: Path,
) -> None:
    shutil.copytree(RUNS / "sim-valid", tmp_path / "runs" / "20261123-001122-drill-00ab")
    (tmp_path / "runs" / "index.html").mkdir()

    done = subprocess.run(
        [Path(sys.executable).with_name("firedrill"), "check", "--no-report"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip

    *lines, last = done.stdout.splitlines()
    (said,) = (line for line in lines if "no page over the runs was written" in line)
    assert said.startswith("firedrill: no page over the runs was written: cannot write ")
    assert said.endswith("index.html: Is a directory")
    assert last.startswith("VALID: ")


def test_an_analysis_whose_command_is_gone_ends_without_a_word(tmp_path: Path) -> None:
    run = shutil.copytree(RUNS / "sim-valid", tmp_path / "run")
    reader, writer = os.pipe()
    os.close(reader)
    request = Request(
        root=str(run), reply=writer, memory_bytes=1 << 30, judge=JudgeOptions(), report=False
    )

    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli.judging.child", msgspec.json.encode(request).decode()],
        pass_fds=(writer,), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    os.close(writer)

    assert done.stderr == ""
    assert done.returncode != 0


def test_the_report_links_the_diagram_of_a_trace(tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))
    link = '<a href="trace.svg">'

    assert execute(["report", str(run.root)]) == 0
    assert link not in run.report.read_text()
    run.diagram.write_text("<svg/>")
    assert execute(["report", str(run.root)]) == 0
    assert link in run.report.read_text()


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_without_colours_gets_none(plain: bool, tmp_path: Path) -> None:
    run = shutil.copytree(RUNS / "sim-valid", tmp_path / "run")
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    controller, terminal = pty.openpty()
    check = subprocess.Popen(
        [FIREDRILL, "check", run, "--no-report"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment | ({"NO_COLOR": "1"} if plain else {}),
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while block := os.read(controller, 4096):
            shown += block
    os.close(controller)

    assert check.wait(120) == 0, shown
    assert b"VALID" in shown
    assert (b"\x1b[" in shown) is not plain
