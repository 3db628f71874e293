"""The checker of lost writes: an acknowledged append must be in some read that starts later.

An append is *lost* when it was acknowledged, its key was read after that, and no such read shows
it; or when none of a run's final reads does. A read that lacks an append which another read after
the acknowledgement shows is stale, and the cycles report it (G-single-item-realtime). A key without
later reads says nothing: its appends are *unverified*, and counted. Reads of kinds that promise no
real time are no evidence of a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.explain.attribution import ACKNOWLEDGED, attribute, explain
from checkers.explain.resets import Cause, causes, columns
from checkers.explain.words import KeyNames, of_lost_write
from checkers.lists.checker import INFERENCE
from checkers.lists.lost import FINAL_READS
from checkers.promises.envelope import Held, Loss, Permission, permission
from harness.exit_codes import Outcome
from harness.history.records import MicroOp
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Setting, Tables
from harness.protocols.finding import Finding, RecordedOperation
from harness.protocols.generations import trees_of
from harness.protocols.models import LOST_BY_RESET, LOST_WRITE, TORN_BY_RESET, promises_real_time
from harness.protocols.verdict import Anomaly
from harness.run.state_log import STATES

_SINCE = "since_ns"
PERMISSIONS = pa.schema([("permitted_by", pa.int64()), ("held", pa.string())])


@attrs.frozen
class LostWrite:
    """Lost writes, each with the fault that explains it and the resets where there were any."""

    name: str = "lost-write"
    kernels: tuple[Kernel, ...] = (INFERENCE,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return the lost writes by key and value, and the number of appends that no read verified.

        A run of ours reads every key at its end: an append that is unverified then makes the
        outcome ``unknown``.
        """
        counts = tables["lost-write.counts"]
        statistics = {
            name: pc.sum(counts.column(name)).as_py() for name in ("acknowledged", "unverified")
        }
        lost = tables["lost-write.lost"].sort_by([("key", "ascending"), ("value", "ascending")])
        begun = tables["transactions"]["invoke_ns"].take(lost["writer"])
        lost = attribute(lost.append_column(_SINCE, begun), tables["faults"])
        found = causes(lost, tables["faults"], tables["events"])
        statistics["lost"] = lost.num_rows
        if by_resets := sum(cause is not None for cause in found):
            statistics["lost_across_a_reset"] = by_resets
        permissions = permitted(lost, tables, setting)
        each = tuple(zip(lost.to_pylist(), found, permissions, strict=True))
        anomalies = {}
        named, faults = KeyNames(tables), tables["faults"]
        for name, of_name in (
            (LOST_WRITE, [row for row in each if row[2] is None]),
            (LOST_BY_RESET, [row for row in each if row[2] is not None]),
        ):
            if of_name:
                shown = of_name[:EXAMPLES_MAX]
                txns = tuple(t for row, _, _ in shown for t in _transactions(row))
                operations = lookup.operations(txns)
                examples = tuple(_finding(*row, operations, faults, named) for row in shown)
                anomalies[name] = Anomaly(count=len(of_name), examples=examples)
        if torn := _torn(each, tables, lookup):
            anomalies[TORN_BY_RESET] = torn
        if setting.resets and setting.declaration.may_lose:
            statistics |= _by_permission(permissions)
        doubts = _doubts(statistics["unverified"], setting)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=doubts,
            statistics={"lost_writes": statistics},
            tables={
                "lost_writes": _beside(
                    _beside(lost.drop_columns(_SINCE), columns(found)), _permissions(permissions)
                )
            },
        )


def permitted(lost: pa.Table, tables: Tables, setting: Setting) -> list[Permission | None]:
    """Return for each row of ``lost`` the envelope inside which it lies, if it lies in one."""
    if not (setting.resets and setting.declaration.may_lose):
        return [None] * lost.num_rows
    trees = trees_of(setting.resets)
    states = tables.get("states", STATES.empty_table())
    times = tables["transactions"]
    found: list[Permission | None] = []
    for row in lost.to_pylist():
        tree = trees.get(row["partition"])
        seen = None if row["seen"] is None else times["invoke_ns"][row["seen"]].as_py()
        loss = Loss(
            partition=row["partition"],
            key=row["key"],
            value=row["value"],
            writer=row["writer"],
            invoke_ns=row[_SINCE],
            ack_ns=row["ack_ns"],
            read_ns=row["read_ns"],
            read_end_ns=times["complete_ns"][row["read"]].as_py(),
            seen_ns=seen,
        )
        found.append(None if tree is None else permission(tree, loss, states))
    return found


