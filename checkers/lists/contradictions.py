"""The first proof that two lists of one key contradict each other.

Two reads contradict where neither list is how the other begins: they hold different elements at one
place. A read that contradicts the longest one of its key may contradict many others; the one that
ended first tells when the anomaly had shown itself, and which faults had by then been in force.
"""

from __future__ import annotations

import attrs
import numpy as np

from checkers.engine.arrays import Bools, Ints, batches, group_starts
from checkers.lists.list_ops import ListOps
from checkers.lists.versions import CHUNK, Versions

# Forks within forks that are followed. Every pair found is a contradiction; beyond so many an
# earlier one may be missed, which a history must be made for: each costs a list longer than the
# last.
DEPTH_MAX = 200


def first_contradictions(ops: ListOps, versions: Versions, read: Ints) -> Ints:
    """Return for each of ``read``, rows of reads that contradict the longest of their keys, the row
    of the committed read that contradicts it and ended first.
    """
    if not len(read):
        return read
    reads = ops.reads
    accused = np.zeros(len(ops.keys), dtype=np.bool_)
    accused[reads.k[read]] = True
    rows = np.flatnonzero(ops.txns.committed[reads.txn] & accused[reads.k])
    # By its rank one number tells both how early a read ended, and which it is.
    by_end = rows[np.lexsort((rows, ops.txns.finish[reads.txn[rows]]))]
    rank = np.empty(len(reads.txn), dtype=np.int64)
    rank[by_end] = np.arange(len(by_end))
    first = np.full(len(reads.txn), len(by_end))
    first[read] = rank[versions.longest[reads.k[read]]]
    group = reads.k[rows]
    for _ in range(DEPTH_MAX):
        members = _Members.of(ops, rows, group)
        found = members.earliest(rank[rows], len(by_end))
        first[rows] = np.minimum(first[rows], found)
        off = np.flatnonzero(members.off)
        if not len(off):
            break
        # Reads that go on alike behind a fork contradict each other further on, if at all.
        order = off[members.by_branch(off)]
        starts = group_starts(*(column[order] for column in members.branch))
        rows, group = rows[order], np.cumsum(starts) - 1
    partner: Ints = by_end[first[read]]
    return partner


@attrs.frozen(kw_only=True, eq=False)
class _Members:
    """Reads that begin alike, by ``group``, against the longest of each: ``off`` are no prefix of
    it, and differ from it first at the place ``fork``, where they hold ``element``.
    """

    group: Ints
    length: Ints
    off: Bools
    fork: Ints
    element: Ints

    @classmethod
    def of(cls, ops: ListOps, rows: Ints, group: Ints) -> _Members:
        """Those at ``rows`` of the reads, in the order of ``group``."""
        start, length = ops.reads.start[rows], ops.reads.length[rows]
        begins = np.flatnonzero(group_starts(group))
        number = np.cumsum(group_starts(group)) - 1
        most = np.maximum.reduceat(length, begins)[number]
        longest = np.flatnonzero(length == most)
        longest = longest[group_starts(number[longest])][number]
        fork = _forks(ops.elements, start, start[longest], length)
        off = fork < length
        at = np.where(off, start + fork, 0)
        element = ops.elements[at] if len(ops.elements) else at
        return cls(group=group, length=length, off=off, fork=fork, element=element)

    @property
    def branch(self) -> tuple[Ints, Ints, Ints]:
        """What tells the branch of a read that is ``off``."""
        return self.group, self.fork, self.element

    def by_branch(self, rows: Ints) -> Ints:
        """Return the order of ``rows`` by their branches."""
        order: Ints = np.lexsort(tuple(column[rows] for column in reversed(self.branch)))
        return order

    def earliest(self, rank: Ints, none: int) -> Ints:
        """Return for each the least ``rank`` among those of its group that certainly contradict it,
        ``none`` where there is no such one: reads of one branch are not compared.
        """
        found = np.full(len(rank), none)
        off, on = np.flatnonzero(self.off), np.flatnonzero(~self.off)
        if not len(off):
            return found
        off = off[self.by_branch(off)]
        on = on[np.lexsort((self.length[on], self.group[on]))]
        group, of_off = self.group[off], rank[off]
        begins = group_starts(*(column[off] for column in self.branch))
        block = np.cumsum(begins) - 1
        edges = np.append(np.flatnonzero(begins), len(off))
        before = _running(group, of_off, none)
        behind = _running(-group[::-1], of_off[::-1], none)[::-1]
        # Another branch, be it from the same place or from another one, contradicts.
        at = edges[block] - 1
        found[off] = _within(before, group, at, group, none)
        at = edges[block + 1]
        found[off] = np.minimum(found[off], _within(behind, group, at, group, none))
        # One that goes on with the longest beyond the fork contradicts what left it there.
        longer = _running(-self.group[on][::-1], rank[on][::-1], none)[::-1]
        size = int(self.length.max(initial=0)) + 1
        on_code, off_code = (
            self.group[on] * size + self.length[on],
            group * size + self.fork[off],
        )
        at = np.searchsorted(on_code, off_code, side="right")
        found[off] = np.minimum(found[off], _within(longer, self.group[on], at, group, none))
        at = np.searchsorted(off_code, on_code, side="left") - 1
        found[on] = _within(before, group, at, self.group[on], none)
        return found


def _running(group: Ints, rank: Ints, none: int) -> Ints:
    """Return the least ``rank`` so far in each group, which ascend."""
    # Ranks of a later group are less than all before, so that none is carried over.
    away = group * (none + 1)
    least: Ints = np.minimum.accumulate(rank - away) + away
    return least


def _within(least: Ints, groups: Ints, at: Ints, group: Ints, none: int) -> Ints:
    """Return ``least`` at each place that there is and that lies in the ``group``."""
    if not len(least):
        return np.full(len(at), none)
    there = (at >= 0) & (at < len(least))
    at = np.where(there, at, 0)
    return np.where(there & (groups[at] == group), least[at], none)


def _forks(elements: Ints, mine: Ints, theirs: Ints, length: Ints) -> Ints:
    """Return the first place at which each list differs from a longer one, its ``length`` where it
    does not; ``mine`` and ``theirs`` are where the lists begin.
    """
    fork = length.copy()
    away = theirs - mine
    for part in batches(length, CHUNK):
        size = length[part]
        end = np.cumsum(size)
        at = np.repeat(mine[part] - (end - size), size)
        at += np.arange(len(at))
        wrong = np.flatnonzero(elements[at] != elements[at + np.repeat(away[part], size)])
        row = np.searchsorted(end, wrong, side="right")
        first = group_starts(row)
        row, wrong = row[first], wrong[first]
        fork[part.start + row] = wrong - (end - size)[row]
    return fork
