"""Data nodes against the checker's own timer algebra, right and wrong by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from change_tables import fault, names, ns, setting, state, tables, topology

from checkers.promises.data_nodes import CHECKER
from harness.exit_codes import Outcome
from harness.protocols.checker import Part

NEVER = math.inf


def zone(revision: int, at_s: float, text: str = "f", **waits: float | None) -> dict[str, Any]:
    return topology(revision, at_s, "zone", **{"text": text, "replicas": 3, **waits})


def eligible(revision: int, at_s: float, text: str, others: str = "") -> dict[str, Any]:
    return topology(revision, at_s, "eligible", text, **{"text": others})


def data(revision: int, at_s: float, text: str) -> dict[str, Any]:
    return topology(revision, at_s, "data-nodes", text)


def begun(**waits: float) -> list[dict[str, Any]]:
    return [zone(2, 0.0, **waits), eligible(2, 0.0, "abc"), data(3, 0.0, "abc")]


BOTH = begun(up_s=300.0, down_s=NEVER)
JOINT = begun(joint_s=300.0)
LEAVE = begun(up_s=30.0, down_s=60.0)
# The seed's first example: D at 0, E at 250, and one switch at 550.
SEED = [eligible(4, 0.0, "abcd"), eligible(5, 250.0, "abcde")]


def judged(rows: list[Any], end_s: float = 600.0, **more: Any) -> Part:
    return CHECKER.judge(tables(rows=rows, **more), setting(end_s), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([*BOTH, *SEED, data(6, 550.1, "abcde")], []),
        ([*BOTH, *SEED, data(6, 300.1, "abcd")], ["wrong-data-nodes"]),
        ([*BOTH, *SEED, data(6, 400.0, "abcde")], ["early-data-nodes"]),
        ([*BOTH, *SEED, data(6, 553.0, "abcde")], ["late-data-nodes"]),
        ([*BOTH, *SEED], ["late-data-nodes"]),
        ([*BOTH, *SEED, data(6, 550.1, "abcdef")], ["wrong-data-nodes"]),
        # +D at 0, -C at 100, +E at 250: one frame, one switch.
        (
            [*JOINT, eligible(4, 0.0, "abcd"), eligible(5, 100.0, "abd"),
             eligible(6, 250.0, "abde"), data(7, 550.0, "abde")],
            [],
        ),
        # A leave moves no scale-up: it is due 30 s after the join, not after the leave.
        ([*LEAVE, eligible(4, 10.0, "abcd"), eligible(5, 30.0, "abd"), data(6, 40.0, "abcd"),
          data(7, 90.0, "abd")], []),
        ([*LEAVE, eligible(4, 10.0, "abcd"), eligible(5, 30.0, "abd"), data(6, 60.0, "abcd"),
          data(7, 90.0, "abd")], ["late-data-nodes"]),
        # A node that came and went is forgotten, one that went and came back stays.
        ([*LEAVE, eligible(4, 10.0, "abcd"), eligible(5, 20.0, "abc")], []),
        ([*LEAVE, eligible(4, 10.0, "ab"), eligible(5, 20.0, "abc"), data(6, 50.0, "abc")], []),
        ([*LEAVE, eligible(4, 10.0, "ab"), eligible(5, 20.0, "abc"), data(6, 70.0, "ab")],
         ["late-data-nodes", "wrong-data-nodes"]),
    ],
)  # fmt: skip
def test_switches_follow_from_joins_leaves_and_waits(rows: list[Any], found: list[str]) -> None:
    assert names(judged(rows)) == found


def test_another_filter_applies_at_once_and_drops_timers() -> None:
    joined = [*begun(up_s=30.0, down_s=NEVER), eligible(4, 10.0, "abcd")]
    other = [
        zone(5, 20.0, "g", up_s=30.0, down_s=NEVER), eligible(5, 20.0, "ab"), data(6, 20.0, "ab"),
    ]  # fmt: skip

    assert names(judged([*joined, *other])) == []
    kept = [*joined, *other, data(7, 40.0, "abd")]
    assert names(judged(kept)) == ["wrong-data-nodes"]


def test_a_filter_that_is_never_applied_is_named_once() -> None:
    rows = begun(up_s=30.0, down_s=NEVER)
    other = [zone(5, 20.0, "g", up_s=30.0, down_s=NEVER), eligible(5, 20.0, "ab")]
    join = eligible(8, 60.0, "abd")

    part = judged([*rows, *other, join])
    assert names(part) == ["late-data-nodes"]
    assert part.anomalies["late-data-nodes"].count == 1
    (example,) = part.anomalies["late-data-nodes"].examples
    assert "has had the filter 'g' since 20.000 s, which na nb pass" in example.text
    # Applied late is late, too.
    assert names(judged([*rows, *other, data(6, 22.0, "ab")])) == ["late-data-nodes"]
    # Its writer is not to be expected to be in time meanwhile.
    voter, down = [state(1.0, "na", None)], [fault(19.0, 23.0, "kill", "na")]
    late = [*rows, *other, data(6, 25.0, "ab")]
    assert names(judged(late, states=voter, faults=down)) == []


def test_a_filter_that_the_data_nodes_pass_as_they_are_owes_no_switch() -> None:
    rows = begun(up_s=30.0, down_s=NEVER)
    same = zone(5, 20.0, "g", up_s=30.0, down_s=NEVER)

    assert names(judged([*rows, same])) == []
    assert names(judged([*rows, same, data(6, 20.1, "abc")])) == []


def test_a_zone_that_was_dropped_owes_nothing() -> None:
    joined = [*begun(up_s=30.0, down_s=NEVER), eligible(4, 10.0, "abcd")]
    gone = zone(5, 20.0, "", up_s=None, down_s=None)

    assert names(judged([*joined, gone])) == []
    again = [zone(8, 50.0, up_s=30.0, down_s=NEVER), data(9, 50.1, "abcd")]
    assert names(judged([*joined, gone, *again])) == []


def test_another_wait_counts_from_the_same_start() -> None:
    joined = [*begun(up_s=30.0, down_s=NEVER), eligible(4, 10.0, "abcd")]
    longer = [*joined, zone(5, 20.0, up_s=100.0, down_s=NEVER)]

    assert names(judged([*longer, data(6, 110.0, "abcd")])) == []
    assert names(judged([*longer, data(6, 40.0, "abcd")])) == ["early-data-nodes"]


def test_a_switch_may_have_missed_what_was_written_a_moment_before_it() -> None:
    rows = [*begun(up_s=30.0, down_s=NEVER), eligible(4, 0.0, "abcd")]
    race = [*rows, eligible(5, 29.9, "abcde"), data(6, 30.0, "abcd"), data(7, 59.9, "abcde")]

    assert names(judged(race)) == []
    missed = [*rows, eligible(5, 25.0, "abcde"), data(6, 30.0, "abcd")]
    assert "wrong-data-nodes" in names(judged(missed))


@pytest.mark.parametrize(
    ("switched_s", "found"), [(40.0, ["early-data-nodes"]), (44.1, []), (44.9, [])]
)
@pytest.mark.parametrize("since_s", [8.0, 12.5])
def test_a_node_that_is_back_before_a_slow_leader_looks_has_started_the_timer_anew(
    since_s: float, switched_s: float, found: list[str]
) -> None:
    # D joins, is gone from 12 s to 14 s, and the leader's disk keeps it from looking meanwhile: it
    # has both changes by their revisions once it does, and any of them starts the one timer anew.
    rows = [*begun(joint_s=30.0), eligible(4, 10.0, "abcd")]
    away = [eligible(5, 12.0, "abc"), eligible(6, 14.0, "abcd"), data(7, switched_s, "abcd")]

    slow, voter = [fault(since_s, 15.0, "disk-slow", "na")], [state(1.0, "na", None)]
    part = judged([*rows, *away], end_s=50.0, faults=slow, states=voter)
    assert names(part) == found


@pytest.mark.parametrize(
    ("kind", "node", "found"),
    [
        ("kill", "nd", ["late-data-nodes"]),
        ("kill", "na", []),
        ("partition", "nd", []),
        ("clock-jump", "nd", []),
    ],
)
def test_a_switch_is_late_only_where_nothing_keeps_its_writer_from_it(
    kind: str, node: str, found: list[str]
) -> None:
    rows = [*begun(up_s=30.0, down_s=NEVER), eligible(4, 0.0, "abcd"), data(5, 36.0, "abcd")]
    voter = [state(1.0, "na", None)]

    part = judged(rows, states=voter, faults=[fault(28.0, 33.0, kind, node)])
    assert names(part) == found


def told_at(node: str, at_s: float, ahead_s: float, off_s: float = 0.1) -> dict[str, Any]:
    """An event of a node whose wall clock is so far ahead of the run's."""
    return {
        "kind": "node-started",
        "node": node,
        "boot": "1",
        "wall_ns": ns(1000 + at_s + ahead_s),
        "at_ns": ns(at_s),
        "uncertainty_ns": ns(off_s),
        "text": "",
    }


