"""From records to the tables of a sealed history, in bounded memory.

Transactions complete in another order than they begin, and the tables are sorted by their
beginning: finished rows wait until there are ``HELD_ROWS`` of them, then the older half goes to the
sink. A row that was open for longer than that (a client that hung for the whole run) goes to the
sink as *late*, and the sink merges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.errors import FiredrillError
from harness.history import schema
from harness.history.layout import EVENTS, FAULTS, NOTES, TRANSACTIONS, micro_ops_name
from harness.history.records import (
    Complete,
    FaultState,
    FaultTransition,
    Heartbeat,
    Invoke,
    MicroOp,
    Note,
    OpType,
    PhaseMark,
    Record,
    StoreEvent,
)

PartitionOf = Callable[[int], int | None]

BATCH_ROWS = 32_768
# An operation would have to stay open while 32,768 others complete to be late.
HELD_ROWS = 2 * BATCH_ROWS

# The error code of an operation whose outcome was never recorded.
NO_COMPLETION = "no-completion"


_TYPES = {type_: type_.value for type_ in OpType}  # an enum is slow to say its value


class InconsistentRecords(FiredrillError):
    """Records that can't both be true: a defective writer made them."""


class Sink(Protocol):
    """The destination of tables, piece by piece. Pieces of one name come sorted, except for late
    ones.
    """

    def put(self, name: str, piece: pa.Table, *, late: bool = False) -> None:
        """Take the next rows of table ``name``."""


class _Row(msgspec.Struct, frozen=True, gc=False):
    """A finished transaction; a struct, since a run makes a million of them."""

    txn: int
    invoke: Invoke
    complete: Complete
    invoke_index: int
    complete_index: int


class _Open(msgspec.Struct, frozen=True, gc=False):
    txn: int
    invoke: Invoke
    index: int


