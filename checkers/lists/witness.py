"""The early kernel that finds the readers of writes by transactions of unknown fate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import INFO, TYPES, Ints, codes, ints, spread
from checkers.engine.transactions import NOBODY, OBSERVED, OBSERVED_TABLE, transactions_of
from checkers.lists.findings import Seen, suspects
from checkers.lists.list_ops import ListOps, list_ops
from checkers.lists.versions import Versions, versions_of
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting


def find_witnesses(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``lists.observed``, from the keys to which transactions of unknown fate appended."""
    micro_ops = tables["micro_ops"]
    unknown = transactions_of(tables, setting).type == INFO
    appended = np.asarray(pc.equal(micro_ops.column("f"), "append"))
    asked = pc.unique(micro_ops.column("key").filter(unknown[ints(micro_ops, "txn")] & appended))
    if not len(asked):
        return {OBSERVED_TABLE: OBSERVED.empty_table()}
    some = micro_ops.filter(pc.is_in(micro_ops.column("key"), value_set=asked))
    ops = list_ops({**tables, "micro_ops": some}, setting)
    versions = versions_of(ops)
    return {OBSERVED_TABLE: observed(ops, versions, suspects(ops, versions))}


def observed(ops: ListOps, versions: Versions, seen: Seen) -> pa.Table:
    """Return rows of ``OBSERVED``; ``versions`` and ``seen`` are of reads that
    answered ok alone.
    """
    shown = versions.append[versions.append >= 0]
    strays = seen.append[seen.append >= 0]
    proven = _unknown_writers(ops, np.concatenate([shown, strays]))
    reads = ops.reads
    # A prefix of the longest ok read shows nothing that the longest read does not.
    read = np.flatnonzero((ops.txns.type[reads.txn] == INFO) & ~versions.prefix)
    row, place = spread(reads.length[read])
    read = read[row]
    append = ops.writer(reads.k[read], ops.elements[reads.start[read] + place])
    unsure = append >= 0
    unsure[unsure] = ops.txns.type[ops.appends.txn[append[unsure]]] == INFO
    pairs = [
        (proven, np.full(len(proven), NOBODY)),
        (ops.appends.txn[append[unsure]], reads.txn[read[unsure]]),
    ]
    writer, reader = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return pa.Table.from_arrays([pa.array(writer), pa.array(reader)], schema=OBSERVED)


def _unknown_writers(ops: ListOps, append: Ints) -> Ints:
    writer: Ints = np.unique(ops.appends.txn[append])
    unknown: Ints = writer[ops.txns.type[writer] == INFO]
    return unknown


def anybody_unknown(transactions: pa.Table) -> bool:
    """Tell whether any transaction has an unknown outcome, which a read might prove."""
    return bool((codes(transactions, "type", TYPES) == INFO).any())


WITNESSES = Kernel(
    name="witnesses",
    exchange=Exchange.EARLY,
    run=find_witnesses,
    needed=anybody_unknown,
    numbers={OBSERVED_TABLE: ("writer", "reader")},
)
