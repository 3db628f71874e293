"""Attribution of an anomaly to a fault: by time, and by the roles of the fault's targets.

A fault counts as in force from the moment when its injection begins until it is proven healed
(``fault_spans``). A loss is explained by one that was in force at some moment from the begin of the
write to the end of the first read that shows it; a fault that hit the leader or the primary of the
very partition near the acknowledgement is preferred, then one in force at it, then the nearest
(``fault_attribution``). Where there is none, no fault explains the loss: the one that had been
healed last is named with its distance, and accuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints, ints
from checkers.engine.spans import NONE
from checkers.explain.fault_attribution import LATEST_NS, KnownFaults, Moments
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.finding import Explanation, RecordedOperation
from harness.protocols.roles import parse
from harness.text import seconds

ACKNOWLEDGED, BEGAN = "acknowledged", "began to show"
_VERBS = {ACKNOWLEDGED: "was acknowledged", BEGAN: "began to show"}
BEFORE, INJECT, HOLD, HEAL, AFTER = PHASES = ("before", "inject", "hold", "heal", "after")
"""The phases of a fault, between the steps of its life (``harness.protocols.fault_spans``)."""
_DURING = (INJECT, HOLD, HEAL)
_BOUNDARIES = ("injection", "effect", "healing", "heal")
ROLES_SHOWN = 4  # of many partitions; what comes after them in a sentence is read too

OF_FAULTS = ("fault_nodes", "fault_roles")
"""Columns that tell of each row what ``KnownFaults`` tells once of its fault."""
_FAULT = pa.schema(
    [
        ("fault", pa.int64()),
        ("fault_kind", pa.string()),
        ("fault_target", pa.string()),
        ("fault_nodes", pa.list_(pa.string())),
        ("fault_roles", pa.list_(pa.string())),
        ("fault_start_ns", pa.int64()),
        ("fault_end_ns", pa.int64()),
    ]
)
_MOMENT = pa.schema(
    [("phase", pa.string()), ("boundary", pa.string()), ("distance_ns", pa.int64())]
)

_OPERATIONS = pa.schema(
    [
        ("since_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("shown_ns", pa.int64()),
        ("partition", pa.int32()),
    ]
)


def attribute(lost: pa.Table, known: KnownFaults) -> pa.Table:
    """Return ``lost`` (``since_ns``, ``ack_ns``, ``shown_ns``, ``partition``) with the fault that
    explains each row.

    ``phase`` is the acknowledgement's (``PHASES``), ``boundary`` the step of the fault that it is
    nearest to, and ``distance_ns`` how long after that it came, negative before it. All columns are
    null where no fault was in force from ``since_ns`` to ``shown_ns``.
    """
    losses = Moments.of(*(ints(lost, name) for name in ("since_ns", "ack_ns", "shown_ns")))
    place = known.explaining(losses, lost["partition"].to_pylist())
    # Only those that explain something: a run may have thousands.
    which, row = np.unique(place[place != NONE], return_inverse=True)
    spans = [known.spans[each] for each in which.tolist()]
    its = np.full(len(place), NONE)
    its[place != NONE] = row
    told = pa.Table.from_pylist([_told(span) for span in spans], schema=_FAULT)
    explained = told.take(pa.array(its, mask=its == NONE))
    at_ns = losses.ack_ns
    return pa.Table.from_arrays(
        [*lost.columns, *explained.columns, *_moments(at_ns, spans, its)],
        schema=pa.schema([*lost.schema, *_FAULT, *_MOMENT]),
    )


def _told(span: FaultSpan) -> dict[str, Any]:
    return {
        "fault": span.fault,
        "fault_kind": span.kind,
        "fault_target": span.target,
        "fault_nodes": span.nodes,
        "fault_roles": span.roles,
        "fault_start_ns": span.begin_ns,
        "fault_end_ns": span.healed_ns,
    }


def _moments(at_ns: Ints, spans: Sequence[FaultSpan], its: Ints) -> list[pa.Array]:
    """Return the columns ``_MOMENT``: each moment in the life of its fault, the one at ``its`` of
    ``spans``. A step that was never seen bounds nothing.
    """
    rows = [
        (span.begin_ns, span.effective_ns, span.healing_ns, span.healed_ns)
        for span in (*spans, None)
        if span is not None
    ]
    known = np.array([[step is not None for step in row] for row in (*rows, [None] * 4)])
    times = np.array([[step or 0 for step in row] for row in (*rows, [None] * 4)], np.int64)
    known, away_ns = known[its], at_ns[:, None] - np.clip(times, -LATEST_NS, LATEST_NS)[its]
    begun = known & (away_ns >= 0)
    begun[:, -1] &= away_ns[:, -1] > 0  # at the very moment of the heal it is not over
    # The last step that it came after; before all of them, the first phase.
    phase = np.where(begun.any(axis=1), len(_BOUNDARIES) - begun[:, ::-1].argmax(axis=1), 0)
    boundary = np.where(known, np.abs(away_ns), np.iinfo(np.int64).max).argmin(axis=1)
    none = its == NONE
    distance_ns = np.take_along_axis(away_ns, boundary[:, None], axis=1)[:, 0]
    return [
        pa.array(PHASES).take(pa.array(phase, mask=none)),
        pa.array(_BOUNDARIES).take(pa.array(boundary, mask=none)),
        pa.array(distance_ns, mask=none),
    ]


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
