"""Anomalies that one key's operations show without any cycle.

Each function gives rows of ``FINDINGS``: the accused transaction, the other one that reveals it
(-1: none) and the element in question. Definitions are Elle's (Kingsbury, Alvaro: *Elle*,
VLDB 2020, and its source); only reads of committed transactions accuse, and anomalies
of a single transaction (all but garbage, duplicates, orders and dirty updates) accuse only
transactions that answered ok.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from checkers.engine.arrays import FAIL, OK, Bools, Ints, group_starts, spread
from checkers.engine.transactions import NOBODY
from checkers.lists.contradictions import first_contradictions
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import NEVER, Versions

FINDINGS = pa.schema(
    [
        ("anomaly", pa.string()),
        ("key", pa.int64()),
        ("txn", pa.int64()),
        ("other", pa.int64()),
        ("element", pa.int64()),
    ]
)


@attrs.frozen(kw_only=True, eq=False)
class Seen:
    """Elements of suspicious reads: row of the read, place in its list, row of the append."""

    read: Ints
    place: Ints
    element: Ints
    append: Ints


def findings(ops: ListOps, versions: Versions, seen: Seen) -> pa.Table:
    """Return all non-cycle anomalies of the keys of ``ops``."""
    return pa.concat_tables(
        [
            aborted_reads(ops, seen),
            garbage_reads(ops, seen),
            repeated_elements(ops, seen),
            incompatible_orders(ops, versions),
            intermediate_reads(ops),
            future_reads(ops, seen),
            dirty_updates(ops, versions),
        ]
    )


def rows(
    ops: ListOps,
    anomaly: str,
    k: Ints,
    txn: Ints,
    other: Ints | int = NOBODY,
    element: Ints | None = None,
) -> pa.Table:
    """Return findings as a table; ``k`` are positions in ``ops.keys``."""
    others = np.broadcast_to(np.asarray(other, dtype=np.int64), len(txn))
    elements = pa.nulls(len(txn), pa.int64()) if element is None else pa.array(element, pa.int64())
    return finding_rows(anomaly, ops.keys[k], txn, others, elements)


def finding_rows(anomaly: str, key: Ints, txn: Ints, other: Ints, element: pa.Array) -> pa.Table:
    """Return rows of ``FINDINGS``."""
    columns = [
        # Repeated by Arrow: a Python list would hold a reference for every row.
        pa.array([anomaly], pa.string()).take(pa.array(np.zeros(len(txn), dtype=np.int64))),
        pa.array(key, pa.int64()),
        pa.array(txn, pa.int64()),
        pa.array(other, pa.int64()),
        element,
    ]
    return pa.Table.from_arrays(columns, schema=FINDINGS)


def suspects(ops: ListOps, versions: Versions) -> Seen:
    """Return the elements of the reads that could show an anomaly in a single element.

    A prefix of the longest read holds a bad element only where that read holds one early enough, so
    the elements of nearly every read need not be examined.
    """
    reads = ops.reads
    first_bad = _first_bad(ops, versions)
    mine = _own_version(ops, versions)
    committed = ops.txns.committed[reads.txn]
    read = np.flatnonzero(
        # Three ways to be suspicious: no prefix at all, reaching a bad element, or its own future.
        committed & (~versions.prefix | (reads.length > first_bad[reads.k]) | (reads.length > mine))
    )
    row, place = spread(reads.length[read])
    read = read[row]
    element = ops.elements[reads.start[read] + place]
    return Seen(read=read, place=place, element=element, append=ops.writer(reads.k[read], element))


def _first_bad(ops: ListOps, versions: Versions) -> Ints:
    """Return per key the first position of the longest read that is aborted, garbage or a
    repetition.
    """
    append = versions.append
    # Without any append all rows are -1, and bad for that alone.
    writer = ops.appends.txn[append] if len(ops.appends.txn) else append
    # Of unknown fate (info) is no anomaly: to be read is how it shows that it took effect.
    bad = np.flatnonzero((append < 0) | (ops.txns.type[writer] == FAIL))
    first = versions.repeats_at.copy()
    np.minimum.at(first, versions.k[bad], versions.position[bad])
    return first


def _own_version(ops: ListOps, versions: Versions) -> Ints:
    """Return per read the lowest version position of an append that its transaction
    makes after it.
    """
    # A read without an own append behind it can't see its own future.
    mine = np.full(len(ops.reads.txn), NEVER)
    read, append = _pairs(ops)
    later = ops.appends.pos[append] > ops.reads.pos[read]
    version = versions.version(append)
    pick = later & (version >= 0)
    np.minimum.at(mine, read[pick], versions.position[version[pick]])
    return mine


def _pairs(ops: ListOps) -> tuple[Ints, Ints]:
    """Return every (read, append) of one transaction on one key, as rows of the reads and the
    appends.
    """
    # One number for (key, transaction), so that a bisection finds all pairs at once.
    n = max(len(ops.txns.type), 1)
    order = np.lexsort((ops.appends.txn, ops.appends.k))
    code = ops.appends.k[order] * n + ops.appends.txn[order]
    wanted = ops.reads.k * n + ops.reads.txn
    low = np.searchsorted(code, wanted, side="left")
    many = np.searchsorted(code, wanted, side="right") - low
    read, place = spread(many)
    return read, order[low[read] + place]


def aborted_reads(ops: ListOps, seen: Seen) -> pa.Table:
    """G1a: a committed transaction read an element that a failed one appended."""
    writer = _writer(ops, seen.append)
    failed = _answered(ops, seen) & (seen.append >= 0) & (ops.txns.type[writer] == FAIL)
    return _about(ops, "G1a", seen, failed, writer)


def _answered(ops: ListOps, seen: Seen) -> Bools:
    """Mark the suspicious reads of transactions that answered ok themselves."""
    answered: Bools = ops.txns.type[ops.reads.txn[seen.read]] == OK
    return answered


def garbage_reads(ops: ListOps, seen: Seen) -> pa.Table:
    """garbage-read: a read holds an element that no transaction appended."""
    return _about(ops, "garbage-read", seen, seen.append < 0, np.full(len(seen.read), NOBODY))


def repeated_elements(ops: ListOps, seen: Seen) -> pa.Table:
    """duplicate-elements: one read holds an element twice."""
    order = np.lexsort((seen.place, seen.element, seen.read))
    again = np.zeros(len(order), dtype=np.bool_)
    again[order] = ~group_starts(seen.read[order], seen.element[order])
    return _about(ops, "duplicate-elements", seen, again, np.full(len(seen.read), NOBODY))


def future_reads(ops: ListOps, seen: Seen) -> pa.Table:
    """future-read: a transaction read an element that it appended only afterwards."""
    append = np.maximum(seen.append, 0)
    writer = _writer(ops, seen.append)
    own = (seen.append >= 0) & (writer == ops.reads.txn[seen.read]) & _answered(ops, seen)
    later = ops.appends.pos[append] > ops.reads.pos[seen.read] if len(ops.appends.pos) else own
    return _about(ops, "future-read", seen, own & later, np.full(len(seen.read), NOBODY))


def incompatible_orders(ops: ListOps, versions: Versions) -> pa.Table:
    """incompatible-order: two reads of a key of which neither is a prefix of the other.

    Accused is what contradicts the longest read; what shows it is the first to contradict it.
    """
    reads = ops.reads
    read = np.flatnonzero(ops.txns.committed[reads.txn] & ~versions.prefix)
    other = first_contradictions(ops, versions, read)
    return rows(ops, "incompatible-order", reads.k[read], reads.txn[read], reads.txn[other])


def intermediate_reads(ops: ListOps) -> pa.Table:
    """G1b: a read ends in an append that another transaction followed by one more of the key."""
    reads = ops.reads
    read = np.flatnonzero((ops.txns.type[reads.txn] == OK) & (reads.length > 0))
    element = ops.elements[reads.start[read] + reads.length[read] - 1]
    append = ops.writer(reads.k[read], element)
    writer = _writer(ops, append)
    # Its own intermediate state a transaction may see.
    bad = (append >= 0) & (writer != reads.txn[read])
    bad[bad] = ~_final(ops)[append[bad]]
    return rows(ops, "G1b", reads.k[read[bad]], reads.txn[read[bad]], writer[bad], element[bad])


def _final(ops: ListOps) -> Bools:
    """Mark each append that is its transaction's last one to its key."""
    appends = ops.appends
    # Positions backwards: the first of each group is then the last append.
    order = np.lexsort((-appends.pos, appends.txn, appends.k))
    final = np.zeros(len(order), dtype=np.bool_)
    final[order] = group_starts(appends.k[order], appends.txn[order])
    return final


