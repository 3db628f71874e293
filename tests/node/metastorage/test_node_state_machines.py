"""Metastorage's state machine and the fixed hashes, as functions of values."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_kit import restore

from clusters.reference.node.metastorage.metastorage import (
    Change,
    Condition,
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.placement.rendezvous import (
    Assignment,
    Zone,
    assignments,
    first_assignments,
    holders,
    reassigned,
)
from clusters.reference.node.raft.types import Entry

MEMBERS = ("n1", "n2", "n3", "n4", "n5")


def invoke(store: Metastorage, index: int, request: Invoke) -> tuple[bool, int]:
    outcome = store.apply(Entry(1, index, encode_invoke(request)))
    return outcome.success, outcome.revision


def test_an_invoke_does_one_branch_as_one_revision() -> None:
    store = Metastorage()
    request = Invoke(
        (Condition("a", "absent"),),
        (Operation("a", b"1"), Operation("b", b"2")),
        (Operation("c", b"3"),),
    )

    assert invoke(store, 1, request) == (True, 1)
    assert invoke(store, 2, request) == (False, 2)
    assert {key: held.revision for key, held in store.prefixed("").items()} == {
        "a": 1,
        "b": 1,
        "c": 2,
    }


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition("a", "present"), True),
        (Condition("z", "present"), False),
        (Condition("z", "absent"), True),
        (Condition("a", "absent"), False),
        (Condition("a", "value", value=b"1"), True),
        (Condition("a", "value", value=b"2"), False),
        (Condition("a", "revision", revision=1), True),
        (Condition("a", "revision", revision=2), False),
        (Condition("z", "revision", revision=0), False),
    ],
)
def test_conditions_look_at_presence_value_and_revision(condition: Condition, holds: bool) -> None:
    store = Metastorage()
    invoke(store, 1, Invoke((), (Operation("a", b"1"),)))

    assert invoke(store, 2, Invoke((condition,), ())) == (holds, 1)


def test_observers_see_their_prefix_in_revision_order_and_removals() -> None:
    store, seen = Metastorage(), list[Change]()
    store.observe("a/", seen.append)

    invoke(store, 1, Invoke((), (Operation("a/1", b"x"), Operation("b/1", b"y"))))
    invoke(store, 2, Invoke((), (Operation("b/1", b"z"),)))
    invoke(store, 3, Invoke((), (Operation("a/1", None),)))

    assert seen == [
        Change(revision=1, entries={"a/1": b"x"}),
        Change(revision=3, entries={"a/1": None}),
    ]
    assert store.get("a/1") is None


LIVES = {node: f"{node}@first" for node in MEMBERS}


def put_in(store: Metastorage, index: int, request: Invoke) -> dict[int, Assignment]:
    invoke(store, index, request)
    return assignments({key: held.value for key, held in store.prefixed("").items()})


def test_the_first_assignments_are_written_once() -> None:
    store = Metastorage()
    small = Zone(partitions=4, replicas=3, members=MEMBERS)
    large = Zone(partitions=8, replicas=3, members=MEMBERS)

    assert invoke(store, 1, first_assignments(small, LIVES)) == (True, 1)
    written = put_in(store, 2, first_assignments(large, LIVES))

    held = {p: tuple(LIVES[n] for n in holders(p, MEMBERS, 3)) for p in range(4)}
    assert written == {p: Assignment(members=m, founders=m) for p, m in held.items()}


def test_a_node_that_lives_anew_takes_its_places_and_founders_stay_who_they_were() -> None:
    store = Metastorage()
    zone = Zone(partitions=4, replicas=3, members=MEMBERS)
    before = put_in(store, 1, first_assignments(zone, LIVES))
    assert reassigned(before, LIVES) is None

    request = reassigned(before, {"n2": "n2@second"})
    assert request is not None
    after = put_in(store, 2, request)

    for partition, assignment in after.items():
        assert assignment.founders == before[partition].founders
        assert "n2@first" not in assignment.members
        assert ("n2@second" in assignment.members) == ("n2@first" in assignment.founders)
    assert invoke(store, 3, request) == (False, 2)  # who decides on what was, decides nothing


def test_observers_of_restored_metastorage_are_told_once_of_all_that_differs() -> None:
    store, other, seen = Metastorage(), Metastorage(), list[Change]()
    for target in (store, other):
        invoke(target, 1, Invoke((), (Operation("kept", b"1"), Operation("gone", b"2"))))
    invoke(store, 2, Invoke((), (Operation("gone", None), Operation("new", b"3"))))
    invoke(store, 3, Invoke((), (Operation("new", b"4"),)))
    other.observe("", seen.append)

    restore(other, store.snapshot())

    assert seen == [Change(revision=3, entries={"new": b"4", "gone": None})]
    assert other.prefixed("") == store.prefixed("")


def test_the_hashes_never_change() -> None:
    """Stored data depends on them: these values are fixed."""
    assert [partition_of(k.to_bytes(8, "big"), 8) for k in range(8)] == [0, 0, 5, 2, 3, 1, 6, 4]
    assert holders(0, MEMBERS, 3) == ("n2", "n1", "n3")


@given(st.integers(0, 200), st.integers(1, 5))
def test_a_member_that_leaves_moves_only_what_it_held(partition: int, replicas: int) -> None:
    before = holders(partition, MEMBERS, replicas)
    after = holders(partition, MEMBERS[:-1], replicas)

    assert [n for n in before if n != "n5"] == list(after)[: len([n for n in before if n != "n5"])]
    if "n5" not in before:
        assert after == before


def test_partitions_are_spread_over_the_members() -> None:
    held = Counter(n for p in range(1024) for n in holders(p, MEMBERS, 3))

    assert all(abs(held[n] - 1024 * 3 / 5) < 0.25 * 1024 * 3 / 5 for n in MEMBERS)
