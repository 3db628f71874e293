"""Banks whose set-up is not in the history, as Jepsen records them: transfers that say what they
add, and reads of all accounts.

The total is the one that the user gave to the import, or the one that the first read saw. An
account must hold its balance in an earlier read plus the transfers since; transfers that overlap
the reads, and transfers of unknown outcome, widen this to a range.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.bank.kernels import READS, added_up, sums_of
from checkers.engine.arrays import INFO, OK, Bools, Ints, codes, ints
from checkers.engine.transactions import Transactions, transactions_of
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting

_READ, _WRITE, _ADD = 0, 1, 2
_STEPS = ("r", "w", "add")
# Stands for the transaction that set a bank up, where none is recorded.
_NO_SET_UP = -1

# ``touched`` by a transfer, even by a failed one; ``moves`` counts the acknowledged transfers.
ACCOUNTS = pa.schema([("key", pa.int64()), ("touched", pa.bool_()), ("moves", pa.int64())])

# Reads of accounts that no transfer touched.
UNTOUCHED = pa.schema([("key", pa.int64()), ("txn", pa.int64())])

# An account in which ``read`` saw a ``balance`` that is not from ``least`` to ``most``: ``held`` is
# its balance when ``before`` read it, and ``transfers`` of those that moved money since lie wholly
# between the two reads.
MOVED = pa.schema(
    [
        ("key", pa.int64()),
        ("read", pa.int64()),
        ("balance", pa.int64()),
        ("before", pa.int64()),
        ("held", pa.int64()),
        ("least", pa.int64()),
        ("most", pa.int64()),
        ("transfers", pa.int64()),
    ]
)


def add_up_imported(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.unset.accounts``, ``.untouched``, ``.sums`` (``READS``) and ``.moved``. A
    history that a plan drove gives no rows, and neither do accounts that the history wrote.
    """
    txns, table = transactions_of(tables, setting), tables["micro_ops"]
    f, key = codes(table, "f", _STEPS), ints(table, "key")
    if setting.planned or not len(key):
        return _named(*(s.empty_table() for s in (ACCOUNTS, UNTOUCHED, READS, MOVED)))
    # An account that the history wrote has a set-up: the kernels of planned banks judge it.
    kept = np.flatnonzero(~np.isin(key, key[f == _WRITE]))
    table, f, key = table.take(pa.array(kept)), f[kept], key[kept]
    txn, value = ints(table, "txn"), ints(table, "value")
    held = np.asarray(table.column("value").is_valid(), dtype=np.bool_)
    ok = txns.type[txn] == OK
    keys, k = np.unique(key, return_inverse=True)
    moves = np.bincount(k[(f == _ADD) & ok], minlength=len(keys))
    touched = np.isin(np.arange(len(keys)), k[f == _ADD])
    read = np.flatnonzero((f == _READ) & ok)
    sums = sums_of(np.full(len(read), _NO_SET_UP), txn[read], key[read], value[read], held[read])
    spare = read[~touched[k[read]]]
    moved = _moved(keys, k, txn, value, txns, (read[held[read]], np.flatnonzero(f == _ADD)))
    return _named(
        pa.table([keys, touched, moves], schema=ACCOUNTS),
        pa.table([key[spare], txn[spare]], schema=UNTOUCHED),
        sums,
        moved,
    )


def _named(*found: pa.Table) -> dict[str, pa.Table]:
    names = ("accounts", "untouched", "sums", "moved")
    return {f"bank.unset.{name}": table for name, table in zip(names, found, strict=True)}


def _moved(
    keys: Ints, k: Ints, txn: Ints, value: Ints, txns: Transactions, steps: tuple[Ints, Ints]
) -> pa.Table:
    """Return ``MOVED``: each read of an account against the last one that had ended before it
    began.

    A transfer lies between the two for certain where it began after the earlier and ended before
    the later; it may where it neither ended before the earlier began nor began after the later
    ended. Places on one axis, account by account, turn both into searches of sorted arrays.
    """
    reads, adds = steps
    adds = adds[(txns.type[txn[adds]] == OK) | (txns.type[txn[adds]] == INFO)]
    moments = np.unique(np.concatenate([txns.start, txns.finish]))
    # Place 0 of an account precedes all of its moments: since the beginning of the history.
    stride = len(moments) + 2

    def place(rows: Ints, at: Ints) -> Ints:
        return k[rows] * stride + 1 + np.searchsorted(moments, at[txn[rows]])

    start, finish = place(reads, txns.start), place(reads, txns.finish)
    by_finish = np.argsort(finish)
    last = np.searchsorted(finish[by_finish], start) - 1
    # Without an earlier read any row stands here (-1 would take the last one); ``known`` excludes
    # it.
    before = by_finish[np.maximum(last, 0)] if len(reads) else by_finish
    # The place before an account's first read is one of the account before it.
    known = (last >= 0) & (k[reads[before]] == k[reads])
    done = adds[txns.type[txn[adds]] == OK]
    begun, ended = place(done, txns.start), place(done, txns.finish)
    opened = place(adds, txns.start)
    zero = k[reads] * stride
    since = np.where(known, finish[before], zero)

    def between(amount: Ints) -> Ints:
        """Return the acknowledged steps that lie between the two reads for certain."""
        order = np.argsort(start)
        first = np.searchsorted(start[order], ended, side="right")
        after = np.searchsorted(since[order], begun)
        inside = first < after
        change = np.zeros(len(reads) + 1, dtype=np.int64)
        np.add.at(change, first[inside], amount[inside])
        np.add.at(change, after[inside], -amount[inside])
        found = np.zeros(len(reads), dtype=np.int64)
        found[order] = np.cumsum(change)[:-1]
        return found

    def possible(sign: int) -> Ints:
        """Return the sum of all steps of this sign that may lie between the two reads."""
        of_all, of_done = (np.where(value[s] * sign > 0, value[s], 0) for s in (adds, done))
        to_come = _running(opened, of_all, finish) - _running(opened, of_all, zero)
        # Only acknowledged steps have an end: one of unknown outcome may take effect at any time
        # later.
        return to_come - (_running(ended, of_done, start[before]) - _running(ended, of_done, zero))

    amount = value[done]
    earlier = value[reads[before]]
    # The least: only gains that are certain, and every loss that is possible. The most: reversed.
    least = earlier + between(np.maximum(amount, 0)) + possible(-1)
    most = earlier + between(np.minimum(amount, 0)) + possible(1)
    wrong = known & ((value[reads] < least) | (value[reads] > most))
    # Reads after a wrong one differ from it as well: only the first is reported.
    wrong &= ~wrong[before]
    columns = (
        keys[k[reads]],
        txn[reads],
        value[reads],
        txn[reads[before]],
        earlier,
        least,
        most,
        between(np.ones(len(done), dtype=np.int64)),
    )
    return pa.table([pa.array(column[wrong], pa.int64()) for column in columns], schema=MOVED)


