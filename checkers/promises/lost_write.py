"""The checker of lost writes: an acknowledged append must be in some read that starts later.

An append is *lost* when it was acknowledged, its key was read after that, and no such read shows
it; or when none of a run's final reads does. A read that lacks an append which another read after
the acknowledgement shows is stale, and the cycles report it (G-single-item-realtime). A key without
later reads says nothing: its appends are *unverified*, and counted. Reads of kinds that promise no
real time are no evidence of a loss, but for a final read that begins once its staleness has passed
since the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.explain.attribution_table import LOST as LOST_UNSEEN
from checkers.explain.attribution_table import REVERTED, Attribution, DecidingRoles, table
from checkers.explain.fault_attribution import OF_FAULTS, KnownFaults, attribute
from checkers.explain.fault_explanations import ACKNOWLEDGED, explain
from checkers.explain.reset_attribution import Cause, causes, columns
from checkers.explain.words import KeyNames, of_lost_write
from checkers.lists.checker import INFERENCE
from checkers.lists.given_up import CUT_OFF_WRITES, ELSEWHERE, cut_off
from checkers.lists.lost_writes import FINAL_READS, LOST
from checkers.promises.permitted_loss import Held, Loss, Permission, given_up
from harness.exit_codes import Outcome
from harness.history.records import MicroOp
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.consistency_models import (
    LOST_BY_RESET,
    LOST_WRITE,
    TORN_BY_RESET,
    promises_real_time,
)
from harness.protocols.finding import Finding, RecordedOperation
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly

_SINCE = "since_ns"
ATTRIBUTION = "attribution"
# ``permitted_in`` is the partition that the generation ``permitted_by`` is of: another than the
# row's where the write was given up with an outcome that the reset took.
PERMISSIONS = pa.schema(
    [("permitted_by", pa.int64()), ("held", pa.string()), ("permitted_in", pa.int32())]
)


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
        known = KnownFaults.of(tables["faults"])
        lost = attribute(lost.append_column(_SINCE, lost["invoke_ns"]), known)
        permissions = permitted(lost, tables, setting)
        found = causes(
            _where_reset(lost, permissions),
            known,
            tables["events"],
            permitted=setting.may_lose,
        )
        statistics["lost"] = lost.num_rows
        if by_resets := sum(cause is not None and cause.taken is not None for cause in found):
            statistics["lost_across_a_reset"] = by_resets
        rows = lost.drop_columns(OF_FAULTS).to_pylist()
        each = tuple(zip(rows, found, permissions, strict=True))
        anomalies, named = {}, KeyNames(tables)
        for name, of_name in (
            (LOST_WRITE, [row for row in each if row[2] is None]),
            (LOST_BY_RESET, [row for row in each if row[2] and row[2].through is None]),
        ):
            if of_name:
                shown = of_name[:EXAMPLES_MAX]
                txns = tuple(t for row, _, _ in shown for t in _transactions(row))
                operations = lookup.operations(txns)
                examples = tuple(_finding(*row, operations, known, named) for row in shown)
                anomalies[name] = Anomaly(count=len(of_name), examples=examples)
        if torn := _torn(each, known, lookup):
            anomalies[TORN_BY_RESET] = torn
        if setting.may_lose:
            statistics |= _by_permission(permissions)
        whole: dict[str, Any] = {"lost_writes": statistics}
        if each:
            whole[ATTRIBUTION] = table(setting.declaration.mode, _attributed(each, known))
        doubts = _doubts(statistics["unverified"], setting)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=(*doubts, *_by_snapshots(lookup, setting)),
            statistics=whole,
            tables={
                "lost_writes": _beside(
                    _beside(lost.drop_columns(_SINCE), columns(found)), _permissions(permissions)
                )
            },
        )


def _by_snapshots(lookup: Lookup, setting: Setting) -> Iterator[str]:
    """Yield a remark where final reads had to be of snapshots: what else takes locks then waits."""
    final_ns = dict(setting.phases).get(FINAL_READS)
    stale = {p.kind for p in setting.declaration.promises if p.staleness_s is not None}
    if final_ns is None or not stale:
        return
    count = reads = 0
    for piece in lookup.pieces(("kind", "type", "invoke_ns")):
        late = pc.greater_equal(piece["invoke_ns"], final_ns)
        kinds = piece["kind"].filter(pc.and_(late, pc.equal(piece["type"], "ok")))
        kinds = kinds.cast(pa.string())
        of_snapshots = pc.is_in(kinds, value_set=pa.array(sorted(stale), pa.string()))
        count, reads = count + (pc.sum(of_snapshots).as_py() or 0), reads + len(kinds)
    if count:
        text = "final reads: {} of {} are of snapshots, since others of them were refused each time"
        yield text.format(count, reads)


def _attributed(
    each: Iterable[tuple[dict[str, Any], Cause | None, Permission | None]], known: KnownFaults
) -> Iterator[Attribution]:
    # Once a fault: it may have thousands of roles, and explain as many losses.
    roles = {None: DecidingRoles.of(())}
    for row, cause, _ in each:
        fault = row["fault"]
        if fault not in roles:
            roles[fault] = DecidingRoles.of(known.by_number[fault].roles)
        yield Attribution(
            write=LOST_UNSEEN if row["seen"] is None else REVERTED,
            fault=fault,
            kind=row["fault_kind"],
            role=roles[fault].name(row["partition"]),
            phase=row["phase"],
            reset=cause is not None and cause.taken is not None,
            distance_ns=row["distance_ns"],
        )


def permitted(lost: pa.Table, tables: Tables, setting: Setting) -> list[Permission | None]:
    """Return for each row of ``lost`` the envelope inside which it lies, if it lies in one."""
    if not setting.may_lose:
        return [None] * lost.num_rows
    found = list(cut_off(lost, tables, setting, tables))
    writes = tables.get(CUT_OFF_WRITES, LOST.empty_table())
    by_writer: dict[int, list[tuple[Loss, Permission]]] = {}
    for loss, why in cut_off(writes, tables, setting, tables):
        if why is not None:
            by_writer.setdefault(loss.writer, []).append((loss, why))
    # A partition gives up all that a transaction wrote to it, or nothing.
    rows = tables.get("resets.elsewhere", ELSEWHERE.empty_table()).to_pylist()
    kept = {(row["writer"], row["partition"]) for row in rows if row["shown"]}
    return [
        why
        or (
            None
            if (loss.writer, loss.partition) in kept
            else given_up(loss, by_writer.get(loss.writer, ()))
        )
        for loss, why in found
    ]


def _write(row: dict[str, Any]) -> tuple[int, int]:
    return row["key"], row["value"]


def _where_reset(lost: pa.Table, permissions: Sequence[Permission | None]) -> pa.Table:
    """Return ``lost`` with the partition in which each write, or its outcome, was taken."""
    rows = zip(lost["partition"].to_pylist(), permissions, strict=True)
    partition = [own if why is None else why.envelope.tree.partition for own, why in rows]
    place = lost.column_names.index("partition")
    return lost.set_column(place, "partition", pa.array(partition, pa.int32()))


def _by_permission(permissions: Sequence[Permission | None]) -> dict[str, int]:
    inside = [each for each in permissions if each is not None and each.through is None]
    return {
        "lost_by_reset": len(inside),
        "given_up_with_an_outcome": sum(
            each is not None and each.through is not None for each in permissions
        ),
        "of_these_survivors_unjudged": sum(
            each.held in (Held.UNJUDGED, Held.TOO_MANY) for each in inside
        ),
    }


def _permissions(permissions: Sequence[Permission | None]) -> pa.Table:
    """Return the columns ``PERMISSIONS`` of each row."""
    rows = [
        {}
        if each is None
        else {
            "permitted_by": each.envelope.reset.generation,
            "held": each.held.value,
            "permitted_in": each.envelope.tree.partition,
        }
        for each in permissions
    ]
    return pa.Table.from_pylist(rows, schema=PERMISSIONS)


def _torn(
    each: Sequence[tuple[dict[str, Any], Cause | None, Permission | None]],
    known: KnownFaults,
    lookup: Lookup,
) -> Anomaly | None:
    """Return the transactions that a reset tore: a permitted part of each is lost in the partition
    that was reset, another is in a partition where nothing of it is lost, or was given up there.
    """
    rows = list(reversed(each))
    inside = {
        row["writer"]: (row, cause, why) for row, cause, why in rows if why and not why.through
    }
    if not inside:
        return None
    lost = {_write(row) for row, _, _ in each}
    given = {row["writer"]: _write(row) for row, _, why in rows if why and why.through}
    written = lookup.operations(tuple(inside))
    torn = [
        (txn, found, kept[0] if kept else None, given.get(txn))
        for txn, found in sorted(inside.items())
        if (
            kept := [
                op for op in written[txn].ops if op.f == "append" and (op.key, op.value) not in lost
            ]
        )
        or txn in given
    ]
    if not torn:
        return None
    examples = tuple(
        _torn_finding(row, cause, why, half, gone, written[txn], known)
        for txn, (row, cause, why), half, gone in torn[:EXAMPLES_MAX]
    )
    return Anomaly(count=len(torn), examples=examples)


def _torn_finding(
    row: dict[str, Any],
    cause: Cause | None,
    why: Permission,
    kept: MicroOp | None,
    given: tuple[int, int] | None,
    operation: RecordedOperation,
    known: KnownFaults,
) -> Finding:
    explained = explain(row, ACKNOWLEDGED, known)
    keys, parts = {row["key"]}, list[str]()
    if given is not None:
        keys.add(given[0])
        parts.append(
            f"that of {given[1]} to key {given[0]} in another partition was given up, since the "
            "transaction's outcome was gone"
        )
    if kept is not None:
        keys.add(kept.key)
        parts.append(f"that of {kept.value} to key {kept.key} by the same transaction was not")
    return Finding(
        text=f"torn by reset: the append of {row['value']} to key {row['key']} was lost by "
        f"generation {why.envelope.reset.generation} of partition {row['partition']}, "
        f"{', and '.join(parts)}",
        txns=(row["writer"],),
        keys=tuple(sorted(keys)),
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
    """Return the writer, the last reader that saw its value, the first one that missed it, and the
    last.
    """
    named = (row[name] for name in ("writer", "seen", "gone", "read"))
    return tuple(dict.fromkeys(txn for txn in named if txn is not None))


def _finding(
    row: dict[str, Any],
    cause: Cause | None,
    why: Permission | None,
    operations: dict[int, RecordedOperation],
    known: KnownFaults,
    named: KeyNames,
) -> Finding:
    txns = _transactions(row)
    explained = explain(row, ACKNOWLEDGED, known)
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
