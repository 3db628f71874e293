"""Plans of seeds that once accused the sound node, each named after what it met."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from checkers.engine.analyze import analyze
from checkers.promises.replicas import forgotten
from cli.wiring import run_plan
from harness.exit_codes import Outcome
from harness.plan.plan import load
from harness.run.progress import Silent
from harness.run.stop import Stop

PLANS = Path(__file__).parent / "regressions"


def test_nothing_is_told_of_a_snapshot_whose_mark_may_still_be_lost(tmp_path: Path) -> None:
    # n3 installs a snapshot at 20 while its disk, which lags, holds entries up to 12, and is
    # stopped before the snapshot's mark is written.
    plan = load(PLANS / "snapshot-installed-before-its-sync.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    states = pq.read_table(run.root / "states.parquet")

    assert states.num_rows > 100
    assert list(forgotten(states)) == []


def test_a_lease_counts_from_a_snapshot_that_is_not_on_the_disk_yet(tmp_path: Path) -> None:
    # n5 hears nothing for two seconds, and learns of its renewals from a snapshot, whose mark it
    # writes 0.2 s after it has restored its state.
    plan = load(PLANS / "lease-known-from-a-snapshot.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    broken = pq.read_table(run.root / "claims.parquet").to_pylist()

    assert pq.read_table(run.root / "claims_judged.parquet").num_rows > 0
    assert broken == []


def test_a_renewal_that_is_applied_behind_a_decision_refuses_the_grant(tmp_path: Path) -> None:
    # n1 hears nothing, and its last renewals are committed by n2, in the moment in which n2, a
    # leader again, has found n1's lease over by those before.
    plan = load(PLANS / "grant-decided-before-a-renewal.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    assert pq.read_table(run.root / "claims_judged.parquet").num_rows > 0
    assert pq.read_table(run.root / "claims.parquet").to_pylist() == []


def test_a_log_that_is_cut_before_anything_learns_of_its_commits_is_followed(
    tmp_path: Path,
) -> None:
    # n1 alone votes in metastorage: it commits and cuts off its first entries before another node
    # learns. Without them no condition on a revision held in the judge's metastorage, and the
    # leases that all nodes took over as they came back were not counted.
    plan = load(PLANS / "log-cut-before-its-commit-is-told.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    broken = pq.read_table(run.root / "claims.parquet").to_pylist()

    assert broken == []


@pytest.mark.parametrize(
    "name",
    [
        "planned-behind-a-reset",
        "copy-of-a-later-link",
        "term-of-the-generation-before",
        "entry-of-an-earlier-generation",
        "log-of-an-earlier-generation",
        "two-generations-in-a-record",
        "acknowledged-and-erased",
    ],
)
def test_partitions_that_are_reset_one_behind_the_other_are_not_accused(
    name: str, tmp_path: Path
) -> None:
    # In the first a node comes back while the second phase of a reset waits for it, and what it
    # leads to was planned once more; in the second copies of a later link were told to go while
    # they asked whether others live, and stayed; in the third a replica told the generation that it
    # had entered, and the term that its disk had of the one before; in the fourth a majority that
    # was cut off went on in the old generation, up to an entry like the new one there; in the
    # fifth replicas told such an entry as one of the new generation, before they had compared any;
    # in the sixth a vote and the next generation stood in one record of a log that was read again;
    # in the last copies that were to be erased took a snapshot, and were counted as caught up.
    plan = load(PLANS / f"{name}.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    verdict = analyze(run, executor="local")

    assert verdict.outcome is Outcome.VALID, verdict


def test_a_node_that_left_as_the_cluster_stopped_and_is_back_with_it_moves_no_timer(
    tmp_path: Path,
) -> None:
    # n1, the only voter of metastorage, writes that it leaves, and ends before the timers of every
    # zone have heard of that. All join by one change once the cluster goes on.
    plan = load(PLANS / "leap-over-a-restart.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    verdict = analyze(run, executor="local")

    assert verdict.outcome is Outcome.VALID, verdict


def test_what_an_old_majority_commits_behind_a_reset_overtakes_no_snapshot(tmp_path: Path) -> None:
    # n4, n6, n7 and n8 come back after partition 0 was reset to what n2 had. Before they learn of
    # that they elect n7 in their generation, which commits what the reset has cut off.
    plan = load(PLANS / "commits-of-an-old-majority.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    assert pq.read_table(run.root / "claims_judged.parquet").num_rows > 0
    assert pq.read_table(run.root / "claims.parquet").to_pylist() == []


def test_a_primary_answers_for_a_commit_of_its_own_earlier_epoch(tmp_path: Path) -> None:
    # n3 commits as the primary of partition 0 under epoch 5, and waits until each participant has
    # the outcome. Meanwhile it loses leadership, and is elected and granted epoch 6 before any
    # other node; its lease holds all the while.
    plan = load(PLANS / "answer-under-a-later-epoch.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    judged = pq.read_table(run.root / "claims_judged.parquet").to_pylist()

    assert pq.read_table(run.root / "claims.parquet").to_pylist() == []
    assert any(row["claim"] == "one-primary" for row in judged)


def test_a_leave_goes_by_the_wait_that_was_altered_before_it(tmp_path: Path) -> None:
    # A statement raises the wait, then n6 leaves; the leader of metastorage, whose writes are late,
    # follows both in one step.
    plan = load(PLANS / "leave-behind-a-statement.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    verdict = analyze(run, executor="local")

    assert pq.read_table(run.root / "claims.parquet").to_pylist() == []
    assert pq.read_table(run.root / "topology.parquet").num_rows > 0
    assert verdict.outcome is not Outcome.VIOLATION, verdict


def test_a_node_that_is_back_before_it_is_missed_has_started_the_timer_anew(tmp_path: Path) -> None:
    # n8 leaves and joins again within 10 ms, while the leader of metastorage, whose disk is slow,
    # looks at neither: n4, which is gone since long, goes no sooner than if both had been seen.
    plan = load(PLANS / "back-before-it-was-missed.toml", {})
    run = run_plan(plan, tmp_path, Silent(), Stop())

    verdict = analyze(run, executor="local")

    assert pq.read_table(run.root / "claims.parquet").to_pylist() == []
    assert pq.read_table(run.root / "topology.parquet").num_rows > 0
    assert verdict.outcome is Outcome.VALID, verdict