def dirty_updates(ops: ListOps, versions: Versions) -> pa.Table:
    """dirty-update: a committed append follows a failed one in the version order.

    Between the two there are only versions of unknown fate.
    """
    writer = _writer(ops, versions.append)
    type_ = np.where(versions.append >= 0, ops.txns.type[writer], -1)
    # Appends of unknown fate are skipped: they may count as either, and accuse nobody.
    told = np.flatnonzero((type_ == OK) | (type_ == FAIL))
    a, b = told[:-1], told[1:]
    pick = (type_[a] == FAIL) & (type_[b] == OK) & (versions.k[a] == versions.k[b])
    a, b = a[pick], b[pick]
    return rows(ops, "dirty-update", versions.k[b], writer[b], writer[a], versions.element[a])


def _writer(ops: ListOps, append: Ints) -> Ints:
    """Return the transaction of each append; any transaction where there is none (mask it)."""
    if not len(ops.appends.txn):
        return np.zeros(len(append), dtype=np.int64)
    return ops.appends.txn[np.maximum(append, 0)]


def _about(
    ops: ListOps, anomaly: str, seen: Seen, pick: Bools, other: NDArray[np.int64]
) -> pa.Table:
    """Return findings of single elements: the first of each read."""
    chosen = np.flatnonzero(pick)
    # One finding a read: a list that diverges early would repeat it for all its elements.
    chosen = chosen[np.lexsort((seen.place[chosen], seen.read[chosen]))]
    chosen = chosen[group_starts(seen.read[chosen])]
    read = seen.read[chosen]
    return rows(
        ops,
        anomaly,
        ops.reads.k[read],
        ops.reads.txn[read],
        other[chosen],
        seen.element[chosen],
    )