def _by_permission(permissions: Sequence[Permission | None]) -> dict[str, int]:
    inside = [each for each in permissions if each is not None]
    return {
        "lost_by_reset": len(inside),
        "of_these_survivors_unjudged": sum(each.held is Held.UNJUDGED for each in inside),
    }


def _permissions(permissions: Sequence[Permission | None]) -> pa.Table:
    """Return the columns ``PERMISSIONS`` of each row."""
    rows = [
        {}
        if each is None
        else {"permitted_by": each.envelope.reset.generation, "held": each.held.value}
        for each in permissions
    ]
    return pa.Table.from_pylist(rows, schema=PERMISSIONS)


def _torn(
    each: Sequence[tuple[dict[str, Any], Cause | None, Permission | None]],
    tables: Tables,
    lookup: Lookup,
) -> Anomaly | None:
    """Return the transactions that a reset tore: a permitted part of each is lost, another is in a
    partition where nothing of it is lost.
    """
    inside = {row["writer"]: (row, cause, why) for row, cause, why in reversed(each) if why}
    if not inside:
        return None
    lost = {(row["key"], row["value"]) for row, _, _ in each}
    written = lookup.operations(tuple(inside))
    torn = [
        (txn, found, kept)
        for txn, found in sorted(inside.items())
        if (
            kept := [
                op for op in written[txn].ops if op.f == "append" and (op.key, op.value) not in lost
            ]
        )
    ]
    if not torn:
        return None
    examples = tuple(
        _torn_finding(row, cause, why, kept, written[txn], tables["faults"])
        for txn, (row, cause, why), kept in torn[:EXAMPLES_MAX]
        if why is not None
    )
    return Anomaly(count=len(torn), examples=examples)


def _torn_finding(
    row: dict[str, Any],
    cause: Cause | None,
    why: Permission,
    kept: Sequence[MicroOp],
    operation: RecordedOperation,
    faults: pa.Table,
) -> Finding:
    half, explained = kept[0], explain(row, ACKNOWLEDGED, faults)
    return Finding(
        text=f"torn by reset: the append of {row['value']} to key {row['key']} was lost by "
        f"generation {why.envelope.reset.generation} of partition {row['partition']}, that of "
        f"{half.value} to key {half.key} by the same transaction was not",
        txns=(row["writer"],),
        keys=tuple(sorted({row["key"], half.key})),
        value=row["value"],
        ack_ns=row["ack_ns"],
        operations=(operation,),
        explained_by=explained if cause is None else cause.told(explained, row["ack_ns"]),
    )


def _doubts(unverified: int, setting: Setting) -> tuple[str, ...]:
    read_at_the_end = FINAL_READS in dict(setting.phases)
    if not (unverified and read_at_the_end and promises_real_time(setting.model)):
        return ()
    return (f"{unverified} acknowledged appends are unverified: no ok read came after them",)


def _beside(table: pa.Table, more: pa.Table) -> pa.Table:
    return pa.Table.from_arrays(
        table.columns + more.columns, schema=pa.schema([*table.schema, *more.schema])
    )


def _transactions(row: dict[str, Any]) -> tuple[int, ...]:
    """Return the writer, the last reader that saw its value, and the one that missed it."""
    return tuple(row[name] for name in ("writer", "seen", "read") if row[name] is not None)


def _finding(
    row: dict[str, Any],
    cause: Cause | None,
    why: Permission | None,
    operations: dict[int, RecordedOperation],
    faults: pa.Table,
    named: KeyNames,
) -> Finding:
    txns = _transactions(row)
    explained = explain(row, ACKNOWLEDGED, faults)
    text = of_lost_write(named(row["key"]), row["value"], row["seen"])
    if why is not None:
        text += (
            f": permitted, generation {why.envelope.reset.generation} of partition "
            f"{row['partition']} goes on without it (held {why.held.value})"
        )
    return Finding(
        text=text,
        txns=txns,
        keys=(row["key"],),
        value=row["value"],
        ack_ns=row["ack_ns"],
        read_ns=row["read_ns"],
        operations=tuple(operations[txn] for txn in txns),
        explained_by=explained if cause is None else cause.told(explained, row["ack_ns"]),
    )


CHECKER = LostWrite()
