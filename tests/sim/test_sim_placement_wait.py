"""The end of a run waits until data is in its place, as far as the store tells."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from sim_lab import drill

from harness.clock import NS_PER_S
from harness.history.load import load
from harness.plan.plan import loads
from harness.protocols.changes import (
    AssignmentChange,
    AssignmentKind,
    TopologyChange,
    TopologyKind,
)
from harness.protocols.faults import PlannedFault
from harness.run.change_recorder import read_changes
from harness.run.rebalance_wait import GRANTED_S, LIMIT_S, Left, left_open, wait_until_ns

# The scale-up timer of a node that was away for a while is still running when the drive ends.
TIMER_AT_THE_END = """
seed = 5
[cluster]
provider = "sim"
nodes = 4
[system]
system_nodes = 3
ddl = [
    \"\"\"
    CREATE ZONE z WITH PARTITIONS = 2, REPLICAS = 4, DATA_NODES_AUTO_ADJUST_SCALE_UP = 8,
        DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 0
    \"\"\",
    "CREATE TABLE t WITH PRIMARY_ZONE = z",
]
[drive]
duration_s = 7
concurrency = 2
rate_per_s = 20
"""


def ns(at_s: float) -> int:
    return int(at_s * NS_PER_S)


def key(revision: int, at_s: float, kind: str, nodes: str | None = None, **more: Any) -> Any:
    return AssignmentChange(
        revision=revision,
        at_ns=ns(at_s),
        node="n1",
        partition=0,
        table="T",
        zone="Z",
        kind=AssignmentKind(kind),
        nodes=None if nodes is None else tuple(nodes),
        **more,
    )


def zone(revision: int, at_s: float, kind: str, nodes: str | None = None, **more: Any) -> Any:
    return TopologyChange(
        revision=revision,
        at_ns=ns(at_s),
        node="n1",
        kind=TopologyKind(kind),
        zone="Z",
        nodes=None if nodes is None else tuple(nodes),
        **more,
    )


BEGUN = [
    zone(1, 0.1, "zone", up_s=10.0, down_s=math.inf, replicas=2),
    zone(1, 0.1, "eligible", "abc"),
    zone(2, 0.2, "data-nodes", "abc"),
    key(3, 0.3, "stable", "ab"),
    key(3, 0.3, "trigger", number=2),
]


def texts(*more: Any) -> list[str]:
    return [left.text for left in left_open([*BEGUN, *more])]


def test_what_is_left_are_moves_events_and_timers_that_run_out() -> None:
    assert texts() == []
    assert texts(key(5, 1.0, "pending", "bc")) == ["partition 0: pending is b c"]
    assert texts(key(5, 1.0, "pending", "bc"), key(6, 1.5, "pending")) == []
    assert texts(key(5, 1.0, "lock", "bc", term=2)) == ["partition 0: lock is b c"]
    altered = zone(7, 2.0, "zone", up_s=10.0, down_s=math.inf, replicas=3)
    assert texts(altered) == ["partition 0: the event of revision 7 is not handled"]
    assert texts(altered, key(8, 2.1, "trigger", number=7)) == []
    assert texts(zone(7, 2.0, "eligible", "abcd")) == ["d wait to be among the data nodes of Z"]
    # Nobody waits for a timer that never runs out, nor for a table that was dropped.
    assert texts(zone(7, 2.0, "eligible", "ab")) == []
    dropped = [key(9, 3.0, "stable"), key(9, 3.0, "trigger")]
    assert texts(altered, *dropped) == []
    # Without data nodes there is nowhere to go.
    assert texts(zone(9, 3.0, "data-nodes", "")) == ["a b c wait to be among the data nodes of Z"]


def test_a_run_waits_as_long_as_a_store_is_granted_and_no_longer() -> None:
    def until_s(*since_s: float) -> float:
        left = [Left(text="", since_ns=ns(each)) for each in since_s]
        return wait_until_ns(left, ns(100)) / NS_PER_S

    assert until_s() == 100
    assert until_s(20.0) == 100 + GRANTED_S
    # A timer that runs out meanwhile, and one that does so far too late.
    assert until_s(20.0, 110.0) == 110 + GRANTED_S
    assert until_s(20.0, 5000.0) == 100 + GRANTED_S
    assert until_s(5000.0) == 100
    assert until_s(100 + LIMIT_S) == 100 + LIMIT_S


def test_a_run_waits_for_a_timer_that_runs_at_the_end_of_its_drive(tmp_path: Path) -> None:
    plan = loads(TIMER_AT_THE_END)
    kill = PlannedFault(at_s=0.5, kind="kill", target="n4", hold_s=4.0)
    run, manifest = drill(
        replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=(kill,))), tmp_path / "run"
    )

    tables = read_changes(run.root, manifest.checksums)
    rows = [row for row in tables["topology"].to_pylist() if row["kind"] == "data-nodes"]
    assert [row["nodes"] for row in rows] == [
        ["n1", "n2", "n3", "n4"],
        ["n1", "n2", "n3"],
        ["n1", "n2", "n3", "n4"],
    ]
    pending = [row for row in tables["assignments"].to_pylist() if row["kind"] == "pending"]
    assert pending[-1]["nodes"] is None
    notes = load(run).notes().to_pylist()
    (told,) = [note for note in notes if note["text"].startswith("waited ")]
    assert told["text"].endswith(" s for data to be in its place: it is")
    assert max(row["at_ns"] for row in pending) < told["at_ns"]
