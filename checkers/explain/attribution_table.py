"""The table of what faults did to writes: how many were lost, reverted, torn, resurrected or read
stale, by mode, fault, role of its target, and phase.

Losses are counted each. Of all else a verdict explains its examples only, which is said in ``of``:
the number of findings that the examples stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from harness.protocols.finding import Explanation
from harness.protocols.models import (
    EMPTIED_BY_RESET,
    MIXED_GENERATIONS,
    RETURNED_WRITE,
    STALE_READS,
    TORN_BY_RESET,
    TORN_IN_PARTITION,
)
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
class Attributed:
    """One write with what explains it: ``partition`` is the write's, if it is known."""

    write: str
    explained: Explanation | None
    partition: int | None = None
    of: int = 1


def table(mode: str, found: Iterable[Attributed]) -> list[dict[str, Any]]:
    """Return the rows, each with its count and the least distance to a boundary of its fault."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in found:
        why = one.explained
        fault = None if why is None else why.fault
        row: dict[str, Any] = {
            "write": one.write,
            "mode": mode,
            "fault": fault,
            "kind": NO_FAULT if why is None or why.kind is None else why.kind,
            "role": role(() if why is None else why.roles or (), one.partition),
            "phase": None if why is None else why.phase,
            "reset": why is not None and why.reset is not None,
        }
        key = tuple(row.values())
        held = rows.setdefault(key, row | {"count": 0, "of": 0, "nearest_ns": None})
        held["count"] += 1
        held["of"] = max(held["of"] + (one.of == 1), one.of)
        near_ns = None if why is None else why.distance_ns
        if near_ns is not None and (
            held["nearest_ns"] is None or abs(near_ns) < abs(held["nearest_ns"])
        ):
            held["nearest_ns"] = near_ns
    return sorted(rows.values(), key=_order)


def role(roles: Iterable[str], partition: int | None) -> str:
    """Name the role of a fault's targets that tells most: in ``partition`` where that is known."""
    held = list(parsed(roles))
    here = [r.kind for r in held if partition is None or r.partition in (None, partition)]
    return min(here, key=_RANK.index).value if here else NO_ROLE


def by_examples(anomalies: Mapping[str, Anomaly]) -> tuple[Attributed, ...]:
    """Return what the examples of ``anomalies`` explain, but for losses."""
    return tuple(
        Attributed(write=BY_EXAMPLES[name], explained=e.explained_by, of=max(anomaly.count, 1))
        for name, anomaly in sorted(anomalies.items())
        if name in BY_EXAMPLES
        for e in anomaly.examples
    )


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    fault, phase = row["fault"], row["phase"]
    where = (fault is None, fault or 0, row["role"], phase or "", row["reset"])
    return (ORDER.index(row["write"]), *where)
