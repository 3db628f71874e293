"""Which version of a register came before which, where processes or time tell.

A transaction *touches* a version that it reads or makes. If one that touches version v ended before
one that touches another version w began, v is the earlier: a version is current once, without a
break. That rests on real time, or, of two transactions of one process, on its order; a history
that promises neither may have it the other way round.
"""

from __future__ import annotations

import heapq

import attrs
import numpy as np

from checkers.engine.arrays import FAIL, OK, Bools, Ints, group_starts, spread
from checkers.rw_register.register_operations import NO_WRITE, RegisterOps

_NEVER = np.iinfo(np.int64).max


@attrs.frozen(kw_only=True, eq=False)
class Pairs:
    """Rows of writes: each of ``before`` made an earlier version of its register than the one of
    ``after`` beside it. Of those that follow from others not all are there.
    """

    before: Ints
    after: Ints


def versions(ops: RegisterOps) -> Bools:
    """Mark the writes whose values are versions: final ones, of transactions that did not fail."""
    found: Bools = ops.writes.final & (ops.txns.type[ops.writes.txn] != FAIL)
    return found


def seen_versions(ops: RegisterOps) -> Ints:
    """Return the rows of reads by which a committed transaction saw a version of another, or
    its own.
    """
    read = ops.external
    write = ops.reads.write[read]
    known = write != NO_WRITE
    known[known] = versions(ops)[write[known]]
    found: Ints = read[known & ops.txns.committed[ops.reads.txn[read]]]
    return found


def by_time(ops: RegisterOps) -> Pairs:
    """Return what real time tells of the order of versions."""
    of, txn = _touches(ops)
    txns, writes = ops.txns, ops.writes
    timed = txns.real_time[txn]
    of, txn = of[timed], txn[timed]
    known = np.full(len(writes.txn), _NEVER)  # it was there by then
    np.minimum.at(known, of, np.where(txns.type[txn] == OK, txns.finish[txn], _NEVER))
    current = np.full(len(writes.txn), -_NEVER)  # at a time behind this one
    np.maximum.at(current, of, txns.start[txn])
    rows = np.flatnonzero(versions(ops) & (current > -_NEVER))
    rows = rows[np.lexsort((current[rows], writes.k[rows]))]
    columns = (writes.k[rows], known[rows], current[rows])
    parts = [_following(*columns), _contradictions(*columns)]
    before, after = (np.concatenate([getattr(part, n) for part in parts]) for n in _COLUMNS)
    return Pairs(before=rows[before], after=rows[after])


_COLUMNS = ("before", "after")


def _contradictions(k: Ints, known: Ints, current: Ints) -> Pairs:
    """Return both ways round what must each have come before the other: a version that is current
    behind its being known is current all the time between, and no other can be, or can have come,
    within that. Where there is such a pair at a version, one is there.
    """
    long = np.flatnonzero(known < current)
    long = long[np.lexsort((known[long], k[long]))]
    rank = np.empty(len(long), dtype=np.int64)
    order = np.lexsort((current[long], k[long]))
    rank[order] = np.arange(len(long))
    # Registers are in order, so that the greatest so far is of the same one, or there is none.
    most = long[order[np.maximum.accumulate(rank)]] if len(long) else long
    moments = np.unique(np.concatenate([known, current]))
    code = k[long] * len(moments) + np.searchsorted(moments, known[long])
    until = np.searchsorted(code, k * len(moments) + np.searchsorted(moments, current))
    # Of a long one itself, only those that were known before it.
    until[long] = np.arange(len(long))
    rows = np.flatnonzero(until > 0)
    other = most[until[rows] - 1] if len(rows) else rows
    clash = (k[other] == k[rows]) & (current[other] > known[rows])
    rows, other = rows[clash], other[clash]
    return Pairs(before=np.concatenate([rows, other]), after=np.concatenate([other, rows]))


def _following(k: Ints, known: Ints, current: Ints) -> Pairs:
    """Return pairs of versions, sorted by register and ``current``: each with those that are
    current behind its being known, but for what others lead to.
    """
    moments = np.unique(np.concatenate([known, current]))
    width = len(moments) + 1
    code = k * width + np.searchsorted(moments, current)
    at = np.flatnonzero(known != _NEVER)
    low = np.searchsorted(code, k[at] * width + np.searchsorted(moments, known[at]), side="right")
    limit = _third_known(k, known)
    # Two of the three may be the pair itself: behind the third, one that is neither lies between.
    until = np.append(limit, -_NEVER)[low]
    ends = np.searchsorted(moments, until, side="right") - 1
    high = np.searchsorted(code, k[at] * width + ends, side="right")
    inside = np.append(k, -1)[low] == k[at]
    row, place = spread(np.where(inside, np.maximum(high - low, 0), 0))
    before, after = at[row], low[row] + place
    other = before != after
    return Pairs(before=before[other], after=after[other])


def _third_known(k: Ints, known: Ints) -> Ints:
    """Return for each row the third least ``known`` from it to the end of its register; never
    where there are fewer.
    """
    found = np.full(len(k), _NEVER)
    least: list[int] = []  # negative, the greatest of the least three on top
    last = -1
    for row, (of, moment) in enumerate(zip(k[::-1].tolist(), known[::-1].tolist(), strict=True)):
        if of != last:
            least, last = [], of
        if len(least) < 3:
            heapq.heappush(least, -moment)
        else:
            heapq.heappushpop(least, -moment)
        if len(least) == 3:
            found[len(k) - 1 - row] = -least[0]
    return found


def by_process(ops: RegisterOps) -> Pairs:
    """Return what the orders of processes tell of the order of versions."""
    reads, writes, txns = ops.reads, ops.writes, ops.txns
    seen = seen_versions(ops)
    made = np.flatnonzero(versions(ops))
    write = np.concatenate([reads.write[seen], made])
    txn = np.concatenate([reads.txn[seen], writes.txn[made]])
    wrote = np.repeat([False, True], [len(seen), len(made)])
    bound = (txns.type[txn] == OK) & txns.in_session[txn]
    write, txn, wrote = write[bound], txn[bound], wrote[bound]
    # Of a transaction that reads and writes a register, the read comes first.
    order = np.lexsort((wrote, txns.start[txn], txns.process[txn], writes.k[write]))
    write, txn = write[order], txn[order]
    together = ~group_starts(writes.k[write], txns.process[txn])[1:]
    before, after = write[:-1][together], write[1:][together]
    pairs = np.unique(np.stack([before, after])[:, before != after], axis=1)
    return Pairs(before=pairs[0], after=pairs[1])


def _touches(ops: RegisterOps) -> tuple[Ints, Ints]:
    """Return the rows of writes whose versions transactions touch, and these transactions."""
    seen, made = seen_versions(ops), np.flatnonzero(versions(ops))
    of = np.concatenate([ops.reads.write[seen], made])
    return of, np.concatenate([ops.reads.txn[seen], ops.writes.txn[made]])
