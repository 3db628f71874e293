"""Small histories, written as Python values, as the tables and run directories of real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from harness import plugins
from harness.history import schema
from harness.history.chunks import ChunkWriter
from harness.history.consistency import MARKS
from harness.history.manifest import write_manifest
from harness.history.records import (
    Complete,
    FaultState,
    FaultTransition,
    Invoke,
    MicroOp,
    OpType,
    PhaseMark,
    Record,
    StoreEvent,
)
from harness.history.regular_files import sha256
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.seal import seal
from harness.protocols.promise import Declaration, Promise
from harness.protocols.setting import Setting
from harness.protocols.verdict import Verdict

STRICT = Declaration(
    system="paper", mode="SC", promises=(Promise(kind="read-write"),), transaction_scope="cluster"
)
STEP_NS = 10


@attrs.frozen
class Txn:
    """``ops`` are (f, key, value); by default transactions follow one another, one a process."""

    type: str
    ops: list[tuple[str, int, Any]]
    process: int | None = None
    start: int | None = None
    finish: int | None = None
    error: str | None = None
    kind: str = "read-write"
    phase: Any = None


@attrs.frozen
class Fault:
    """A fault in force from ``start`` to ``finish``, with everything proven unless left out."""

    kind: str
    target: str
    start: int
    finish: int | None
    nodes: tuple[str, ...] = ("n1",)
    roles: tuple[str, ...] = ()
    effective: bool = True
    serves: bool = True  # who was hit, once it is healed


def ok(*ops: tuple[str, int, Any], **more: Any) -> Txn:
    return Txn("ok", list(ops), **more)


def fail(*ops: tuple[str, int, Any], **more: Any) -> Txn:
    return Txn("fail", list(ops), **more)


def info(*ops: tuple[str, int, Any], **more: Any) -> Txn:
    return Txn("info", list(ops), **more)


def a(key: int, element: int) -> tuple[str, int, Any]:
    return ("append", key, element)


def r(key: int, *elements: int) -> tuple[str, int, Any]:
    return ("r", key, elements)


def unknown(key: int) -> tuple[str, int, Any]:
    return ("r", key, None)


def times(txns: list[Txn]) -> list[tuple[int, int, int]]:
    """(process, invoke, complete) of every transaction."""
    found = []
    for i, txn in enumerate(txns):
        start = i * STEP_NS if txn.start is None else txn.start
        finish = start + STEP_NS - 1 if txn.finish is None else txn.finish
        found.append((i if txn.process is None else txn.process, start, finish))
    return found


def records(txns: list[Txn], faults: list[Fault] | None = None) -> list[Record]:
    """The records that a driver and a nemesis would have written, in the order of time."""
    timed: list[tuple[int, int, Record]] = []
    for index, (txn, (process, start, finish)) in enumerate(zip(txns, times(txns), strict=True)):
        ops = tuple(MicroOp(f, key, value) for f, key, value in txn.ops)
        intent = tuple(MicroOp(o.f, o.key, None if o.f == "r" else o.value) for o in ops)
        invoke = Invoke(
            index=index,
            process=process,
            kind=txn.kind,
            node="n1",
            intended_ns=start,
            at_ns=start,
            wall_ns=start,
            ops=intent,
        )
        complete = Complete(
            index=len(txns) + index,
            invoke=index,
            process=process,
            type=OpType(txn.type),
            at_ns=finish,
            ops=ops,
            error=txn.error,
            phase=txn.phase,
        )
        # At a tie a process ends what it does before it begins anew.
        timed += [(start, 1, invoke), (finish, 0 if start < finish else 2, complete)]
    for number, fault in enumerate(faults or []):
        timed += [(at, 3, record) for at, record in _transitions(number, fault)]
    return _numbered([record for _, _, record in sorted(timed, key=lambda item: item[:2])])


def _numbered(records: list[Record]) -> list[Record]:
    """The same, their indices in the order of writing, as a driver's are."""
    found: list[Record] = []
    numbers: dict[int, int] = {}
    for record in records:
        number = len(found)
        match record:
            case Invoke():
                numbers[record.index] = number
                found.append(msgspec.structs.replace(record, index=number))
            case Complete():
                begun = numbers[record.invoke]
                found.append(msgspec.structs.replace(record, index=number, invoke=begun))
            case _:
                found.append(record)
    return found