class Tabulator:
    """Turns records, given in the order of writing, into pieces of tables for a sink."""

    def __init__(
        self,
        sink: Sink,
        *,
        partition_of: PartitionOf | None,
        splits: int,
        cut_ns: int | None = None,
        reindex: bool = False,
    ) -> None:
        """``cut_ns``: operations' records after it are left out. ``reindex``: records come from
        several writers, so that the order in which they are given replaces their own indices.
        """
        schema.check_splits(splits)
        self.phases: list[tuple[str, int]] = []
        self.transactions = 0
        self.micro_ops = 0  # of the records, counted apart from the tables that are made of them
        self.incomplete = 0
        self._sink = sink
        self._partition_of = partition_of
        self._splits = splits
        self._cut_ns = cut_ns
        self._reindex = reindex
        self._next_index = 0
        self._last_own: dict[int, int] = {}  # by writer: the index of its last record
        self._busy: dict[int, int] = {}
        self._crashed: dict[int, int] = {}
        self._open: dict[tuple[int, int], _Open] = {}
        # Operations that are open while many thousands pass would hold up all rows behind them.
        self._late: dict[tuple[int, int], _Open] = {}
        self._late_rows: list[_Row] = []
        self._rows: list[_Row] = []
        self._events: list[StoreEvent] = []
        self._notes: list[Note] = []
        self._faults = FaultRows()

    def add(self, record: Record, *, writer: int = 0) -> None:
        """Take the next record. Raises ``InconsistentRecords``."""
        kind = type(record)
        if kind is Invoke:
            self._begin(cast(Invoke, record), writer)
        elif kind is Complete:
            self._end(cast(Complete, record), writer)
        else:
            self._keep(record)

    def _keep(self, record: Record) -> None:
        match record:
            case FaultTransition():
                self._faults.add(record)
            case StoreEvent():
                self._events.append(record)
            case Note():
                self._notes.append(record)
            case PhaseMark():
                self.phases.append((record.name, record.at_ns))
            case Heartbeat():
                pass

    def finish(self, end_ns: int) -> None:
        """Pass on the remaining rows. Open operations become info, completed at ``end_ns``."""
        # The late ones first: they were invoked before all that is still open.
        self._abandon(self._late, self._late_rows, end_ns)
        self._abandon(self._open, self._rows, end_ns)
        self._give(sorted(self._rows, key=_txn))
        self._give(sorted(self._late_rows, key=_txn), late=True)
        self._sink.put(FAULTS, self._faults.table())
        self._sink.put(EVENTS, _events(self._events))
        self._sink.put(NOTES, _notes(self._notes))

    def _begin(self, invoke: Invoke, writer: int) -> None:
        if self._cut_ns is not None and invoke.at_ns > self._cut_ns:
            return
        name = (writer, invoke.index)
        if name in self._open or name in self._late:
            raise InconsistentRecords(f"operation {invoke.index} was invoked twice")
        self._occupy(invoke)
        index = self._place(invoke.index, writer)
        self._open[name] = _Open(self.transactions, invoke, index)
        self.transactions += 1

    def _end(self, complete: Complete, writer: int) -> None:
        # Its operation stays open, and becomes info: after the cut nothing is certain.
        if self._cut_ns is not None and complete.at_ns > self._cut_ns:
            return
        name = (writer, complete.invoke)
        begun = self._open.pop(name, None)
        rows = self._rows
        if begun is None:
            begun = self._late.pop(name, None)
            rows = self._late_rows
        if begun is None:
            found = f"operation {complete.invoke} was completed, but it is not open"
            raise InconsistentRecords(f"{found} (record {complete.index})")
        _require_fit(begun.invoke, complete)
        self._release(complete)
        index = self._place(complete.index, writer)
        rows.append(_Row(begun.txn, begun.invoke, complete, begun.index, index))
        self.micro_ops += _step_count(begun.invoke, complete)
        if len(self._rows) >= HELD_ROWS:
            self._give_older_half()

    def _occupy(self, invoke: Invoke) -> None:
        """Require that the process has no open operation and none that ended as info: the order of
        a process is evidence.
        """
        process = invoke.process
        if process in self._busy:
            before = f"before its operation {self._busy[process]} has completed"
            raise InconsistentRecords(
                f"process {process} invokes operation {invoke.index} {before}"
            )
        if process in self._crashed:
            after = f"after its operation {self._crashed[process]} ended as info"
            raise InconsistentRecords(f"process {process} invokes operation {invoke.index} {after}")
        self._busy[process] = invoke.index

    def _release(self, complete: Complete) -> None:
        del self._busy[complete.process]
        if complete.type is OpType.INFO:
            # Its client may still act: what the process did next would not be in its order.
            self._crashed[complete.process] = complete.invoke

    def _place(self, index: int, writer: int) -> int:
        """The index of a record in the order of all; a writer's own indices must ascend."""
        last = self._last_own.get(writer)
        if last is not None and index <= last:
            raise InconsistentRecords(f"record {index} was written after record {last}")
        self._last_own[writer] = index
        if self._reindex:
            index = self._next_index
        # Kept beyond every index that was seen, for the operations that are never completed.
        if index >= self._next_index:
            self._next_index = index + 1
        return index

    def _give_older_half(self) -> None:
        self._rows.sort(key=_txn)
        # Half stays, since completions come nearly, not quite, in the order of invocations.
        given, self._rows = self._rows[:BATCH_ROWS], self._rows[BATCH_ROWS:]
        last = given[-1].txn
        passed = [name for name, begun in self._open.items() if begun.txn < last]
        for name in passed:
            self._late[name] = self._open.pop(name)
        self._give(given)

    def _abandon(self, opened: dict[tuple[int, int], _Open], rows: list[_Row], end_ns: int) -> None:
        for begun in opened.values():
            end = _never_completed(begun.invoke, self._next_index, end_ns)
            # Behind all records: an outcome that never came is known at no earlier place.
            rows.append(_Row(begun.txn, begun.invoke, end, begun.index, self._next_index))
            self.micro_ops += _step_count(begun.invoke, end)
            self._next_index += 1
            self.incomplete += 1
        opened.clear()

    def _give(self, rows: list[_Row], *, late: bool = False) -> None:
        if late and not rows:
            return
        transactions = _transactions(rows)
        self._sink.put(TRANSACTIONS, transactions, late=late)
        ops = schema.of_split(_micro_ops(rows, self._partition_of), transactions)
        split = schema.splits_of(ops.column("key").to_numpy(), self._splits)
        for number in range(self._splits):
            # Also an empty piece: every split has its file.
            piece = ops.take(np.flatnonzero(split == number))
            self._sink.put(micro_ops_name(number), piece, late=late)


