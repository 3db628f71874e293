"""Sums of all reads of a whole bank: first over the accounts of each split, then over the splits.

Banks are recognised from the data alone. A *set-up* writes accounts without having read them, all
accounts of one bank in one transaction; a transfer reads what it writes. So the earliest
transaction that wrote an account blindly, and did not fail, names its bank, key by key.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import FAIL, INFO, OK, Bools, Ints, codes, group_starts, ints
from checkers.engine.transactions import transactions_of
from harness.protocols.checker import EXAMPLES_MAX, Exchange, Kernel, Tables
from harness.protocols.generations import trees_of
from harness.protocols.setting import Setting

_READ, _WRITE = 0, 1
_STEPS = ("r", "w")

# Reads of a bank by committed transactions: how many accounts each saw, how many of them held
# nothing, their sum, the least balance and its account.
READS = pa.schema(
    [
        ("bank", pa.int64()),
        ("txn", pa.int64()),
        ("accounts", pa.int64()),
        ("empty", pa.int64()),
        ("total", pa.int64()),
        ("least", pa.int64()),
        ("least_key", pa.int64()),
    ]
)
# ``acked`` is the time of the first acknowledged set-up of the account, on the axis of the order.
ACCOUNTS = pa.schema(
    [("bank", pa.int64()), ("key", pa.int64()), ("balance", pa.int64()), ("acked", pa.int64())]
)
NEVER = np.iinfo(np.int64).max
_ACCOUNT_READ, _ACCOUNT_WRITE, _ADD = 0, 1, 2
_ACCOUNT_STEPS = ("r", "w", "add")
# An account whose last read does not hold from ``least`` to ``most``: its first balance plus the
# acknowledged ``transfers``, with and without those of unknown outcome. ``suspect`` is the
# acknowledged transfer whose amount is missing there (``amount``: what it should have added), the
# last of them; where no single one is, the transfer that was acknowledged last, and no amount.
LOST = pa.schema(
    [
        ("key", pa.int64()),
        ("read", pa.int64()),
        ("balance", pa.int64()),
        ("least", pa.int64()),
        ("most", pa.int64()),
        ("transfers", pa.int64()),
        ("suspect", pa.int64()),
        ("amount", pa.int64()),
    ]
)


def add_accounts(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.accounts``, and ``bank.sums``: ``READS`` over the accounts of this split."""
    txns, table = transactions_of(tables, setting), tables["micro_ops"]
    f = codes(table, "f", _STEPS)
    txn, pos, key = ints(table, "txn"), ints(table, "pos"), ints(table, "key")
    value = ints(table, "value")
    held = np.asarray(table.column("value").is_valid(), dtype=np.bool_)
    order = np.lexsort((pos, txn, key))
    order = order[f[order] >= 0]
    order = order[group_starts(key[order], txn[order])]  # the first step on each account
    # A set-up of unknown outcome counts, since it may have taken effect.
    blind = order[(f[order] == _WRITE) & (txns.type[txn[order]] != FAIL)]
    starts = np.flatnonzero(group_starts(key[blind]))
    first = blind[starts]
    ok = txns.type == OK
    done = np.where(ok[txn[blind]], txns.finish[txn[blind]], NEVER)
    acked = np.minimum.reduceat(done, starts) if len(starts) else done
    accounts = pa.table([txn[first], key[first], value[first], acked], schema=ACCOUNTS)
    read = order[(f[order] == _READ) & ok[txn[order]]]
    # ``key[first]`` ascends, as ``searchsorted`` needs: ``order`` is sorted by key first.
    place = np.searchsorted(key[first], key[read])
    known = place < len(first)
    known[known] = key[first][place[known]] == key[read][known]
    read, bank = read[known], txn[first][place[known]]
    sums = sums_of(bank, txn[read], key[read], value[read], held[read])
    return {"bank.accounts": accounts, "bank.sums": sums}


def sums_of(bank: Ints, txn: Ints, key: Ints, value: Ints, held: Bools) -> pa.Table:
    """Return the ``READS`` of steps: each has a bank, transaction, account, balance, and whether
    the account held a balance.
    """
    value = np.where(held, value, 0)
    order = np.lexsort((key, value, txn, bank))  # the least balance leads its group
    starts = np.flatnonzero(group_starts(bank[order], txn[order]))
    lead = order[starts]
    size = np.diff(np.append(starts, len(order)))
    columns = [
        bank[lead],
        txn[lead],
        size,
        _per_group(~held[order], starts),
        _per_group(value[order], starts),
        value[lead],
        key[lead],
    ]
    return pa.table([pa.array(c, pa.int64()) for c in columns], schema=READS)


