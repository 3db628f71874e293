"""Planted bugs are where the list says, and drills find them by what they did to data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli import selftest
from cli.canary import run_canary
from cli.cells import simulate
from cli.selftest import BugResult, Summary, anomalies_naming, plan_of, summed
from clusters.reference import planted_bug_drills
from clusters.reference.node import bugs
from harness.campaigns.cell import Cell, CellResult
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan

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
    assert set(planted_bug_drills.OWN) <= set(bugs.KNOWN)


def simulated(plan: Plan, into: Path, *, keep: bool = False) -> CellResult:
    return simulate(Cell(plan=plan), lambda _run: None, runs_dir=into, keep=keep)


@pytest.mark.parametrize(
    ("bug", "seed", "name"),
    [
        ("own-write-unseen", 1, "internal"),
        ("released-before-durable", 1, "incompatible-order"),
        ("term-not-persisted", 1, "forgotten-state"),
        ("snapshot-applied-partly", 1, "diverged-replicas"),
        ("laggard-left-behind", 1, "liveness"),
        ("lock-leaked", 1, "illegal-transition"),
        ("stale-term-accepted", 1, "stale-term"),
    ],
)
def test_a_planted_bug_is_found_by_what_it_did(
    bug: str, seed: int, name: str, tmp_path: Path
) -> None:
    result = simulated(plan_of(bug, seed, on=True), tmp_path)

    assert name in anomalies_naming(bug, result)


def test_a_sound_run_is_clean_and_falsified_it_is_not(tmp_path: Path) -> None:
    result = simulated(plan_of("term-not-persisted", 1, on=False), tmp_path, keep=True)

    assert (result.outcome, result.anomalies) == (Outcome.VALID, {})
    heard = run_canary(RunDirectory(Path(result.run)))
    assert heard.rings
    assert {"lost-write", "diverged-replicas"} <= set(heard.after)


def result(seed: int, *names: str, outcome: Outcome | None = None, run: str = "") -> CellResult:
    return CellResult(
        key="",
        seed=seed,
        name="",
        workload="",
        outcome=outcome or (Outcome.VIOLATION if names else Outcome.VALID),
        anomalies=dict.fromkeys(names, 1),
        run=run,
    )


def test_the_median_counts_the_seeds_of_each_finding() -> None:
    ended = [result(1), result(2, "node-exit"), result(3, "G0", "lost-write")]
    found = summed("no-fsync", [*ended, result(4, "lost-write")], 3, 50)

    assert (found.tries, found.median) == ((3, 1), 2)  # that a node died of it does not count
    assert found.names == {"lost-write": 2, "G0": 1}


def test_a_standstill_names_only_bugs_that_do_nothing_else() -> None:
    stood_still = result(1, "liveness", "node-exit")

    assert anomalies_naming("no-fsync", stood_still) == ()
    assert anomalies_naming("laggard-left-behind", stood_still) == ("liveness",)


def test_a_hunt_counts_the_seeds_up_to_its_last_finding_or_till_it_gives_up() -> None:
    ended = [result(1, "G0"), result(2), result(3, "G0"), result(4, "G0")]
    found = summed("no-fsync", ended, 2, 50)
    assert (found.seeds, found.tries, found.names) == (3, (1, 2), {"G0": 2})

    missed = summed("no-fsync", [result(seed) for seed in (1, 2, 3, 4)], 2, 3)
    assert (missed.seeds, missed.tries, missed.run) == (3, (), "")


def test_a_seed_that_came_to_no_verdict_is_told_apart_from_one_that_shows_nothing() -> None:
    ended = [result(1, outcome=Outcome.HARNESS_ERROR), result(2, outcome=Outcome.UNKNOWN)]
    found = summed("no-fsync", ended, 1, 2)

    assert (found.broken, found.unknown) == (1, 1)


@pytest.mark.parametrize(
    ("clean", "anomalies", "rings", "code"),
    [
        (Outcome.VALID, {}, True, 0),
        (Outcome.UNKNOWN, {}, True, Outcome.UNKNOWN.exit_code),
        (Outcome.HARNESS_ERROR, {}, True, Outcome.HARNESS_ERROR.exit_code),
        (Outcome.UNKNOWN, {}, False, Outcome.HARNESS_ERROR.exit_code),
        (Outcome.UNKNOWN, {"G0": 1}, True, Outcome.VIOLATION.exit_code),
    ],
)
def test_a_sound_node_that_was_hardly_observed_was_not_found_clean(
    clean: Outcome, anomalies: dict[str, int], rings: bool, code: int, tmp_path: Path
) -> None:
    found = BugResult(bug="no-fsync", seeds=1, tries=(1,), names={"lost-write": 1}, unknown=0)
    summary = Summary(
        bugs=(found,),
        clean_seeds=100,
        clean_outcome=clean,
        clean_unknown=0,
        clean_broken=0,
        clean_anomalies=anomalies,
        canary_rings=rings,
    )

    assert selftest._conclude(summary, tmp_path) == code


def test_a_hunt_leaves_the_runs_of_others_alone_and_of_its_own_the_first_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = ["20261121-180000-my-no-fsync-1-abcd", "20261121-180000-no-fsync-2-abcd"]
    for name in theirs:
        (tmp_path / name).mkdir()

    @contextmanager
    def two_findings(plans: object, root: Path, jobs: object) -> Iterator[Iterator[CellResult]]:
        ours = [root / f"20261121-190000-no-fsync-{seed}-ffff" for seed in (1, 2, 3)]
        for run in ours:
            run.mkdir()
        ends = zip((1, 2), ours, strict=False)
        yield (result(seed, "lost-write", run=str(run)) for seed, run in ends)

    monkeypatch.setattr(selftest, "drilled", two_findings)
    found = selftest.hunt("no-fsync", tmp_path, 2, 50, 1, None)

    assert Path(found.run) == tmp_path / "20261121-190000-no-fsync-1-ffff"
    assert sorted(path.name for path in tmp_path.iterdir()) == [*theirs, Path(found.run).name]


def test_the_sound_node_is_judged_by_all_its_seeds_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def seeds(plans: Iterator[Plan], root: Path, jobs: object) -> Iterator[Iterator[CellResult]]:
        yield (result(plan.seed, outcome=Outcome.UNKNOWN) for plan in plans)

    monkeypatch.setattr(selftest, "drilled", seeds)
    found = BugResult(bug="no-fsync", seeds=1, tries=(1,), names={}, unknown=0)
    summary = selftest._with_clean([found], True, tmp_path, range(1, 4), None, None)

    assert (summary.clean_outcome, summary.clean_unknown) == (Outcome.UNKNOWN, 3)
