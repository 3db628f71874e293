"""Writes of transactions whose outcome a reset took: what other partitions gave up with it.

A transaction of several partitions keeps its outcome in one of them. Where a reset takes its write
there, the others may find no outcome, and give their own writes up: those took no effect, and no
dependency follows from them. Which transactions these may be is found ahead, from the partitions
that were reset (``CUT_OFF``); a write of theirs that was certainly in effect stays, and accuses.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, Bools, Ints, spread
from checkers.lists.by_generation import cuts_keys, partitions_of
from checkers.lists.list_ops import Appends, ListOps, Reads, append_codes_of, list_ops
from checkers.lists.lost import LOST, missed_writes
from checkers.promises.permitted_loss import Envelopes, Loss, Permission, losses_of
from checkers.promises.told_states import ToldStates
from harness.protocols.checker import Exchange, Kernel, Setting, Tables
from harness.protocols.generations import trees_of
from harness.run.state_log import STATES

CUT_OFF_WRITES = "resets.writes"
"""Acknowledged writes (``LOST``) that a reset of their partition may have taken."""

# Appends of their transactions to other partitions, and whether any read shows them.
ELSEWHERE = pa.schema([("writer", pa.int64()), ("partition", pa.int32()), ("shown", pa.bool_())])


def find_cut_off(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``resets.writes``; what survivors held is not asked here."""
    lost = LOST.empty_table()
    micro_ops = tables["micro_ops"]
    trees = trees_of(setting.resets) if cuts_keys(setting) else {}
    reset = pa.array(sorted(trees), pa.int32())
    some = micro_ops.filter(pc.is_in(micro_ops.column("partition"), value_set=reset))
    if trees and some.num_rows:
        here = {**tables, "micro_ops": some}
        lost = missed_writes(list_ops(here, setting), here, setting)
        inside = [why is not None for _, why in cut_off(lost, tables, setting, {})]
        lost = lost.filter(pa.array(inside, pa.bool_()))
    return {CUT_OFF_WRITES: lost}


def cut_off(
    lost: pa.Table, tables: Tables, setting: Setting, beside: Tables
) -> Iterator[tuple[Loss, Permission | None]]:
    """Yield the rows of ``lost`` with the envelope inside which each lies, if it lies in one, by
    the states ``beside``.
    """
    states = ToldStates(beside.get("states", STATES.empty_table()))
    envelopes = {
        partition: Envelopes.of(tree, states, setting.permits)
        for partition, tree in trees_of(setting.resets).items()
    }
    for loss in losses_of(lost, tables["transactions"]):
        own = None if loss.partition is None else envelopes.get(loss.partition)
        yield loss, None if own is None else own.permission(loss)


CUT_OFF = Kernel(name="resets.cut-off", exchange=Exchange.EARLY, run=find_cut_off)


def without_given_up(
    ops: ListOps, tables: Tables, setting: Setting
) -> tuple[ListOps, dict[str, pa.Table]]:
    """Return ``ops`` without the appends that their partitions may have given up, and the reads of
    their own transactions (``ops`` itself where there are none); and ``resets.elsewhere``.
    """
    writes = tables.get(CUT_OFF_WRITES, LOST.empty_table())
    if not writes.num_rows:
        return ops, {"resets.elsewhere": ELSEWHERE.empty_table()}
    partition = partitions_of(ops, tables)
    gone = np.zeros(len(ops.appends.txn), dtype=np.bool_)
    told = []
    for loss, why in cut_off(writes, tables, setting, {}):
        if why is None:
            continue
        of_it = np.flatnonzero(ops.appends.txn == loss.writer)
        elsewhere = of_it[
            (partition[ops.appends.k[of_it]] >= 0)
            & (partition[ops.appends.k[of_it]] != loss.partition)
        ]
        for append in elsewhere.tolist():
            gone[append] |= _unresolved(ops, append, why.envelope.reset.earliest_ns)
            where = int(partition[ops.appends.k[append]])
            shown = _shown(ops, append)
            told.append({"writer": loss.writer, "partition": where, "shown": shown})
    found = {"resets.elsewhere": pa.Table.from_pylist(told, schema=ELSEWHERE)}
    return (_without(ops, gone) if gone.any() else ops), found


def _shown(ops: ListOps, append: int) -> bool:
    reads, writer = ops.reads, ops.appends.txn[append]
    rows = np.flatnonzero((reads.k == ops.appends.k[append]) & (reads.txn != writer))
    place, within = spread(reads.length[rows])
    elements = ops.elements[reads.start[rows[place]] + within]
    return bool(np.any(elements == ops.appends.element[append]))


def _unresolved(ops: ListOps, append: int, earliest_ns: int) -> bool:
    """Tell whether nothing shows that the partition knew the outcome of ``append`` before the reset
    that took it: no read shows the append, no append that it shows followed, and no read had missed
    it by then.
    """
    appends, reads, txns = ops.appends, ops.reads, ops.txns
    writer, k = appends.txn[append], appends.k[append]
    rows = np.flatnonzero((reads.k == k) & (reads.txn != writer))
    place, within = spread(reads.length[rows])
    elements = ops.elements[reads.start[rows[place]] + within]
    if _shown(ops, append):
        return False
    known_ns = txns.finish[writer]
    current = (txns.type[reads.txn[rows]] == OK) & txns.real_time[reads.txn[rows]]
    by = reads.txn[rows[current]]
    missed = (txns.start[by] > known_ns) & (txns.finish[by] < earliest_ns)
    shown = ops.writer(np.full(len(elements), k), elements)
    later = appends.txn[shown[shown >= 0]]
    followed = (txns.type[later] == OK) & (txns.start[later] > known_ns)
    followed &= txns.finish[later] < earliest_ns
    return not (np.any(missed) or np.any(followed))


def _without(ops: ListOps, gone: Bools) -> ListOps:
    appends, reads = ops.appends, ops.reads
    rows = np.flatnonzero(~gone)
    own = np.zeros(len(reads.txn), dtype=np.bool_)
    for append in np.flatnonzero(gone).tolist():
        own |= (reads.k == appends.k[append]) & (reads.txn == appends.txn[append])
    codes, order = append_codes_of(appends.k[rows], appends.element[rows])
    return attrs.evolve(
        ops,
        appends=Appends(**_taken(appends, rows[order])),
        reads=Reads(**_taken(reads, np.flatnonzero(~own))),
        append_codes=codes,
    )


def _taken(columns: Appends | Reads, rows: Ints) -> dict[str, Ints]:
    return {name: column[rows] for name, column in attrs.asdict(columns, recurse=False).items()}