def _per_group(values: Bools | Ints, starts: Ints) -> Ints:
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    return np.asarray(np.add.reduceat(values.astype(np.int64), starts), dtype=np.int64)


def judge_reads(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.banks`` (bank, accounts, total, reads of the whole, how many of them resets
    left ``untested``) and ``bank.wrong``: the reads that saw another total, a balance below zero,
    or no balance in an account of a bank that was set up.
    """
    banks = _banks(tables["bank.accounts"])
    reads = _by_generation(_whole(added_up(tables["bank.sums"]), banks), tables, setting)
    counted = reads.group_by("bank").aggregate([([], "count_all")])
    # A join returns its rows in no fixed order, and null for the banks that were never read.
    banks = banks.join(counted.rename_columns({"count_all": "reads"}), "bank").sort_by("bank")
    reads_of_banks = pc.fill_null(banks.column("reads"), 0)
    banks = banks.drop_columns("reads").append_column("reads", reads_of_banks)
    before = _before_set_up(reads, tables, setting)
    before_or_known = before | _known(reads, tables, setting)
    banks = banks.append_column("untested", _untested(banks, reads, before_or_known))
    off = pc.not_equal(reads.column("total"), reads.column("expected"))
    less = pc.and_(pc.less(reads.column("least"), 0), not setting.bank.negative_balances)
    # A wrong total counts the empty accounts in its text: one finding, not two.
    empty = pc.and_(pc.greater(reads.column("empty"), _emptied(reads, tables)), pc.invert(off))
    wrong = pc.and_(pc.or_(pc.or_(off, less), empty), pa.array(~before))
    for name, column in (("off", off), ("negative", less), ("nil", empty)):
        reads = reads.append_column(name, column)
    for name, figures in _changes(reads, tables, setting).items():
        reads = reads.append_column(name, pa.array(figures, pa.int64()))
    wrong_reads = reads.filter(wrong)
    return {"bank.banks": banks, "bank.wrong": wrong_reads.sort_by([("txn", "ascending")])}


def _banks(accounts: pa.Table) -> pa.Table:
    totals = accounts.group_by("bank").aggregate(
        [("key", "count"), ("balance", "sum"), ("acked", "min")]
    )
    return totals.select(["bank", "key_count", "balance_sum", "acked_min"]).rename_columns(
        ["bank", "size", "expected", "acked"]
    )


def added_up(sums: pa.Table) -> pa.Table:
    """Merge the rows of the splits into one row for each bank and transaction."""
    sums = sums.sort_by([(n, "ascending") for n in ("bank", "txn", "least", "least_key")])
    bank, txn = ints(sums, "bank"), ints(sums, "txn")
    starts = np.flatnonzero(group_starts(bank, txn))
    lead = sums.take(pa.array(starts))
    for name in ("accounts", "empty", "total"):
        column = pa.array(_per_group(ints(sums, name), starts), pa.int64())
        lead = lead.set_column(lead.column_names.index(name), name, column)
    return lead


def _whole(reads: pa.Table, banks: pa.Table) -> pa.Table:
    """Return the reads that saw every account, with the totals of their bank."""
    place = np.searchsorted(np.sort(ints(banks, "bank")), ints(reads, "bank"))
    ordered = banks.sort_by("bank").take(pa.array(place))
    for name in ("size", "expected", "acked"):
        reads = reads.append_column(name, ordered.column(name))
    # A read of some accounts need not see their total: transfers cross any part of a bank.
    return reads.filter(pc.equal(reads.column("accounts"), reads.column("size")))


def _by_generation(reads: pa.Table, tables: Tables, setting: Setting) -> pa.Table:
    """Return ``reads`` with the totals that their generations hold, where resets may cost writes.

    A reset takes the accounts of its partition back, and the total with them, by the halves of
    transfers that it tore; from then on transfers keep it again. So all reads that are certainly of
    the same generation of every partition see one total: that of the set-up before any reset, else
    the one that the first of them saw. A read that overlaps a reset is held against none.
    """
    trees = trees_of(setting.resets) if setting.may_lose else {}
    if not trees:
        return reads
    txns = transactions_of(tables, setting)
    order = np.lexsort((ints(reads, "txn"), txns.start[ints(reads, "txn")]))
    reads = reads.take(pa.array(order))
    held: dict[tuple[int, ...], int] = {}
    expected = []
    for row in reads.select(["bank", "txn", "total", "expected"]).to_pylist():
        txn = row["txn"]
        spans = [t.span(int(txns.start[txn]), int(txns.finish[txn])) for t in trees.values()]
        if any(first != last for first, last in spans):
            expected.append(row["total"])
            continue
        places = tuple(first for first, _ in spans)
        first = row["total"] if any(places) else row["expected"]
        expected.append(held.setdefault((row["bank"], *places), first))
    place = reads.column_names.index("expected")
    reads = reads.set_column(place, "expected", pa.array(expected, pa.int64()))
    return reads.sort_by([("bank", "ascending"), ("txn", "ascending")])


def _untested(banks: pa.Table, reads: pa.Table, before: Bools) -> pa.Array:
    """Return how many of the reads of each bank saw another total than that of its set-up and are
    held against none but what a generation was first seen to hold.
    """
    total, expected, bank = ints(reads, "total"), ints(reads, "expected"), ints(banks, "bank")
    # ``banks`` is ordered by bank.
    place = np.searchsorted(bank, ints(reads, "bank"))
    other = (total == expected) & (total != ints(banks, "expected")[place]) & ~before
    return pa.array(_summed(place, other, len(bank)), pa.int64())


def _known(reads: pa.Table, tables: Tables, setting: Setting) -> Bools:
    """Tell of each read whether what its partitions held in their generations was judged. One that
    overlaps a reset is of either and says nothing.
    """
    trees = trees_of(setting.resets) if setting.may_lose else {}
    rows = tables["bank.generations"].to_pylist()
    judged = {(row["partition"], row["place"]) for row in rows}
    txns = transactions_of(tables, setting)
    found = []
    for txn in ints(reads, "txn").tolist():
        start, finish = int(txns.start[txn]), int(txns.finish[txn])
        spans = [(p, *tree.span(start, finish)) for p, tree in trees.items()]
        found.append(all(low != high or not low or (p, low) in judged for p, low, high in spans))
    return np.asarray(found, dtype=np.bool_)


def _emptied(reads: pa.Table, tables: Tables) -> pa.Array:
    """Return how many accounts each read may have found empty: a reset had their partition begin
    anew.
    """
    found = tables["bank.emptied"].select(["key", "read"]).group_by(["key", "read"]).aggregate([])
    banks = tables["bank.accounts"].select(["key", "bank"])
    rows = found.join(banks, "key", join_type="inner").select(["bank", "read"]).to_pylist()
    count = Counter((row["bank"], row["read"]) for row in rows)
    told = reads.select(["bank", "txn"]).to_pylist()
    return pa.array([count[row["bank"], row["txn"]] for row in told], pa.int64())


def _taken_back(table: pa.Table, k: Ints, count: int, setting: Setting) -> Bools:
    """Tell of each account whether a reset may have taken it back: what its transfers make is then
    no balance that it owes.
    """
    reset = np.zeros(count, dtype=np.bool_)
    if setting.may_lose and "partition" in table.column_names:
        here = pc.is_in(
            table.column("partition"),
            value_set=pa.array(sorted({r.partition for r in setting.resets}), pa.int32()),
        )
        reset[k[np.asarray(pc.fill_null(here, False))]] = True
    return reset


def _before_set_up(reads: pa.Table, tables: Tables, setting: Setting) -> Bools:
    """Tell whether a read that found no balances may precede the bank's set-up: no set-up had been
    acknowledged when the read began, or the read's kind promises no real time.
    """
    txns, txn = transactions_of(tables, setting), ints(reads, "txn")
    nothing = ints(reads, "empty") == ints(reads, "size")
    # At equal times the read may have come first.
    early = (txns.start[txn] <= ints(reads, "acked")) | ~txns.real_time[txn]
    return np.asarray(nothing & early, dtype=np.bool_)


def _changes(reads: pa.Table, tables: Tables, setting: Setting) -> dict[str, Ints]:
    """Return for each whole read when its total came about, and from which: ``excess`` over the
    last other total that was read before it (that of the set-up, where none was), ``since`` the
    begin of that read, and ``until`` the end of the first read that saw the total since then.
    """
    txns, txn, bank = transactions_of(tables, setting), ints(reads, "txn"), ints(reads, "bank")
    total, expected = ints(reads, "total"), ints(reads, "expected")
    start, finish = txns.start[txn], txns.finish[txn]
    excess, since, until = total - expected, np.zeros_like(total), finish.copy()
    # Few: only the reads that are shown need it, and each looks at all others once.
    wrong = np.flatnonzero(total != expected)
    for place in wrong[np.argsort(txn[wrong], kind="stable")][:EXAMPLES_MAX].tolist():
        mine = bank == bank[place]
        other = np.flatnonzero(mine & (total != total[place]) & (finish < start[place]))
        if len(other):
            last = other[np.lexsort((other, start[other]))[-1]]
            excess[place], since[place] = total[place] - total[last], start[last]
        alike = mine & (total == total[place]) & (finish >= since[place])
        until[place] = finish[alike].min()
    return {"excess": excess, "since": since, "until": until}


SUMS = Kernel(
    name="bank.sums",
    exchange=Exchange.KEY,
    run=add_accounts,
    # A bank is named by the transaction that set it up.
    numbers={"bank.accounts": ("bank",), "bank.sums": ("bank", "txn")},
)


JUDGED = Kernel(name="bank.judged", exchange=Exchange.ONE_PLACE, run=judge_reads)


def compare_last_reads(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.lost``, and ``bank.unverified``: how many accounts can't be compared, because
    they lack a transfer, lack a read after the last acknowledgement, or were set up more than once.
    """
    txns, table = transactions_of(tables, setting), tables["micro_ops"]
    f = codes(table, "f", _ACCOUNT_STEPS)
    txn, value = ints(table, "txn"), ints(table, "value")
    keys, k = np.unique(ints(table, "key"), return_inverse=True)
    type_, count = txns.type[txn], len(keys)
    blind = (f == _ACCOUNT_WRITE) & (type_ != FAIL) & ~_beside(k, txn, f == _ACCOUNT_READ)
    done = (f == _ADD) & (type_ == OK)
    open_ = value * ((f == _ADD) & (type_ == INFO))
    given = _summed(k, value * (blind | done), count)
    least = given + _summed(k, np.minimum(open_, 0), count)
    most = given + _summed(k, np.maximum(open_, 0), count)
    last = _latest(k, txns.finish[txn], done, count)
    # A read whose kind promises no real time may show an old state of the account.
    shows = (f == _ACCOUNT_READ) & (type_ == OK) & txns.real_time[txn]
    # A transfer read what was there before it.
    read = _latest(k, txns.start[txn], shows & ~_beside(k, txn, f == _ACCOUNT_WRITE), count)
    once = (_summed(k, blind, count) == 1) & (_summed(k, blind & (type_ == OK), count) == 1)
    known = once & (read >= 0) & (last >= 0) & ~_taken_back(table, k, count, setting)
    # Row -1, which means none, takes the last row here; ``known`` already excludes it.
    known &= txns.start[txn[read]] > txns.finish[txn[last]]
    lost = known & ((value[read] < least) | (value[read] > most))
    gap = np.where(value[read] < least, least, most) - value[read]
    equal = _latest(k, txns.finish[txn], done & lost[k] & (value == gap[k]), count)
    suspect = np.where(equal >= 0, equal, last)
    columns = (keys, txn[read], value[read], least, most, _summed(k, done, count), txn[suspect])
    rows = [pa.array(column[lost], pa.int64()) for column in columns]
    rows.append(pa.array(gap[lost], pa.int64(), mask=equal[lost] < 0))
    unverified = pa.table({"accounts": pa.array([int((~known).sum())], pa.int64())})
    return {"bank.lost": pa.table(rows, schema=LOST), "bank.unverified": unverified}


def _summed(k: Ints, value: Ints | Bools, count: int) -> Ints:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, k, value.astype(np.int64))
    return total


def _latest(k: Ints, at: Ints, among: Bools, count: int) -> Ints:
    """Return for each key the row of ``among`` with the greatest ``at``; -1 where there is none."""
    latest = np.full(count, -1, dtype=np.int64)
    rows = np.flatnonzero(among)
    rows = rows[np.lexsort((rows, at[rows]))]
    latest[k[rows]] = rows
    return latest


def _beside(k: Ints, txn: Ints, steps: Bools) -> Bools:
    """Tell whether the step's transaction has one of ``steps`` on the same account."""
    # One integer for each pair, so that ``isin`` compares pairs.
    pair = k * (int(txn.max(initial=0)) + 1) + txn
    return np.isin(pair, pair[steps])


LAST = Kernel(
    name="bank.last",
    exchange=Exchange.KEY,
    run=compare_last_reads,
    numbers={"bank.lost": ("read", "suspect")},
)
