"""What is said of an anomaly and the fault that it is attributed to (``fault_attribution``).

Where no fault explains it, the one that had been healed last is named with its distance, and
accuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from checkers.explain.fault_attribution import HEAL, HOLD, INJECT, KnownFaults, attribute
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.finding import Explanation, RecordedOperation
from harness.protocols.roles import parse
from harness.text import seconds

ACKNOWLEDGED, BEGAN = "acknowledged", "began to show"
_VERBS = {ACKNOWLEDGED: "was acknowledged", BEGAN: "began to show"}
_DURING = (INJECT, HOLD, HEAL)
ROLES_SHOWN = 4  # of many partitions; what comes after them in a sentence is read too

_OPERATIONS = pa.schema(
    [
        ("since_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("shown_ns", pa.int64()),
        ("partition", pa.int32()),
    ]
)


def explain(row: dict[str, Any], event: str, known: KnownFaults) -> Explanation | None:
    """Return the explanation of an attributed row (without ``OF_FAULTS``); ``None`` in a run
    without faults.

    ``event`` names the event at ``ack_ns`` in a word.
    """
    if row["fault"] is None:
        return _unexplained(row, event, known)
    span = known.by_number[row["fault"]]
    who = _who(span, row.get("partition"))
    since = f"from {seconds(row['fault_start_ns'])}"
    when = "during" if row["phase"] in _DURING else row["phase"]
    until = "" if row["fault_end_ns"] is None else f" to {seconds(row['fault_end_ns'])}"
    return Explanation(
        fault=row["fault"],
        kind=row["fault_kind"],
        target=row["fault_target"],
        nodes=span.nodes,
        roles=span.roles,
        phase=row["phase"],
        boundary=row["boundary"],
        distance_ns=row["distance_ns"],
        text=f"{event} at {seconds(row['ack_ns'])}, {when} {row['fault_kind']} of {who}, in force "
        f"{since}{until} ({_distance(row)})",
    )


def _distance(row: dict[str, Any]) -> str:
    away_ns = row["distance_ns"]
    side = "after" if away_ns >= 0 else "before"
    phase = f"{row['phase']}: " if row["phase"] in _DURING else ""
    return f"{phase}{seconds(abs(away_ns))} {side} its {row['boundary']}"


def _unexplained(row: dict[str, Any], event: str, known: KnownFaults) -> Explanation | None:
    """Say that no fault was in force, and how long the last one had been healed.

    ``None`` where another harness recorded the faults: nothing proves when theirs were in force,
    and its history may tell no times.
    """
    if not known.any_of_ours:
        return None
    if last := known.last_healed(row["since_ns"]):
        healed_ns, span = last
        away = seconds(row["since_ns"] - healed_ns)
        who = _who(span, row.get("partition"))
        why = f"the last, {span.kind} of {who}, had been proven healed for {away}"
    else:
        why = "none had begun by then"
    text = f"no fault was in force when it {_VERBS[event]} at {seconds(row['ack_ns'])}: {why}"
    return Explanation(text=text, no_fault=True)


def _who(span: FaultSpan, partition: int | None) -> str:
    """Name the targets of a fault, and their roles."""
    names, held = ", ".join(span.nodes), _roles(span.roles, partition)
    return f"{names} ({held})" if held else names or span.target


def _roles(roles: Sequence[str], partition: int | None) -> str:
    """Name the targets' roles, ``ROLES_SHOWN`` at most: those in ``partition`` first."""
    shown = sorted(roles, key=lambda text: partition is None or not _is_in(text, partition))
    more = len(shown) - ROLES_SHOWN
    rest = [f"{more} more roles"] if more > 0 else []
    return ", ".join([*shown[:ROLES_SHOWN], *rest])


def _is_in(text: str, partition: int) -> bool:
    role = parse(text)
    return role is not None and role.partition == partition


def explain_operations(
    operations: Iterable[RecordedOperation], known: KnownFaults, since_ns: int | None = None
) -> Explanation | None:
    """Return the explanation of an anomaly that these operations show: the fault nearest to the
    first completion among them, of those in force while they went on, or since ``since_ns``, where
    the anomaly may have arisen before.
    """
    shown = tuple(operations)
    done = [operation.complete_ns for operation in shown]
    row = {
        "since_ns": min([op.invoke_ns for op in shown] if since_ns is None else [since_ns]),
        "ack_ns": min(done),
        "shown_ns": max(done),
        "partition": None,
    }
    found = attribute(pa.Table.from_pylist([row], schema=_OPERATIONS), known)
    return explain(found.to_pylist()[0], BEGAN, known)
