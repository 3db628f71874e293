"""Dependencies between transactions on registers, as far as the order of versions is known.

wr: the writer of a version to its readers. rw: the readers of a version to the writer of a later
one. Later is what a transaction wrote that had read the version before, everything than nothing,
and what an order tells (``version_order``): of that also the writer of the earlier version precedes
the writer of the later one. That is an rw, too: what tells of the order is that a read would
otherwise have missed a write.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from checkers.cycles.dependencies import Ends, Kind, begin_of, edge_rows, end_of, tail_rows
from checkers.engine.arrays import Ints, spread
from checkers.rw_register.register_operations import NO_WRITE, RegisterOps
from checkers.rw_register.version_order import (
    Pairs,
    by_process,
    by_time,
    seen_versions,
    versions,
)

# Of many transactions that update the same version, which only a store without isolation lets pass,
# the readers precede the first ones, and each the next.
UPDATES_MAX = 16


def edges(ops: RegisterOps) -> pa.Table:
    """Return the dependencies between different transactions that did not fail."""
    return pa.concat_tables(
        [
            _write_read(ops),
            _read_update(ops),
            _by_order(ops, Kind.RW_PROCESS, by_process(ops)),
            _by_order(ops, Kind.RW_REALTIME, by_time(ops)),
        ]
    )


def tails(ops: RegisterOps) -> pa.Table:
    """Return the readers that found nothing in a register, and all that wrote it."""
    reads, writes = ops.reads, ops.writes
    read = ops.external[reads.nothing[ops.external]]
    wrote = np.flatnonzero(versions(ops))
    missed, made = (np.zeros(len(ops.keys), dtype=np.bool_) for _ in range(2))
    missed[reads.k[read]] = True
    made[writes.k[wrote]] = True
    read, wrote = read[made[reads.k[read]]], wrote[missed[writes.k[wrote]]]
    return tail_rows(
        ops.txns,
        ops.keys,
        Ends(txn=reads.txn[read], k=reads.k[read], element=np.zeros(len(read), dtype=np.int64)),
        Ends(txn=writes.txn[wrote], k=writes.k[wrote], element=writes.value[wrote]),
    )


def _write_read(ops: RegisterOps) -> pa.Table:
    reads, writes = ops.reads, ops.writes
    read = ops.external[reads.write[ops.external] != NO_WRITE]
    write = reads.write[read]
    pick = versions(ops)[write]
    read, write = read[pick], write[pick]
    key = ops.keys[reads.k[read]]
    source, target = writes.txn[write], reads.txn[read]
    return edge_rows(ops.txns, Kind.WR, source, target, key, reads.value[read])


def _read_update(ops: RegisterOps) -> pa.Table:
    """Return rw edges from the readers of a version to those that read it and then wrote."""
    reads, writes = ops.reads, ops.writes
    read = seen_versions(ops)
    wrote = np.flatnonzero(versions(ops))
    of_group = ops.group(writes.k[wrote], writes.txn[wrote])
    wrote = wrote[np.argsort(of_group)]
    of_group.sort()
    mine = ops.group(reads.k[read], reads.txn[read])
    place = np.searchsorted(of_group, mine)
    updates = place < len(of_group)
    updates[updates] = of_group[place[updates]] == mine[updates]
    seen, made = reads.write[read[updates]], wrote[place[updates]]
    order = np.lexsort((writes.txn[made], seen))
    seen, made = seen[order], made[order]
    first = np.searchsorted(seen, seen)  # of the same version
    chosen = np.arange(len(seen)) - first < UPDATES_MAX
    following = np.flatnonzero(~chosen)
    chain = _to_writes(ops, Kind.RW, writes.txn[made[following - 1]], made[following])
    return pa.concat_tables([_readers_to(ops, Kind.RW, seen[chosen], made[chosen]), chain])


def _by_order(ops: RegisterOps, kind: Kind, pairs: Pairs) -> pa.Table:
    writer = ops.writes.txn[pairs.before]
    # Of unknown outcome it is only where a read shows it.
    known = ops.txns.committed[writer]
    parts = [
        _readers_to(ops, kind, pairs.before, pairs.after),
        _to_writes(ops, kind, writer[known], pairs.after[known]),
    ]
    return pa.concat_tables(parts)


def _readers_to(ops: RegisterOps, kind: Kind, before: Ints, after: Ints) -> pa.Table:
    """Return edges from the readers of versions to the writers of later ones."""
    read = seen_versions(ops)
    read = read[np.argsort(ops.reads.write[read], kind="stable")]
    seen = ops.reads.write[read]
    low = np.searchsorted(seen, before)
    row, place = spread(np.searchsorted(seen, before, side="right") - low)
    return _to_writes(ops, kind, ops.reads.txn[read[low[row] + place]], after[row])


def _to_writes(ops: RegisterOps, kind: Kind, source: Ints, write: Ints) -> pa.Table:
    writes, txns = ops.writes, ops.txns
    target = writes.txn[write]
    if kind == Kind.RW_REALTIME:
        # What time gives by itself needs no order of versions.
        new = end_of(txns, source) >= begin_of(txns, target)
        source, target, write = source[new], target[new], write[new]
    return edge_rows(txns, kind, source, target, ops.keys[writes.k[write]], writes.value[write])
