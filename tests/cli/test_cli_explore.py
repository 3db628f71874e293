"""``firedrill explore``: the same search for the same seed, a corpus that grows, and failures that
are shrunk and can be replayed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.campaigns.corpus import Corpus
from harness.campaigns.ledger import RESULTS_FILE
from harness.plan.plan import load

FIREDRILL = Path(sys.executable).with_name("firedrill")
PLAN = """
name = "small"
[cluster]
nodes = 3
[system]
partitions = 1
[workload]
key_count = 8
[drive]
duration_s = 5.0
concurrency = 6
rate_per_s = 25
[nemesis]
mix = ["kill", "pause"]
first_s = 0.5
hold_s = 0.8
quiet_s = 0.7
[check]
min_ok = 5
[limits]
quiesce_s = 10
final_reads_s = 5
"""


def explore(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    command = [str(FIREDRILL), "explore", str(plan), "--runs-dir", str(tmp_path / "runs"), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def names(corpus: Path) -> set[str]:
    return {path.name for path in corpus.iterdir()}


def test_a_search_is_the_same_with_any_number_of_jobs_and_goes_on_from_its_corpus(
    tmp_path: Path,
) -> None:
    begun = explore(tmp_path, "--runs", "4", "--seed", "4", "--corpus", str(tmp_path / "1"))
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert "4 runs: " in begun.stdout
    assert begun.stdout.splitlines()[-1].startswith("VALID: ")
    before = names(tmp_path / "1")
    shutil.copytree(tmp_path / "1", tmp_path / "3")

    for jobs in ("1", "3"):
        # Without what the other has found out: results that are known are not simulated again.
        (tmp_path / "runs" / RESULTS_FILE).unlink()
        more = ("--runs", "4", "--seed", "4", "--jobs", jobs, "--corpus", str(tmp_path / jobs))
        done = explore(tmp_path, *more, "--max-unknown", "1", "--keep-runs")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "coverage: " in done.stdout
        assert "others added nothing and are gone" in done.stderr

    assert names(tmp_path / "1") == names(tmp_path / "3")
    assert names(tmp_path / "1") - before  # children, which have reached something new
    grown = Corpus.read(tmp_path / "1")
    assert not grown.damaged
    assert {entry.plan.nemesis.mix for entry in grown.entries.values()} == {()}
    assert any(entry.plan.name.startswith("explore-") for entry in grown.entries.values())


def test_what_it_finds_is_shrunk_and_can_be_replayed(tmp_path: Path) -> None:
    done = explore(tmp_path, "--bug", "no-fsync", "--runs", "4", "--shrink", "15s")

    assert done.returncode == 1, done.stdout + done.stderr
    assert ": VIOLATION: " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("VIOLATION: ")
    [line, *_] = [line for line in done.stdout.splitlines() if line.startswith("  firedrill rep")]
    run = Path(line.split()[-1])
    shrunk = [line for line in done.stdout.splitlines() if line.startswith("shrunk to ")]
    assert shrunk
    assert load(Path(shrunk[0].rpartition(": ")[2])).system.options["bugs"] == ["no-fsync"]

    replayed = subprocess.run(
        [FIREDRILL, "replay", run, "--no-report"], capture_output=True, text=True, timeout=600
    )

    assert replayed.returncode == 1, replayed.stderr
    assert "the same history as" in replayed.stdout


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--faults", "kil"), "unknown fault 'kil'"),
        (("--bug", "nonesuch"), "nonesuch"),
        (("--set", "seed=3"), "seed"),
        (("--set", "cluster.provider=docker"), "cluster.provider"),
        (("--corpus", "plan.toml"), "expected a directory"),
    ],
)
def test_misuse_is_refused_before_any_run(
    tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    shown = [str(tmp_path / text) if text == "plan.toml" else text for text in flags]
    done = explore(tmp_path, *shown, "--runs", "1")

    assert done.returncode == 254, done.stderr
    assert told in done.stderr
    assert not (tmp_path / "runs").exists()
