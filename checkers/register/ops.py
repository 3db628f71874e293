"""The operations on registers as flat arrays, and the reads that no order can explain."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from checkers.engine.arrays import FAIL, INFO, OK, Bools, Ints, codes, group_starts, ints, lists
from checkers.engine.transactions import transactions_of
from harness.errors import MalformedHistory
from harness.protocols.checker import Tables
from harness.protocols.setting import Setting

READ, WRITE, CAS = 0, 1, 2
_STEPS = ("r", "w", "cas")

# The value of a register before its first write, among values that are numbered from 0.
INITIAL = -1
# The end of an operation of unknown outcome.
NEVER = np.iinfo(np.int64).max

# One row a contradiction; ``form`` says which, and with it the meaning of the other columns. A null
# value is that of a register before its first write.
FINDINGS = pa.schema(
    [
        ("anomaly", pa.string()),
        ("key", pa.int64()),
        ("form", pa.string()),
        ("value", pa.int64()),
        ("other", pa.int64()),
        ("txns", pa.list_(pa.int64())),
        ("held", pa.list_(pa.int64())),
    ]
)


@attrs.frozen(kw_only=True, eq=False)
class Ops:
    """One row an operation that may count, sorted by (key, transaction).

    ``k`` is the key's position in ``keys``. ``seen`` and ``left`` are positions in ``values``, or
    ``INITIAL``: the value that the operation found (a read, a compare-and-set), and the value that
    it left (all). Reads are committed; writes are committed, or end ``NEVER``.
    """

    keys: Ints
    values: Ints
    txn: Ints
    k: Ints
    f: NDArray[np.int8]
    seen: Ints
    left: Ints
    start: Ints
    finish: Ints

    def take(self, rows: Ints | Bools) -> Ops:
        """Return only ``rows``."""
        names = ("txn", "k", "f", "seen", "left", "start", "finish")
        return attrs.evolve(self, **{name: getattr(self, name)[rows] for name in names})

    def value(self, number: int) -> int | None:
        """Return the value that ``number`` stands for."""
        return None if number < 0 else int(self.values[number])


def register_ops(tables: Tables, setting: Setting) -> tuple[Ops, pa.Table]:
    """Return the operations that some order must explain, and ``FINDINGS`` on the reads that no
    order can: of values that no operation wrote (garbage-read), or only failed ones (G1a). Reads of
    a kind that promises no real time may be of any age, but not of a value that never existed.

    Raises ``MalformedHistory`` for a transaction of several steps.
    """
    every = _every(tables, setting)
    txns = transactions_of(tables, setting)
    type_ = txns.type[every.txn]
    writes = every.f != READ
    # A compare-and-set that found a value without a writer is a garbage read, too.
    reads = (every.f != WRITE) & (type_ == OK) & (every.seen != INITIAL)
    # One number for key and value; a register's initial value takes place 0 of its key.
    pair = every.k * (len(every.values) + 1) + np.where(writes, every.left, INITIAL) + 1
    wanted = every.k * (len(every.values) + 1) + every.seen + 1
    possible = np.unique(pair[writes & (type_ != FAIL)])
    failed = np.flatnonzero(writes & (type_ == FAIL))
    unexplained = reads & ~np.isin(wanted, possible)
    rows = np.flatnonzero(unexplained)
    aborted = np.isin(wanted[rows], pair[failed])
    findings = [
        _finding(every, int(row), _first(failed, pair, int(wanted[row])) if bad else None)
        for row, bad in zip(rows, aborted, strict=True)
    ]
    ordered = writes | txns.real_time[every.txn]
    # Such a read is a finding by now; such a compare-and-set stays, as others may read what it
    # left.
    kept = every.take((type_ != FAIL) & ordered & ~(unexplained & ~writes))
    return kept, pa.Table.from_pylist(findings, schema=FINDINGS)


def _first(failed: Ints, pair: Ints, wanted: int) -> int:
    return int(failed[pair[failed] == wanted][0])


def _finding(ops: Ops, row: int, writer: int | None) -> dict[str, object]:
    txns = [int(ops.txn[row])] + ([] if writer is None else [int(ops.txn[writer])])
    return {
        "anomaly": "garbage-read" if writer is None else "G1a",
        "key": int(ops.keys[ops.k[row]]),
        "form": "nobody" if writer is None else "aborted",
        "value": ops.value(int(ops.seen[row])),
        "other": None,
        "txns": txns,
        "held": [],
    }


def _every(tables: Tables, setting: Setting) -> Ops:
    """Return all operations but reads that did not commit: those say nothing."""
    txns = transactions_of(tables, setting)
    table = tables["micro_ops"]
    f = codes(table, "f", _STEPS)
    txn, key = ints(table, "txn"), ints(table, "key")
    _refuse_several(txn, ints(table, "pos"))
    seen, left, found, leaves = _values(table, f)
    counts = (f >= 0) & ((f != READ) | (txns.type[txn] == OK))
    rows = np.flatnonzero(counts)
    rows = rows[np.lexsort((txn[rows], key[rows]))]
    used = np.concatenate([seen[rows][found[rows]], left[rows][leaves[rows]]])
    values = np.unique(used)
    keys, k = np.unique(key[rows], return_inverse=True)
    seen_number = np.where(found[rows], np.searchsorted(values, seen[rows]), INITIAL)
    left_number = np.where(leaves[rows], np.searchsorted(values, left[rows]), seen_number)
    type_ = txns.type[txn[rows]]
    return Ops(
        keys=keys,
        values=values,
        txn=txn[rows],
        k=k,
        f=f[rows],
        seen=seen_number,
        left=left_number,
        start=txns.start[txn[rows]],
        finish=np.where(type_ == INFO, NEVER, txns.finish[txn[rows]]),
    )


def _values(table: pa.Table, f: NDArray[np.int8]) -> tuple[Ints, Ints, Bools, Bools]:
    """Return the values that each step found and left, and whether each is a value at all."""
    value = ints(table, "value")
    held = np.asarray(table.column("value").is_valid(), dtype=np.bool_)
    start, length, flat, _ = lists(table, "elements")
    cas = np.flatnonzero(f == CAS)
    if not np.all((length[cas] == 1) | (length[cas] == 2)):
        row = cas[(length[cas] != 1) & (length[cas] != 2)][0]
        where = f"transaction {ints(table, 'txn')[row]}"
        raise MalformedHistory("history", where, "a cas must have an old and a new value")
    if np.any((f == WRITE) & ~held):
        where = f"transaction {ints(table, 'txn')[(f == WRITE) & ~held][0]}"
        raise MalformedHistory("history", where, "a write must have a value")
    seen, left = value.copy(), value.copy()
    seen[cas], left[cas] = flat[start[cas]], flat[start[cas] + length[cas] - 1]
    written_before = (f == CAS) & (length == 2)  # one of length 1 found the initial value
    return seen, left, ((f == READ) & held) | written_before, (f == WRITE) | (f == CAS)


def _refuse_several(txn: Ints, pos: Ints) -> None:
    if np.any(pos > 0):
        raise MalformedHistory(
            "history",
            f"transaction {txn[pos > 0].min()}",
            "has several steps; operations on registers have one (got a transaction of more)",
        )


def searched_keys(ops: Ops) -> Bools:
    """Mark the keys that zones can't judge: those with a compare-and-set, or a
    value written twice.
    """
    searched = np.zeros(len(ops.keys), dtype=np.bool_)
    searched[ops.k[ops.f == CAS]] = True
    writes = np.flatnonzero(ops.f == WRITE)
    writes = writes[np.lexsort((ops.left[writes], ops.k[writes]))]
    again = ~group_starts(ops.k[writes], ops.left[writes])
    searched[ops.k[writes[again]]] = True
    return searched
