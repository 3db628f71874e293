"""The two state machines and the fixed hashes, as functions of values."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.metastorage.assignments import (
    Assignment,
    Zone,
    assignments,
    first_assignments,
    reassigned,
)
from clusters.reference.node.metastorage.store import (
    Change,
    Condition,
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement import holders, partition_of
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.tx.partition import Partition, encode_command
from clusters.reference.node.wire.messages import Committed, CommitTx, Failed, Read

MEMBERS = ("n1", "n2", "n3", "n4", "n5")


def commit(
    partition: Partition,
    index: int,
    reads: tuple[tuple[bytes, int], ...] = (),
    writes: tuple[tuple[bytes, bytes], ...] = (),
) -> Committed | Failed:
    request = CommitTx(partition=0, reads=reads, writes=writes, limit_ms=1)
    return partition.apply(Entry(1, index, encode_command(request)))


def test_a_commit_installs_its_writes_at_its_index() -> None:
    partition = Partition()

    assert commit(partition, 5, reads=((b"k", 0),), writes=((b"k", b"v"),)) == Committed(5)
    assert partition.read(b"k") == Read(b"v", 5)
    assert commit(partition, 6, reads=((b"k", 5),)) == Committed(6)


def test_a_commit_that_read_an_older_version_changes_nothing() -> None:
    partition = Partition()
    commit(partition, 5, writes=((b"k", b"v"),))

    refused = commit(partition, 6, reads=((b"k", 4),), writes=((b"k", b"w"), (b"other", b"w")))

    assert isinstance(refused, Failed)
    assert refused.code == "TX-CONFLICT"
    assert partition.read(b"k") == Read(b"v", 5)
    assert partition.read(b"other") == Read(None, 0)


def test_a_leader_refuses_early_what_a_proposed_write_will_break() -> None:
    partition = Partition()
    write = CommitTx(partition=0, reads=(), writes=((b"k", b"v"),), limit_ms=1)
    reader = CommitTx(partition=0, reads=((b"k", 0),), writes=(), limit_ms=1)
    assert partition.admit(reader) is None

    partition.proposed(write, 5)

    assert partition.admit(reader) is not None
    assert partition.admit(write) is None  # a blind write has read nothing that could change
    partition.lead_lost()
    assert partition.admit(reader) is None


def test_what_was_in_flight_is_free_again_once_applied() -> None:
    partition = Partition()
    write = CommitTx(partition=0, reads=(), writes=((b"k", b"v"),), limit_ms=1)
    partition.proposed(write, 5)
    partition.proposed(write, 6)
    reader = CommitTx(partition=0, reads=((b"k", 6),), writes=(), limit_ms=1)

    partition.apply(Entry(1, 5, encode_command(write)))
    assert partition.admit(reader) is not None
    partition.apply(Entry(1, 6, encode_command(write)))
    assert partition.admit(reader) is None


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


def test_watches_see_their_prefix_in_revision_order_and_removals() -> None:
    store, seen = Metastorage(), list[Change]()
    store.watch("a/", seen.append)

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


def test_a_saved_state_machine_comes_back_as_it_was_and_goes_on() -> None:
    partition = Partition()
    for index in range(1, 2000):
        commit(partition, index, writes=((b"%d" % (index % 700), b"v" * 500),))
    chunks = partition.snapshot()
    seen = {b"%d" % i: partition.read(b"%d" % i) for i in range(701)}
    commit(partition, 2000, writes=((b"1", b"later"),))
    other = Partition()
    commit(other, 1, writes=((b"not in the snapshot", b"x"),))

    pieces = list(chunks)
    other.restore(pieces)

    assert len(pieces) > 1
    assert {key: other.read(key) for key in seen} == seen
    assert other.read(b"not in the snapshot") == Read(None, 0)
    assert commit(other, 2000, reads=((b"1", seen[b"1"].version),)) == Committed(2000)


def test_watchers_of_restored_metastorage_are_told_once_of_all_that_differs() -> None:
    store, other, seen = Metastorage(), Metastorage(), list[Change]()
    for target in (store, other):
        invoke(target, 1, Invoke((), (Operation("kept", b"1"), Operation("gone", b"2"))))
    invoke(store, 2, Invoke((), (Operation("gone", None), Operation("new", b"3"))))
    invoke(store, 3, Invoke((), (Operation("new", b"4"),)))
    other.watch("", seen.append)

    other.restore(store.snapshot())

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
