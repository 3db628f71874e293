"""Dependencies between transactions, as Adya defines them, from version orders.

ww: the writer of a version to the writer of the next. wr: the writer of the last element that a
read saw to the reader. rw: the reader of a version to the writer of the next.

An append that the longest read does not show follows all appends that it shows: it comes after
the last version, and the readers of that version precede it. Those are products of two groups,
so the edges go through a *gate*, a vertex of its own (see ``gates``).
"""

from __future__ import annotations

import enum

import numpy as np
import pyarrow as pa

from checkers.engine.arrays import FAIL, OK, Bools, Ints, group_starts
from checkers.engine.transactions import Transactions
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import Versions


class Kind(enum.IntEnum):
    """Kinds of edges, those that accuse most first."""

    WW = 0
    WR = 1
    RW = 2


# ``element`` is what was read (wr) or what the target appended (ww, rw). ``untimed``: real time
# alone does not say that the source precedes the target (null: not known). Without the other rows
# the graph has the same components.
EDGES = pa.schema(
    [
        # Narrow columns: as 64 bits, the edges of long histories fill the memory.
        ("kind", pa.int8()),
        ("source", pa.int32()),
        ("target", pa.int32()),
        ("key", pa.int64()),
        ("element", pa.int64()),
        ("untimed", pa.bool_()),
    ]
)

# Readers (role 0) of a key's last known version, and appenders (role 1) beyond it. ``untimed``: of
# a reader, that real time does not put it before all appenders of the key; of an appender, not
# behind all untimed readers.
TAILS = pa.schema(
    [
        ("role", pa.int8()),
        ("txn", pa.int32()),
        ("key", pa.int64()),
        ("element", pa.int64()),
        ("untimed", pa.bool_()),
    ]
)
READER, APPENDER = 0, 1


def edges(ops: ListOps, versions: Versions) -> pa.Table:
    """Return the dependencies between different transactions that did not fail.

    Reads of transactions of unknown fate are among them: they count only where the transaction is
    proven committed, which a single key can't show.
    """
    made = [_write_write(ops, versions), _write_read(ops), _read_write(ops, versions)]
    return pa.concat_tables(made)


def tails(ops: ListOps, versions: Versions) -> pa.Table:
    """Return the readers of each key's last known version, and the appenders that no read shows.

    Only of keys that have both; one row a transaction, key and role.
    """
    appends, reads = ops.appends, ops.reads
    unseen = np.flatnonzero(
        (versions.of_append[: len(appends.txn)] < 0) & (ops.txns.type[appends.txn] != FAIL)
    )
    waiting = np.zeros(len(ops.keys), dtype=np.bool_)
    waiting[appends.k[unseen]] = True
    read, version = _states(ops, versions)
    last = waiting[reads.k[read]] & (version == versions.count[reads.k[read]] - 1)
    read = read[last]
    readers = (reads.txn[read], reads.k[read])
    appenders = (appends.txn[unseen], appends.k[unseen])
    early, late = _untimed_tails(ops, readers, appenders)
    parts = (
        (READER, *readers, np.zeros(len(read), dtype=np.int64), early),
        (APPENDER, *appenders, appends.element[unseen], late),
    )
    return pa.concat_tables([_tail(ops, *part) for part in parts])


def _tail(ops: ListOps, role: int, txn: Ints, k: Ints, element: Ints, untimed: Bools) -> pa.Table:
    order = np.lexsort((element, txn, k))
    order = order[group_starts(k[order], txn[order])]
    columns = [
        pa.array(np.full(len(order), role), pa.int8()),
        pa.array(txn[order], pa.int32()),
        pa.array(ops.keys[k[order]], pa.int64()),
        pa.array(element[order], pa.int64()),
        pa.array(untimed[order]),
    ]
    return pa.Table.from_arrays(columns, schema=TAILS)


def _untimed_tails(
    ops: ListOps, readers: tuple[Ints, Ints], appenders: tuple[Ints, Ints]
) -> tuple[Bools, Bools]:
    """Return which readers and appenders (transactions and keys) time alone does not order."""
    (txn, k), (other, own) = readers, appenders
    end, begin = _end(ops.txns, txn), _begin(ops.txns, other)
    first = np.full(len(ops.keys), _NEVER)
    np.minimum.at(first, own, begin)
    early: Bools = end >= first[k]
    last = np.full(len(ops.keys), -_NEVER)
    np.maximum.at(last, k[early], end[early])
    return early, begin <= last[own]


_NEVER = np.iinfo(np.int64).max


