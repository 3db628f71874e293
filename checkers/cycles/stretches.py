"""Partition of the graph of a long history into stretches that no cycle crosses.

Transactions are numbered in the order of invocation. Real time and processes lead from lower
numbers to higher ones, and so do most dependencies. A cycle that leads from one side of a number to
the other must come back by a dependency that leads *backward* over it; so a number without such a
dependency is a place to cut the history, and a stretch without any backward dependency is proven
free of cycles by its order alone. An edge from one stretch to a later one lies on no cycle.

Every stretch is a graph of its own, small enough for a processor's cache; memory and time grow
linearly with the length of a history. Where many clients overlap there may be no place to cut, and
a stretch is as long as it must be.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from checkers.cycles.cyclic_core import HELPER, Core, Details, core_of, joined
from checkers.cycles.graph import Edges, Tails, graph_of
from checkers.engine.arrays import OK, Bools, Ints, group_starts
from checkers.engine.transactions import Transactions

# The least number of transactions of a stretch: their graph has a few million numbers.
STRETCH = 100_000
# The limit that lets the number of a stretch fit in 16 bits, which are sorted by counting.
STRETCHES_MAX = 30_000


def core_by_stretches(
    dependencies: Edges,
    tails: Tails,
    txns: Transactions,
    details: Details,
    *,
    stretch: int = STRETCH,
) -> Core:
    """Return the part of the whole history that lies on cycles, from stretches of at least
    ``stretch`` transactions.
    """
    cuts = _cuts(dependencies, tails, txns, stretch)
    cores = [
        _core(low, high, edges, some, txns, details)
        for low, high, edges, some in _stretches(dependencies, tails, cuts)
    ]
    return joined(cores)


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


def _cuts(dependencies: Edges, tails: Tails, txns: Transactions, stretch: int) -> Ints:
    """Return the numbers of transactions before which the history is cut, ascending."""
    count = len(txns.type)
    if count < 2 * stretch or not _in_order(txns):
        return np.zeros(0, dtype=np.int64)
    # Differences: their sum up to a number counts the edges that lead back over it.
    over = np.zeros(count + 1, dtype=np.int32)
    for source, target in (_ends(dependencies), _gate_ends(tails)):
        over += np.bincount(target + 1, minlength=count + 1).astype(np.int32)
        over -= np.bincount(source + 1, minlength=count + 1).astype(np.int32)
    free = np.flatnonzero(np.cumsum(over, dtype=np.int32) == 0)
    step = max(stretch, -(-count // STRETCHES_MAX))
    cuts: list[int] = []
    least = step
    while (place := int(np.searchsorted(free, least))) < len(free) and free[place] < count:
        cuts.append(int(free[place]))
        least = cuts[-1] + step
    return np.asarray(cuts, dtype=np.int64)


def _in_order(txns: Transactions) -> bool:
    """Tell whether real time and processes lead from lower numbers to higher ones alone."""
    sound = (txns.finish >= txns.start) | (txns.type != OK)
    return bool(np.all(txns.start[1:] >= txns.start[:-1]) and sound.all())


def _ends(dependencies: Edges) -> tuple[Ints, Ints]:
    back = dependencies.source > dependencies.target
    return dependencies.source[back].astype(np.int64), dependencies.target[back].astype(np.int64)


def _gate_ends(tails: Tails) -> tuple[Ints, Ints]:
    """Return edges from each reader back to the least appender beyond the version that it read."""
    least, _, at, met = _appenders(tails)
    back = ~tails.appends & met & (least[at] < tails.txn)
    return tails.txn[back], least[at[back]]


def _stretches(
    dependencies: Edges, tails: Tails, cuts: Ints
) -> Iterator[tuple[int, int | None, Edges, Tails]]:
    """Yield each stretch that may hold a cycle: the first transaction, the one after the last, and
    the dependencies and tails inside it.
    """
    if not len(cuts):
        yield 0, None, dependencies, tails
        return
    bounds = [0, *cuts.tolist(), None]
    at = _stretch_of(dependencies.source, cuts)
    inside = np.flatnonzero(at == _stretch_of(dependencies.target, cuts))
    inside = inside[np.argsort(at[inside], kind="stable")]
    ends = np.searchsorted(at[inside], np.arange(len(cuts) + 2))
    of_tail = _stretch_of(tails.txn, cuts)
    for number in range(len(cuts) + 1):
        edges = dependencies.pick(inside[ends[number] : ends[number + 1]])
        some = tails.pick(of_tail == number)
        # Readers and appenders meet through gates, which may lead back: with any, the graph is
        # built.
        if len(some.txn) or np.any(edges.source > edges.target):
            yield bounds[number] or 0, bounds[number + 1], edges, some


def _stretch_of(txn: Ints, cuts: Ints) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    # Of one type with ``txn``, or numpy would widen the whole long column.
    return np.searchsorted(cuts.astype(txn.dtype), txn, side="right").astype(np.int16)


def _core(
    low: int,
    high: int | None,
    edges: Edges,
    tails: Tails,
    txns: Transactions,
    details: Details,
) -> Core:
    """Return the core of the stretch of transactions ``low`` to before ``high``."""
    columns = attrs.asdict(txns, recurse=False)
    own = Transactions(**{name: column[low:high] for name, column in columns.items()})
    shifted = attrs.evolve(edges, source=edges.source - low, target=edges.target - low)
    graph = graph_of(shifted, attrs.evolve(tails, txn=tails.txn - low), own)
    core = core_of(graph, details)
    return attrs.evolve(core, txn=np.where(core.txn == HELPER, HELPER, core.txn + low))
