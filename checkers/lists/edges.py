"""Dependencies between transactions, as Adya defines them, from version orders.

ww: the writer of a version to the writer of the next. wr: the writer of the last element that a
read saw to the reader. rw: the reader of a version to the writer of the next.

An append that the longest read does not show follows all appends that it shows: it comes after
the last version, and the readers of that version precede it. Those are products of two groups,
so the edges go through a *gate*, a vertex of its own.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from checkers.cycles.dependencies import Ends, Kind, edge_rows, tail_rows
from checkers.engine.arrays import FAIL, Ints
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import Versions


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
    return tail_rows(
        ops.txns,
        ops.keys,
        Ends(txn=reads.txn[read], k=reads.k[read], element=np.zeros(len(read), dtype=np.int64)),
        Ends(txn=appends.txn[unseen], k=appends.k[unseen], element=appends.element[unseen]),
    )


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
    writer, key = ops.appends.txn[append], ops.keys[reads.k[read]]
    return edge_rows(ops.txns, Kind.WR, writer, reads.txn[read], key, element)


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
    key = ops.keys[to.k[append]]
    return edge_rows(ops.txns, kind, source, to.txn[append], key, to.element[append])
