"""Histories of registers and banks as tables: a step's value is an integer, or (old, new)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from checker_histories import Txn, setting, times

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from harness import plugins
from harness.history import schema
from harness.protocols.verdict import Verdict


def source(txns: list[Txn], *, splits: int = 1) -> Source:
    """``txns`` in memory, as the seal would store them."""
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
        steps += [_step(number, pos, op, txn.type) for pos, op in enumerate(txn.ops)]
    tables = [
        pa.Table.from_pylist(
            [s for s in steps if schema.split_of(s["key"], splits) == split],
            schema=schema.MICRO_OPS,
        )
        for split in range(splits)
    ]
    return Source.of_tables(pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS), *tables)


def _step(txn: int, pos: int, op: tuple[str, int, Any], type_: str) -> dict[str, Any]:
    f, key, value = op
    step = {"txn": txn, "pos": pos, "f": f, "key": key, "type": type_}
    if isinstance(value, tuple):
        return step | {"elements": list(value)}
    if value is None and f == "r" and type_ == "ok":
        return step | {"elements": []}
    return step | {"value": value}


def verdict(
    txns: list[Txn],
    checker: str,
    *,
    splits: int = 1,
    model: str = "strict-serializable",
    **more: Any,
) -> Verdict:
    """What ``checker`` alone says of ``txns``, in process, from memory."""
    analysis = judge(
        source(txns, splits=splits),
        setting=setting(model, **more),
        checkers=(plugins.load("checkers", checker),),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
    )
    return analysis.verdict