def _txn(row: _Row) -> int:
    return row.txn


def _require_fit(invoke: Invoke, complete: Complete) -> None:
    if complete.process != invoke.process:
        expected = f"operation {invoke.index} is of process {invoke.process}"
        raise InconsistentRecords(f"{expected}, but process {complete.process} completed it")
    if complete.at_ns < invoke.at_ns:
        began = f"operation {invoke.index} was invoked at {invoke.at_ns} ns"
        raise InconsistentRecords(f"{began}, but completed at {complete.at_ns} ns")


def _never_completed(invoke: Invoke, index: int, end_ns: int) -> Complete:
    return Complete(
        index=index,
        invoke=invoke.index,
        process=invoke.process,
        type=OpType.INFO,
        # A stream that was cut short may end before the invocation of another.
        at_ns=max(end_ns, invoke.at_ns),
        ops=(),
        error=NO_COMPLETION,
    )


def _step_count(invoke: Invoke, complete: Complete) -> int:
    """How many steps ``_ops_of`` has to come to."""
    done = len(complete.ops)
    return done if complete.type is OpType.OK else max(done, len(invoke.ops))


def _ops_of(row: _Row) -> tuple[MicroOp, ...]:
    """The completed steps, and for an uncertain outcome also the requested ones.

    An operation that stopped half-way may have recorded only its completed steps; where its outcome
    is unknown, the other steps may have taken effect all the same.
    """
    done, asked = row.complete.ops, row.invoke.ops
    if row.complete.type is OpType.OK or len(done) >= len(asked):
        return done
    return done + asked[len(done) :]


def _transactions(rows: list[_Row]) -> pa.Table:
    begins = [row.invoke for row in rows]
    ends = [row.complete for row in rows]
    columns: dict[str, Iterable[object]] = {
        "txn": [row.txn for row in rows],
        "process": [begin.process for begin in begins],
        "kind": [begin.kind for begin in begins],
        "type": [_TYPES[end.type] for end in ends],
        "node": [begin.node for begin in begins],
        "attempt": [begin.attempt for begin in begins],
        "server_txn": [end.server_txn for end in ends],
        "commit_ts": [end.commit_ts for end in ends],
        "intended_ns": [begin.intended_ns for begin in begins],
        "invoke_ns": [begin.at_ns for begin in begins],
        "complete_ns": [end.at_ns for end in ends],
        "invoke_index": [row.invoke_index for row in rows],
        "complete_index": [row.complete_index for row in rows],
        "wall_ns": [begin.wall_ns for begin in begins],
        "error": [end.error for end in ends],
        "phase": [end.phase for end in ends],
    }
    return _table(columns, schema.TRANSACTIONS)


def _micro_ops(rows: list[_Row], partition_of: PartitionOf | None) -> pa.Table:
    txns: list[int] = []
    positions: list[int] = []
    types: list[str] = []
    ops: list[MicroOp] = []
    known_empty: list[bool] = []
    for row in rows:
        steps = _ops_of(row)
        txns += [row.txn] * len(steps)
        positions += range(len(steps))
        types += [_TYPES[row.complete.type]] * len(steps)
        ops += steps
        known_empty += [row.complete.type is OpType.OK] * len(steps)
    keys = np.array([op.key for op in ops], dtype=np.int64)
    columns: dict[str, Iterable[object]] = {
        "txn": txns,
        "pos": positions,
        "f": [op.f for op in ops],
        "key": keys,
        "partition": _partitions(keys, partition_of),
        "value": [op.value if isinstance(op.value, int) else None for op in ops],
        "elements": [_elements(op, empty) for op, empty in zip(ops, known_empty, strict=True)],
        "type": types,
    }
    return _table(columns, schema.MICRO_OPS)


