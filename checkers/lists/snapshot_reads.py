"""Inference over snapshot reads, first of single keys: reads of kinds that promise a bounded
staleness.

A snapshot read must see every write that was acknowledged longer before its invocation than its
kind's staleness. Whether all reads of a transaction are of one cut is decided later, over all keys
(``find_broken_snapshots``).
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import FAIL, OK, Bools, Ints, batches, group_starts, ints, spread
from checkers.engine.transactions import Transactions, transactions_of
from checkers.lists.findings import FINDINGS, rows
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import NEVER, Versions
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting

# The number of versions of a key that a snapshot read saw.
SEEN = pa.schema([("txn", pa.int64()), ("key", pa.int64()), ("count", pa.int64())])

# The positions of a transaction's first and last version of a key, and the last one's element; an
# append that no read shows comes after all others.
WRITTEN = pa.schema(
    [
        ("writer", pa.int64()),
        ("key", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("element", pa.int64()),
    ]
)


@attrs.frozen(kw_only=True, eq=False)
class _Snapshots:
    """Rows of reads, with the number of versions that each saw."""

    read: Ints
    count: Ints


def snapshots(ops: ListOps, versions: Versions) -> tuple[pa.Table, dict[str, pa.Table]]:
    """Return findings of stale snapshots, and the tables ``snapshots.seen`` and ``.written``."""
    some = _snapshots(ops, versions)
    place = _places(ops, versions)
    return _stale(ops, some, place), {
        "snapshots.seen": _seen(ops, some),
        "snapshots.written": _written(ops, some, place),
    }


def _snapshots(ops: ListOps, versions: Versions) -> _Snapshots:
    """Return the ok reads of snapshot kinds that are prefixes of their key's version order; the
    others are anomalies of other names.
    """
    of_kind = ~ops.txns.real_time[ops.reads.txn]
    # The length of a list with repetitions is not the number of versions that it shows.
    whole = versions.prefix & (versions.repeats_at[ops.reads.k] == NEVER)
    read = np.flatnonzero(of_kind & whole & (ops.txns.type[ops.reads.txn] == OK))
    return _Snapshots(read=read, count=ops.reads.length[read])


def _places(ops: ListOps, versions: Versions) -> Ints:
    """Return the position that each append has among its key's versions."""
    version = versions.of_append[: len(ops.appends.txn)]
    unseen = versions.count[ops.appends.k]
    if not len(versions.position):
        return unseen
    return np.where(version >= 0, versions.position[np.maximum(version, 0)], unseen)


def _stale(ops: ListOps, some: _Snapshots, place: Ints) -> pa.Table:
    """stale-snapshot: the read lacks writes, and the first of them to be
    acknowledged is too old.
    """
    appends, txns, reads = ops.appends, ops.txns, ops.reads
    acked = np.flatnonzero(txns.type[appends.txn] == OK)
    if not len(acked) or not len(some.read):
        return rows(ops, "stale-snapshot", some.read[:0], some.read[:0])
    acked = acked[np.lexsort((place[acked], appends.k[acked]))]
    # Wider than any position, so that the codes of two keys never meet.
    width = int(max(place.max(), some.count.max())) + 2
    code = appends.k[acked] * width + place[acked]
    at = np.searchsorted(code, reads.k[some.read] * width + some.count)
    lacks = at < len(acked)
    lacks[lacks] = appends.k[acked[at[lacks]]] == reads.k[some.read[lacks]]
    read = some.read[lacks]
    # Acknowledgements need not come in the order of versions: any later version may be the oldest.
    missed = _first_acknowledged(ops, acked)[at[lacks]]
    writer = appends.txn[missed]
    late = txns.finish[writer] < txns.moment[reads.txn[read]]
    read, missed, writer = read[late], missed[late], writer[late]
    element = appends.element[missed]
    return rows(ops, "stale-snapshot", reads.k[read], reads.txn[read], writer, element)


def _first_acknowledged(ops: ListOps, acked: Ints) -> Ints:
    """Return for each of ``acked``, sorted by key, the one acknowledged first of it and its key's
    later ones.
    """
    finish = ops.txns.finish[ops.appends.txn[acked]]
    in_time = np.lexsort((ops.appends.element[acked], finish))
    rank = np.empty(len(acked), dtype=np.int64)
    rank[in_time] = np.arange(len(acked))
    # From the back, every key begins with a code below all that came before it.
    code = ops.appends.k[acked] * len(acked) + rank
    least = np.minimum.accumulate(code[::-1])[::-1] % len(acked)
    first: Ints = acked[in_time[least]]
    return first


def _seen(ops: ListOps, some: _Snapshots) -> pa.Table:
    columns = [ops.reads.txn[some.read], ops.keys[ops.reads.k[some.read]], some.count]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=SEEN)


def _written(ops: ListOps, some: _Snapshots, place: Ints) -> pa.Table:
    """Return the writes, by transactions that did not fail, to keys that snapshots read."""
    appends = ops.appends
    asked = np.zeros(len(ops.keys), dtype=np.bool_)
    asked[ops.reads.k[some.read]] = True
    mine = np.flatnonzero(asked[appends.k] & (ops.txns.type[appends.txn] != FAIL))
    mine = mine[np.lexsort((appends.pos[mine], place[mine], appends.txn[mine], appends.k[mine]))]
    starts = group_starts(appends.k[mine], appends.txn[mine])
    first = mine[starts]
    last = mine[np.append(np.flatnonzero(starts)[1:], len(mine)) - 1] if len(mine) else mine
    columns = [
        appends.txn[first],
        ops.keys[appends.k[first]],
        place[first],
        place[last],
        appends.element[last],
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=WRITTEN)


