"""A loss that a forced reset explains, and a store that may forget without its majority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from checker_histories import STRICT, Fault, a, fail, ok, r, write_run

from checkers.engine.analyze import analyze
from checkers.promises.permitted_loss import STILL_COUNTS, Excuse, excused
from harness.history.records import EventKind, StoreEvent
from harness.protocols.finding import Explanation, Finding
from harness.protocols.models import OBSERVED, meaning_of
from harness.protocols.verdict import Anomaly, Verdict

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
        "; then forced reset of partition 1 to n1 by n1 at 0.060 s, 0.0 s after its start to heal "
        "fault 0 (kill)"
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


def judged(run: Path, *faults: Fault) -> Verdict:
    return analyze(write_run(run, LOSS, list(faults), declaration=MAY_FORGET), executor="local")


def test_a_store_that_may_forget_is_not_accused_once_its_majority_was_out(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", KILL, KILL_OTHERS)

    assert found.outcome == "unknown"
    assert not found.anomalies
    assert found.observed["lost-write"].count == 1
    assert any("n1, n2, n3 were out together from 0.040 s on" in why for why in found.reasons)


def test_a_store_that_may_forget_is_accused_while_its_majority_stood(tmp_path: Path) -> None:
    after = Fault("kill", "n2", 60 * MS, 80 * MS, ("n2",))

    found = judged(tmp_path / "run", KILL, after)

    assert found.outcome == "violation"
    assert found.anomalies["lost-write"].count == 1


def test_replicas_that_only_learn_are_no_majority(tmp_path: Path) -> None:
    learner = Fault("kill", "n2", 40 * MS, 80 * MS, ("n2",), ("learner of partition 1",))
    voter = Fault("kill", "n3", 40 * MS, 80 * MS, ("n3",), ("follower of partition 1",))

    assert judged(tmp_path / "with a learner", KILL, learner).outcome == "violation"
    assert judged(tmp_path / "with a voter", KILL, voter).outcome == "unknown"


@pytest.mark.parametrize(
    ("kind", "outcome"), [("partition", "unknown"), ("of-a-plug-in", "unknown"),
                          ("disk-slow", "violation"), ("clock-jump", "violation")],
)  # fmt: skip
def test_only_a_fault_under_which_a_node_may_be_missed_takes_it_out_of_a_majority(
    kind: str, outcome: str, tmp_path: Path
) -> None:
    second = Fault(kind, "n3", 40 * MS, 80 * MS, ("n3",), ("follower of partition 1",))

    assert judged(tmp_path / "run", KILL, second).outcome == outcome


def voter(node: str, *partitions: int) -> Fault:
    roles = tuple(f"follower of partition {p}" for p in partitions)
    return Fault("kill", node, 40 * MS, 80 * MS, (node,), roles)


def test_a_majority_is_one_of_a_single_partition(tmp_path: Path) -> None:
    apart = judged(tmp_path / "apart", voter("n1", 0, 2), voter("n2", 1))
    shared = judged(tmp_path / "shared", voter("n1", 0, 1), voter("n2", 1))

    assert apart.outcome == "violation"
    assert shared.outcome == "unknown"


def test_a_node_that_only_leads_what_holds_no_data_is_out_of_no_majority(tmp_path: Path) -> None:
    manager = Fault("kill", "n2", 40 * MS, 80 * MS, ("n2",), ("metastorage leader",))

    assert judged(tmp_path / "run", voter("n1", 1), manager).outcome == "violation"


def test_who_holds_no_data_by_declaration_is_out_of_no_majority(tmp_path: Path) -> None:
    others = msgspec.structs.replace(MAY_FORGET, keepers=("n1", "n3"))
    faults = [KILL, Fault("kill", "n2", 40 * MS, 80 * MS, ("n2",))]
    run = write_run(tmp_path / "others", LOSS, faults, declaration=others)

    assert analyze(run, executor="local").outcome == "violation"
    assert judged(tmp_path / "anybody", *faults).outcome == "unknown"


def test_a_loss_that_was_seen_before_the_majority_was_out_is_not_excused(tmp_path: Path) -> None:
    later = Fault("kill", "n2,n3", 96 * MS, 99 * MS, ("n2", "n3"))

    found = judged(tmp_path / "run", KILL, later)

    assert found.outcome == "violation"
    assert found.anomalies["lost-write"].count == 1


def test_a_read_of_an_aborted_value_is_no_loss(tmp_path: Path) -> None:
    dirty = [*LOSS, fail(a(2, 1), start=60 * MS, finish=65 * MS),
             ok(r(2, 1), start=70 * MS, finish=75 * MS)]  # fmt: skip
    run = write_run(tmp_path / "run", dirty, [KILL, KILL_OTHERS], declaration=MAY_FORGET)

    found = analyze(run, executor="local")

    assert found.outcome == "violation"
    assert list(found.anomalies) == ["G1a"]
    assert "lost-write" in found.observed


@pytest.mark.parametrize("name", sorted({"two-leaders", "stale-primary", "diverged-replicas"}))
def test_no_loss_excuses_that_two_nodes_served_at_once(name: str) -> None:
    seen = Anomaly(count=1, examples=(Finding(text="two at once", txns=(), keys=()),))
    excuse = Excuse(since_ns=0, text="n1, n2 were out together")

    assert excused({name: seen, "lost-entries": seen}, excuse) == {"lost-entries"}
    assert excused({name: seen, "lost-entries": seen}, None) == frozenset()


def test_only_known_names_count_in_spite_of_a_loss() -> None:
    known = {name for name in STILL_COUNTS if meaning_of(name) != OBSERVED}

    assert known == STILL_COUNTS


FORMER = event(
    EventKind.RESET, 22, partition=1, node="n3", text="forced reset of partition 1 to n3"
)


def test_a_loss_names_the_reset_under_which_its_write_was_acknowledged_too(tmp_path: Path) -> None:
    began = event(EventKind.NODE_STARTED, 19, node="n3", text="its process began")
    first = event(EventKind.RESET, 16, partition=1, node="n2", text="a reset before that one")

    found = lost_write(tmp_path / "run", first, began, FORMER, STARTED, RESET)

    assert found.text.endswith(
        "; acknowledged 0.0 s after forced reset of partition 1 to n3 by n3 at 0.022 s, 0.0 s after"
        " its start; then forced reset of partition 1 to n1 by n1 at 0.060 s, 0.0 s after its start"
        " to heal fault 0 (kill)"
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


def test_without_a_fault_a_loss_is_still_explained_by_both_resets(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LOSS, [], events=[FORMER, RESET])

    found = analyze(run, executor="local").anomalies["lost-write"].examples[0].explained_by

    assert found.text.startswith("acknowledged at 0.030 s, 0.0 s after forced reset")