def _running(at: Ints, amount: Ints, until: Ints) -> Ints:
    """Sum each ``amount`` whose place ``at`` is before ``until``."""
    order = np.argsort(at)
    total = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(amount[order])])
    return np.asarray(total[np.searchsorted(at[order], until)], dtype=np.int64)


def judge_imported(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.unset.bank`` and ``bank.unset.wrong``. The first has one row where a history of
    this form was read: the first read without a gap, the total, the accounts, and the numbers of
    reads and acknowledged transfers. The second holds the reads with another total, a balance below
    zero, no balance in an account, or an account that is not the bank's.
    """
    txns = transactions_of(tables, setting)
    reads = added_up(tables["bank.unset.sums"])
    accounts, untouched = tables["bank.unset.accounts"], tables["bank.unset.untouched"]
    txn, total = ints(reads, "txn"), ints(reads, "total")
    full = np.flatnonzero(ints(reads, "empty") == 0)
    first = full[np.argsort(txns.finish[txn[full]])[:1]]
    given = setting.bank.total
    # ``first`` is one read or none: the sum is its total, or 0 where nothing is judged.
    expected = given if given is not None else int(total[first].sum())
    seen = ints(untouched, "txn")
    at_first = ints(untouched, "key")[np.isin(seen, txn[first])]
    unexpected, strange = _unexpected(untouched, at_first, txn)
    size = len(at_first) + int(pc.sum(accounts.column("touched")).as_py() or 0)
    count = len(first)
    bank = pa.table(
        {
            "first": txn[first],
            "expected": np.full(count, expected),
            "size": np.full(count, size),
            "reads": np.full(count, reads.num_rows),
            "moves": np.full(count, ints(accounts, "moves").sum()),
        }
    )
    marks: dict[str, Bools] = {
        "off": total != expected,
        "negative": (ints(reads, "least") < 0) & (not setting.bank.negative_balances),
        "nil": ints(reads, "empty") > 0,
        "unexpected": unexpected,
    }
    # Without a full read the bank's accounts are unknown, even where its total is given.
    wrong = np.any(np.stack(tuple(marks.values())), axis=0) & bool(count)
    same = {"expected": expected, "size": size}
    filled = {name: np.full(len(txn), number) for name, number in same.items()}
    more = {**marks, **filled, "strange": strange}
    for name, column in more.items():
        reads = reads.append_column(name, pa.array(column))
    found = reads.filter(pa.array(wrong)).sort_by("txn")
    return {"bank.unset.bank": bank, "bank.unset.wrong": found}


def _unexpected(untouched: pa.Table, at_first: Ints, txn: Ints) -> tuple[Bools, Ints]:
    """Return for each of the sorted ``txn`` whether it read an account that the first read had not
    and that no transfer touched, and the least such account.
    """
    key, of = ints(untouched, "key"), ints(untouched, "txn")
    strange = np.flatnonzero(~np.isin(key, at_first))
    # Descending: of assignments to one place numpy keeps the last, here the least key.
    strange = strange[np.lexsort((-key[strange], of[strange]))]
    found, least = np.zeros(len(txn), dtype=np.bool_), np.zeros(len(txn), dtype=np.int64)
    place = np.searchsorted(txn, of[strange])
    found[place] = True
    least[place] = key[strange]
    return found, least


IMPORTED = Kernel(
    name="bank.imported",
    exchange=Exchange.KEY,
    run=add_up_imported,
    numbers={
        "bank.unset.untouched": ("txn",),
        "bank.unset.sums": ("txn",),
        "bank.unset.moved": ("read", "before"),
    },
)
IMPORTED_JUDGED = Kernel(
    name="bank.imported.judged", exchange=Exchange.ONE_PLACE, run=judge_imported
)
