"""Planted bugs are where the list says, and drills find them by what they did to data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusters.reference import hunts
from clusters.reference.node import bugs
from harness.cli.canary import sing
from harness.cli.seeds import SeedResult, run_seed
from harness.cli.selftest import counted, plan_of, summed
from harness.outcome import Outcome
from harness.rundir import RunDirectory

NODE = Path(bugs.__file__).parent


def test_every_bug_of_the_list_is_planted_in_the_file_that_it_names() -> None:
    for bug, text in bugs.KNOWN.items():
        (file,) = re.findall(r"\(([a-z_/]+\.py)\)$", text)
        named = NODE / ("server.py" if bug == "no-fsync" else file)
        assert f'"{bug}"' in named.read_text(), bug
        assert (NODE / file).is_file(), bug


def test_nothing_is_planted_that_is_not_on_the_list() -> None:
    for path in sorted(NODE.rglob("*.py")):
        asked = re.findall(r'planted\(\s*"([^"]+)"', path.read_text())
        assert set(asked) <= set(bugs.KNOWN), path


def test_bugs_are_on_only_in_what_was_started_by_who_switched_them_on() -> None:
    import contextvars

    def inside() -> bool:
        bugs.switch_on(["no-fsync"])
        return bugs.planted("no-fsync")

    assert contextvars.copy_context().run(inside)
    assert not bugs.planted("no-fsync")
    with pytest.raises(bugs.UnknownBug, match="bug 'typo' is not one of "):
        bugs.switch_on(["typo"])


@pytest.mark.parametrize("bug", sorted(bugs.KNOWN))
def test_every_bug_has_a_drill_that_can_be_planned(bug: str) -> None:
    plan = plan_of(bug, 3, on=True)

    assert plan.system.options["bugs"] == [bug]
    assert plan_of(bug, 3, on=False).system.options["bugs"] == []
    assert plan.cluster.provider == "sim"


def test_drills_are_written_for_bugs_that_there_are() -> None:
    assert set(hunts.OWN) <= set(bugs.KNOWN)


@pytest.mark.parametrize(
    ("bug", "seed", "name"),
    [
        ("own-write-unseen", 1, "internal"),
        ("released-before-durable", 1, "lost-update"),
        ("term-not-persisted", 1, "forgotten-state"),
        ("snapshot-applied-partly", 1, "diverged-replicas"),
    ],
)
def test_a_planted_bug_is_found_by_what_it_did(
    bug: str, seed: int, name: str, tmp_path: Path
) -> None:
    result = run_seed(plan_of(bug, seed, on=True), tmp_path, keep=False)

    assert name in counted(result)


def test_a_sound_run_is_clean_and_falsified_it_is_not(tmp_path: Path) -> None:
    result = run_seed(plan_of("term-not-persisted", 1, on=False), tmp_path, keep=True)

    assert (result.outcome, result.anomalies) == (Outcome.VALID, {})
    heard = sing(RunDirectory(Path(result.run)))
    assert heard.rings
    assert {"lost-write", "diverged-replicas"} <= set(heard.after)


def test_the_median_counts_the_seeds_of_each_finding() -> None:
    def result(seed: int, *names: str) -> SeedResult:
        outcome = Outcome.VIOLATION if names else Outcome.VALID
        anomalies = dict.fromkeys(names, 1)
        return SeedResult(
            key="", seed=seed, name="", workload="", outcome=outcome, anomalies=anomalies
        )

    found = summed(
        "no-fsync",
        [result(4, "lost-write"), result(1), result(2, "node-exit"), result(3, "G0", "lost-write")],
        rounds=3,
        first=1,
    )

    assert (found.tries, found.median) == ((3, 1), 2)  # that a node died of it does not count
    assert found.names == {"lost-write": 2, "G0": 1}
