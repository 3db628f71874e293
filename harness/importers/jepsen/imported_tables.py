"""The tables of a paired history: sorted, split by key, on one axis."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import MalformedHistory
from harness.history import schema
from harness.history.layout import KEYS
from harness.history.records import INT64_MAX, INT64_MIN
from harness.importers.jepsen.import_limits import LOWEST_KEY, MAX_TEXT_CHARS
from harness.importers.jepsen.operation_forms import Names, Remark
from harness.importers.jepsen.pairing import NO_ERROR, STEP_NAMES, TYPES, Pairing, Steps, numbers
from harness.protocols.client import READ_WRITE
from harness.text import inert

# Between operations whose times are not known or go back: a millisecond each, by convention.
UNTIMED_STEP_NS = 1_000_000

UNKNOWN_NODE = "unknown"

Ints = npt.NDArray[np.int64]


@attrs.frozen
class Axis:
    """Nanoseconds by place in the file: strictly ascending, so that the order of indices is the
    order of times. ``real`` says that they are the file's own, but for ties.
    """

    at_ns: Ints
    real: bool


def axis(pairing: Pairing) -> Axis:
    """The axis of everything paired; operations without an outcome end behind the last one."""
    places = np.arange(pairing.operations + pairing.incomplete, dtype=np.int64)
    times = numbers(pairing.times)
    if not pairing.timed or np.any(times[1:] < times[:-1]):
        return Axis(places * UNTIMED_STEP_NS, real=False)
    last = times[-1:] if len(times) else np.zeros(1, np.int64)
    times = np.concatenate([times, np.repeat(last, pairing.incomplete)])
    # The least sequence that is strictly ascending and nowhere before the times themselves.
    return Axis(np.maximum.accumulate(times - places) + places, real=True)


def transactions(pairing: Pairing, at_ns: Ints) -> pa.Table:
    """One row a transaction, in the order of invocation (``schema.TRANSACTIONS``)."""
    columns = pairing.transactions
    count = len(columns.process)
    invoked = at_ns[numbers(columns.invoke_at)]
    error = numbers(columns.error)
    nothing = pa.nulls(count, pa.string())
    found = {
        "txn": np.arange(count, dtype=np.int64),
        "process": numbers(columns.process),
        "kind": _repeated(READ_WRITE, count),
        "type": _names(TYPES, np.frombuffer(columns.type, np.int8)),
        "node": _repeated(UNKNOWN_NODE, count),
        "attempt": np.zeros(count, np.int32),
        "server_txn": nothing,
        "commit_ts": pa.nulls(count, pa.int64()),
        "intended_ns": invoked,
        "invoke_ns": invoked,
        "complete_ns": at_ns[numbers(columns.complete_at)],
        "invoke_index": numbers(columns.invoke_index),
        "complete_index": numbers(columns.complete_index),
        "wall_ns": np.zeros(count, np.int64),
        "error": pa.array(pairing.errors, pa.string()).take(
            pa.array(error, mask=error == NO_ERROR)
        ),
        "phase": nothing,
    }
    return _table(found, schema.TRANSACTIONS)


def micro_ops(
    pairing: Pairing, names: Names, splits: int, file: str
) -> tuple[tuple[pa.Table, ...], pa.Table]:
    """The micro-operations by split (``schema.MICRO_OPS``), and the names of keys that are no
    integers (``KEYS``). Raises ``MalformedHistory`` for an element appended twice.
    """
    if not pairing.steps:
        return (schema.MICRO_OPS.empty_table(),) * splits, KEYS.empty_table()
    steps = _joined(pairing)
    _refuse_repetition(steps, pairing, names, file)
    keys, named = _renumbered(steps["key"].to_numpy(), names, file)
    steps["key"] = keys
    split = schema.splits_of(keys, splits)
    txn = steps["txn"].to_numpy()
    # Stable, so that positions stay in order; and txns are nearly sorted, which makes it fast.
    order = np.argsort(txn, kind="stable")
    split = split[order]
    tables = tuple(_split(steps, order[split == number]) for number in range(splits))
    return tables, named


def notes(remarks: list[tuple[int, Remark]], at_ns: Ints) -> pa.Table:
    """One row per remark of the nemesis or of another process that is no client
    (``schema.NOTES``).
    """
    texts = [
        inert(f"{remark.process} {remark.type} {remark.f} {remark.text}".rstrip(), MAX_TEXT_CHARS)
        for _, remark in remarks
    ]
    columns = {
        "at_ns": at_ns[np.asarray([place for place, _ in remarks], np.int64)],
        "process": pa.nulls(len(remarks), pa.int64()),
        "text": pa.array(texts, pa.string()),
        "fault": pa.nulls(len(remarks), pa.int64()),
    }
    return _table(columns, schema.NOTES)


def _joined(pairing: Pairing) -> dict[str, Any]:
    """The pieces as one array per column; frees the pieces on the way."""
    pieces, pairing.steps = pairing.steps, []
    return {
        name: pa.concat_arrays([getattr(piece, name) for piece in pieces])
        for name in attrs.fields_dict(Steps)
    }


def _renumbered(keys: Ints, names: Names, file: str) -> tuple[Ints, pa.Table]:
    """Named keys get the numbers after the largest integer key, or from 0 where there is none."""
    named = keys < LOWEST_KEY
    if not named.any():
        return keys, KEYS.empty_table()
    plain = keys[~named]
    first = max(0, int(plain.max()) + 1) if len(plain) else 0
    if first > INT64_MAX - len(names.names):
        reason = f"key {first - 1} leaves no numbers for keys that are no integers"
        raise MalformedHistory(file, "", reason)
    numbers = first + np.arange(len(names.names), dtype=np.int64)
    keys = np.where(named, first + (keys - INT64_MIN), keys)
    return keys, pa.table([pa.array(numbers), pa.array(names.names, pa.string())], schema=KEYS)


def _refuse_repetition(steps: dict[str, Any], pairing: Pairing, names: Names, file: str) -> None:
    """Refuse an element that is appended twice: reads of it are ambiguous. Elle refuses it too."""
    appends = np.flatnonzero(steps["f"].to_numpy() == STEP_NAMES.index("append"))
    key = steps["key"].to_numpy()[appends]
    # With nulls they would become floats, in which large elements next to each other are one.
    value = np.asarray(pc.fill_null(steps["value"], 0))[appends]
    # The last of them is the first to sort by: the order of the file, in whichever parts it was
    # read.
    line = numbers(pairing.transactions.line)[steps["txn"].to_numpy()[appends]]
    order = np.lexsort((line, value, key))
    same = (np.diff(key[order]) == 0) & (np.diff(value[order]) == 0)
    again = np.flatnonzero(same)
    if not len(again):
        return
    rows = np.stack([order[again], order[again + 1]])
    lines = line[rows]
    # The one that a reader of the file comes to first.
    worst = int(np.argmin(lines[1]))
    row = int(rows[0, worst])
    first, second = (int(number) for number in lines[:, worst])
    again_to = f"element {value[row]} is appended to key {names.shown(int(key[row]))} again"
    reason = f"{again_to} (first on line {first})"
    raise MalformedHistory(file, f"line {second}", f"{reason}; elements must be unique per key")


def _split(steps: dict[str, Any], rows: Ints) -> pa.Table:
    take = pa.array(rows)
    columns = {
        "txn": steps["txn"].take(take),
        "pos": steps["pos"].take(take),
        "f": _names(STEP_NAMES, steps["f"].take(take).to_numpy()),
        "key": steps["key"][rows],
        "partition": pa.nulls(len(rows), pa.int32()),
        "value": steps["value"].take(take),
        "elements": steps["elements"].take(take),
        "type": _names(TYPES, steps["type"].take(take).to_numpy()),
    }
    return _table(columns, schema.MICRO_OPS)


def _names(names: tuple[str, ...], codes: npt.NDArray[Any]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(codes))


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(text, count) if count else pa.array([], pa.string())


def _table(columns: dict[str, Any], like: pa.Schema) -> pa.Table:
    arrays = [pa.array(columns[field.name], field.type) for field in like]
    return pa.table(arrays, schema=like)
