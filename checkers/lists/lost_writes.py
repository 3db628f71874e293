"""Acknowledged appends that no later read of their key shows; the checker is
``checkers.promises.lost_write``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, Bools, Ints, batches, group_starts, spread
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import CHUNK, NEVER
from harness.protocols.checker import Tables
from harness.protocols.setting import Setting

# The phase of a run in which every key is read once more, after all is healed and quiet.
FINAL_READS = "final-reads"

# ``read`` is the transaction whose read misses the value, ``read_ns`` the time of its invocation;
# ``gone`` is the first one that misses it behind every read that shows it: by its end, at
# ``shown_ns``, the value was lost.
# ``seen`` is the last transaction that read the value and began after its acknowledgement; null
# where there is none, as in every history without final reads. ``seen_ns`` is the last moment as of
# which a read certainly shows it: the begin of the read, less what its kind may be stale by.
# ``followed_ns`` is when the first append was acknowledged that began after this one's
# acknowledgement, to the same key, and is in the list that misses it.
LOST = pa.schema(
    [
        ("key", pa.int64()),
        ("value", pa.int64()),
        ("partition", pa.int32()),
        ("writer", pa.int64()),
        ("invoke_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("read", pa.int64()),
        ("read_ns", pa.int64()),
        ("gone", pa.int64()),
        ("shown_ns", pa.int64()),
        ("seen", pa.int64()),
        ("seen_ns", pa.int64()),
        ("followed_ns", pa.int64()),
    ]
)


def lost_writes(ops: ListOps, tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``lost-write.lost``, and ``lost-write.counts``: acknowledged and unverified appends.

    An acknowledged append is lost if some read of its key was invoked after the acknowledgement,
    and none of those shows it. Where one shows it and the last one does not, the last one is stale,
    or else the value was lost after it had been seen: only the final reads of a run can tell, since
    no write and no fault is concurrent with them. A key that has final reads is judged by them
    alone.
    """
    last, missed, unverified = _missed(ops, setting)
    lost, seen = _never_shown(ops, missed, last, _final_ns(setting))
    acknowledged = int((ops.txns.type[ops.appends.txn] == OK).sum())
    counts = pa.table({"acknowledged": [acknowledged], "unverified": [unverified]})
    return {
        "lost-write.lost": _table(tables, ops, lost, last[ops.appends.k[lost]], seen),
        "lost-write.counts": counts,
    }


def missed_writes(ops: ListOps, tables: Tables, setting: Setting) -> pa.Table:
    """Return the acknowledged appends that the last read of their key misses, as ``LOST``, whether
    or not another read had shown them.
    """
    last, missed, _ = _missed(ops, setting)
    none = np.full(len(missed), -1)
    return _table(tables, ops, missed, last[ops.appends.k[missed]], none)


def _missed(ops: ListOps, setting: Setting) -> tuple[Ints, Ints, int]:
    """Return the last read of each key, the acknowledged appends that it misses, and how many it
    can't tell of.
    """
    # A final read of a snapshot tells of what was acknowledged before it, less its staleness.
    moment = ops.txns.moment
    last = _last_reads(ops, _final_ns(setting))
    acked = np.flatnonzero(ops.txns.type[ops.appends.txn] == OK)
    witness = last[ops.appends.k[acked]]
    # Without any read the place -1 would be an index error, not a last row.
    started = moment[ops.reads.txn[witness]] if len(ops.reads.txn) else witness
    # Concurrent reads may rightly miss it: only one that began after the acknowledgement tells.
    judged = (witness >= 0) & (started > ops.txns.finish[ops.appends.txn[acked]])
    present = _present(ops, last[last >= 0])
    return last, acked[judged & ~present[acked]], int((~judged).sum())


def _final_ns(setting: Setting) -> int | None:
    return dict(setting.phases).get(FINAL_READS)


def _never_shown(ops: ListOps, missed: Ints, last: Ints, final_ns: int | None) -> tuple[Ints, Ints]:
    """Return the appends of ``missed``, which the last reads lack, that count as lost; and for each
    the row of the last read that shows it and began after its acknowledgement, -1 for none.
    """
    if not len(missed):
        return missed, missed
    shown = _last_shown(ops, missed, ops.txns.start)
    started = np.where(shown >= 0, ops.txns.start[ops.reads.txn[shown]], 0)
    # The search began at the first of the key's missed acknowledgements; this append's may be
    # later.
    seen = (shown >= 0) & (started > ops.txns.finish[ops.appends.txn[missed]])
    lost = ~seen
    if final_ns is not None:
        ended = ops.txns.start[ops.reads.txn[last[ops.appends.k[missed]]]] >= final_ns
        # Final reads see no faults and no writes: what they miss is gone, even if it was seen
        # before.
        lost |= ended & (started < final_ns)
    return missed[lost], np.where(seen, shown, -1)[lost]


