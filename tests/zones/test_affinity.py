"""Rendezvous: its balance, minimal movement, and functions by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from clusters.reference.node.placement.rendezvous import holders
from clusters.reference.node.zones.affinity import FUNCTIONS, UnknownAffinity, assigned

NODES = [f"node{number}" for number in range(16)]


def rendezvous(nodes: Sequence[str], replicas: int = 3) -> tuple[tuple[str, ...], ...]:
    return assigned(function="rendezvous", partitions=1024, replicas=replicas, nodes=nodes)


def test_rendezvous_is_balanced_to_a_quarter_of_the_mean() -> None:
    held = Counter(node for partition in rendezvous(NODES) for node in partition)
    mean = 1024 * 3 / 16

    assert set(held) == set(NODES)
    assert max(held.values()) <= 1.25 * mean
    assert min(held.values()) >= 0.75 * mean


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_join_moves_only_onto_the_node_and_a_leave_only_off_it(replicas: int) -> None:
    before, after = rendezvous(NODES[:-1], replicas), rendezvous(NODES, replicas)
    joined = NODES[-1]
    moved = 0
    for old, new in zip(before, after, strict=True):
        assert set(new) - set(old) <= {joined}
        assert (joined in new) == (set(old) != set(new))
        assert len(new) == len(old) == replicas
        moved += joined in new

    # As many as the node's fair share.
    assert 0.75 * 1024 * replicas / 16 <= moved <= 1.25 * 1024 * replicas / 16


def test_another_number_of_replicas_keeps_the_nodes_there_are() -> None:
    for fewer, more in zip(rendezvous(NODES, 3), rendezvous(NODES, 5), strict=True):
        assert set(fewer) < set(more)


def test_fewer_nodes_than_replicas_hold_everything_and_none_holds_nothing() -> None:
    assert set(rendezvous(["b", "a"])) == {("a", "b")}
    assert set(rendezvous([])) == {()}


def test_the_order_of_the_nodes_does_not_count() -> None:
    assert rendezvous(NODES) == rendezvous(NODES[::-1])


def test_a_partition_has_the_holders_that_it_had_before_zones() -> None:
    assert rendezvous(NODES)[7] == tuple(sorted(holders(7, NODES, 3)))


def test_a_function_is_found_by_its_name() -> None:
    def first(partition: int, members: Sequence[str], replicas: int) -> tuple[str, ...]:
        return tuple(sorted(members)[:replicas])

    found = assigned(
        function="first",
        partitions=2,
        replicas=2,
        nodes=["c", "a", "b"],
        functions={**FUNCTIONS, "first": first},
    )

    assert found == (("a", "b"), ("a", "b"))
    with pytest.raises(UnknownAffinity, match="no affinity function 'first'; expected rendezvous"):
        assigned(function="first", partitions=1, replicas=1, nodes=["a"])
