"""The stored form of what metastorage holds about a partition, there and back."""

from __future__ import annotations

from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance.keys import (
    APPLIED,
    FOUNDERS,
    PartitionId,
    Position,
    encode_founders,
    founders,
    read,
)

PARTITION = PartitionId(7, 3)


def holding(prefix: str, value: bytes) -> Metastorage:
    made = Metastorage()
    invoke = Invoke((), (Operation(PARTITION.key(prefix), value),))
    made.apply(Entry(1, 1, encode_invoke(invoke)))
    return made


def test_the_founders_of_a_group_are_read_as_they_were_written_and_none_before() -> None:
    members = ("b@1", "a@2")

    assert founders(holding(FOUNDERS, encode_founders(members)), PARTITION) == members
    assert founders(Metastorage(), PARTITION) == ()


def test_a_position_keeps_all_of_its_numbers_and_compares_by_generation_first() -> None:
    largest = 2**64 - 1
    positions = [Position(0, 7), Position(0, largest), Position(1, 0), Position(largest, largest)]

    for position in positions:
        assert read(holding(APPLIED, position.encode()), PARTITION).applied == position
    stored = [position.encode() for position in positions]
    assert stored == sorted(stored)