def _last_moment(ops: ListOps, lost: Ints) -> Ints:
    """Return the last of the moments as of which a read shows each append; ``NEVER`` for none. A
    snapshot may show what was there before a reset, and begin after it.
    """
    if not len(lost):
        return lost
    shown = _last_shown(ops, lost, ops.txns.moment)
    return np.where(shown >= 0, ops.txns.moment[ops.reads.txn[shown]], NEVER)


def _first_missing(ops: ListOps, lost: Ints, last: Ints) -> Ints:
    """Return for each of ``lost``, which the reads ``last`` miss, the read that ended first of
    those that began when it was acknowledged and no read could show it any more.

    A read of real time shows what was there until it ended, another one what was there at its
    moment.
    """
    if not len(lost):
        return last
    reads, txns, appends = ops.reads, ops.txns, ops.appends
    until = np.where(txns.real_time, txns.finish, txns.moment)
    shown = _shown_until(ops, lost, until)
    asked = np.zeros(len(ops.keys), dtype=np.bool_)
    asked[appends.k[lost]] = True
    rows = np.flatnonzero((txns.type[reads.txn] == OK) & txns.real_time[reads.txn] & asked[reads.k])
    if not len(rows):
        return last
    rows = rows[np.lexsort((txns.start[reads.txn[rows]], reads.k[rows]))]
    k, many = reads.k[rows], len(rows)
    by_end = np.argsort(txns.finish[reads.txn[rows]], kind="stable")
    rank = np.empty(many, dtype=np.int64)
    rank[by_end] = np.arange(many)
    # From each read on the one of its key that ended first: ranks of keys do not overlap.
    away = k * many
    soonest = by_end[(np.minimum.accumulate((rank + away)[::-1])[::-1] - away)]
    # Reads and losses in one order: as many reads lie before a loss as began by then.
    order = np.lexsort(
        (
            np.repeat([0, 1], [many, len(lost)]),
            np.concatenate([txns.start[reads.txn[rows]], shown]),
            np.concatenate([k, appends.k[lost]]),
        )
    )
    behind = np.empty(len(order), dtype=np.int64)
    behind[order] = np.cumsum(order < many)
    first = behind[many:]
    there = first < many
    first = np.where(there, first, 0)
    there &= k[first] == appends.k[lost]
    return np.where(there, rows[soonest[first]], last)


def _shown_until(ops: ListOps, lost: Ints, until: Ints) -> Ints:
    """Return for each of ``lost`` the latest ``until`` (one a transaction) of the reads that show
    it; its acknowledgement where there is no later one.
    """
    reads, txns, appends = ops.reads, ops.txns, ops.appends
    shown = txns.finish[appends.txn]  # a copy
    # Keys without a loss stay at the maximum, so that none of their reads is expanded.
    since = np.full(len(ops.keys), NEVER)
    np.minimum.at(since, appends.k[lost], shown[lost])
    later = until[reads.txn] > since[reads.k]
    rows = np.flatnonzero(later & (txns.type[reads.txn] == OK))
    for part in batches(reads.length[rows], CHUNK):
        place, within = spread(reads.length[rows[part]])
        read = rows[part][place]
        append = ops.writer(reads.k[read], ops.elements[reads.start[read] + within])
        known = append >= 0
        np.maximum.at(shown, append[known], until[reads.txn[read[known]]])
    return shown[lost]


def _followed(ops: ListOps, lost: Ints, read: Ints) -> Ints:
    """Return when the first append was acknowledged that began after the acknowledgement of each
    of ``lost``, and that the read which misses it shows; ``NEVER`` for none.
    """
    appends, txns = ops.appends, ops.txns
    found = np.full(len(lost), NEVER)
    for place, (row, by) in enumerate(zip(lost.tolist(), read.tolist(), strict=True)):
        at, length = int(ops.reads.start[by]), int(ops.reads.length[by])
        element = ops.elements[at : at + length]
        shown = ops.writer(np.full(length, appends.k[row]), element)
        shown = appends.txn[shown[shown >= 0]]
        later = txns.start[shown] > txns.finish[appends.txn[row]]
        done = txns.finish[shown[later & (txns.type[shown] == OK)]]
        found[place] = done.min(initial=NEVER)
    return found


