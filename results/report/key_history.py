"""All operations on the keys of an anomaly around the ones that prove it, as rows of a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from results.drawing.axis import Scale
from results.drawing.operation_texts import MicroOpFormat
from results.report.run_data import RunData

KEYS_MAX = 2  # of one anomaly
AROUND = 10  # operations before and after each of the proof
ROWS_MAX = 70  # of one key


@attrs.frozen(kw_only=True)
class KeyRow:
    """An operation on the key; ``skipped`` counts those between it and the row before that are not
    shown, ``proof`` is whether it is one of the anomaly's.
    """

    invoke: str
    complete: str
    process: str
    node: str
    type: str
    error: str
    text: str
    txn: str
    proof: bool
    skipped: int


@attrs.frozen(kw_only=True)
class KeyHistory:
    """Operations on one key in the order of invocation; ``more`` follow the last row."""

    key: str
    count: int
    rows: tuple[KeyRow, ...]
    more: int


def histories(
    run_data: RunData, keys: Collection[int], proof: Collection[int], telling: MicroOpFormat
) -> Iterator[KeyHistory]:
    """Yield the history of each of the first ``KEYS_MAX`` keys around the transactions ``proof``.
    Reads the split of each key.
    """
    for key in list(keys)[:KEYS_MAX]:
        on_key = run_data.on_key(key)
        places = [place for place, row in enumerate(on_key) if row["txn"] in proof]
        near = {
            place
            for at in places
            for place in range(max(0, at - AROUND), min(len(on_key), at + AROUND + 1))
        }
        shown = sorted(near, key=lambda p: (min(abs(p - at) for at in places), p))[:ROWS_MAX]
        if not shown:
            continue
        yield KeyHistory(
            key=telling.key(key),
            count=len(on_key),
            rows=tuple(_rows(on_key, sorted(shown), proof, telling, run_data.scale)),
            more=len(on_key) - 1 - max(shown),
        )


def _rows(
    on_key: list[dict[str, Any]],
    places: list[int],
    proof: Collection[int],
    telling: MicroOpFormat,
    scale: Scale,
) -> Iterator[KeyRow]:
    before = -1
    for place in places:
        yield _row(on_key[place], place - before - 1, proof, telling, scale)
        before = place


def _row(
    row: Mapping[str, Any],
    skipped: int,
    proof: Collection[int],
    telling: MicroOpFormat,
    scale: Scale,
) -> KeyRow:
    begin, end = ("invoke_ns", "complete_ns") if scale.timed else ("invoke_index", "complete_index")
    return KeyRow(
        invoke=scale.at(row[begin]),
        complete=scale.at(row[end]),
        process=str(row["process"]),
        node=str(row["node"]),
        type=str(row["type"]),
        error=row["error"] or "",
        text=", ".join(telling.step(step) for step in row["ops"]),
        txn=str(row["txn"]),
        proof=row["txn"] in proof,
        skipped=skipped,
    )
