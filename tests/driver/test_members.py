"""Clients of a cluster whose members change."""

from __future__ import annotations

import pytest

from harness.driving.process_slots import Slot, Slots
from harness.errors import HarnessBug
from harness.protocols.cluster import Cluster
from harness.protocols.cluster_membership import Membership

NODES = ("n1", "n2", "n3")


def slots() -> Slots:
    return Slots(range(4), concurrency=4, nodes=NODES, note=lambda _slot, text: print(text))


def connected(slot: Slot) -> Slot:
    client: object = object()
    slot.client = client  # type: ignore[assignment]
    return slot


def test_a_connection_to_a_member_outlives_every_change() -> None:
    found = slots()
    slot = found.take(1)
    assert slot is not None
    assert found.node(connected(slot)) == "n2"

    for nodes in (("n1", "n2"), ("n2", "n3", "n4", "n5"), ("n5", "n2")):
        found.nodes = nodes
        assert found.node(slot) == "n2"


def test_a_client_turns_to_a_member_once_its_connection_to_a_node_that_left_is_gone() -> None:
    found = slots()
    slot = found.take(2)
    assert slot is not None
    assert found.node(connected(slot)) == "n3"

    found.nodes = ("n1", "n2")
    # Up to then what it sends is on its way to the node that it is connected to.
    assert found.node(slot) == "n3"
    slot.client = None
    assert found.node(slot) == "n1"


def test_a_process_without_a_connection_waits_for_its_node_as_long_as_that_is_a_member() -> None:
    found = slots()
    slot = found.take(0)
    assert slot is not None
    assert found.node(slot) == "n1"
    found.nodes = ("n1", "n2", "n3", "n4")
    assert found.node(slot) == "n1"


def test_new_processes_connect_to_nodes_that_joined() -> None:
    found = slots()
    slot = found.take(3)
    assert slot is not None
    found.nodes = (*NODES, "n4")
    assert found.node(slot) == "n4"


def membership() -> tuple[Membership, list[tuple[str, ...]]]:
    cluster = Cluster(nodes=NODES, spares=("n4", "n5"), bind={}, peer={}, client={}, work_dir={})
    members, seen = Membership(cluster), list[tuple[str, ...]]()
    members.observe(seen.append)
    return members, seen


def test_members_and_spares_are_always_all_machines_in_the_order_of_the_plan() -> None:
    members, seen = membership()
    members.join("n5")
    members.leave("n2")
    assert members.cluster.nodes == ("n1", "n3", "n5")
    assert members.cluster.spares == ("n2", "n4")
    members.join("n2")
    assert members.cluster.nodes == ("n1", "n2", "n3", "n5")
    assert seen == [("n1", "n2", "n3", "n5"), ("n1", "n3", "n5"), ("n1", "n2", "n3", "n5")]


def test_what_changes_nothing_is_told_to_nobody() -> None:
    members, seen = membership()
    members.join("n1")
    members.leave("n4")
    assert seen == []


def test_a_stranger_and_the_last_member_are_refused() -> None:
    members, _ = membership()
    with pytest.raises(HarnessBug, match="no machine of this run: n9"):
        members.join("n9")
    members.leave("n1")
    members.leave("n2")
    with pytest.raises(HarnessBug, match="the last member"):
        members.leave("n3")