def _last_shown(ops: ListOps, missed: Ints, start: Ints) -> Ints:
    """Return for each append the ok read that shows it and has the latest ``start`` (one a
    transaction), of those after the first acknowledgement of these appends in its key; -1 for none.
    """
    reads = ops.reads
    # Keys without a missed append stay at the maximum, so that none of their reads is expanded.
    since = np.full(len(ops.keys), np.iinfo(np.int64).max)
    np.minimum.at(since, ops.appends.k[missed], ops.txns.finish[ops.appends.txn[missed]])
    rows = np.flatnonzero((start[reads.txn] > since[reads.k]) & (ops.txns.type[reads.txn] == OK))
    # In the order of invocation, so that the greatest place is the latest read.
    rows = rows[np.lexsort((rows, start[reads.txn[rows]]))]
    latest = np.full(len(ops.appends.txn), -1)
    # In parts: the elements of all reads of a key are the square of its appends.
    for part in batches(reads.length[rows], CHUNK):
        place, within = spread(reads.length[rows[part]])
        read = rows[part][place]
        append = ops.writer(reads.k[read], ops.elements[reads.start[read] + within])
        known = append >= 0
        np.maximum.at(latest, append[known], place[known] + part.start)
    found = latest[missed]
    return np.where(found >= 0, rows[found], -1) if len(rows) else found


def _last_reads(ops: ListOps, final_ns: int | None) -> Ints:
    """Return per key the committed read that tells of the latest moment, of those of real time and
    the final ones; -1 for none.

    Of reads of the same moment, the highest transaction's last one counts.
    """
    reads, txns = ops.reads, ops.txns
    last = np.full(len(ops.keys), -1)
    tells = txns.real_time[reads.txn]
    if final_ns is not None:
        tells = tells | (txns.start[reads.txn] >= final_ns)
    rows = np.flatnonzero((txns.type[reads.txn] == OK) & tells)
    if len(rows):
        started = txns.moment[reads.txn[rows]]
        groups = np.flatnonzero(group_starts(reads.k[rows]))
        latest = np.zeros(len(ops.keys), dtype=np.int64)
        # By time of invocation, not by length: a stale read may be longer than a lost one.
        latest[reads.k[rows[groups]]] = np.maximum.reduceat(started, groups)
        # Reads are sorted by (key, transaction, position), and the last assignment stays.
        rows = rows[started == latest[reads.k[rows]]]
        last[reads.k[rows]] = rows
    return last


def _present(ops: ListOps, read: Ints) -> Bools:
    """Mark the appends that one of the reads ``read`` (one a key) shows."""
    row, place = spread(ops.reads.length[read])
    element = ops.elements[ops.reads.start[read][row] + place]
    append = ops.writer(ops.reads.k[read][row], element)
    present = np.zeros(len(ops.appends.txn), dtype=np.bool_)
    present[append[append >= 0]] = True
    return present


def _table(tables: Tables, ops: ListOps, lost: Ints, read: Ints, seen: Ints) -> pa.Table:
    writer = ops.appends.txn[lost]
    reader = ops.reads.txn[read]
    gone = ops.reads.txn[_first_missing(ops, lost, read)]
    times = tables["transactions"]
    columns: dict[str, Any] = {
        "key": pa.array(ops.keys[ops.appends.k[lost]], pa.int64()),
        "value": pa.array(ops.appends.element[lost], pa.int64()),
        "partition": _partitions(tables["micro_ops"], ops.keys[ops.appends.k[lost]]),
        "writer": pa.array(writer, pa.int64()),
        "invoke_ns": times.column("invoke_ns").take(pa.array(writer)),
        "ack_ns": times.column("complete_ns").take(pa.array(writer)),
        "read": pa.array(reader, pa.int64()),
        "read_ns": times.column("invoke_ns").take(pa.array(reader)),
        "gone": pa.array(gone, pa.int64()),
        "shown_ns": times.column("complete_ns").take(pa.array(gone)),
        "seen": _transaction(ops, seen),
        "seen_ns": _or_null(_last_moment(ops, lost)),
        "followed_ns": _or_null(_followed(ops, lost, read)),
    }
    return pa.table(columns).cast(LOST)


def _transaction(ops: ListOps, read: Ints) -> pa.Array:
    txn = ops.reads.txn[read] if len(ops.reads.txn) else read
    return pa.array(txn, pa.int64(), mask=read < 0)


def _or_null(at_ns: Ints) -> pa.Array:
    return pa.array(at_ns, pa.int64(), mask=at_ns == NEVER)


def _partitions(micro_ops: pa.Table, keys: Ints) -> pa.Array:
    """Return the partition of each key, null where the store does not report it."""
    if not len(keys) or "partition" not in micro_ops.column_names:
        return pa.nulls(len(keys), pa.int32())
    # Any operation on the key tells its partition: the hash does not change in a run.
    at = pc.index_in(pa.array(keys, pa.int64()), value_set=micro_ops.column("key").combine_chunks())
    return pc.take(micro_ops.column("partition").combine_chunks(), at).cast(pa.int32())
