"""How far a run is, from another terminal; and the page over all runs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.display import Rate, Tally
from cli.live_status import FILE, WINDOW_S, LiveStatus, StatusFile, read_status
from cli.main import execute
from cli.status import lines
from harness.history.run_directory import RunDirectory

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUNS = Path(__file__).parents[1] / "evidence" / "runs"
NAME = "20261123-001122-drill-00ab"


def test_the_rate_is_of_the_last_seconds() -> None:
    rate = Rate(WINDOW_S)

    assert [rate.of(float(s), s * 10) for s in range(3)] == [0.0, 10.0, 10.0]
    assert [rate.of(float(s), 20) for s in range(3, 10)][-1] == 0.0


def test_a_live_run_is_told_in_five_lines() -> None:
    live = LiveStatus(
        phase="drive", elapsed_s=12.3, left_s=7.7, rate_per_s=1234.5,
        counts={"ok": 9000, "refused by conflict": 40, "fail": 2, "info": 0},
        errors={"NO-LEADER": 2}, faults=("kill n1",),
    )  # fmt: skip

    assert lines(live) == [
        "phase   drive, 8 s left (12 s since it began)",
        "rate    1,234 ok/s",
        "counts  9,000 ok, 40 refused by conflict, 2 fail, 0 info",
        "errors  NO-LEADER 2",
        "faults  kill n1",
    ]


@pytest.mark.parametrize(
    "content", [b'{"phase": "\xff"}', b'{"phase": "\\ud800"}', b"[" * 50_000, b"{}", b""]
)
def test_figures_that_can_not_be_read_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)

    assert read_status(RunDirectory(tmp_path)) is None


def test_a_run_that_is_over_has_its_outcome_or_why_it_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(RUNS / "sim-valid", tmp_path / NAME)

    assert execute(["status", "--runs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{NAME}: not judged\n"

    assert execute(["status", NAME, "--json", "--runs-dir", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run": NAME, "state": "not judged", "outcome": None, "live": None}


def test_a_run_that_goes_on_tells_its_phase_and_leaves_no_file(tmp_path: Path) -> None:
    arguments = ["--provider", "process", "--nodes", "3", "--duration", "60", "--no-report"]
    where = ["--runs-dir", str(tmp_path)]
    driving = subprocess.Popen(
        [FIREDRILL, "run", *arguments, *where],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driving.stderr is not None
    try:
        # The first line with a rate comes some seconds into a phase.
        next(line for line in driving.stderr if "ok/s" in line)
        done = subprocess.run(
            [FIREDRILL, "status", "latest", *where], capture_output=True, text=True, timeout=60
        )
    finally:
        driving.send_signal(signal.SIGINT)
        driving.communicate(timeout=90)

    assert re.search(r": still driven\nphase   [\w-]+.*\nrate    ", done.stdout), done
    assert not list(tmp_path.glob(f"*/{FILE}"))


def test_the_status_is_written_through_no_link_that_waits_for_it(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", RunDirectory(tmp_path / "run")
    run.root.mkdir()
    outside.write_text("kept")
    for name in (FILE, f".{FILE}"):
        (run.root / name).symlink_to(outside)

    StatusFile(Tally(60.0, lambda: 1.0))._write(run)

    assert read_status(run) is not None
    assert outside.read_text() == "kept"
    assert sorted(path.name for path in run.root.iterdir()) == [f".{FILE}", FILE]


def test_a_name_from_elsewhere_does_nothing_to_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / f"{NAME}\x1b]0;owned\x07"
    shutil.copytree(RUNS / "sim-valid", run)

    assert execute(["status", str(run)]) == 0

    assert "\x1b" not in capsys.readouterr().out


def test_the_page_forgets_runs_that_were_pruned(tmp_path: Path) -> None:
    for name in (NAME, NAME.replace("00ab", "00ac")):
        shutil.copytree(RUNS / "sim-valid", tmp_path / name)
    assert execute(["check", NAME, "--no-report", "--runs-dir", str(tmp_path)]) == 0
    assert NAME in (tmp_path / "index.html").read_text()

    assert execute(["runs", "prune", "--keep-last", "1", "--runs-dir", str(tmp_path)]) == 0

    assert NAME not in (tmp_path / "index.html").read_text()


def test_a_page_beside_the_runs_lists_them_with_links_to_their_reports(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / NAME)

    assert execute(["check", NAME, "--runs-dir", str(tmp_path)]) == 1

    page = (tmp_path / "index.html").read_text()
    assert f'<a href="{NAME}/report.html">{NAME}</a>' in page
    assert "violation" in page
    assert "2026-11-23 00:11" in page
