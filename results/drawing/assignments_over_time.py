"""Where data is over the time of a run: of each node how many partitions are assigned to it, and
when it was among the data nodes and in the logical topology.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from harness.clock import NS_PER_S
from harness.protocols.changes import AssignmentKind, TopologyKind

Row = Mapping[str, Any]
Span = tuple[float, float]


@attrs.frozen(kw_only=True)
class NodePlacement:
    """One node. From each of ``at_s`` on so many partitions were on it (``stable``), and so many
    were on their way to it or from it (``moving``: pending and stable differ about the node).
    ``joined`` and ``data``: when it was in the logical topology, and among some zone's data nodes.
    """

    node: str
    at_s: tuple[float, ...]
    stable: tuple[int, ...]
    moving: tuple[int, ...]
    joined: tuple[Span, ...]
    data: tuple[Span, ...]

    @property
    def most(self) -> int:
        """The most partitions of a kind at once."""
        return max((*self.stable, *self.moving), default=0)


@attrs.frozen(kw_only=True)
class Placement:
    """Every node, by name."""

    nodes: tuple[NodePlacement, ...]

    @property
    def known(self) -> bool:
        """Whether there is anything to draw."""
        return any(lane.most or lane.joined or lane.data for lane in self.nodes)


def placement_over_time(
    assignments: Iterable[Row], topology: Iterable[Row], nodes: Iterable[str], end_ns: int
) -> Placement:
    """Return the placement of ``nodes`` in a run that ended at ``end_ns``, from the rows of its
    changes.
    """
    names = tuple(nodes)
    steps = _steps(assignments, names)
    joined, data = _members(topology, end_ns)
    return Placement(
        nodes=tuple(
            NodePlacement(
                node=node,
                at_s=tuple(at_s for at_s, *_ in steps[node]),
                stable=tuple(stable for _, stable, _ in steps[node]),
                moving=tuple(moving for *_, moving in steps[node]),
                joined=tuple(joined.get(node, ())),
                data=tuple(data.get(node, ())),
            )
            for node in names
        )
    )


def _steps(
    assignments: Iterable[Row], names: tuple[str, ...]
) -> dict[str, list[tuple[float, int, int]]]:
    """By node each time at which its counts changed, with both counts from then on."""
    stable: dict[int, frozenset[str]] = {}
    pending: dict[int, frozenset[str] | None] = {}
    counts = {node: [0, 0] for node in names}
    found: dict[str, list[tuple[float, int, int]]] = {node: [] for node in names}
    kinds = (AssignmentKind.STABLE, AssignmentKind.PENDING)
    by_revision: dict[int, list[Row]] = defaultdict(list)
    for row in assignments:
        if row["kind"] in kinds:
            by_revision[row["revision"]].append(row)
    for _, rows in sorted(by_revision.items()):
        partitions = dict.fromkeys(row["partition"] for row in rows)
        touched = {p: _moving(stable, pending, p) for p in partitions}
        before = {p: stable.get(p, frozenset()) for p in partitions}
        for row in rows:
            nodes = None if row["nodes"] is None else frozenset(row["nodes"])
            if row["kind"] == AssignmentKind.STABLE:
                stable[row["partition"]] = nodes or frozenset()
            else:
                pending[row["partition"]] = nodes
        for partition in partitions:
            _count(counts, 0, before[partition], stable.get(partition, frozenset()))
            _count(counts, 1, touched[partition], _moving(stable, pending, partition))
        at_s = min(row["at_ns"] for row in rows) / NS_PER_S
        for node, (held, moving) in counts.items():
            last = found[node][-1] if found[node] else (0.0, 0, 0)
            if (held, moving) != last[1:]:
                # Times are those of different nodes: none may lie before the one before.
                found[node].append((max(at_s, last[0]), held, moving))
    return found


def _moving(
    stable: dict[int, frozenset[str]], pending: dict[int, frozenset[str] | None], partition: int
) -> frozenset[str]:
    aim = pending.get(partition)
    return frozenset() if aim is None else aim ^ stable.get(partition, frozenset())


def _count(
    counts: dict[str, list[int]], kind: int, before: frozenset[str], after: frozenset[str]
) -> None:
    for node in before ^ after:
        if node in counts:
            counts[node][kind] += 1 if node in after else -1


def _members(
    topology: Iterable[Row], end_ns: int
) -> tuple[dict[str, list[Span]], dict[str, list[Span]]]:
    """By node the times in which it had joined, and those in which it was a data node."""
    logical: list[tuple[int, frozenset[str]]] = []
    data: list[tuple[int, frozenset[str]]] = []
    zones: dict[str, frozenset[str]] = {}
    for row in sorted(topology, key=lambda row: row["revision"]):
        if row["kind"] == TopologyKind.LOGICAL:
            logical.append((row["at_ns"], frozenset(row["nodes"] or ())))
        elif row["kind"] == TopologyKind.DATA_NODES:
            zones[row["zone"]] = frozenset(row["nodes"] or ())
            data.append((row["at_ns"], frozenset().union(*zones.values())))
    return _spans(logical, end_ns), _spans(data, end_ns)


def _spans(changes: list[tuple[int, frozenset[str]]], end_ns: int) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    since: dict[str, int] = {}
    for at_ns, nodes in [*changes, (end_ns, frozenset[str]())]:
        for node in sorted(since.keys() - nodes):
            start_ns = since.pop(node)
            span = (start_ns / NS_PER_S, max(at_ns, start_ns) / NS_PER_S)
            found.setdefault(node, []).append(span)
        for node in sorted(nodes - since.keys()):
            since[node] = at_ns
    return found
