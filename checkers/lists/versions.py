"""The order of a key's versions, as its longest committed read shows it."""

from __future__ import annotations

import attrs
import numpy as np

from checkers.engine.arrays import Bools, Ints, batches, group_starts, spread
from checkers.lists.list_ops import ListOps

# The number of list elements compared at once. Its arrays, 2 MB each, stay in the cache, and in the
# memory that the process has: of a history of a million the kernel gives half the pages.
CHUNK = 250_000


@attrs.frozen(kw_only=True, eq=False)
class Versions:
    """One row a version, by (key, position): ``element`` and the row of its append (-1: none).

    ``first[k]`` is the row of key k's first version and ``count[k]`` the number of its versions.
    The order is the longest read of a committed transaction, an element that it repeats counted
    where it comes first. Reads of other transactions are no evidence: a transaction that failed at
    commit may have seen anything. ``prefix[r]`` says that read r is a prefix of that longest read,
    ``longest[k]`` is its row in the reads (-1: there is none), ``repeats_at[k]`` the position in it
    of the first repetition.
    """

    k: Ints
    position: Ints
    element: Ints
    append: Ints
    first: Ints
    count: Ints
    longest: Ints
    prefix: Bools
    repeats_at: Ints
    of_append: Ints

    def version(self, append: Ints) -> Ints:
        """Return the version row that each append made, or -1 where it is in no version order."""
        return np.where(append >= 0, self.of_append[np.maximum(append, 0)], -1)


NEVER = np.iinfo(np.int64).max


def versions_of(ops: ListOps) -> Versions:
    """Return the version orders of all keys of ``ops``."""
    longest = _longest(ops)
    has = longest >= 0
    length = np.where(has, ops.reads.length[longest], 0) if len(ops.reads.txn) else has * 0
    k, place = spread(length)
    at = ops.reads.start[longest[k]] + place if len(k) else k
    element = ops.elements[at]
    append = ops.writer(k, element)
    repeated = _repeated(k, element, append, len(ops.appends.txn))
    repeats_at = np.full(len(ops.keys), NEVER)
    np.minimum.at(repeats_at, k[repeated], place[repeated])
    if repeated.any():
        k, element, append = k[~repeated], element[~repeated], append[~repeated]
    count = np.bincount(k, minlength=len(ops.keys)).astype(np.int64)
    # At least one row, so that a clamped lookup of no append stays in bounds.
    of_append = np.full(max(len(ops.appends.txn), 1), -1)
    of_append[append[append >= 0]] = np.flatnonzero(append >= 0)
    return Versions(
        k=k,
        position=spread(count)[1],
        element=element,
        append=append,
        first=np.cumsum(count) - count,
        count=count,
        longest=longest,
        prefix=_prefixes(ops, longest),
        repeats_at=repeats_at,
        of_append=of_append,
    )


def _longest(ops: ListOps) -> Ints:
    """Return for each key the row of its longest committed read, the earliest of equals; -1 for
    none.
    """
    reads = ops.reads
    longest = np.full(len(ops.keys), -1)
    committed = np.flatnonzero(ops.txns.committed[reads.txn])
    if len(committed):
        k, length = reads.k[committed], reads.length[committed]
        groups = np.flatnonzero(group_starts(k))
        most = np.zeros(len(ops.keys), dtype=np.int64)
        most[k[groups]] = np.maximum.reduceat(length, groups)
        # The earliest of equals, so that any executor names the same read in a finding.
        rows = committed[length == most[k]]
        rows = rows[group_starts(reads.k[rows])]
        longest[reads.k[rows]] = rows
    return longest


def _repeated(k: Ints, element: Ints, append: Ints, appends: int) -> Bools:
    """Mark every element that came before in the same key's list; ``append`` is the row, of so many
    ``appends``, that wrote it.
    """
    repeated = np.zeros(len(k), dtype=np.bool_)
    written = np.flatnonzero(append >= 0)
    first = np.empty(appends, dtype=np.int64)
    # Backwards, so that the first of several stays.
    first[append[written[::-1]]] = written[::-1]
    repeated[written] = first[append[written]] != written
    garbage = np.flatnonzero(append < 0)
    # Stable: of equal elements the first in the list is no repetition.
    order = garbage[np.lexsort((element[garbage], k[garbage]))]
    repeated[order] = ~group_starts(k[order], element[order])
    return repeated


def _prefixes(ops: ListOps, longest: Ints) -> Bools:
    """Mark each read that is a prefix of its key's longest committed read."""
    reads = ops.reads
    # No such read: only the empty read is a prefix of nothing.
    target = longest[reads.k]
    room = np.where(target >= 0, reads.length[np.maximum(target, 0)], 0)
    prefix = reads.length <= room
    # From a place in the read to the same place in the longest one.
    away = reads.start[target] - reads.start if len(reads.start) else target
    compared = np.where(prefix, reads.length, 0)
    for part in batches(compared, CHUNK):
        # Element by element, but in parts: lists of a hot key expand to many times the history.
        length = compared[part]
        end = np.cumsum(length)
        # Repeated and counted up, not looked up by row: this goes over every element there is.
        mine = np.repeat(reads.start[part] - (end - length), length)
        mine += np.arange(len(mine))
        theirs = mine + np.repeat(away[part], length)
        wrong = np.flatnonzero(ops.elements[mine] != ops.elements[theirs])
        prefix[part.start + np.searchsorted(end, wrong, side="right")] = False
    return prefix
