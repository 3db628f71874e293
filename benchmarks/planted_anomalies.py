"""Ten anomalies of known kinds as a short history of its own, to be put into a long one."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

Columns = dict[str, Any]
KEY = 10**8 * 5
STEP_NS = 1000
EXPECTED = frozenset(
    {
        *("G1a", "G1b", "internal", "duplicate-elements", "incompatible-order"),
        *("lost-write", "G0", "G1c", "G-single-item", "G2-item"),
    }
)
"""Names in the verdict: each but G0's and G1c's graphs stand alone on keys of their own."""


@attrs.frozen(kw_only=True)
class Planted:
    """A transaction: steps are (key, element) of an append, (key, list) of a read. ``start`` and
    ``finish`` count steps of time from the begin of its anomaly.
    """

    start: int
    finish: int
    steps: tuple[tuple[int, int | tuple[int, ...]], ...]
    type: str = "ok"


def _txn(
    start: int, finish: int, *steps: tuple[int, int | tuple[int, ...]], type: str = "ok"
) -> Planted:
    return Planted(start=start, finish=finish, steps=steps, type=type)


ANOMALIES: tuple[tuple[Planted, ...], ...] = (
    (_txn(0, 1, (0, 1), type="fail"), _txn(2, 3, (0, (1,)))),  # G1a
    (_txn(0, 3, (0, 1), (0, 2)), _txn(1, 2, (0, (1,))), _txn(4, 5, (0, (1, 2)))),  # G1b
    (_txn(0, 1, (0, 1), (0, ())), _txn(2, 3, (0, (1,)))),  # internal
    (_txn(0, 1, (0, 1)), _txn(2, 3, (0, (1, 1)))),  # duplicate-elements
    (_txn(0, 3, (0, 1)), _txn(1, 2, (0, 2)), _txn(4, 6, (0, (1, 2))), _txn(5, 7, (0, (2, 1)))),
    (_txn(0, 1, (0, 1)), _txn(2, 3, (0, 2)), _txn(4, 5, (0, (2,)))),  # lost-write
    (_txn(0, 3, (0, 1), (1, 2)), _txn(1, 2, (0, 2), (1, 1)), _txn(4, 5, (0, (1, 2)), (1, (1, 2)))),
    (_txn(0, 3, (0, 1), (1, (1,))), _txn(1, 2, (1, 1), (0, (1,))), _txn(4, 5, (0, (1,)))),
    (_txn(0, 3, (0, ()), (1, (1,))), _txn(1, 2, (0, 1), (1, 1)), _txn(4, 5, (0, (1,)))),
    (
        _txn(0, 3, (0, ()), (1, 1)),
        _txn(1, 2, (1, ()), (0, 1)),
        _txn(4, 5, (0, (1,)), (1, (1,))),
    ),  # G2-item
)


def planted() -> tuple[Columns, Columns]:
    """Return the columns of their transactions, each by a client of its own, and of the steps."""
    placed = [
        (begin, number * 2 + KEY, each)
        for number, anomaly in enumerate(ANOMALIES)
        for begin in [number * 100 * STEP_NS]
        for each in anomaly
    ]
    count = len(placed)
    invoke = np.array([begin + each.start * STEP_NS for begin, _, each in placed])
    complete = np.array([begin + each.finish * STEP_NS for begin, _, each in placed])
    order = np.argsort(np.argsort(np.concatenate([invoke, complete]), kind="stable"))
    transactions = {
        "txn": np.arange(count),
        "process": 10_000 + np.arange(count),
        "kind": pa.array(["read-write"] * count),
        "type": pa.array([each.type for _, _, each in placed]),
        "node": pa.array(["n1"] * count),
        "invoke_ns": invoke,
        "complete_ns": complete,
        "invoke_index": order[:count],
        "complete_index": order[count:],
        "error": pa.array([None if each.type == "ok" else "refused" for _, _, each in placed]),
    }
    rows: list[dict[str, Any]] = []
    for txn, (_, key, each) in enumerate(placed):
        for pos, (place, given) in enumerate(each.steps):
            rows.append(
                {
                    "txn": txn,
                    "pos": pos,
                    "f": "append" if isinstance(given, int) else "r",
                    "key": key + place,
                    "partition": None,
                    "value": given if isinstance(given, int) else None,
                    "elements": None if isinstance(given, int) else list(given),
                    "type": each.type,
                }
            )
    steps = {name: [row[name] for row in rows] for name in rows[0]}
    kinds = {
        **{"txn": pa.int64(), "pos": pa.int32(), "f": pa.string(), "key": pa.int64()},
        **{"partition": pa.int32(), "value": pa.int64(), "elements": pa.list_(pa.int64())},
        "type": pa.string(),
    }
    return transactions, {name: pa.array(steps[name], kinds[name]) for name in steps}
