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
from harness.history.records import FaultState
from harness.protocols.fault_spans import FaultSpan, fault_spans
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
_BOUNDARIES = ("injection", "effect", "healing", "heal")
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


_OPERATIONS = pa.schema(
    [
        ("since_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("read_ns", pa.int64()),
        ("partition", pa.int32()),
    ]
)


def attribute(lost: pa.Table, faults: pa.Table) -> pa.Table:
    """Return ``lost`` (``since_ns``, ``ack_ns``, ``read_ns``, ``partition``) with the fault that
    explains each row.

    ``phase`` is the acknowledgement's (``PHASES``), ``boundary`` the step of the fault that it is
    nearest to, and ``distance_ns`` how long after that it came, negative before it. All columns are
    null where no fault was in force from ``since_ns`` to ``read_ns``.
    """
    known = fault_spans(faults.to_pylist())
    chosen = [_explaining(row, known) for row in lost.to_pylist()]
    return pa.Table.from_arrays(
        lost.columns + pa.Table.from_pylist(chosen, schema=_EXPLANATION).columns,
        schema=pa.schema([*lost.schema, *_EXPLANATION]),
    )


def _explaining(loss: dict[str, Any], known: Sequence[FaultSpan]) -> dict[str, Any]:
    candidates = [span for span in known if span.touches(loss["since_ns"], loss["read_ns"])]
    if not candidates:
        return {}
    span = min(candidates, key=lambda span: _rank(loss, span))
    return {
        "fault": span.fault,
        "fault_kind": span.kind,
        "fault_target": span.target,
        "fault_nodes": span.nodes,
        "fault_roles": span.roles,
        "fault_start_ns": span.begin_ns,
        "fault_end_ns": span.healed_ns,
        "phase": _phase(loss["ack_ns"], span),
        **_nearest(loss["ack_ns"], span),
    }


def _rank(loss: dict[str, Any], span: FaultSpan) -> tuple[bool, int, int]:
    end_ns = FOREVER_NS if span.healed_ns is None else span.healed_ns
    away_ns = max(span.begin_ns - loss["ack_ns"], loss["ack_ns"] - end_ns, 0)
    partition = loss["partition"]
    kinds = (RoleKind.PRIMARY, RoleKind.LEADER)
    led = any(str(Role(kind, partition)) in span.roles for kind in kinds)
    # The number last: between equals the answer must always be the same.
    return not (led and away_ns <= NEAR_NS), away_ns, span.fault


def _times(span: FaultSpan) -> tuple[int | None, ...]:
    """Return the times of the steps of ``_BOUNDARIES``."""
    return span.begin_ns, span.effective_ns, span.healing_ns, span.healed_ns


def _phase(at_ns: int, span: FaultSpan) -> str:
    """Place a moment in the life of a fault; a step that was never seen bounds nothing."""
    # At the very moment of the heal it is not over.
    if span.healed_ns is not None and at_ns > span.healed_ns:
        return AFTER
    *steps, _ = _times(span)
    for begun_ns, phase in zip(reversed(steps), reversed(_DURING), strict=True):
        if begun_ns is not None and at_ns >= begun_ns:
            return phase
    return BEFORE


def _nearest(at_ns: int, span: FaultSpan) -> dict[str, Any]:
    steps = zip(_BOUNDARIES, _times(span), strict=True)
    known = [(name, step_ns) for name, step_ns in steps if step_ns is not None]
    name, nearest_ns = min(known, key=lambda step: abs(at_ns - step[1]))
    return {"boundary": name, "distance_ns": at_ns - nearest_ns}


def explain(row: dict[str, Any], event: str, faults: pa.Table) -> Explanation | None:
    """Return the explanation of an attributed row; ``None`` in a run without faults.

    ``event`` names the event at ``ack_ns`` in a word.
    """
    if row["fault"] is None:
        return _unexplained(row, event, fault_spans(faults.to_pylist()))
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
    return f"{phase}{seconds(abs(away_ns))} {side} its {row['boundary']}"


def _unexplained(row: dict[str, Any], event: str, known: Sequence[FaultSpan]) -> Explanation | None:
    """Say that no fault was in force, and how long the last one had been healed.

    ``None`` where another harness recorded the faults: nothing proves when theirs were in force,
    and its history may tell no times.
    """
    known = [span for span in known if span.state != FaultState.RECORDED]
    if not known:
        return None
    over = [
        (span.healed_ns, span.fault, span)
        for span in known
        if span.healed_ns is not None and span.healed_ns < row["since_ns"]
    ]
    if over:
        healed_ns, _, last = max(over, key=lambda each: each[:2])
        who = _who(last.nodes, last.roles, last.target, row.get("partition"))
        away = seconds(row["since_ns"] - healed_ns)
        why = f"the last, {last.kind} of {who}, had been proven healed for {away}"
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
