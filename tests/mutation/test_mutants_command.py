"""``firedrill selftest --mutants``: a real kill, a real equivalent, resume, replay."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli import mutant_drills, mutants
from clusters.reference.planted_bug_drills import overrides
from harness.campaigns.cell import result_of
from harness.campaigns.ledger import RESULTS_FILE
from harness.errors import HarnessError
from harness.exit_codes import Outcome
from harness.plan.plan import dumps, load
from results.store.store import RunStore

ROOT = Path(__file__).resolve().parents[2]
FIREDRILL = [sys.executable, "-c", "from cli.entry import main; main()"]
NODE = "clusters.reference.node"
NEVER_SYNCED = f"{NODE}.storage.shared_log:SharedLog._append:sync-removed:1"
NEVER_VOTES = f"{NODE}.raft.core:Raft.step:call-removed:1"
# The size at which an update is written in parts: none is exactly as large.
EXACT_SIZE = f"{NODE}.storage.shared_log:in_parts:bound-shifted:1"
SEGMENT_FULL = f"{NODE}.storage.shared_log:SharedLog._append:assignment-removed:1"
ALWAYS_ANYWHERE = f"{NODE}.catalog.patterns:Pattern._run:condition-always:1"
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short drill that kills nodes."""
    path = tmp_path_factory.mktemp("plans") / "drill.toml"
    keys = {"seed": 1, "name": "mutant-drill", "drive.duration_s": 4.0, "check.min_ok": 20}
    path.write_text(dumps(load(None, {**overrides("no-fsync"), **keys})))
    return path


def command(plan: Path, runs: Path, *more: str) -> list[str]:
    given = ("--plan", str(plan), "--runs-dir", str(runs), "--jobs", "1")
    return [*FIREDRILL, "selftest", "--mutants", *given, *more]


def selftest(plan: Path, runs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(plan, runs, *more), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )


def report(runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / "mutants.json").read_bytes())
    return found


def of(report: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = [each for each in report["mutants"] if each["key"] == key]
    return dict(found)


def sources() -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((ROOT / "clusters").rglob("*.py"))
    }


