"""Zones: registers whose values are written once, judged by sorting, all keys at a time.

A value's *zone* lies between the first moment at which the register has certainly held it already
and the last at which it certainly holds it still: ``forward`` where the first operation on it ends
before the last begins, so that the register held it for all that time; else ``backward``: all its
operations share the moments of the zone, and may take effect at any of them.

A key whose reads all saw written values is linearizable if and only if

* no read ended before the write of its value began,
* no two forward zones overlap, and
* no backward zone lies inside a forward one.

All comparisons are strict: operations that touch are concurrent. (Gibbons and Korach, *Testing
shared memories*, 1997; zones as in Golab, Li and Shah, 2011.)
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Bools, Ints, group_starts
from checkers.register.ops import FINDINGS, INITIAL, NEVER, READ, WRITE, Ops

# The begin and end of the virtual write of the initial value.
BEFORE = np.iinfo(np.int64).min


@attrs.frozen(kw_only=True, eq=False)
class Zones:
    """One row a value of a key that was read or certainly written. ``first_end`` and ``last_start``
    are rows of the operations that bound it, -1 for the virtual first write; ``writer`` is -1 for
    it too.
    """

    k: Ints
    value: Ints
    min_finish: Ints
    max_start: Ints
    first_end: Ints
    last_start: Ints
    writer: Ints

    @property
    def forward(self) -> Bools:
        """Whether the register held the value all the time between two moments."""
        return self.min_finish < self.max_start

    @property
    def low(self) -> Ints:
        """The begin of each zone."""
        return np.minimum(self.min_finish, self.max_start)

    @property
    def high(self) -> Ints:
        """The end of each zone."""
        return np.maximum(self.min_finish, self.max_start)


def judge_by_zones(ops: Ops) -> pa.Table:
    """Return ``FINDINGS`` on keys where every value has one writer. Exact."""
    found = _early_reads(ops)
    zones = _zones(ops)
    found += _conflicts(ops, zones)
    return pa.Table.from_pylist(found, schema=FINDINGS)


def _zones(ops: Ops) -> Zones:
    """Return the clusters of operations on one value each, as zones."""
    ops_order = np.lexsort((ops.txn, ops.left, ops.k))
    # A read leaves what it found: of both kinds ``left`` is the value.
    k, value = ops.k[ops_order], ops.left[ops_order]
    starts = np.flatnonzero(group_starts(k, value))
    if not len(starts):
        empty = np.zeros(0, dtype=np.int64)
        return Zones(
            k=empty,
            value=empty,
            min_finish=empty,
            max_start=empty,
            first_end=empty,
            last_start=empty,
            writer=empty,
        )
    first_end = ops_order[_arg(-ops.finish[ops_order], starts)]
    last_start = ops_order[_arg(ops.start[ops_order], starts)]
    is_write = np.where(ops.f[ops_order] == WRITE, ops_order, -1)
    writer = np.maximum.reduceat(is_write, starts)
    initial = value[starts] == INITIAL
    zones = Zones(
        k=k[starts],
        value=value[starts],
        min_finish=np.where(initial, BEFORE, ops.finish[first_end]),
        max_start=ops.start[last_start],
        first_end=np.where(initial, -1, first_end),
        last_start=last_start,
        writer=writer,
    )
    # A write of unknown outcome that no operation read may never have happened.
    kept = zones.min_finish < NEVER
    return Zones(**{name: column[kept] for name, column in attrs.asdict(zones).items()})


def _arg(values: Ints, starts: Ints) -> Ints:
    """Return the first position of each group's maximum."""
    size = np.diff(np.append(starts, len(values)))
    most = np.repeat(np.maximum.reduceat(values, starts), size)
    hits = np.flatnonzero(values == most)
    group = np.repeat(np.arange(len(starts)), size)[hits]
    return np.asarray(hits[group_starts(group)], dtype=np.int64)


def _early_reads(ops: Ops) -> list[dict[str, Any]]:
    """Return the reads that ended before the only write of their value began."""
    # False sorts first, so the write leads the operations on its value.
    order = np.lexsort((ops.f != WRITE, ops.left, ops.k))
    starts = group_starts(ops.k[order], ops.left[order])
    lead = order[np.flatnonzero(starts)[np.cumsum(starts) - 1]] if len(order) else order
    early = (ops.f[order] == READ) & (ops.left[order] != INITIAL)
    early &= ops.finish[order] < ops.start[lead]
    return [
        _row(ops, "early", [row, writer], ops.left[row], INITIAL)
        for row, writer in zip(order[early], lead[early], strict=True)
    ]


def _conflicts(ops: Ops, zones: Zones) -> list[dict[str, Any]]:
    """Return every zone that meets an earlier forward zone, with the one that reaches farthest.

    Rows are sorted by key and beginning; at a tie backward zones come first, so that the forward
    zone before a backward one begins strictly before it.
    """
    if not len(zones.k):
        return []
    low, high, forward = zones.low, zones.high, zones.forward
    order = np.lexsort((zones.value, forward, low, zones.k))
    reach = np.empty(len(order), dtype=np.int64)
    by_reach = np.lexsort((order, high[order]))
    reach[by_reach] = np.arange(len(order))  # ranks: exact, and no two are equal
    span = len(order) + 1
    # A key's codes exceed those of all keys before it: the maximum starts anew with each.
    far = np.maximum.accumulate(zones.k[order] * span + np.where(forward[order], reach + 1, 0))
    before = np.concatenate([[-1], far[:-1]])
    rank = before - zones.k[order] * span
    other = order[by_reach[np.maximum(rank, 1) - 1]]
    # A forward zone conflicts where it begins within the other, a backward one where it ends there.
    edge = np.where(forward, low, high)[order]
    # A rank of 0 or less: no forward zone of the key comes before.
    bad = (rank > 0) & (edge < high[other])
    return [
        _conflict(ops, zones, int(held), int(row), bool(forward[row]))
        for row, held in zip(order[bad], other[bad], strict=True)
    ]


def _conflict(ops: Ops, zones: Zones, held: int, row: int, forward: bool) -> dict[str, Any]:
    """Format a conflict; zone ``held`` is the forward one that begins first."""
    bounds = [zones.first_end[held], zones.last_start[held]]
    if forward:
        bounds += [zones.first_end[row], zones.last_start[row]]
    else:
        bounds += [zones.writer[row] if zones.writer[row] >= 0 else zones.last_start[row]]
    form = "overlap" if forward else "inside"
    return _row(ops, form, bounds, zones.value[held], zones.value[row], zones.k[row])


def _row(
    ops: Ops, form: str, rows: list[Any], value: int, other: int, k: int | None = None
) -> dict[str, Any]:
    return {
        "anomaly": "nonlinearizable",
        "key": int(ops.keys[ops.k[rows[0]] if k is None else k]),
        "form": form,
        "value": ops.value(int(value)),
        "other": ops.value(int(other)),
        "txns": [int(ops.txn[row]) if row >= 0 else -1 for row in rows],
        "held": [],
    }
