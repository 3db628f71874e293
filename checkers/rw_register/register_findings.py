"""Anomalies that one register's operations show without any cycle, in rows of ``FINDINGS``.

Definitions are Elle's (Kingsbury, Alvaro: *Elle*, VLDB 2020, and its source), and a read of what no
transaction wrote is an anomaly, too. Only reads of committed transactions accuse.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from checkers.engine.arrays import FAIL, OK, Bools, Ints, group_starts
from checkers.engine.transactions import NOBODY
from checkers.lists.findings import finding_rows
from checkers.rw_register.register_operations import NO_WRITE, RegisterOps

WORDS = {
    "G1a": "aborted read (G1a): T{txn} read {element} from register {key}, which T{other} wrote "
    "and then failed",
    "G1b": "intermediate read (G1b): T{txn} read {element} from register {key}, which T{other} "
    "overwrote before it committed",
    "garbage-read": "garbage read: T{txn} read {element} from register {key}, which nobody wrote",
    "internal": "internal inconsistency: T{txn} read register {key} in a state that contradicts "
    "its own earlier operations",
    "future-read": "future read: T{txn} read {element} from register {key} before it wrote it "
    "itself",
    "lost-update": "lost update: T{txn} and T{other} read the same version of register {key} and "
    "both committed a write to it",
}


def sentence(row: dict[str, Any]) -> str:
    """Format one row of the findings, whose key has its name."""
    return WORDS[row["anomaly"]].format(**row)


def findings(ops: RegisterOps) -> pa.Table:
    """Return all anomalies of the registers of ``ops`` that need no cycle."""
    reads, writes, type_ = ops.reads, ops.writes, ops.txns.type
    answered = type_[reads.txn] == OK
    written = reads.write != NO_WRITE
    # Without any write all rows are of none.
    row = np.maximum(reads.write, 0)
    writer = writes.txn[row] if len(writes.txn) else row
    own = written & (writer == reads.txn)
    later = writes.pos[row] > reads.pos if len(writes.txn) else own
    final = writes.final[row] if len(writes.txn) else own
    other = np.full(len(writer), NOBODY)
    return pa.concat_tables(
        [
            _of_reads(ops, "G1a", answered & written & ~own & (type_[writer] == FAIL), writer),
            _of_reads(ops, "G1b", answered & written & ~own & ~final, writer),
            _of_reads(ops, "garbage-read", _garbage(ops), other),
            _of_reads(ops, "internal", answered & reads.wrong, other),
            _of_reads(ops, "future-read", answered & own & later, other),
            _lost_updates(ops),
        ]
    )


def _garbage(ops: RegisterOps) -> Bools:
    reads = ops.reads
    found: Bools = ops.txns.committed[reads.txn] & ~reads.nothing & (reads.write == NO_WRITE)
    return found


def _of_reads(ops: RegisterOps, anomaly: str, pick: Bools, other: Ints) -> pa.Table:
    reads = ops.reads
    row = np.flatnonzero(pick)
    nothing = pa.array(reads.value[row], pa.int64(), mask=reads.nothing[row])
    return finding_rows(anomaly, ops.keys[reads.k[row]], reads.txn[row], other[row], nothing)


def _lost_updates(ops: RegisterOps) -> pa.Table:
    """lost-update: committed transactions first read the same version and then wrote the register.
    Only one of them may; each other is a row that names the first.
    """
    reads, writes = ops.reads, ops.writes
    wrote = np.unique(ops.group(writes.k, writes.txn))
    mine = ops.group(reads.k, reads.txn)
    updates = reads.first & (ops.txns.type[reads.txn] == OK) & np.isin(mine, wrote)
    # What nobody wrote is an anomaly of its own.
    read = np.flatnonzero(updates & (reads.nothing | (reads.write != NO_WRITE)))
    read = read[np.lexsort((reads.txn[read], reads.write[read], reads.k[read]))]
    starts = group_starts(reads.k[read], reads.write[read])
    first = read[np.flatnonzero(starts)[np.cumsum(starts) - 1]] if len(read) else read
    later = read[~starts]
    none = pa.nulls(len(later), pa.int64())
    key, first = ops.keys[reads.k[later]], first[~starts]
    return finding_rows("lost-update", key, reads.txn[later], reads.txn[first], none)