def _elements(op: MicroOp, known_empty: bool) -> tuple[int, ...] | None:
    if isinstance(op.value, tuple):
        return op.value
    return () if op.value is None and op.f == "r" and known_empty else None


def _partitions(keys: npt.NDArray[np.int64], partition_of: PartitionOf | None) -> pa.Array:
    if partition_of is None:
        return pa.nulls(len(keys), pa.int32())
    distinct, places = np.unique(keys, return_inverse=True)
    # A key once, not an operation: the hash is a Python function of the system.
    known = pa.array([partition_of(int(key)) for key in distinct], pa.int32())
    return known.take(pa.array(places))


def _events(events: list[StoreEvent]) -> pa.Table:
    """Sorted by mapped time; the order of arrival breaks ties."""
    ordered = sorted(events, key=lambda event: event.at_ns)
    columns: dict[str, Iterable[object]] = {
        name: [getattr(event, name) for event in ordered]
        for name in schema.EVENTS.names
        if name not in _OF_RESETS
    }
    columns["kind"] = [event.kind.value for event in ordered]
    columns["decision"] = [event.decision and event.decision.value for event in ordered]
    for name in _OF_RESETS:
        columns[name] = [e.reset and getattr(e.reset, name) for e in ordered]
    return _table(columns, schema.EVENTS)


def _notes(notes: list[Note]) -> pa.Table:
    columns = {name: [getattr(note, name) for note in notes] for name in schema.NOTES.names}
    return _table(columns, schema.NOTES)


def _table(columns: Mapping[str, Iterable[object]], like: pa.Schema) -> pa.Table:
    try:
        return pa.table([pa.array(columns[field.name], field.type) for field in like], schema=like)
    except (pa.ArrowException, OverflowError) as error:
        raise InconsistentRecords(f"a record does not fit the tables: {error}") from error


_OF_RESETS = ("previous_generation", "base_index", "base_term", "survivors")

_TIME_OF = {
    FaultState.PLANNED: "planned_ns",
    FaultState.INJECTING: "injecting_ns",
    FaultState.INJECTED: "injected_ns",
    FaultState.EFFECTIVE: "effective_ns",
    FaultState.HEALING: "healing_ns",
    FaultState.HEALED: "healed_ns",
}
_TEXT_OF = {
    FaultState.EFFECTIVE: "proof",
    FaultState.HEALED: "heal_proof",
    FaultState.SKIPPED: "reason",
    FaultState.MISSED: "reason",
    FaultState.UNPROVEN: "reason",
}


class FaultRows:
    """Collects transitions; a run has few enough faults to keep them all."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Any]] = {}

    def add(self, step: FaultTransition) -> None:
        """Take the next transition. The first time of a state counts, the last state stands."""
        row = self._rows.setdefault(step.fault, {"fault": step.fault, "nodes": (), "roles": ()})
        row.update(kind=step.kind, target=step.target, state=step.state.value)
        # Planned and skipped faults have hit nothing; later transitions name the victims.
        row["nodes"] = step.nodes or row["nodes"]
        row["roles"] = step.roles or row["roles"]
        if step.state in _TIME_OF:
            # A heal that is tried again began with its first try.
            row.setdefault(_TIME_OF[step.state], step.at_ns)
        if step.state in _TEXT_OF and step.text:
            column = _TEXT_OF[step.state]
            row[column] = f"{row[column]}; {step.text}" if column in row else step.text

    def table(self) -> pa.Table:
        """The rows, by number of the fault."""
        rows = [self._rows[fault] for fault in sorted(self._rows)]
        return pa.Table.from_pylist(rows, schema=schema.FAULTS)
