"""Tables of assignments, topology, states, faults and phases, written by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from harness.clock import NS_PER_S
from harness.history.schema import EVENTS, FAULTS
from harness.protocols.checker import Part, Tables
from harness.protocols.promise import Affinity, Declaration
from harness.protocols.setting import Setting
from harness.run.change_recorder import ASSIGNMENTS, TOPOLOGY
from harness.run.state_log import STATES

Row = dict[str, Any]


def ns(at_s: float) -> int:
    return int(at_s * NS_PER_S)


def nodes(text: str | None) -> list[str] | None:
    return None if text is None else [f"n{letter}" for letter in text]


def wrote(revision: int, at_s: float, **keys: Any) -> list[Row]:
    """What a revision wrote about partition 0: a set as its nodes ("abc"), ``None`` where it was
    removed, a lock as (nodes, term), a trigger as its number.
    """
    found = []
    for kind, value in keys.items():
        row: Row = {"revision": revision, "at_ns": ns(at_s), "node": "na", "partition": 0}
        row |= {"table": "T", "zone": "Z", "kind": kind, "text": ""}
        if kind == "trigger":
            row["number"] = value
        elif kind == "lock" and value is not None:
            row |= {"nodes": nodes(value[0]), "term": value[1]}
        else:
            row["nodes"] = nodes(value)
        found.append(row)
    return found


def topology(revision: int, at_s: float, kind: str, named: str | None = None, **more: Any) -> Row:
    """A change of topology or zone; ``named`` are nodes."""
    row: Row = {"revision": revision, "at_ns": ns(at_s), "node": "na", "kind": kind, "zone": "Z"}
    return row | {"nodes": nodes(named), "text": ""} | more


def state(at_s: float, node: str, partition: int | None = 0, **more: Any) -> Row:
    """A sample of the state of one replica."""
    row: Row = {"asked_ns": ns(at_s), "answered_ns": ns(at_s) + 1, "final": False, "node": node}
    row |= {"life": node, "boot": f"{node}-1", "partition": partition, "voter": True}
    return row | {"group": "m" if partition is None else f"p{partition}"} | more


def fault(at_s: float, until_s: float | None, kind: str = "kill", *on: str) -> Row:
    """A fault that was healed at ``until_s``."""
    row: Row = {"fault": 0, "kind": kind, "target": "", "nodes": list(on), "roles": []}
    row |= {"injecting_ns": ns(at_s), "injected_ns": ns(at_s), "effective_ns": ns(at_s)}
    healed = None if until_s is None else ns(until_s)
    return row | {"healing_ns": healed, "healed_ns": healed, "state": "healed"}


def tables(
    assignments: list[Row] = [],  # noqa: B006 - never written to
    rows: list[Row] = [],  # noqa: B006
    states: list[Row] = [],  # noqa: B006
    faults: list[Row] = [],  # noqa: B006
    events: list[Row] = [],  # noqa: B006
) -> Tables:
    return {
        "assignments": pa.Table.from_pylist(assignments, schema=ASSIGNMENTS),
        "topology": pa.Table.from_pylist(rows, schema=TOPOLOGY),
        "states": pa.Table.from_pylist(states, schema=STATES),
        "faults": pa.Table.from_pylist(faults, schema=FAULTS),
        "events": pa.Table.from_pylist(events, schema=EVENTS),
    }


def setting(
    end_s: float, variant: str = "base", affinities: tuple[Affinity, ...] | None = None
) -> Setting:
    """Of a run that collected its states at ``end_s``."""
    declaration = Declaration(
        system="s",
        mode="SC",
        promises=(),
        rebalance=variant,
        affinities=msgspec.UNSET if affinities is None else affinities,
    )
    phases = (("drive", 0), ("collect", ns(end_s)))
    return Setting(model="strict-serializable", declaration=declaration, phases=phases)


def names(part: Part) -> list[str]:
    return sorted(part.anomalies)