# The number of pairs of a snapshot and a writer in one batch, some 300 MB; more where a single
# process has more.
CHUNK = 4_000_000


@attrs.frozen(kw_only=True, eq=False)
class _Pairs:
    """Snapshots and writers that touched the same key: whether the read sees the transaction there,
    and whether it lacks some of it. ``turn`` numbers snapshots by process, then in their order.
    """

    turn: Ints
    process: Ints
    writer: Ints
    key: Ints
    element: Ints
    sees: Bools
    lacks: Bools


def find_broken_snapshots(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``snapshots.findings``: one row for each fractured snapshot, and one for each that
    goes back.
    """
    found = [FINDINGS.empty_table()]
    if tables["snapshots.seen"].num_rows and tables["snapshots.written"].num_rows:
        txns = transactions_of(tables, setting)
        by_turn = _by_turn(txns, np.unique(ints(tables["snapshots.seen"], "txn")))
        for pairs in _pairs(tables, txns, by_turn):
            found += _judged(pairs, by_turn, len(txns.type))
    return {"snapshots.findings": pa.concat_tables(found)}


def _by_turn(txns: Transactions, snapshots: Ints) -> Ints:
    order = np.lexsort((snapshots, txns.start[snapshots], txns.process[snapshots]))
    ordered: Ints = snapshots[order]
    return ordered


def _pairs(tables: Tables, txns: Transactions, by_turn: Ints) -> Iterator[_Pairs]:
    """Yield all pairs, those of one process together."""
    turn_of = np.zeros(len(txns.type), dtype=np.int64)
    turn_of[by_turn] = np.arange(len(by_turn))
    reader, key, count = (ints(tables["snapshots.seen"], n) for n in ("txn", "key", "count"))
    order = np.lexsort((key, turn_of[reader]))
    reader, key, count = reader[order], key[order], count[order]
    names = ("writer", "key", "low", "high", "element")
    columns = [ints(tables["snapshots.written"], name) for name in names]
    order = np.lexsort((columns[0], columns[1]))
    writer, of_key, low, high, element = (column[order] for column in columns)
    begin = np.searchsorted(of_key, key, side="left")
    many = np.searchsorted(of_key, key, side="right") - begin
    # Batches end between processes: a snapshot goes back only against one of its own process.
    starts = np.flatnonzero(group_starts(txns.process[reader]))
    ends = np.append(starts[1:], len(reader))
    for part in batches(np.add.reduceat(many, starts), CHUNK):
        rows = np.arange(starts[part][0], ends[part][-1])
        row, place = spread(many[rows])
        row = rows[row]
        at = begin[row] + place
        # A transaction's own writes tell nothing about the snapshot that it reads.
        keep = writer[at] != reader[row]
        row, at = row[keep], at[keep]
        yield _Pairs(
            turn=turn_of[reader[row]],
            process=np.searchsorted(starts, row, side="right") - 1,
            writer=writer[at],
            key=key[row],
            element=element[at],
            sees=low[at] < count[row],
            lacks=high[at] >= count[row],
        )


def _judged(pairs: _Pairs, by_turn: Ints, txns: int) -> Iterator[pa.Table]:
    whole = pairs.turn * txns + pairs.writer
    torn = pairs.lacks & np.isin(whole, whole[pairs.sees])
    yield _rows("fractured-snapshot", pairs, torn, pairs.writer, by_turn)

    session = pairs.process * txns + pairs.writer
    seen = np.flatnonzero(pairs.sees)
    seen = seen[np.lexsort((pairs.turn[seen], session[seen]))]
    # The process's first snapshot that saw the writer accuses all later ones that lack it.
    seen = seen[group_starts(session[seen])]
    if len(seen):
        at = np.minimum(np.searchsorted(session[seen], session), len(seen) - 1)
        first = pairs.turn[seen[at]]
        # A torn snapshot is a finding already.
        back = pairs.lacks & ~torn & (session[seen[at]] == session) & (first < pairs.turn)
        yield _rows("snapshot-went-back", pairs, back, by_turn[first], by_turn)


def _rows(anomaly: str, pairs: _Pairs, pick: Bools, other: Ints, by_turn: Ints) -> pa.Table:
    """Return the first finding of each snapshot."""
    chosen = np.flatnonzero(pick)
    chosen = chosen[np.lexsort((pairs.key[chosen], pairs.writer[chosen], pairs.turn[chosen]))]
    chosen = chosen[group_starts(pairs.turn[chosen])]
    columns = [
        pa.array([anomaly] * len(chosen), pa.string()),
        pa.array(pairs.key[chosen]),
        pa.array(by_turn[pairs.turn[chosen]]),
        pa.array(other[chosen]),
        pa.array(pairs.element[chosen]),
    ]
    return pa.Table.from_arrays(columns, schema=FINDINGS)


SNAPSHOTS = Kernel(name="snapshots", exchange=Exchange.ONE_PLACE, run=find_broken_snapshots)