def _transitions(number: int, fault: Fault) -> list[tuple[int, FaultTransition]]:
    states = [(fault.start, FaultState.PLANNED), (fault.start, FaultState.INJECTING)]
    states += [(fault.start, FaultState.INJECTED)]
    states += [(fault.start, FaultState.EFFECTIVE)] if fault.effective else []
    if fault.finish is not None:
        states += [(fault.finish, FaultState.HEALING), (fault.finish, FaultState.HEALED)]
        states += [] if fault.serves else [(fault.finish, FaultState.UNPROVEN)]
    return [
        (
            at,
            FaultTransition(
                fault=number,
                kind=fault.kind,
                target=fault.target,
                state=state,
                at_ns=at,
                nodes=fault.nodes,
                roles=fault.roles,
                text="no roles" if state is FaultState.UNPROVEN else "",
            ),
        )
        for at, state in states
    ]


CHECKERS = ("list-append", "lost-write", "availability", "statistics", "evidence")


def last_marks(written: Sequence[Record]) -> list[PhaseMark]:
    """The marks of the phases behind the drive that are not among ``written``, at its end."""
    marked = {record.name for record in written if isinstance(record, PhaseMark)}
    end_ns = 1 + max((getattr(record, "at_ns", 0) for record in written), default=0)
    return [PhaseMark(name=name, at_ns=end_ns) for name in MARKS[1:] if name not in marked]


def write_run(
    root: Path,
    txns: list[Txn],
    faults: list[Fault] | None = None,
    *,
    splits: int = 3,
    min_ok: int = 1,
    workload: str = "list-append",
    checkers: tuple[str, ...] = CHECKERS,
    declaration: Declaration = STRICT,
    interrupted: bool = False,
    trouble: tuple[str, ...] = (),
    events: tuple[StoreEvent, ...] = (),
    marks: tuple[PhaseMark, ...] = (),
) -> RunDirectory:
    """A sealed run directory, made by the real writer and the real seal."""
    root.mkdir(parents=True)
    run = RunDirectory(root)
    run.plan.write_text(f"[check]\nmin_ok = {min_ok}\n")
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id="paper",
        state="running",
        versions={},
        machine={},
        declaration=declaration,
        workload=workload,
        checkers=checkers,
        interrupted=interrupted,
        trouble=trouble,
        checksums={run.plan.name: sha256(run.plan)},
    )
    write_manifest(run, manifest)
    writer = ChunkWriter(run.chunks)
    writer.append(PhaseMark(name="drive", at_ns=0))
    written = (*marks, *records(txns, faults), *events)
    for record in (*written, *last_marks(written)):
        writer.append(record)
    writer.close()
    seal(run, partition_of=lambda key: key % 2, splits=splits)
    return run


def source(txns: list[Txn], *, splits: int = 1) -> Source:
    """The same as tables in memory. Transactions are numbered as they are listed."""
    rows, steps = [], []
    for number, (txn, (process, start, finish)) in enumerate(zip(txns, times(txns), strict=True)):
        rows.append(
            {
                "txn": number,
                "process": process,
                "kind": txn.kind,
                "type": txn.type,
                "node": "n1",
                "attempt": 0,
                "intended_ns": start,
                "invoke_ns": start,
                "complete_ns": finish,
                "invoke_index": start,
                "complete_index": finish,
                "wall_ns": start,
                "error": txn.error,
            }
        )
        for pos, (f, key, value) in enumerate(txn.ops):
            step = {"txn": number, "pos": pos, "f": f, "key": key, "type": txn.type}
            of_list = f == "r" and not isinstance(value, int)
            step["elements" if of_list else "value"] = value
            steps.append(step)
    tables = [
        pa.Table.from_pylist(
            [s for s in steps if schema.split_of(s["key"], splits) == split],
            schema=schema.MICRO_OPS,
        )
        for split in range(splits)
    ]
    return Source.of_tables(pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS), *tables)


def setting(model: str = "strict-serializable", **more: Any) -> Setting:
    return Setting(**{"model": model, "declaration": STRICT, "min_ok": 1} | more)


def verdict(
    txns: list[Txn],
    *,
    model: str = "strict-serializable",
    checkers: tuple[str, ...] = ("list-append", "lost-write"),
    **more: Any,
) -> Verdict:
    """What the checkers say of ``txns``, in process, from memory."""
    analysis = judge(
        source(txns),
        setting=setting(model, **more),
        checkers=tuple(plugins.load("checkers", name) for name in checkers),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
    )
    return analysis.verdict


def names(found: Verdict) -> set[str]:
    """Every anomaly of a verdict, whether it decides or not."""
    return {*found.anomalies, *found.observed}