def test_a_sync_removed_is_killed_and_the_run_replays_with_it(plan: Path, tmp_path: Path) -> None:
    before = sources()
    done = selftest(plan, tmp_path, "--mutant", NEVER_SYNCED, "--keep-runs")
    found = of(report(tmp_path), NEVER_SYNCED)

    assert done.returncode == 0, done.stderr
    assert "+        await self._disk.append(segment_name(self._number), header" in done.stdout
    assert "clusters/reference/node/storage/shared_log.py:" in done.stdout
    assert found["fate"] == "killed by verdict"
    assert found["unlike"] == 1
    again = subprocess.run(
        [*FIREDRILL, "replay", found["run"], "--no-report", "--runs-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert again.returncode == 1, again.stderr
    assert "byte for byte" in again.stdout
    assert f"mutant {NEVER_SYNCED}: self._fsync -> False" in again.stderr
    assert sources() == before


def test_an_equivalent_survives_and_a_line_that_is_never_met_is_told(
    plan: Path, tmp_path: Path
) -> None:
    keys = ("--mutant", EXACT_SIZE, "--mutant", SEGMENT_FULL)
    done = selftest(plan, tmp_path, *keys, "--at-least", "0.5")
    survivor = of(report(tmp_path), EXACT_SIZE)

    assert done.returncode == 255  # nothing was killed
    assert "survived: clusters/reference/node/storage/shared_log.py:" in done.stdout
    assert survivor["fate"] == "survived"
    assert (survivor["tried"], survivor["unlike"]) == (1, 0)
    assert of(report(tmp_path), SEGMENT_FULL)["fate"] == "not reached"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_test_of_its_package_kills_what_no_drill_comes_to(plan: Path, tmp_path: Path) -> None:
    done = selftest(plan, tmp_path, "--package", "catalog", "--mutant", ALWAYS_ANYWHERE)
    found = of(report(tmp_path), ALWAYS_ANYWHERE)

    assert done.returncode == 0, done.stderr
    assert found["fate"] == "killed by tests"
    assert found["reason"].startswith("tests/catalog/test_")
    assert found["tried"] == 0
    assert "100.0%, 1 of them by tests alone" in done.stdout


def test_a_test_that_fails_on_the_sound_store_kills_nothing(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    target = tmp_path / "target.toml"
    tests = f'[[tests]]\npackages = ["{NODE}.catalog"]\npaths = ["test_wrong.py"]\n'
    target.write_text(f'packages = ["{NODE}.catalog"]\n{tests}')
    keys = ("--target", str(target), "--mutant", ALWAYS_ANYWHERE)
    done = selftest(plan, tmp_path / "runs", *keys)

    assert done.returncode == 255
    assert "left out: tests-1 (test_wrong.py) fail on the sound store: " in done.stderr
    assert "test_wrong.py::test_wrong" in done.stderr
    assert of(report(tmp_path / "runs"), ALWAYS_ANYWHERE)["fate"] == "not reached"


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ('packages = ["x"]\npaths = ["a"]\nwhy = "?"', "unknown field `why`"),
        (f'packages = ["{NODE}.catalog"]\npaths = ["nowhere"]', "nowhere does not exist"),
        (f'packages = ["{NODE}.log"]\npaths = ["."]', "expected a package of the target"),
    ],
)
def test_tests_that_are_not_there_are_refused(
    plan: Path, tmp_path: Path, tests: str, said: str
) -> None:
    target = tmp_path / "target.toml"
    target.write_text(f'packages = ["{NODE}.catalog"]\n[[tests]]\n{tests}\n')
    keys = ("--target", str(target), "--mutant", ALWAYS_ANYWHERE)
    done = selftest(plan, tmp_path / "runs", *keys)

    assert done.returncode == 254
    assert said in done.stderr


def test_tests_that_were_changed_are_asked_again(plan: Path, tmp_path: Path) -> None:
    own = tmp_path / "test_own.py"
    reads = f"from {NODE}.catalog.patterns import Pattern, Steps\n\ndef test_own():\n"
    own.write_text(f"{reads}    assert Pattern('a').fullmatch('a', Steps())\n")
    target = tmp_path / "target.toml"
    tests = f'[[tests]]\npackages = ["{NODE}.catalog"]\npaths = ["test_own.py"]\n'
    target.write_text(f'packages = ["{NODE}.catalog"]\n{tests}')
    runs = tmp_path / "runs"
    keys = ("--target", str(target), "--mutant", ALWAYS_ANYWHERE)
    assert selftest(plan, runs, *keys).returncode == 255
    assert of(report(runs), ALWAYS_ANYWHERE)["tests"] == "passed"

    own.write_text(f"{reads}    assert not Pattern('a').fullmatch('ba', Steps())\n")
    assert selftest(plan, runs, *keys).returncode == 0
    assert of(report(runs), ALWAYS_ANYWHERE)["fate"] == "killed by tests"


def test_a_package_that_the_target_lacks_is_refused(plan: Path, tmp_path: Path) -> None:
    done = selftest(plan, tmp_path, "--package", "log")  # no part of ``catalog``

    assert done.returncode == 254
    assert "--package log: expected a package of the target" in done.stderr


def test_a_campaign_goes_on_where_it_was_killed(plan: Path, tmp_path: Path) -> None:
    keys = ("--mutant", NEVER_VOTES, "--mutant", NEVER_SYNCED)
    ledger = tmp_path / RESULTS_FILE
    running = subprocess.Popen(
        command(plan, tmp_path, *keys), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    ends_s = time.monotonic() + LIMIT_S
    while running.poll() is None and time.monotonic() < ends_s:
        if ledger.exists() and ledger.read_bytes().count(b"\n") >= 2:
            running.send_signal(signal.SIGKILL)
            break
        time.sleep(0.05)
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    known = ledger.read_bytes().splitlines()

    done = selftest(plan, tmp_path, *keys)

    assert done.returncode == 0, done.stderr
    after = ledger.read_bytes().splitlines()
    assert after[: len(known)] == known  # none was run twice
    assert len(after) == 4  # the drill and the tests of raft on the sound store, two mutants
    assert report(tmp_path)["killed"] == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_drill_that_is_not_valid_on_the_sound_store_kills_nothing(
    plan: Path, tmp_path: Path
) -> None:
    buggy = tmp_path / "buggy.toml"
    buggy.write_text(plan.read_text().replace("[system]", '[system]\nbugs = ["no-fsync"]'))
    done = selftest(buggy, tmp_path / "runs", "--mutant", EXACT_SIZE)

    assert done.returncode == 255
    assert "left out: mutant-drill is violation on the sound store" in done.stderr
    assert "no drill is valid on the sound store" in done.stderr


def test_planted_bugs_and_mutants_are_two_campaigns(plan: Path, tmp_path: Path) -> None:
    done = selftest(plan, tmp_path, "--bug", "no-fsync")

    assert done.returncode == 254
    assert "--bug" in done.stderr


@pytest.mark.slow
def test_a_mutant_is_drilled_on_real_nodes(plan: Path, tmp_path: Path) -> None:
    """As for a store that no simulation knows: nodes get a copy of the package."""
    before, real = sources(), tmp_path / "real.toml"
    text = plan.read_text().replace('provider = "sim"', 'provider = "process"')
    real.write_text(text.replace("ready_s = 60.0", "ready_s = 25.0"))
    done = selftest(real, tmp_path / "runs", "--mutant", NEVER_VOTES, "--keep-runs")
    found = of(report(tmp_path / "runs"), NEVER_VOTES)

    assert done.returncode == 0, done.stderr
    assert found["fate"] == "killed by crash"
    assert "metastorage has no leader" in found["reason"]
    assert sources() == before


def test_code_that_changes_meanwhile_ends_the_campaign(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(("before", "after"))
    for module in (mutants, mutant_drills):
        monkeypatch.setattr(module, "code_digest", lambda: next(digests))
    valid = partial(result_of, outcome=Outcome.VALID)
    monkeypatch.setattr(mutant_drills, "simulate", lambda cell, *_a, **_k: valid(cell))
    monkeypatch.setattr(mutant_drills, "count_lines", lambda _sources: {})
    choice = mutants.MutantChoice(plans=(plan,), only=(EXACT_SIZE,))

    with pytest.raises(HarnessError, match="the code was changed meanwhile"):
        mutants.campaign(choice, RunStore(tmp_path), seed=1, jobs=1)


def test_no_mutant_is_begun_once_the_time_is_over(plan: Path, tmp_path: Path) -> None:
    done = selftest(plan, tmp_path, "--sample", "9", "--time-budget", "0.001s")

    # Those that were reviewed as equivalent are decided without a drill.
    decided = report(tmp_path)["mutants"]
    assert {mutant["fate"] for mutant in decided} <= {"equivalent"}
    left = 9 - len(decided)
    assert f"the time is over: {left} of 9 mutants were not decided" in done.stdout
