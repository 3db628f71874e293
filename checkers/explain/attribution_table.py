"""The table of what faults did to writes: how many were lost, reverted, torn, resurrected or read
stale, by mode, fault, role of its target, and phase.

Losses are counted each. Of all else a verdict explains its examples only, which is said in ``of``:
the number of findings that the examples stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from harness.protocols.consistency_models import (
    EMPTIED_BY_RESET,
    MIXED_GENERATIONS,
    RETURNED_WRITE,
    STALE_READS,
    TORN_BY_RESET,
    TORN_IN_PARTITION,
)
from harness.protocols.finding import Explanation
from harness.protocols.roles import RoleKind, parsed
from harness.protocols.verdict import Anomaly

LOST, REVERTED, TORN, RESURRECTED, STALE = "lost", "reverted", "torn", "resurrected", "stale"
ORDER = (LOST, REVERTED, TORN, RESURRECTED, STALE)
BY_EXAMPLES = {
    EMPTIED_BY_RESET: LOST,
    TORN_BY_RESET: TORN,
    TORN_IN_PARTITION: TORN,
    RETURNED_WRITE: RESURRECTED,
    MIXED_GENERATIONS: RESURRECTED,
    **dict.fromkeys(STALE_READS, STALE),
}
NO_FAULT, NO_ROLE = "no fault", "none"

# The more of a partition's life a role decides, the earlier it is named.
_RANK = tuple(RoleKind)


@attrs.frozen(kw_only=True)
class Attribution:
    """One write with the fault that explains it, and ``reset``, whether a reset does; ``of``: how
    many findings it stands for.
    """

    write: str
    fault: int | None = None
    kind: str | None = None
    role: str
    phase: str | None = None
    reset: bool = False
    distance_ns: int | None = None
    of: int = 1


def table(mode: str, found: Iterable[Attribution]) -> list[dict[str, Any]]:
    """Return the rows, each with its count and the least distance to a boundary of its fault."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in found:
        row: dict[str, Any] = {
            "write": one.write,
            "mode": mode,
            "fault": one.fault,
            "kind": NO_FAULT if one.kind is None else one.kind,
            "role": one.role,
            "phase": one.phase,
            "reset": one.reset,
        }
        key = tuple(row.values())
        held = rows.setdefault(key, row | {"count": 0, "of": 0, "nearest_ns": None})
        held["count"] += 1
        held["of"] = max(held["of"] + (one.of == 1), one.of)
        near_ns = one.distance_ns
        if near_ns is not None and (
            held["nearest_ns"] is None or abs(near_ns) < abs(held["nearest_ns"])
        ):
            held["nearest_ns"] = near_ns
    return sorted(rows.values(), key=_order)


@attrs.frozen(kw_only=True)
class DecidingRoles:
    """The role of a fault's targets that tells most: of all, and in each partition."""

    every: RoleKind | None
    of_cluster: RoleKind | None
    of_partition: Mapping[int, RoleKind]

    @classmethod
    def of(cls, roles: Iterable[str]) -> DecidingRoles:
        """Those among the texts ``roles``."""
        held: dict[int | None, list[RoleKind]] = {}
        for each in parsed(roles):
            held.setdefault(each.partition, []).append(each.kind)
        most = {where: min(kinds, key=_RANK.index) for where, kinds in held.items()}
        return cls(
            every=min(most.values(), key=_RANK.index, default=None),
            of_cluster=most.get(None),
            of_partition={where: kind for where, kind in most.items() if where is not None},
        )

    def name(self, partition: int | None) -> str:
        """Name it: in ``partition``, where that is known."""
        if partition is None:
            here: tuple[RoleKind | None, ...] = (self.every,)
        else:
            here = (self.of_partition.get(partition), self.of_cluster)
        held = [kind for kind in here if kind is not None]
        return min(held, key=_RANK.index).value if held else NO_ROLE


def by_examples(anomalies: Mapping[str, Anomaly]) -> tuple[Attribution, ...]:
    """Return what the examples of ``anomalies`` explain, but for losses."""
    return tuple(
        _of_example(BY_EXAMPLES[name], e.explained_by, max(anomaly.count, 1))
        for name, anomaly in sorted(anomalies.items())
        if name in BY_EXAMPLES
        for e in anomaly.examples
    )


def _of_example(write: str, why: Explanation | None, of: int) -> Attribution:
    if why is None:
        return Attribution(write=write, role=NO_ROLE, of=of)
    return Attribution(
        write=write,
        fault=why.fault,
        kind=why.kind,
        role=DecidingRoles.of(why.roles or ()).name(None),
        phase=why.phase,
        reset=why.reset is not None,
        distance_ns=why.distance_ns,
        of=of,
    )


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    fault, phase = row["fault"], row["phase"]
    where = (fault is None, fault or 0, row["role"], phase or "", row["reset"])
    return (ORDER.index(row["write"]), *where)