@pytest.mark.parametrize(
    ("ahead_s", "found"), [(0.0, ["early-data-nodes"]), (0.3, ["early-data-nodes"]), (2.0, [])]
)
def test_no_switch_is_early_by_the_clock_of_another_node(ahead_s: float, found: list[str]) -> None:
    rows = [*BOTH, *SEED, data(6, 400.0, "abcde")]
    events = [told_at("n1", 5.0, 0.0), told_at("n2", 6.0, ahead_s), told_at("n2", 300.0, ahead_s)]

    assert list(judged(rows, events=events).anomalies) == found


def test_time_in_which_the_whole_cluster_was_down_counts_for_no_timer() -> None:
    rows = [*begun(up_s=30.0, down_s=NEVER), eligible(4, 10.0, "abcd")]
    again = topology(5, 60.0, "restart", "abc", zone=None)

    assert names(judged([*rows, again, data(6, 80.0, "abcd")], end_s=85.0)) == ["late-data-nodes"]
    down = [fault(15.0, 58.0, "kill", "na")]
    voter = [state(1.0, "na", None)]
    part = judged([*rows, again, data(6, 80.0, "abcd")], end_s=85.0, faults=down, states=voter)
    assert names(part) == []


@pytest.mark.parametrize(
    ("joined_s", "left_s", "found"),
    [(10.0, 13.0, []), (12.8, 13.0, []), (10.0, 11.0, ["early-data-nodes"])],
)
def test_what_no_leader_has_handled_before_the_whole_cluster_went_down_is_a_leap(
    joined_s: float, left_s: float, found: list[str]
) -> None:
    # D joins; C is out as the cluster stops, and back as it goes on: only where a leader may
    # have handled the first does the second start the timer anew.
    moved = [eligible(4, joined_s, "abcd"), eligible(5, left_s, "abd")]
    rows = [*begun(up_s=30.0, down_s=60.0), *moved]
    again = [topology(6, 60.0, "restart", "abd", zone=None), eligible(7, 60.1, "abcd")]
    down = [fault(13.5, 62.0, "full-restart", "na")]
    voter = [state(1.0, "na", None)]

    switch = data(8, 87.1, "abcd")
    part = judged([*rows, *again, switch], end_s=100.0, faults=down, states=voter)
    assert names(part) == found


def test_a_topology_with_gaps_can_not_be_judged() -> None:
    part = judged([*BOTH, topology(9, 1.0, "gap", zone=None), data(10, 2.0, "x")])

    assert (part.outcome, names(part)) == (Outcome.UNKNOWN, [])
