"""Who held what over time, from the events of the store and the faults that were proven."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from harness.history.records import EventKind
from harness.history.schema import EVENTS
from results.drawing import role_lanes
from results.drawing.node_roles import (
    DOWN,
    OTHER,
    PAUSED,
    NodeRoles,
    RolesOverTime,
    briefly,
    roles_over_time,
)

S = 1_000_000_000
GRANTED, LOST = EventKind.LEASE_GRANTED, EventKind.LEASE_LOST
ELECTED, STARTED, EXITED = EventKind.LEADER_ELECTED, EventKind.NODE_STARTED, EventKind.NODE_EXITED


def events(*told: tuple[float, EventKind, str, int | None]) -> pa.Table:
    rows = [
        {
            "kind": kind.value,
            "node": node,
            "wall_ns": 0,
            "boot": "b",
            "at_ns": int(at_s * S),
            "uncertainty_ns": 0,
            "partition": partition,
            "text": "",
        }
        for at_s, kind, node, partition in told
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def fault(kind: str, node: str, start_s: float, end_s: float | None, **more: Any) -> dict[str, Any]:
    start_ns = int(start_s * S)
    return {
        "fault": 0,
        "state": "healed",
        "kind": kind,
        "target": node,
        "roles": [],
        "nodes": [node],
        "injecting_ns": start_ns,
        "injected_ns": start_ns,
        "effective_ns": start_ns,
        "healing_ns": None,
        "healed_ns": None if end_s is None else int(end_s * S),
    } | more


def lanes(told: pa.Table, *faults: dict[str, Any], end_s: float = 60) -> dict[str, NodeRoles]:
    found = roles_over_time(told, faults, ("n1", "n2"), int(end_s * S))
    return {lane.node: lane for lane in found.nodes}


def steps(lane: NodeRoles) -> list[tuple[float, int]]:
    return list(zip(lane.at_s, lane.held, strict=True))


def test_a_partition_goes_from_one_primary_to_the_next() -> None:
    found = lanes(events((1, GRANTED, "n1", 0), (2, GRANTED, "n1", 1), (9, GRANTED, "n2", 0)))

    assert steps(found["n1"]) == [(1, 1), (2, 2), (9, 1)]
    assert steps(found["n2"]) == [(9, 1)]


def test_leaders_are_counted_only_where_nobody_tells_of_primaries() -> None:
    elected = ((1.0, ELECTED, "n1", 0), (1.0, ELECTED, "n1", 1))
    granted = (2.0, GRANTED, "n2", 0)

    only_leaders = roles_over_time(events(*elected), (), ("n1",), 9 * S)
    both = roles_over_time(events(*elected, granted), (), ("n1", "n2"), 9 * S)

    assert (only_leaders.role, only_leaders.nodes[0].most) == ("leader", 2)
    assert (both.role, both.nodes[0].most, both.nodes[1].most) == ("primary", 0, 1)


def test_a_node_that_is_killed_holds_nothing_though_it_could_not_say_so() -> None:
    told = events((1, GRANTED, "n1", 0), (1, ELECTED, "n1", None), (20, STARTED, "n1", None))

    found = lanes(told, fault("kill", "n1", 10, 21))["n1"]

    assert steps(found) == [(1, 1), (10, 0)]
    assert found.leads == ((1, 10),)
    assert [(s.start_s, s.end_s, s.state) for s in found.stretches] == [(10, 21, DOWN)]


def test_a_paused_or_cut_off_node_holds_what_it_holds_until_somebody_else_does() -> None:
    told = events((1, GRANTED, "n1", 0), (13, GRANTED, "n2", 0))

    paused = lanes(told, fault("pause", "n1", 10, 20))["n1"]
    cut = lanes(told, fault("partition", "n1", 10, 20))["n1"]

    assert steps(paused) == steps(cut) == [(1, 1), (13, 0)]
    assert [s.state for s in (*paused.stretches, *cut.stretches)] == [PAUSED, OTHER]


def test_a_node_whose_own_lease_ran_out_is_no_primary_until_it_holds_again() -> None:
    told = events((1, GRANTED, "n1", 0), (5, LOST, "n1", None), (8, GRANTED, "n1", None))

    assert steps(lanes(told)["n1"]) == [(1, 1), (5, 0), (8, 1)]


def test_an_exit_that_nobody_asked_for_shows_until_the_node_is_back() -> None:
    told = events((1, GRANTED, "n1", 0), (5, EXITED, "n1", None), (9, STARTED, "n1", None))

    (stretch,) = lanes(told)["n1"].stretches
    assert (stretch.start_s, stretch.end_s, stretch.state) == (5, 9, DOWN)


def test_faults_without_proven_effect_are_not_drawn_and_unhealed_ones_last_to_the_end() -> None:
    vain = fault("kill", "n1", 10, None, effective_ns=None)
    left = fault("freeze", "n2", 10, None)

    found = lanes(events(), vain, left)

    assert found["n1"].stretches == ()
    assert found["n2"].stretches[0].end_s == 60


def test_the_metastorage_has_one_leader_at_a_time() -> None:
    found = lanes(events((1, ELECTED, "n1", None), (7, ELECTED, "n2", None)))

    assert found["n1"].leads == ((1, 7),)
    assert found["n2"].leads == ((7, 60),)


def test_roles_of_many_partitions_are_told_together() -> None:
    roles = (
        "leader of partition 1",
        "leader of partition 4",
        "metastorage leader",
        "follower of partition 2",
    )

    assert (
        briefly(roles) == "leader of partitions 1, 4; metastorage leader; follower of partition 2"
    )
    assert briefly(()) == ""
    assert briefly(("odd of partition ",)) == "odd of partition "


def test_a_cluster_with_more_nodes_than_lanes_says_so() -> None:
    from matplotlib.figure import Figure

    nodes = tuple(
        NodeRoles(node=f"n{i}", at_s=(0.0,), held=(1,), leads=(), stretches=()) for i in range(40)
    )

    notes = role_lanes.draw(Figure().subplots(), RolesOverTime(nodes=nodes, role="leader"), 0, 9)

    assert notes == ("Of the nodes' roles 16 more nodes are not drawn.",)


def test_the_legend_says_that_its_range_counts_partitions() -> None:
    from matplotlib.figure import Figure

    node = NodeRoles(node="n1", at_s=(0.0,), held=(2,), leads=(), stretches=())
    axes = Figure().subplots()

    role_lanes.draw(axes, RolesOverTime(nodes=(node,), role="primary"), 0, 9)

    (label,) = axes.get_legend().get_texts()
    assert label.get_text() == "primary of so many partitions: 0 to 2"
