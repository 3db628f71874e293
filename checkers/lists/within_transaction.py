"""Anomalies within one transaction's operations on one key: internal, and lost updates."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import OK, Bools, Ints, batches, group_starts, spread
from checkers.lists.findings import rows
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import CHUNK, Versions


@attrs.frozen(kw_only=True, eq=False)
class Own:
    """The operations of a read's own transaction on the key before it.

    ``before`` is the row of the transaction's previous read of the key (-1: none);
    ``order[low:high]`` are the rows of its appends since that read, and ``order[high:end]`` those
    that follow this one.
    """

    before: Ints
    order: Ints
    low: Ints
    high: Ints
    end: Ints


def own_operations(ops: ListOps) -> Own:
    """Return the own operations around every read."""
    reads, appends = ops.reads, ops.appends
    order = np.lexsort((appends.pos, appends.txn, appends.k))
    group = _groups(ops, reads.k, reads.txn)
    # Two more than any position: a group's last code lies beyond all of its appends.
    depth = int(max(reads.pos.max(initial=0), appends.pos.max(initial=0))) + 2
    code = _groups(ops, appends.k[order], appends.txn[order]) * depth + appends.pos[order]
    high = np.searchsorted(code, group * depth + reads.pos)
    again = ~group_starts(group)
    low = np.searchsorted(code, group * depth)
    # Reads are sorted, so the row before is the same transaction's previous read.
    low[again] = high[:-1][again[1:]]
    return Own(
        before=np.where(again, np.arange(len(again)) - 1, -1),
        order=order,
        low=low,
        high=high,
        end=np.searchsorted(code, group * depth + depth - 1),
    )


def _groups(ops: ListOps, k: Ints, txn: Ints) -> Ints:
    """Number each (key, transaction), ascending; positions are multiplied onto the number."""
    return k * max(len(ops.txns.type), 1) + txn


def internal(ops: ListOps, own: Own) -> pa.Table:
    """internal: a read contradicts the transaction's own earlier operations.

    After a read it must be that list and the own appends since; without one it must end in the own
    appends, with any elements before them.
    """
    reads = ops.reads
    count = own.high - own.low
    told = (own.before >= 0) | (count > 0)
    read = np.flatnonzero((ops.txns.type[reads.txn] == OK) & told)
    before, count = own.before[read], count[read]
    known = np.where(before >= 0, reads.length[before], 0)
    wrong = reads.length[read] < known + count
    wrong |= (before >= 0) & (reads.length[read] != known + count)
    # A list of the wrong length is wrong already; compared, it would be read beyond its end.
    wrong |= _differ_in_head(ops, read, before, np.where(wrong, 0, known))
    wrong |= _differ_in_tail(ops, own, read, np.where(wrong, 0, count))
    read = read[wrong]
    return rows(ops, "internal", reads.k[read], reads.txn[read])


def _differ_in_head(ops: ListOps, read: Ints, before: Ints, length: Ints) -> Bools:
    differs = np.zeros(len(read), dtype=np.bool_)
    for part in batches(length, CHUNK):
        row, place = spread(length[part])
        mine = ops.elements[ops.reads.start[read[part]][row] + place]
        theirs = ops.elements[ops.reads.start[before[part]][row] + place]
        differs[part.start + row[mine != theirs]] = True
    return differs


def _differ_in_tail(ops: ListOps, own: Own, read: Ints, count: Ints) -> Bools:
    row, place = spread(count)
    at = ops.reads.start[read[row]] + ops.reads.length[read[row]] - count[row] + place
    append = own.order[own.low[read[row]] + place]
    return _any_of(row[ops.elements[at] != ops.appends.element[append]], len(read))


def _any_of(found: Ints, n: int) -> Bools:
    mask = np.zeros(n, dtype=np.bool_)
    mask[found] = True
    return mask


def lost_updates(ops: ListOps, versions: Versions, own: Own) -> pa.Table:
    """lost-update: committed transactions first read the same version and then appended to it. Only
    one of them may; each other is a row that names the first.
    """
    reads = ops.reads
    first = own.before < 0
    read = np.flatnonzero((ops.txns.type[reads.txn] == OK) & first & (own.end > own.high))
    state = _states(ops, versions, read)
    order = np.lexsort((reads.txn[read], state, reads.k[read]))
    read, state = read[order], state[order]
    starts = group_starts(reads.k[read], state)
    group = np.cumsum(starts) - 1
    low = np.flatnonzero(starts)
    later = read[~starts]
    first_of_all = read[low[group[~starts]]]
    return rows(ops, "lost-update", reads.k[later], reads.txn[later], reads.txn[first_of_all])


def _states(ops: ListOps, versions: Versions, read: Ints) -> Ints:
    """Number each read: equal for equal lists of one key.

    Prefixes of the longest read are told apart by their length; the others, which are anomalies
    themselves, by their content.
    """
    state = ops.reads.length[read].copy()
    seen: dict[bytes, int] = {}
    for i in np.flatnonzero(~versions.prefix[read]).tolist():
        start = ops.reads.start[read[i]]
        content = ops.elements[start : start + ops.reads.length[read[i]]].tobytes()
        # Negative, so that it never equals the length of a prefix.
        state[i] = -1 - seen.setdefault(content, len(seen))
    return state
