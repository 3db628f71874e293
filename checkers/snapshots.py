"""Snapshot reads over all keys: one cut a transaction, and never back within a process.

A snapshot is a cut through the version orders, and a consistent one holds every transaction whole
or not at all. A process whose snapshot held a transaction must find it in all later ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa

from checkers.columns import Bools, Ints, batches, group_starts, ints, spread
from checkers.kernel import Exchange, Kernel, Setting, Tables
from checkers.lists.findings import FINDINGS
from checkers.txns import Transactions, transactions_of

CHUNK = 4_000_000
"""Pairs of a snapshot and a writer that are looked at together, some 300 MB; more where a single
process has more."""


@attrs.frozen(kw_only=True, eq=False)
class _Pairs:
    """Snapshots and writers of a key that both touched: does the read see the transaction there,
    does it lack some of it? ``turn`` numbers snapshots by process, then in their order.
    """

    turn: Ints
    process: Ints
    writer: Ints
    key: Ints
    element: Ints
    sees: Bools
    lacks: Bools


def find_broken_snapshots(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``snapshots.findings``: one row a snapshot that is fractured, and one for going back."""
    found = [FINDINGS.empty_table()]
    if tables["snapshots.seen"].num_rows and tables["snapshots.written"].num_rows:
        txns = transactions_of(tables, setting)
        by_turn = _by_turn(txns, np.unique(ints(tables["snapshots.seen"], "txn")))
        for pairs in _pairs(tables, txns, by_turn):
            found += _judged(pairs, by_turn, len(txns.type))
    return {"snapshots.findings": pa.concat_tables(found)}


def _by_turn(txns: Transactions, snapshots: Ints) -> Ints:
    order = np.lexsort((snapshots, txns.start[snapshots], txns.process[snapshots]))
    ordered: Ints = snapshots[order]
    return ordered


def _pairs(tables: Tables, txns: Transactions, by_turn: Ints) -> Iterator[_Pairs]:
    """All pairs, those of one process together."""
    turn_of = np.zeros(len(txns.type), dtype=np.int64)
    turn_of[by_turn] = np.arange(len(by_turn))
    reader, key, count = (ints(tables["snapshots.seen"], n) for n in ("txn", "key", "count"))
    order = np.lexsort((key, turn_of[reader]))
    reader, key, count = reader[order], key[order], count[order]
    names = ("writer", "key", "low", "high", "element")
    columns = [ints(tables["snapshots.written"], name) for name in names]
    order = np.lexsort((columns[0], columns[1]))
    writer, of_key, low, high, element = (column[order] for column in columns)
    begin = np.searchsorted(of_key, key, side="left")
    many = np.searchsorted(of_key, key, side="right") - begin
    starts = np.flatnonzero(group_starts(txns.process[reader]))
    ends = np.append(starts[1:], len(reader))
    for part in batches(np.add.reduceat(many, starts), CHUNK):
        rows = np.arange(starts[part][0], ends[part][-1])
        row, place = spread(many[rows])
        row = rows[row]
        at = begin[row] + place
        keep = writer[at] != reader[row]
        row, at = row[keep], at[keep]
        yield _Pairs(
            turn=turn_of[reader[row]],
            process=np.searchsorted(starts, row, side="right") - 1,
            writer=writer[at],
            key=key[row],
            element=element[at],
            sees=low[at] < count[row],
            lacks=high[at] >= count[row],
        )


def _judged(pairs: _Pairs, by_turn: Ints, txns: int) -> Iterator[pa.Table]:
    whole = pairs.turn * txns + pairs.writer
    torn = pairs.lacks & np.isin(whole, whole[pairs.sees])
    yield _rows("fractured-snapshot", pairs, torn, pairs.writer, by_turn)

    session = pairs.process * txns + pairs.writer
    seen = np.flatnonzero(pairs.sees)
    seen = seen[np.lexsort((pairs.turn[seen], session[seen]))]
    seen = seen[group_starts(session[seen])]
    if len(seen):
        at = np.minimum(np.searchsorted(session[seen], session), len(seen) - 1)
        first = pairs.turn[seen[at]]
        back = pairs.lacks & ~torn & (session[seen[at]] == session) & (first < pairs.turn)
        yield _rows("snapshot-went-back", pairs, back, by_turn[first], by_turn)


def _rows(anomaly: str, pairs: _Pairs, pick: Bools, other: Ints, by_turn: Ints) -> pa.Table:
    """The first of what each snapshot shows."""
    chosen = np.flatnonzero(pick)
    chosen = chosen[np.lexsort((pairs.key[chosen], pairs.writer[chosen], pairs.turn[chosen]))]
    chosen = chosen[group_starts(pairs.turn[chosen])]
    columns = [
        pa.array([anomaly] * len(chosen), pa.string()),
        pa.array(pairs.key[chosen]),
        pa.array(by_turn[pairs.turn[chosen]]),
        pa.array(other[chosen]),
        pa.array(pairs.element[chosen]),
    ]
    return pa.Table.from_arrays(columns, schema=FINDINGS)


SNAPSHOTS = Kernel(name="snapshots", exchange=Exchange.ONE_PLACE, run=find_broken_snapshots)
