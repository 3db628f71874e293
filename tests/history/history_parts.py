"""Small histories and runs for the tests of this room."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.history.chunks import ChunkWriter
from harness.history.manifest import write_manifest
from harness.history.records import (
    Complete,
    EventKind,
    FaultState,
    FaultTransition,
    Invoke,
    MicroOp,
    Note,
    OpType,
    PhaseMark,
    Record,
    StoreEvent,
)
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.protocols.promise import Declaration, Promise


def new_run(root: Path, *, streams: int | None = None) -> RunDirectory:
    """A run that has begun: a directory with a manifest, and no record yet. ``streams`` is how many
    it has; runs of the first versions did not say.
    """
    root.mkdir(parents=True, exist_ok=True)
    run = RunDirectory(root)
    promises = (Promise(kind="read-write"),)
    write_manifest(
        run,
        Manifest(
            schema_version=SCHEMA_VERSION,
            run_id="drill-1",
            state="running",
            versions={"firedrill": "0.1.0"},
            machine={"cores": 2},
            declaration=Declaration(system="reference", mode="sc", promises=promises),
            workload="list-append",
            checkers=("list-append",),
            streams=msgspec.UNSET if streams is None else streams,
        ),
    )
    return run


def write(run: RunDirectory, records: list[Record], *, run_id: str = "", **options: int) -> None:
    """All of ``records``, and the end."""
    writer = ChunkWriter(run.chunks, run_id=run_id, **{"overgrown": 1, **options})
    for record in records:
        writer.append(record)
    writer.close()


def invoke(index: int, *ops: MicroOp, process: int = 0, at_ns: int | None = None) -> Invoke:
    at_ns = index * 10 if at_ns is None else at_ns
    return Invoke(
        index=index,
        process=process,
        kind="read-write",
        node="n1",
        intended_ns=at_ns,
        at_ns=at_ns,
        wall_ns=1_700_000_000_000_000_000 + at_ns,
        ops=ops,
    )


def complete(
    index: int,
    of: int,
    *ops: MicroOp,
    process: int = 0,
    type: OpType = OpType.OK,
    at_ns: int | None = None,
    error: str | None = None,
) -> Complete:
    at_ns = index * 10 if at_ns is None else at_ns
    return Complete(
        index=index, invoke=of, process=process, type=type, at_ns=at_ns, ops=ops, error=error
    )


def append(key: int, element: int) -> MicroOp:
    return MicroOp("append", key, element)


def read(key: int, *elements: int) -> MicroOp:
    """A read that saw ``elements``, known to be all."""
    return MicroOp("r", key, elements)


def unknown(key: int) -> MicroOp:
    """A read as it stands in an invocation."""
    return MicroOp("r", key)


def fault(state: FaultState, at_ns: int, text: str = "", number: int = 0) -> FaultTransition:
    resolved = state not in (FaultState.PLANNED, FaultState.SKIPPED)
    return FaultTransition(
        fault=number,
        kind="kill",
        target="leader of partition 3",
        state=state,
        at_ns=at_ns,
        nodes=("n2",) if resolved else (),
        roles=("leader of partition 3",) if resolved else (),
        text=text,
    )


def event(at_ns: int, kind: EventKind = EventKind.LEADER_ELECTED) -> StoreEvent:
    return StoreEvent(
        kind=kind, node="n2", wall_ns=5, boot="b1", at_ns=at_ns, uncertainty_ns=7, partition=3
    )


def small_history() -> list[Record]:
    """One of each kind of record; operation 4 never completes."""
    return [
        PhaseMark(name="drive", at_ns=1),
        fault(FaultState.PLANNED, 2),
        invoke(0, append(1, 10), unknown(2)),
        invoke(1, append(2, 20), process=1),
        complete(2, 0, append(1, 10), read(2)),
        fault(FaultState.EFFECTIVE, 25, "n2 does not answer"),
        complete(3, 1, append(2, 20), process=1, type=OpType.FAIL, error="conflict"),
        invoke(4, append(1, 11), unknown(1), process=1),
        Note(at_ns=41, process=1, text="reconnected"),
        event(33),
        invoke(5, unknown(1)),
        complete(6, 5, read(1, 10)),
        PhaseMark(name="seal", at_ns=100),
    ]
