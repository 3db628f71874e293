"""A history as operations in the manner of Jepsen's: what Elle, Knossos and ``firedrill check``
read.

Clients' invocations and completions stand in their order, with dense indices; between them, by
time, the nemesis and the rows of every other table that a verdict rests on
(``harness.importers.exported`` says how these are told apart).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from harness.history.layout import EVENTS, FAULTS, NOTES
from harness.history.load import History
from harness.history.records import OpType
from harness.importers.exported import (
    END,
    MANIFEST,
    NEMESIS,
    NODE_LOGS,
    OF_REGISTER,
    PLAN,
    PROCESS,
    READ,
    TXN,
    Digest,
    NodeLogsRecord,
    end_record,
)
from harness.importers.jepsen.imported_history import BANK, REGISTER
from harness.importers.jepsen.operation_forms import TRANSFER
from harness.protocols.client import READ_WRITE
from harness.protocols.fault_spans import fault_spans
from harness.run.side_tables import SIDE_TABLES
from results.export.notation import IntKey, Name

Op = dict[str, Any]
_Placed = tuple[int, Op]  # by its time, or that of the operation before it in its own order

RUN_INDEX = "run-index"
PIECE_TXNS = 8192  # held as objects at once, beside those that are open
_REGISTER_OF = {step: f for f, step in OF_REGISTER.items()}
# The time of a row, by table; the rows of any other stand at the end.
_TIMES = {EVENTS: "at_ns", NOTES: "at_ns", FAULTS: "injecting_ns"} | {
    name: table.time for name, table in SIDE_TABLES.items() if table.time is not None
}


def operations(history: History, plan_text: str, beside: Mapping[str, pa.Table]) -> Iterator[Op]:
    """Yield every operation of ``history``, and what else its verdict rests on: the plan (empty
    where there is none) and the tables ``beside`` it, by name.
    """
    tables = {FAULTS: history.faults(), EVENTS: history.events(), NOTES: history.notes(), **beside}
    faults = tables[FAULTS].to_pylist()
    streams = (
        _head(history, plan_text),
        *(_rows(name, table) for name, table in tables.items() if name in _TIMES),
        _nemesis(faults),
        _clients(history),
    )
    timed = heapq.merge(*map(_ascending, streams), key=lambda item: item[0])
    untimed = ((name, table) for name, table in tables.items() if name not in _TIMES)
    rest = (op for name, table in untimed for _, op in _rows(name, table))
    last_ns, digest = 0, Digest()
    for index, (at_ns, op) in enumerate(chain(timed, ((None, op) for op in rest))):
        last_ns = last_ns if at_ns is None else at_ns
        # What no client did stands where it is placed, so that times do not go back; its own time
        # is in its row.
        shown_ns = op["time"] if isinstance(op["process"], int) else last_ns
        placed = {"index": index, **op, "time": shown_ns}
        if placed.get(RUN_INDEX) == index:
            del placed[RUN_INDEX]
        digest.add(placed)
        yield placed
    # As the importer expects it, with names where a record has names.
    end = end_record(digest.end(), digest.last)
    yield {**end, **_record(END, end["value"], end["time"])}


def _ascending(stream: Iterable[_Placed]) -> Iterator[_Placed]:
    """Yield the operations at no earlier place than the one before: their order is evidence, and
    times may tie or, between processes, differ from it.
    """
    last_ns = 0
    for at_ns, op in stream:
        last_ns = max(last_ns, at_ns)
        yield last_ns, op


def _head(history: History, plan_text: str) -> Iterator[_Placed]:
    yield 0, _record(MANIFEST, msgspec.to_builtins(history.manifest))
    if plan_text:
        yield 0, _record(PLAN, plan_text)
    logs = history.logs
    if logs.gone or logs.remarks:
        known = NodeLogsRecord(missing=list(logs.gone), remarks=list(logs.remarks))
        yield 0, _record(NODE_LOGS, msgspec.to_builtins(known))


def _record(f: str, value: object, at_ns: int = 0) -> Op:
    return {
        "time": at_ns,
        "type": Name(OpType.INFO.value),
        "process": Name(PROCESS),
        "f": Name(f),
        "value": value,
    }


def _rows(name: str, table: pa.Table) -> Iterator[_Placed]:
    for piece in table.to_batches():
        for row in piece.to_pylist():
            at_ns = row[_TIMES[name]] or 0 if name in _TIMES else 0
            yield at_ns, _record(name, row, at_ns)


def _nemesis(faults: list[dict[str, Any]]) -> Iterator[_Placed]:
    """Yield Jepsen's form of each fault: ``start-KIND`` and ``stop-KIND``, each when it began and
    when it was done.
    """
    rows = {row["fault"]: row for row in faults}
    found: list[_Placed] = []
    for span in fault_spans(faults):
        row, nodes = rows[span.fault], list(span.nodes)
        for verb, begun_ns, done_ns in (
            ("start", span.begin_ns, row["injected_ns"]),
            ("stop", span.healing_ns, span.healed_ns),
        ):
            for at_ns, value in ((begun_ns, span.target), (done_ns, nodes)):
                if at_ns is not None:
                    found.append((at_ns, _act(f"{verb}-{span.kind}", value, at_ns)))
    yield from sorted(found, key=lambda item: item[0])


def _act(f: str, value: object, at_ns: int) -> Op:
    return _record(f, value, at_ns) | {"process": Name(NEMESIS)}


def _clients(history: History) -> Iterator[_Placed]:
    """Yield invocations and completions in the order of their indices."""
    table = history.transactions()
    index = [table[name].to_numpy() for name in ("invoke_index", "complete_index")]
    order = np.argsort(np.concatenate(index), kind="stable")
    count = table.num_rows
    workload = history.manifest.workload
    begun = transactions(history)
    opened: dict[int, Op] = {}
    for place in order.tolist():
        if place < count:
            row = next(begun)
            opened[place] = row
            told = {RUN_INDEX: row["invoke_index"], **_invocation(row, workload)}
            yield row["invoke_ns"], told
        else:
            row = opened.pop(place - count)
            told = {RUN_INDEX: row["complete_index"], **_completion(row, workload)}
            yield row["complete_ns"], told


def transactions(history: History) -> Iterator[Op]:
    """Yield the transactions in the order of invocation, each with its steps as ``ops``."""
    table = history.transactions()
    steps = history.micro_ops().sort_by([("txn", "ascending"), ("pos", "ascending")])
    txns = steps["txn"].to_numpy()
    for start in range(0, table.num_rows, PIECE_TXNS):
        piece = table.slice(start, PIECE_TXNS)
        numbers = piece["txn"].to_numpy()
        low, high = np.searchsorted(txns, [numbers[0], numbers[-1] + 1])
        ops: dict[int, list[Op]] = {}
        for step in steps.slice(low, high - low).to_pylist():
            ops.setdefault(step["txn"], []).append(step)
        for row in piece.to_pylist():
            yield row | {"ops": ops.get(row["txn"], [])}


def steps_of(ops: list[Op]) -> list[list[Any]]:
    """Return the steps of a completed transaction as ``[f key value]``."""
    return [[Name(f), key, value] for f, key, value in map(_done, ops)]


def _invocation(row: Op, workload: str) -> Op:
    ops = row["ops"]
    told = _told([_asked(step) for step in ops], workload)
    usual = {"attempt": 0, "intended": row["invoke_ns"], "wall": 0}
    more = {"attempt": row["attempt"], "intended": row["intended_ns"], "wall": row["wall_ns"]}
    partitions = [step["partition"] for step in ops]
    return {
        "time": row["invoke_ns"],
        "type": Name("invoke"),
        "process": row["process"],
        **told,
        "node": row["node"],
        "kind": Name(row["kind"] or READ_WRITE),
        **{name: held for name, held in more.items() if held != usual[name]},
        **({"partitions": partitions} if any(p is not None for p in partitions) else {}),
    }


def _completion(row: Op, workload: str) -> Op:
    told = _told([_done(step) for step in row["ops"]], workload)
    more = {
        "error": row["error"],
        "phase": row["phase"],
        "server-txn": row["server_txn"],
        "commit-ts": row["commit_ts"],
    }
    return {
        "time": row["complete_ns"],
        "type": Name(row["type"]),
        "process": row["process"],
        **told,
        **{name: held for name, held in more.items() if held is not None},
    }


def _asked(step: Op) -> list[Any]:
    return [step["f"], step["key"], None if step["f"] == "r" else _held(step)]


def _done(step: Op) -> list[Any]:
    held = _held(step)
    # What was never written: a nil is that in an ok, and not known elsewhere.
    empty = held == [] and step["type"] == OpType.OK.value and step["f"] == "r"
    return [step["f"], step["key"], None if empty else held]


def _held(step: Op) -> Any:  # noqa: ANN401 (an integer, a list, or nothing)
    return step["value"] if step["elements"] is None else step["elements"]


def _told(steps: list[list[Any]], workload: str) -> Op:
    """Return ``f`` and value in the form that tools know for the workload, and else ``txn``: one
    step on a register, a transfer (with its steps beside it) and a read of a bank.
    """
    named = [[Name(f), key, value] for f, key, value in steps]
    if workload == REGISTER and len(steps) == 1 and steps[0][0] in _REGISTER_OF:
        f, key, value = steps[0]
        if isinstance(value, list) and len(value) == 1:
            value = [None, *value]  # a compare-and-set of a register that was never written
        return {"f": Name(_REGISTER_OF[f]), "value": [key, value]}
    if workload == BANK and steps:
        balances = {IntKey(key): value for f, key, value in steps if f == "r"}
        if len(balances) == len(steps):
            return {"f": Name(READ), "value": balances}
        if (transfer := _transfer(steps)) is not None:
            return {"f": Name(TRANSFER), "value": transfer, "steps": named}
    return {"f": Name(TXN), "value": named}


def _transfer(steps: list[list[Any]]) -> Op | None:
    """``{from, to, amount}`` of steps that add to two accounts what they take from each other."""
    added = sorted((value, key) for f, key, value in steps if f == "add" and value is not None)
    if len(added) != 2 or added[0][0] != -added[1][0]:
        return None
    (_, payer), (amount, payee) = added
    return {"from": payer, "to": payee, "amount": amount}
