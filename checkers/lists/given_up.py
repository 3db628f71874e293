"""Writes of transactions whose outcome a reset took: what other partitions gave up with it.

A transaction of several partitions keeps its outcome in one of them. Where a reset takes its write
there, the others may find no outcome, and give their own writes up: those took no effect, and no
dependency follows from them. Which transactions these may be is found ahead, from the partitions
that were reset (``CUT_OFF``); a write of theirs that was certainly in effect stays, and accuses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, Bools, Ints, spread
from checkers.lists.by_generation import cuts_keys, partitions_of
from checkers.lists.list_ops import Appends, ListOps, Reads, append_codes_of, list_ops
from checkers.lists.lost_writes import LOST, missed_writes
from checkers.promises.permitted_loss import Envelopes, Loss, Permission, judged_resets, losses_of
from checkers.promises.told_states import ToldStates
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.generations import trees_of
from harness.protocols.setting import Setting
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
    trees = trees_of(setting.resets)
    judged = judged_resets(trees, states)
    envelopes = {
        partition: Envelopes.of(tree, states, setting.permits, judged.get(partition, 0))
        for partition, tree in trees.items()
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
    of_key = partition[ops.appends.k]
    by_writer = np.argsort(ops.appends.txn, kind="stable")
    writers = ops.appends.txn[by_writer]
    known = _Keys(ops)
    gone = np.zeros(len(ops.appends.txn), dtype=np.bool_)
    told = []
    for loss, why in cut_off(writes, tables, setting, {}):
        if why is None:
            continue
        low, high = np.searchsorted(writers, [loss.writer, loss.writer + 1])
        of_it = by_writer[low:high]
        elsewhere = of_it[(of_key[of_it] >= 0) & (of_key[of_it] != loss.partition)]
        for append in elsewhere.tolist():
            shown = known.shown(append)
            gone[append] |= not shown and known.unresolved(append, why.envelope.reset.earliest_ns)
            told.append({"writer": loss.writer, "partition": int(of_key[append]), "shown": shown})
    found = {"resets.elsewhere": pa.Table.from_pylist(told, schema=ELSEWHERE)}
    return (_without(ops, gone) if gone.any() else ops), found


@attrs.frozen(kw_only=True, eq=False)
class _Key:
    """What the reads of one key show: each element that was appended, by how many transactions it
    was read, and by which, if by one alone; ``missed``: the current reads, ``followed``: the
    acknowledged appends that a read shows, as times that ``_Since`` asks.
    """

    readers: Mapping[int, tuple[int, int]]
    missed: _Since
    followed: _Since


@attrs.frozen(eq=False)
class _Since:
    """Transactions by their begin, and the earliest end of all from there on."""

    begun: Ints
    least: Ints

    @classmethod
    def of(cls, begun: Ints, ended: Ints) -> _Since:
        order = np.argsort(begun, kind="stable")
        return cls(begun[order], np.minimum.accumulate(ended[order][::-1])[::-1])

    def any(self, after_ns: int, before_ns: int) -> bool:
        """Tell whether one began after the one moment and ended before the other."""
        place = int(np.searchsorted(self.begun, after_ns, side="right"))
        return place < len(self.least) and bool(self.least[place] < before_ns)


class _Keys:
    """What is known of the appends to each key, looked up once a key."""

    def __init__(self, ops: ListOps) -> None:
        self._ops = ops
        self._order = np.argsort(ops.reads.k, kind="stable")
        self._k = ops.reads.k[self._order]
        self._of = functools.cache(self._key)

    def shown(self, append: int) -> bool:
        """Tell whether a read of another transaction shows ``append``."""
        appends = self._ops.appends
        its = self._of(int(appends.k[append])).readers.get(int(appends.element[append]))
        return its is not None and (its[0], its[1]) != (int(appends.txn[append]),) * 2

    def unresolved(self, append: int, earliest_ns: int) -> bool:
        """Tell of an append that no read shows whether nothing else shows that its partition knew
        its outcome before the reset that took it: no append that is shown followed it, and no read
        had missed it by then.
        """
        key = self._of(int(self._ops.appends.k[append]))
        # What began after it was acknowledged is no read of its own transaction.
        known_ns = int(self._ops.txns.finish[self._ops.appends.txn[append]])
        return not (
            key.missed.any(known_ns, earliest_ns) or key.followed.any(known_ns, earliest_ns)
        )

    def _key(self, k: int) -> _Key:
        ops, txns = self._ops, self._ops.txns
        rows = self._order[slice(*np.searchsorted(self._k, [k, k + 1]))]
        reader = ops.reads.txn[rows]
        place, within = spread(ops.reads.length[rows])
        elements, by = ops.elements[ops.reads.start[rows[place]] + within], reader[place]
        order = np.lexsort((by, elements))
        shown, first = np.unique(elements[order], return_index=True)
        last = np.append(first[1:], len(elements))[: len(first)] - 1
        ends = zip(by[order][first].tolist(), by[order][last].tolist(), strict=True)
        found = ops.writer(np.full(len(shown), k), shown)
        later = ops.appends.txn[found[found >= 0]]
        later = later[txns.type[later] == OK]
        current = reader[(txns.type[reader] == OK) & txns.real_time[reader]]
        return _Key(
            readers=dict(zip(shown.tolist(), ends, strict=True)),
            missed=_Since.of(txns.start[current], txns.finish[current]),
            followed=_Since.of(txns.start[later], txns.finish[later]),
        )


def _without(ops: ListOps, gone: Bools) -> ListOps:
    appends, reads = ops.appends, ops.reads
    rows = np.flatnonzero(~gone)
    # Pairs of a key and a transaction: both are numbers of what is in these tables.
    count = 1 + max(appends.txn.max(initial=0), reads.txn.max(initial=0))
    left_out = appends.k[gone] * count + appends.txn[gone]
    own = np.isin(reads.k * count + reads.txn, left_out)
    codes, order = append_codes_of(appends.k[rows], appends.element[rows])
    return attrs.evolve(
        ops,
        appends=Appends(**_taken(appends, rows[order])),
        reads=Reads(**_taken(reads, np.flatnonzero(~own))),
        append_codes=codes,
    )


def _taken(columns: Appends | Reads, rows: Ints) -> dict[str, Ints]:
    return {name: column[rows] for name, column in attrs.asdict(columns, recurse=False).items()}
