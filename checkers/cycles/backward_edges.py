"""Which dependencies lead back in time: where none does, a long history is cut.

Transactions are numbered in the order of invocation. Real time and processes lead from lower
numbers to higher ones, and so do most dependencies. A cycle that leads from one side of a number to
the other must come back by a dependency that leads *backward* over it; so a number without such a
dependency is a place to cut the history, and a stretch without any backward dependency is proven
free of cycles by its order alone. An edge from one stretch to a later one lies on no cycle.

Every stretch is a graph of its own, small enough for a processor's cache; memory and time grow
linearly with the length of a history. Where many clients overlap there may be no place to cut: such
a stretch is judged by windows (``kernel``).
"""

from __future__ import annotations

import numpy as np

from checkers.cycles.graph import Tails, tails_of
from checkers.engine.arrays import Bools, Ints, group_starts, ints
from harness.protocols.checker import Tables


def leads_back(tables: Tables) -> tuple[Ints, Ints]:
    """Return the sources and the targets of the dependencies of a split that lead back."""
    source, target = (ints(tables["lists.edges"], name) for name in ("source", "target"))
    back = source > target
    # As if all had committed: what turns out not to count can only cost a place to cut.
    most = int(ints(tables["lists.tails"], "txn").max(initial=-1))
    tails = tails_of(tables["lists.tails"], np.ones(most + 1, dtype=np.bool_), 0)
    ends = _gate_ends(tails)
    return np.concatenate([source[back], ends[0]]), np.concatenate([target[back], ends[1]])


def readers_before(tails: Tails) -> int:
    """Count the readers of last versions that precede an appender other than themselves."""
    least, most, at, met = _appenders(tails)
    others = (least[at] != tails.txn) | (most[at] != tails.txn)
    return int((~tails.appends & met & others).sum())


def _appenders(tails: Tails) -> tuple[Ints, Ints, Ints, Bools]:
    """Return the least and the greatest appender of each key; for each row the place of its key
    among these, and whether it has one.
    """
    beyond = np.flatnonzero(tails.appends)
    # The clamp below needs a key to point at.
    if not len(beyond):
        zeros = np.zeros(len(tails.txn), dtype=np.int64)
        return zeros, zeros, zeros, zeros > 0
    beyond = beyond[np.lexsort((tails.txn[beyond], tails.key[beyond]))]
    starts = group_starts(tails.key[beyond])
    low = np.flatnonzero(starts)
    high = np.append(low[1:], len(beyond)) - 1
    keys = tails.key[beyond[low]]
    at = np.minimum(np.searchsorted(keys, tails.key), len(keys) - 1)
    return tails.txn[beyond[low]], tails.txn[beyond[high]], at, keys[at] == tails.key


def _gate_ends(tails: Tails) -> tuple[Ints, Ints]:
    """Return edges from each reader back to the least appender beyond the version that it read."""
    least, _, at, met = _appenders(tails)
    back = ~tails.appends & met & (least[at] < tails.txn)
    return tails.txn[back], least[at[back]]
