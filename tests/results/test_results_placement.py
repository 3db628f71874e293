"""Assignments and data nodes over time, as values and as lanes of a run's picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.clock import NS_PER_S
from harness.history.records import OpType
from results.drawing import plots
from results.drawing.assignments_over_time import Placement, placement_over_time
from results.drawing.series import Outcomes

Row = dict[str, Any]


def wrote(revision: int, at_s: float, partition: int, **sets: list[str] | None) -> list[Row]:
    at_ns = int(at_s * NS_PER_S)
    row = {"revision": revision, "at_ns": at_ns, "partition": partition}
    return [{**row, "kind": kind, "nodes": nodes} for kind, nodes in sets.items()]


def changed(revision: int, at_s: float, kind: str, *nodes: str, zone: str = "Z") -> Row:
    row = {"revision": revision, "at_ns": int(at_s * NS_PER_S), "kind": kind, "zone": zone}
    return {**row, "nodes": list(nodes)}


ASSIGNMENTS = [
    *wrote(2, 0.5, 0, stable=["a"]),
    *wrote(3, 0.6, 1, stable=["a"]),
    *wrote(5, 2.0, 0, pending=["b"], planned=None),
    *wrote(7, 3.0, 0, stable=["b"], pending=None),
]
TOPOLOGY = [
    changed(1, 0.1, "logical", "a", "b"),
    changed(4, 1.0, "data-nodes", "a"),
    changed(6, 2.5, "data-nodes", "a", "b"),
    changed(8, 4.0, "logical", "a"),
]


def placed(end_s: float = 10.0, nodes: tuple[str, ...] = ("a", "b")) -> Placement:
    return placement_over_time(ASSIGNMENTS, TOPOLOGY, nodes, int(end_s * NS_PER_S))


def test_each_node_has_its_partitions_and_those_that_move() -> None:
    a, b = placed().nodes

    assert list(zip(a.at_s, a.stable, a.moving, strict=True)) == [
        (0.5, 1, 0), (0.6, 2, 0), (2.0, 2, 1), (3.0, 1, 0),
    ]  # fmt: skip
    assert list(zip(b.at_s, b.stable, b.moving, strict=True)) == [(2.0, 0, 1), (3.0, 1, 0)]


def test_each_node_is_in_the_topology_and_a_data_node_for_stretches_of_time() -> None:
    a, b = placed().nodes

    assert (a.joined, a.data) == (((0.1, 10.0),), ((1.0, 10.0),))
    assert (b.joined, b.data) == (((0.1, 4.0),), ((2.5, 10.0),))


def test_a_node_of_two_zones_is_a_data_node_as_long_as_it_is_one_of_either() -> None:
    rows = [
        changed(1, 1.0, "data-nodes", "a"),
        changed(2, 2.0, "data-nodes", "a", zone="Y"),
        changed(3, 3.0, "data-nodes"),
        changed(4, 5.0, "data-nodes", zone="Y"),
    ]
    (a,) = placement_over_time([], rows, ["a"], 9 * NS_PER_S).nodes

    assert a.data == ((1.0, 5.0),)


def test_a_run_whose_store_tells_nothing_has_no_such_lanes() -> None:
    none = np.array([])
    outcomes = Outcomes(invoke_s=none, complete_s=none, latency_s=none)
    scene = plots.Scene(
        operations=dict.fromkeys(OpType, outcomes), faults=(), phases=(("drive", 0.0),)
    )
    nothing = placement_over_time([], [], ["a"], NS_PER_S)

    assert not nothing.known
    bare = plots.draw(scene).svg
    assert plots.draw(plots.attrs.evolve(scene, placement=nothing)).svg == bare
    told = plots.draw(plots.attrs.evolve(scene, placement=placed())).svg
    assert "assignments and data nodes" in told
    assert told.count("partitions on it: 0 to 2") == 1
