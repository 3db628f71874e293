"""A loss that a forced reset explains, and a store that may forget without its majority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from checker_histories import STRICT, Fault, a, fail, ok, r, write_run
from reset_histories import ResetEvent, ResetHistory, Sample, verdict_of

from checkers.engine.analyze import analyze
from harness.history.records import EventKind, PartitionReset, StoreEvent
from harness.protocols.finding import Explanation
from harness.protocols.verdict import Verdict

MS = 1_000_000
LOSS = [
    ok(a(1, 1), start=0, finish=10 * MS),
    ok(a(1, 2), start=20 * MS, finish=30 * MS),
    ok(r(1, 1), start=90 * MS, finish=95 * MS),
]
KILL = Fault("kill", "n1", 15 * MS, 50 * MS, ("n1",))
KILL_OTHERS = Fault("kill", "n2,n3", 40 * MS, 80 * MS, ("n2", "n3"))
MAY_FORGET = msgspec.structs.replace(STRICT, mode="HA", forgets_without=2)


def event(kind: EventKind, at_ms: int, **changed: Any) -> StoreEvent:
    told = {"node": "n1", "boot": "2", "wall_ns": 0, "uncertainty_ns": 2 * MS} | changed
    return StoreEvent(kind=kind, at_ns=at_ms * MS, **told)


STARTED = event(EventKind.NODE_STARTED, 45, text="its process began")
RESET = event(EventKind.RESET, 60, partition=1, text="forced reset of partition 1 to n1")


def lost_write(run: Path, *events: StoreEvent) -> Explanation:
    found = analyze(write_run(run, LOSS, [KILL, KILL_OTHERS], events=events), executor="local")
    assert found.outcome == "violation"
    explained = found.anomalies["lost-write"].examples[0].explained_by
    assert explained is not None
    return explained


def test_a_lost_write_names_the_reset_and_the_restart_that_led_to_it(tmp_path: Path) -> None:
    found = lost_write(tmp_path / "run", STARTED, RESET)

    assert found.kind == "kill"
    assert found.reset.node == "n1"
    assert found.reset.fault == 0
    assert found.text.endswith(
        "; then forced reset of partition 1 to n1 by n1 at 0.060 s, 0.015 s after its start to "
        "heal fault 0 (kill)"
    )
    table = pq.read_table(tmp_path / "run" / "analysis" / "lost_writes.parquet")
    assert table.column("reset_ns").to_pylist() == [60 * MS]


@pytest.mark.parametrize(
    "other",
    [
        event(EventKind.RESET, 60, partition=0, text="of another partition"),
        event(EventKind.RESET, 25, partition=1, text="before the write was acknowledged"),
        event(EventKind.RESET, 99, partition=1, text="after the read that misses it"),
        event(EventKind.LEADER_ELECTED, 60, partition=1, text="no reset"),
    ],
    ids=lambda e: e.text,
)
def test_what_does_not_lie_between_write_and_read_explains_nothing(
    tmp_path: Path, other: StoreEvent
) -> None:
    found = lost_write(tmp_path / "run", STARTED, other)

    assert found.reset is None
    table = pq.read_table(tmp_path / "run" / "analysis" / "lost_writes.parquet")
    assert table.column("reset_ns").to_pylist() == [None]


def test_a_reset_counts_within_what_its_time_may_be_off_by(tmp_path: Path) -> None:
    near = event(EventKind.RESET, 25, partition=1, uncertainty_ns=6 * MS, text="forced reset")

    assert lost_write(tmp_path / "run", near).reset.started_ns is None


def judged(run: Path, *faults: Fault, events: tuple[StoreEvent, ...] = (RESET,)) -> Verdict:
    written = write_run(run, LOSS, list(faults), declaration=MAY_FORGET, events=events)
    return analyze(written, executor="local")


def test_a_loss_that_a_told_reset_covers_is_permitted_where_the_store_may_lose(
    tmp_path: Path,
) -> None:
    found = judged(tmp_path / "run", KILL, KILL_OTHERS)

    assert found.outcome == "valid"
    assert found.observed["lost-by-reset"].count == 1
    [example] = found.observed["lost-by-reset"].examples
    assert example.explained_by.reset.text.startswith("forced reset of partition 1 to n1")
    table = pq.read_table(tmp_path / "run" / "analysis" / "lost_writes.parquet")
    assert table.column("permitted_by").to_pylist() == [1]


def test_a_loss_that_no_reset_covers_is_a_violation_though_the_majority_was_out(
    tmp_path: Path,
) -> None:
    other = msgspec.structs.replace(RESET, partition=0)

    for name, events in (("none", ()), ("other", (other,))):
        found = judged(tmp_path / name, KILL, KILL_OTHERS, events=events)
        assert found.outcome == "violation"
        assert found.anomalies["lost-write"].count == 1


def voter(node: str, *partitions: int, kind: str = "kill", role: str = "follower") -> Fault:
    roles = tuple(f"{role} of partition {p}" for p in partitions)
    return Fault(kind, node, 40 * MS, 80 * MS, (node,), roles)


def majority_lived(run: Path, *faults: Fault) -> bool:
    return "reset-with-majority" in judged(run, *faults).anomalies


def test_a_reset_with_a_live_majority_is_a_violation_by_itself(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", voter("n2", 1))

    assert found.outcome == "violation"
    assert list(found.anomalies) == ["reset-with-majority"]
    [example] = found.anomalies["reset-with-majority"].examples
    assert "only n2 of its voters was out, and it takes 2 to lose the majority" in example.text
    assert majority_lived(tmp_path / "without a fault")


def test_replicas_that_only_learn_are_no_majority(tmp_path: Path) -> None:
    learner, other = voter("n2", 1, role="learner"), voter("n3", 1)

    assert majority_lived(tmp_path / "with a learner", learner, other)
    assert not majority_lived(tmp_path / "with a voter", voter("n2", 1), other)


@pytest.mark.parametrize(
    ("kind", "lived"), [("partition", False), ("of-a-plug-in", False),
                        ("disk-slow", True), ("clock-jump", True)],
)  # fmt: skip
def test_only_a_fault_under_which_a_node_may_be_missed_takes_it_out_of_a_majority(
    kind: str, lived: bool, tmp_path: Path
) -> None:
    assert majority_lived(tmp_path / "run", voter("n2", 1), voter("n3", 1, kind=kind)) is lived


@pytest.mark.parametrize("kind", ["partition", "loss", "of-a-plug-in"])
def test_a_reset_on_the_side_of_a_cut_that_is_its_target_may_miss_all_beyond(
    kind: str, tmp_path: Path
) -> None:
    # The reset is by n1: what is cut off with it may be the majority of all who decide.
    assert not majority_lived(tmp_path / "same side", voter("n1", 1, kind=kind))
    assert majority_lived(tmp_path / "other side", voter("n3", 1, kind=kind))
    over = Fault(kind, "n1", 1 * MS, 5 * MS, ("n1",), ())
    assert not majority_lived(tmp_path / "just healed", over)


@pytest.mark.parametrize(
    ("begin", "end", "targets", "found"),
    [
        (5000, 6900, ("n2", "n4"), []),
        (5000, 6900, ("n4",), ["reset-with-majority"]),
        (500, 900, ("n2", "n4"), ["reset-with-majority"]),
    ],
    ids=["with the survivor", "without it", "long ago"],
)
def test_voters_that_answered_all_along_may_be_beyond_a_cut(
    begin: int, end: int, targets: tuple[str, ...], found: list[str]
) -> None:
    samples = tuple(
        Sample(node=node, partition=1, asked=at, answered=at + 1, index=1, voters=3)
        for at in (1000, 6950, 9000)
        for node in ("n2", "n3", "n5")
    )
    history = ResetHistory(
        txns=(ok(a(1, 1), start=1, finish=2),),
        resets=(ResetEvent(partition=1, generation=1, since=7000, until=7002, survivors=("n2",)),),
        samples=samples,
        faults=(Fault("partition", "minority", begin * MS, end * MS, targets),),
    )

    assert list(verdict_of(history).anomalies) == found


def test_a_majority_is_one_of_a_single_partition(tmp_path: Path) -> None:
    assert majority_lived(tmp_path / "apart", voter("n1", 0, 2), voter("n2", 1))
    assert not majority_lived(tmp_path / "shared", voter("n1", 0, 1), voter("n2", 1))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ((), ["reset-with-majority"]),
        (((1, 6950),), []),  # others may vote since
        (((0, 6950),), ["reset-with-majority"]),
        (((1, 1500),), ["reset-with-majority"]),
    ],
)
def test_voters_are_those_of_samples_unless_members_have_changed_since(
    steps: tuple[tuple[int, int], ...], found: list[str]
) -> None:
    samples = (
        Sample(node="n2", partition=1, asked=at, answered=at + 1, index=1, voters=1)
        for at in (1000, 6900, 9000)
    )
    history = ResetHistory(
        txns=(ok(a(1, 1), start=1, finish=2),),
        resets=(ResetEvent(partition=1, generation=1, since=7000, until=7002, survivors=("n2",)),),
        samples=tuple(samples),
        steps=steps,
    )

    assert list(verdict_of(history).anomalies) == found


def test_a_node_counts_as_out_until_it_has_started_again_and_settled(tmp_path: Path) -> None:
    healed = Fault("kill", "n3", 1 * MS, 5 * MS, ("n3",), ("follower of partition 1",))

    assert not majority_lived(tmp_path / "run", voter("n2", 1), healed)


def test_what_is_no_loss_is_not_permitted_by_a_reset(tmp_path: Path) -> None:
    dirty = [*LOSS, fail(a(2, 1), start=60 * MS, finish=65 * MS),
             ok(r(2, 1), start=70 * MS, finish=75 * MS)]  # fmt: skip
    faults = [KILL, KILL_OTHERS]
    run = write_run(tmp_path / "run", dirty, faults, declaration=MAY_FORGET, events=(RESET,))

    found = analyze(run, executor="local")

    assert found.outcome == "violation"
    assert list(found.anomalies) == ["G1a"]
    assert "lost-by-reset" in found.observed


def test_in_sc_a_reset_and_what_was_lost_beside_it_are_violations(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LOSS, [KILL, KILL_OTHERS], events=(RESET,))

    found = analyze(run, executor="local")

    assert found.outcome == "violation"
    assert {"reset-in-sc", "lost-write"} <= found.anomalies.keys()
    assert found.anomalies["lost-write"].examples[0].explained_by.reset.node == "n1"


FORMER = event(
    EventKind.RESET, 22, partition=1, node="n3", text="forced reset of partition 1 to n3"
)


def test_a_loss_names_the_reset_under_which_its_write_was_acknowledged_too(tmp_path: Path) -> None:
    began = event(EventKind.NODE_STARTED, 19, node="n3", text="its process began")
    first = event(EventKind.RESET, 16, partition=1, node="n2", text="a reset before that one")

    found = lost_write(tmp_path / "run", first, began, FORMER, STARTED, RESET)

    assert found.text.endswith(
        "; acknowledged 0.008 s after forced reset of partition 1 to n3 by n3 at 0.022 s, 0.003 s "
        "after its start; then forced reset of partition 1 to n1 by n1 at 0.060 s, 0.015 s after "
        "its start to heal fault 0 (kill)"
    )
    assert (found.under_reset.node, found.reset.node) == ("n3", "n1")
    assert found.under_reset.started_ns == 19 * MS
    table = pq.read_table(tmp_path / "run" / "analysis" / "lost_writes.parquet")
    assert table.column("under_reset_ns").to_pylist() == [22 * MS]
    assert table.column("under_reset_node").to_pylist() == ["n3"]


def test_a_reset_of_another_partition_is_none_under_which_a_write_was_acknowledged(
    tmp_path: Path,
) -> None:
    other = msgspec.structs.replace(FORMER, partition=0)

    assert lost_write(tmp_path / "run", other, RESET).under_reset is None


def test_what_was_acknowledged_behind_a_forbidden_reset_is_lost_by_it(tmp_path: Path) -> None:
    found = lost_write(tmp_path / "run", FORMER)

    assert found.reset is None
    assert found.under_reset.node == "n3"
    assert found.text.endswith(
        "; acknowledged 0.008 s after forced reset of partition 1 to n3 by n3 at 0.022 s"
    )
    # No reset discarded it: the others did, which had not heard of it.
    table = pq.read_table(tmp_path / "run" / "analysis" / "lost_writes.parquet")
    assert table.column("reset_ns").to_pylist() == [None]
    assert table.column("under_reset_ns").to_pylist() == [22 * MS]


def test_a_permitted_reset_explains_no_loss_behind_it(tmp_path: Path) -> None:
    judged(tmp_path / "run", KILL, KILL_OTHERS, events=(FORMER,))

    table = pq.read_table(tmp_path / "run" / "analysis" / "lost_writes.parquet")
    assert table.num_rows == 1
    assert table.column("reset_ns").to_pylist() == [None]
    assert table.column("under_reset_ns").to_pylist() == [None]


def test_without_a_fault_a_loss_is_still_explained_by_both_resets(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LOSS, [], events=[FORMER, RESET])

    found = analyze(run, executor="local").anomalies["lost-write"].examples[0].explained_by

    assert found.text.startswith("acknowledged at 0.030 s, 0.008 s after forced reset")


def test_a_numbered_reset_explains_as_well_and_once_though_every_survivor_tells_it(
    tmp_path: Path,
) -> None:
    told = PartitionReset(
        generation=1, previous_generation=0, base_index=1, base_term=1, survivors=("n1", "n4")
    )
    first, second = (
        event(EventKind.PARTITION_RESET, at, node=node, partition=1, text="reset", reset=told)
        for node, at in (("n4", 60), ("n1", 70))
    )

    found = lost_write(tmp_path / "run", first, second)

    assert found.reset is not None
    assert (found.reset.node, found.reset.at_ns) == ("n4", 60 * MS)
    assert found.under_reset is None
