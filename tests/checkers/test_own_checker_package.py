"""The example of ``docs/your-own-checker.md`` as its reader would use it: a workload and a checker
in a package of their own, which find planted bugs like those that firedrill ships.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from example_kit import ROOT, firedrill, installed_into

from harness.plan.plan import loads

EXAMPLE = ROOT / "examples" / "own-checker"
DRILL = [
    *("run", "--provider", "sim", "--executor", "local", "--workload", "tally", "--seed", "1"),
    *("--nodes", "3", "--duration", "5", "--set", "system.partitions=2"),
    *("--set", "drive.rate_per_s=60", "--set", "check.min_ok=50", "--set", "nemesis.mix=[]"),
]
POWER_FAILS = ["--schedule", "2:kill:all:0.5"]
BUGS = {"read-lock-skipped": [], "upgrade-unchecked": [], "no-fsync": POWER_FAILS}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the example's package is installed."""
    return installed_into(tmp_path_factory.mktemp("installed"), EXAMPLE)


def test_a_sound_store_counts_right_and_what_is_only_observed_is_told(
    installed: dict[str, str], tmp_path: Path
) -> None:
    code, said = firedrill(installed, tmp_path, *DRILL, *POWER_FAILS, "--no-report")

    assert code == 0, said
    assert "observed, ruled out by no promise: idle-counter (" in said


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_a_violation_on_the_terminal_and_in_the_report(
    bug: str, installed: dict[str, str], tmp_path: Path
) -> None:
    planted = ["--set", f"system.bugs=['{bug}']"]
    code, said = firedrill(installed, tmp_path, *DRILL, *BUGS[bug], *planted)
    run = tmp_path / "latest"
    verdict = msgspec.json.decode((run / "analysis" / "verdict.json").read_bytes())

    assert code == 1, said
    assert re.search(r"^missing-increment: \d+$", said, re.MULTILINE)
    assert "VIOLATION: a promise of the store was broken" in said
    assert verdict["outcome"] == "violation"
    assert "missing-increment" in verdict["anomalies"]
    assert "idle-counter" in verdict["observed"]
    assert "missing increment: T" in (run / "report.html").read_text()


def test_what_it_finds_can_be_shrunk(installed: dict[str, str], tmp_path: Path) -> None:
    bug = ["--set", "system.bugs=['read-lock-skipped']", "--no-report"]
    assert firedrill(installed, tmp_path, *DRILL, *POWER_FAILS, *bug)[0] == 1

    code, said = firedrill(
        installed, tmp_path, "shrink", "latest", "--anomaly", "missing-increment", "--tries", "1"
    )

    assert code == 0, said
    assert "still fails with missing-increment: 1 fault became 0" in said


@pytest.mark.parametrize("kind", ["checker", "workload", "fault"])
def test_the_guide_shows_the_examples_own_lines(kind: str) -> None:
    example, guide = ROOT / "examples" / f"own-{kind}", ROOT / "docs" / f"your-own-{kind}.md"
    sources = "\n".join(path.read_text() for path in sorted(example.rglob("*.py")))
    sources += (example / "pyproject.toml").read_text()
    lines = "\n".join(line.strip() for line in sources.splitlines())
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", guide.read_text(), re.DOTALL)

    plans = [block for block in blocks if block.startswith("[[nemesis.schedule]]")]
    for plan in plans:  # of a fault that needs no package
        assert loads(f"seed = 1\n{plan}").nemesis.schedule
    blocks = [block for block in blocks if block not in plans]
    assert len(blocks) >= 3
    for block in blocks:
        assert "\n".join(line.strip() for line in block.splitlines()) in lines, block


def test_the_checker_is_under_sixty_lines() -> None:
    assert len((EXAMPLE / "tally" / "checker.py").read_text().splitlines()) < 60
