"""Attribution of an anomaly to a fault: by time, and by the roles of the fault's targets.

A fault counts as in force from the moment when its injection begins until it is proven healed
(``fault_spans``). A loss is tried against every fault that was in force at some moment from the
begin of the write to the end of the read that shows it; a fault that hit the leader or the primary
of the very partition within ``NEAR_NS`` of the acknowledgement is preferred, then one in force at
it, then the nearest. Where there is none, no fault explains the loss: the one that had been healed
last is named with its distance, and accuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from checkers.engine.spans import FOREVER_NS
from harness.clock import NS_PER_S
from harness.history.records import FaultState
from harness.protocols.fault_spans import fault_spans
from harness.protocols.finding import Explanation, RecordedOperation
from harness.protocols.roles import Role, RoleKind, parse
from harness.text import seconds

# A leader's fault this near explains better than another fault that happens to be in force.
NEAR_NS = 5_000_000_000
ACKNOWLEDGED, BEGAN = "acknowledged", "began to show"
_VERBS = {ACKNOWLEDGED: "was acknowledged", BEGAN: "began to show"}
BEFORE, INJECT, HOLD, HEAL, AFTER = PHASES = ("before", "inject", "hold", "heal", "after")
"""The phases of a fault, between the steps of its life (``harness.protocols.fault_spans``)."""
_DURING = (INJECT, HOLD, HEAL)
_STEPS = {
    "start_ns": "injection",
    "effective_ns": "effect",
    "healing_ns": "healing",
    "end_ns": "heal",
}
ROLES_SHOWN = 4  # of many partitions; what comes after them in a sentence is read too

_EXPLANATION = pa.schema(
    [
        ("fault", pa.int64()),
        ("fault_kind", pa.string()),
        ("fault_target", pa.string()),
        ("fault_nodes", pa.list_(pa.string())),
        ("fault_roles", pa.list_(pa.string())),
        ("fault_start_ns", pa.int64()),
        ("fault_end_ns", pa.int64()),
        ("phase", pa.string()),
        ("boundary", pa.string()),
        ("distance_ns", pa.int64()),
    ]
)


_KEPT = ("fault", "kind", "target", "nodes", "roles", "state")
_OPERATIONS = pa.schema(
    [
        ("since_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("read_ns", pa.int64()),
        ("partition", pa.int32()),
    ]
)


def windows(faults: pa.Table) -> list[dict[str, Any]]:
    """Return the faults that were injected: (fault, kind, target, nodes, roles, state, start_ns,
    effective_ns, healing_ns, end_ns), in the order of their start; a time but the first is ``None``
    where that step was never seen.
    """
    rows = {row["fault"]: row for row in faults.to_pylist()}
    return [
        {name: rows[span.fault][name] for name in _KEPT}
        | {"start_ns": span.begin_ns, "effective_ns": span.effective_ns}
        | {"healing_ns": span.healing_ns, "end_ns": span.healed_ns}
        for span in fault_spans(rows.values())
    ]


def attribute(lost: pa.Table, faults: pa.Table) -> pa.Table:
    """Return ``lost`` (``since_ns``, ``ack_ns``, ``read_ns``, ``partition``) with the fault that
    explains each row.

    ``phase`` is the acknowledgement's (``PHASES``), ``boundary`` the step of the fault that it is
    nearest to, and ``distance_ns`` how long after that it came, negative before it. All columns are
    null where no fault was in force from ``since_ns`` to ``read_ns``.
    """
    known = windows(faults)
    chosen = [_explaining(row, known) for row in lost.to_pylist()]
    return pa.Table.from_arrays(
        lost.columns + pa.Table.from_pylist(chosen, schema=_EXPLANATION).columns,
        schema=pa.schema([*lost.schema, *_EXPLANATION]),
    )


def _explaining(loss: dict[str, Any], known: list[dict[str, Any]]) -> dict[str, Any]:
    candidates = [
        w
        for w in known
        if w["start_ns"] <= loss["read_ns"]
        and (w["end_ns"] is None or w["end_ns"] >= loss["since_ns"])
    ]
    if not candidates:
        return {}
    window = min(candidates, key=lambda w: _rank(loss, w))
    return {
        "fault": window["fault"],
        "fault_kind": window["kind"],
        "fault_target": window["target"],
        "fault_nodes": window["nodes"],
        "fault_roles": window["roles"],
        "fault_start_ns": window["start_ns"],
        "fault_end_ns": window["end_ns"],
        "phase": _phase(loss["ack_ns"], window),
        **_nearest(loss["ack_ns"], window),
    }


def _rank(loss: dict[str, Any], window: dict[str, Any]) -> tuple[bool, int, int]:
    end_ns = FOREVER_NS if window["end_ns"] is None else window["end_ns"]
    away_ns = max(window["start_ns"] - loss["ack_ns"], loss["ack_ns"] - end_ns, 0)
    held, partition = window["roles"] or (), loss["partition"]
    led = any(str(Role(kind, partition)) in held for kind in (RoleKind.PRIMARY, RoleKind.LEADER))
    # The number last: between equals the answer must always be the same.
    return not (led and away_ns <= NEAR_NS), away_ns, window["fault"]


def _phase(at_ns: int, window: dict[str, Any]) -> str:
    """Place a moment in the life of a fault; a step that was never seen bounds nothing."""
    steps = ("end_ns", "healing_ns", "effective_ns", "start_ns")
    phases = dict(zip(steps, reversed(PHASES), strict=False))
    for step, phase in phases.items():
        last = step == "end_ns"  # at the very moment of the heal it is not over
        begun_ns = window[step]
        if begun_ns is not None and (at_ns > begun_ns if last else at_ns >= begun_ns):
            return phase
    return BEFORE


def _nearest(at_ns: int, window: dict[str, Any]) -> dict[str, Any]:
    known = [(name, window[step]) for step, name in _STEPS.items() if window[step] is not None]
    name, nearest_ns = min(known, key=lambda step: abs(at_ns - step[1]))
    return {"boundary": name, "distance_ns": at_ns - nearest_ns}


def explain(row: dict[str, Any], event: str, faults: pa.Table) -> Explanation | None:
    """Return the explanation of an attributed row; ``None`` in a run without faults.

    ``event`` names the event at ``ack_ns`` in a word.
    """
    if row["fault"] is None:
        return _unexplained(row, event, windows(faults))
    who = _who(row["fault_nodes"], row["fault_roles"], row["fault_target"], row.get("partition"))
    since = f"from {seconds(row['fault_start_ns'])}"
    when = "during" if row["phase"] in _DURING else row["phase"]
    until = "" if row["fault_end_ns"] is None else f" to {seconds(row['fault_end_ns'])}"
    return Explanation(
        fault=row["fault"],
        kind=row["fault_kind"],
        target=row["fault_target"],
        nodes=tuple(row["fault_nodes"] or ()),
        roles=tuple(row["fault_roles"] or ()),
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
    return f"{phase}{abs(away_ns) / NS_PER_S:.3f} s {side} its {row['boundary']}"


def _unexplained(
    row: dict[str, Any], event: str, known: Sequence[dict[str, Any]]
) -> Explanation | None:
    """Say that no fault was in force, and how long the last one had been healed.

    ``None`` where another harness recorded the faults: nothing proves when theirs were in force,
    and its history may tell no times.
    """
    known = [w for w in known if w["state"] != FaultState.RECORDED]
    if not known:
        return None
    over = [w for w in known if w["end_ns"] is not None and w["end_ns"] < row["since_ns"]]
    if over:
        last = max(over, key=lambda w: (w["end_ns"], w["fault"]))
        who = _who(last["nodes"], last["roles"], last["target"], row.get("partition"))
        away_s = (row["since_ns"] - last["end_ns"]) / NS_PER_S
        why = f"the last, {last['kind']} of {who}, had been proven healed for {away_s:.3f} s"
    else:
        why = "none had begun by then"
    text = f"no fault was in force when it {_VERBS[event]} at {seconds(row['ack_ns'])}: {why}"
    return Explanation(text=text, no_fault=True)


def _who(
    nodes: Sequence[str] | None, roles: Sequence[str] | None, target: str, partition: int | None
) -> str:
    """Name the targets of a fault, and their roles."""
    names, held = ", ".join(nodes or ()), _roles(roles or (), partition)
    return f"{names} ({held})" if held else names or target


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
    operations: Iterable[RecordedOperation], faults: pa.Table, since_ns: int | None = None
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
        "read_ns": max(done),
        "partition": None,
    }
    found = attribute(pa.Table.from_pylist([row], schema=_OPERATIONS), faults)
    return explain(found.to_pylist()[0], BEGAN, faults)
