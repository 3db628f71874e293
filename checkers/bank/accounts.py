"""Accounts at the end: what an account was given, and every acknowledged transfer, is in the last
read of it. A whole transfer that got lost leaves the total alone; it shows here.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from checkers.columns import FAIL, INFO, OK, Bools, Ints, codes, ints
from checkers.kernel import Exchange, Kernel, Setting, Tables
from checkers.txns import transactions_of

_READ, _WRITE, _ADD = 0, 1, 2
_STEPS = ("r", "w", "add")

LOST = pa.schema(
    [
        ("key", pa.int64()),
        ("read", pa.int64()),
        ("balance", pa.int64()),
        ("least", pa.int64()),
        ("most", pa.int64()),
        ("transfers", pa.int64()),
        ("last", pa.int64()),
    ]
)
"""An account whose last read does not hold from ``least`` to ``most``: its first balance and the
acknowledged ``transfers``, with and without those of unknown outcome. ``last`` is the one that was
acknowledged last.
"""


def compare_last_reads(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``bank.lost``, and ``bank.unverified``: how many accounts can't be compared, for lack of a
    transfer or of a read after the last acknowledgement, or since they were set up more than once.
    """
    txns, table = transactions_of(tables, setting), tables["micro_ops"]
    f = codes(table, "f", _STEPS)
    txn, value = ints(table, "txn"), ints(table, "value")
    keys, k = np.unique(ints(table, "key"), return_inverse=True)
    type_, count = txns.type[txn], len(keys)
    blind = (f == _WRITE) & (type_ != FAIL) & ~_beside(k, txn, f == _READ)
    done = (f == _ADD) & (type_ == OK)
    open_ = value * ((f == _ADD) & (type_ == INFO))
    given = _summed(k, value * (blind | done), count)
    least = given + _summed(k, np.minimum(open_, 0), count)
    most = given + _summed(k, np.maximum(open_, 0), count)
    last = _latest(k, txns.finish[txn], done, count)
    shows = (f == _READ) & (type_ == OK) & txns.real_time[txn]
    # A transfer read what was there before it.
    read = _latest(k, txns.start[txn], shows & ~_beside(k, txn, f == _WRITE), count)
    once = (_summed(k, blind, count) == 1) & (_summed(k, blind & (type_ == OK), count) == 1)
    known = once & (read >= 0) & (last >= 0)
    known &= txns.start[txn[read]] > txns.finish[txn[last]]
    lost = known & ((value[read] < least) | (value[read] > most))
    columns = (keys, txn[read], value[read], least, most, _summed(k, done, count), txn[last])
    rows = [pa.array(column[lost], pa.int64()) for column in columns]
    unverified = pa.table({"accounts": pa.array([int((~known).sum())], pa.int64())})
    return {"bank.lost": pa.table(rows, schema=LOST), "bank.unverified": unverified}


def _summed(k: Ints, value: Ints | Bools, count: int) -> Ints:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, k, value.astype(np.int64))
    return total


def _latest(k: Ints, at: Ints, among: Bools, count: int) -> Ints:
    """For each key the row ``among`` these with the greatest ``at``; -1 where there is none."""
    latest = np.full(count, -1, dtype=np.int64)
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((rows, at[rows]))]
    latest[k[rows]] = rows
    return latest


def _beside(k: Ints, txn: Ints, steps: Bools) -> Bools:
    """Whether the step's transaction has one of ``steps`` on the same account."""
    pair = k * (int(txn.max(initial=0)) + 1) + txn
    return np.isin(pair, pair[steps])


LAST = Kernel(name="bank.last", exchange=Exchange.KEY, run=compare_last_reads)