def _begin(txns: Transactions, which: Ints) -> Ints:
    """Return the times before which others precede the transactions ``which``: at no time where
    real time does not bind one.
    """
    bound = txns.real_time[which] & (txns.type[which] != FAIL)
    return np.where(bound, txns.start[which], -_NEVER)


def _end(txns: Transactions, which: Ints) -> Ints:
    """Return the times after which the transactions ``which`` precede others."""
    bound = txns.real_time[which] & (txns.type[which] == OK)
    return np.where(bound, txns.finish[which], _NEVER)


def _states(ops: ListOps, versions: Versions) -> tuple[Ints, Ints]:
    """Return the reads whose last element is in the version order, with its position; empty reads
    have -1.
    """
    reads = ops.reads
    able = np.flatnonzero(ops.txns.type[reads.txn] != FAIL)
    empty = reads.length[able] == 0
    element = _last(ops, able)
    version = versions.version(np.where(empty, -1, ops.writer(reads.k[able], element)))
    known = empty | (version >= 0)
    position = np.full(len(able), -1)
    shown = version >= 0
    position[shown] = versions.position[version[shown]]
    return able[known], position[known]


def _last(ops: ListOps, read: Ints) -> Ints:
    """Return the last element of each read; any number for an empty one."""
    if not len(ops.elements):
        return np.zeros(len(read), dtype=np.int64)
    at = ops.reads.start[read] + ops.reads.length[read] - 1
    # The place of an empty read may lie outside of the elements, at either end.
    last: Ints = ops.elements[np.clip(at, 0, len(ops.elements) - 1)]
    return last


def _write_write(ops: ListOps, versions: Versions) -> pa.Table:
    follower = np.flatnonzero((versions.position > 0) & (versions.append >= 0))
    seen = _between(ops, versions, follower - 1, versions.append[follower])
    unseen = np.flatnonzero(versions.of_append[: len(ops.appends.txn)] < 0)
    k = ops.appends.k[unseen]
    # Where no version was read, nothing is known to precede an append that no read shows.
    unseen = unseen[versions.count[k] > 0]
    k = ops.appends.k[unseen]
    last = versions.first[k] + versions.count[k] - 1
    return pa.concat_tables([seen, _between(ops, versions, last, unseen)])


def _between(ops: ListOps, versions: Versions, before: Ints, append: Ints) -> pa.Table:
    """Return ww edges from the writers of versions ``before`` to the writers of ``append``."""
    writer = versions.append[before]
    # -1 is garbage, which no transaction appended; it is a finding of its own.
    pick = writer >= 0
    return _to_append(ops, Kind.WW, ops.appends.txn[writer[pick]], append[pick])


def _write_read(ops: ListOps) -> pa.Table:
    reads = ops.reads
    read = np.flatnonzero(reads.length > 0)
    element = _last(ops, read)
    append = ops.writer(reads.k[read], element)
    read, element, append = read[append >= 0], element[append >= 0], append[append >= 0]
    return _made(ops, Kind.WR, ops.appends.txn[append], reads.txn[read], reads.k[read], element)


def _read_write(ops: ListOps, versions: Versions) -> pa.Table:
    reads = ops.reads
    read, position = _states(ops, versions)
    k = reads.k[read]
    inner = position + 1 < versions.count[k]
    read, k = read[inner], k[inner]
    following = versions.append[versions.first[k] + position[inner] + 1]
    pick = following >= 0
    return _to_append(ops, Kind.RW, reads.txn[read[pick]], following[pick])


def _to_append(ops: ListOps, kind: Kind, source: Ints, append: Ints) -> pa.Table:
    to = ops.appends
    return _made(ops, kind, source, to.txn[append], to.k[append], to.element[append])


def _made(ops: ListOps, kind: Kind, source: Ints, target: Ints, k: Ints, element: Ints) -> pa.Table:
    type_ = ops.txns.type
    # What failed takes no part in an order: where a read shows it nevertheless, that is G1a.
    pick = (source != target) & (type_[source] != FAIL) & (type_[target] != FAIL)
    source, target = source[pick], target[pick]
    columns = [
        pa.array(np.full(len(source), int(kind)), pa.int8()),
        pa.array(source, pa.int32()),
        pa.array(target, pa.int32()),
        pa.array(ops.keys[k[pick]], pa.int64()),
        pa.array(element[pick], pa.int64()),
        pa.array(_end(ops.txns, source) >= _begin(ops.txns, target)),
    ]
    return pa.Table.from_arrays(columns, schema=EDGES)
