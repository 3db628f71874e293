"""What a fault met: transactions under way, and who took over what its targets led."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkers.explain.fault_effects import Effect, effects, least_open, summary
from harness.history import schema
from harness.protocols.verdict import Takeover

MS = 1_000_000
Span = tuple[int, int]


def transactions(*spans: Span) -> pa.Table:
    rows = [
        {
            "txn": number,
            "process": number,
            "kind": "read-write",
            "type": "ok",
            "node": "n1",
            "attempt": 0,
            "intended_ns": start,
            "invoke_ns": start,
            "complete_ns": end,
            "invoke_index": 2 * number,
            "complete_index": 2 * number + 1,
            "wall_ns": start,
        }
        for number, (start, end) in enumerate(spans)
    ]
    return pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS)


def fault(*roles: str, **changed: Any) -> pa.Table:
    row = {
        "fault": 0,
        "kind": "kill",
        "target": "primary of partition 3",
        "nodes": ["n2"],
        "roles": list(roles),
        "injecting_ns": 100 * MS,
        "injected_ns": 120 * MS,
        "effective_ns": 130 * MS,
        "healed_ns": 3000 * MS,
        "state": "healed",
    }
    return pa.Table.from_pylist([row | changed], schema=schema.FAULTS)


def event(kind: str, at_ms: int, node: str, partition: int | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "node": node,
        "wall_ns": 0,
        "boot": "b",
        "at_ns": at_ms * MS,
        "uncertainty_ns": MS,
        "partition": partition,
        "term": 1,
        "text": "",
    }


def told(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema.EVENTS)


def effect(faults: pa.Table, events: pa.Table, *spans: Span) -> Effect:
    (found,) = effects([transactions(*spans)], faults, events)
    return found


def test_open_is_what_was_open_at_every_moment_of_the_injection() -> None:
    spans = [(0, 500 * MS), (50 * MS, 110 * MS), (115 * MS, 500 * MS), (119 * MS, 119 * MS)]

    assert effect(fault(), told(), *spans).open == 1
    assert effect(fault(), told(), *spans, (105 * MS, 400 * MS)).open == 2


def test_a_fault_between_two_transactions_met_none() -> None:
    assert effect(fault(), told(), (0, 99 * MS), (121 * MS, 500 * MS)).open == 0
    assert effect(fault(), told(), (0, 110 * MS), (111 * MS, 500 * MS)).open == 0


def test_a_fault_that_was_never_injected_to_the_end_counts_from_its_beginning() -> None:
    assert effect(fault(injected_ns=None), told(), (0, 110 * MS)).open == 1


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12),
    st.integers(0, 30),
    st.integers(0, 12),
)
def test_the_fewest_open_are_what_counting_moment_by_moment_gives(
    drawn: list[tuple[int, int]], start: int, length: int
) -> None:
    # Ends lie between the moments: touching is concurrent, and would be counted differently here.
    spans = [(4 * begin, 4 * (begin + took) + 2) for begin, took in drawn]
    begun = np.sort(np.asarray([a for a, _ in spans], dtype=np.int64))
    ended = np.sort(np.asarray([b for _, b in spans], dtype=np.int64))
    first, last = 4 * start, 4 * (start + length)

    counted = min(sum(a <= moment < b for a, b in spans) for moment in range(first, last + 1))

    assert least_open([(begun, ended)], first, last) == counted
    halves = [(begun[:5], ended[3:]), (begun[5:], ended[:3])]
    assert least_open(halves, first, last) == counted


def test_who_took_over_is_told_for_each_role_of_the_targets() -> None:
    found = effect(
        fault("primary of partition 3", "leader of partition 3", "metastorage leader",
              "follower of partition 5"),
        told(
            event("leader-elected", 900, "n4", 3),
            event("lease-granted", 1150, "n4", 3),
            event("leader-elected", 1000, "n1", None),
            event("leader-elected", 2000, "n5", 3),
        ),
    )  # fmt: skip

    assert found.takeovers == (
        Takeover(role="primary of partition 3", node="n4", after_ns=1050 * MS),
        Takeover(role="leader of partition 3", node="n4", after_ns=800 * MS),
        Takeover(role="metastorage leader", node="n1", after_ns=900 * MS),
    )
    assert found.answered


def test_an_election_before_the_fault_after_its_end_or_of_others_answers_nothing() -> None:
    found = effect(
        fault("leader of partition 3"),
        told(
            event("leader-elected", 99, "n4", 3),
            event("leader-elected", 3001, "n4", 3),
            event("leader-elected", 900, "n4", 30),
            event("leader-elected", 900, "n4", None),
            event("leader-lost", 900, "n2", 3),
        ),
    )

    assert found.takeovers == (Takeover(role="leader of partition 3", node=None, after_ns=None),)
    assert not found.answered


def test_a_fault_that_was_never_healed_stays_open_to_an_answer() -> None:
    found = effect(
        fault("leader of partition 3", healed_ns=None),
        told(event("leader-elected", 90_000, "n1", 3)),
    )

    assert found.answered


def test_all_faults_together_are_as_good_as_the_worst_of_them() -> None:
    taken = Takeover(role="leader of partition 1", node="n1", after_ns=7)
    lost = Takeover(role="leader of partition 2", node=None, after_ns=None)
    found = [
        Effect(fault=0, kind="kill", open=4, takeovers=(taken,)),
        Effect(fault=1, kind="kill", open=2, takeovers=(taken, lost)),
        Effect(fault=2, kind="pause", open=9, takeovers=()),
    ]

    assert summary(found) == {
        "faults": 3,
        "fewest_open_at_injection": 2,
        "faults_on_leaders": 2,
        "of_these_with_every_role_taken_over": 1,
        "slowest_takeover_ns": 7,
    }
    assert summary([]) == {}
