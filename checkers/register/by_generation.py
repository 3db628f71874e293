"""Registers by generation of their partition: each is a register of its own, inside which nothing
is forgiven.

A forced reset may take a register back to a value that it held before; from then on it must be
linearizable again. So the operations that are certainly of one generation are judged together, from
a first value that an earlier generation may have left. A read that overlaps a reset is of either
generation and says nothing; a write that does may have taken effect in either, or in none that is
known.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Ints
from checkers.register.ops import CAS, INITIAL, NEVER, READ, WRITE, Ops
from harness.protocols.generations import GenerationTree, trees_of
from harness.protocols.setting import Setting

UNSEEN = -2
"""A value that no operation finds."""


@attrs.frozen(kw_only=True, eq=False)
class ByGeneration:
    """Operations whose ``k`` is a register in one generation; ``register`` is the place of its key
    among the keys of before. ``bases`` are the values, as numbers, from which a generation may go
    on, by its ``k``: where there is an entry its operations are to be searched from each of them.
    """

    ops: Ops
    register: Ints
    bases: dict[int, tuple[int, ...]]


def by_generation(ops: Ops, micro_ops: pa.Table, setting: Setting) -> ByGeneration:
    """Cut the registers of partitions that were reset, of a store that may lose by that."""
    every = np.arange(len(ops.keys))
    trees = trees_of(setting.resets) if setting.may_lose else {}
    where = _partitions(ops, micro_ops) if trees else np.full(len(ops.keys), -1)
    cut = np.flatnonzero(np.isin(where, list(trees)))
    if not len(cut):
        return ByGeneration(ops=ops, register=every, bases={})
    parts = [ops.take(~np.isin(ops.k, cut))]
    register, bases = every.tolist(), dict[int, tuple[int, ...]]()
    begins, ends = (np.searchsorted(ops.k, cut, side=side) for side in ("left", "right"))
    for k, begin, end in zip(cut.tolist(), begins.tolist(), ends.tolist(), strict=True):
        one = _Register.of(ops.take(np.arange(begin, end)), trees[int(where[k])])
        for place in one.observed():
            to = k if place == 0 else len(register)
            register += [k] if place else []
            own, base = _generation(one, place)
            if base is not None:
                bases[to] = base
            parts.append(attrs.evolve(own, k=np.full(len(own.k), to)))
    names = ("txn", "k", "f", "seen", "left", "start", "finish")
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    order = np.lexsort((whole["txn"], whole["k"]))
    keys = ops.keys[np.asarray(register, dtype=np.int64)]
    made = attrs.evolve(ops, keys=keys, **{name: col[order] for name, col in whole.items()})
    return ByGeneration(ops=made, register=np.asarray(register, dtype=np.int64), bases=bases)


def _partitions(ops: Ops, micro_ops: pa.Table) -> Ints:
    """Return the partition of each register, -1 where it is not known."""
    at = pc.index_in(pa.array(ops.keys, pa.int64()), micro_ops["key"].combine_chunks())
    known = pc.take(micro_ops["partition"].combine_chunks(), at)
    return np.asarray(pc.fill_null(known, -1), dtype=np.int64)


@attrs.frozen(kw_only=True, eq=False)
class _Register:
    """The operations of one register, each of a generation from ``first`` to ``last``; and for each
    value the generations in which it may have been left.
    """

    ops: Ops
    tree: GenerationTree
    first: Ints
    last: Ints
    left: dict[int, set[tuple[int, int]]]

    @classmethod
    def of(cls, ops: Ops, tree: GenerationTree) -> _Register:
        spans = [
            tree.span(*times) for times in zip(ops.start.tolist(), ops.finish.tolist(), strict=True)
        ]
        left: dict[int, set[tuple[int, int]]] = {}
        for value, f, span in zip(ops.left.tolist(), ops.f.tolist(), spans, strict=True):
            if f != READ:
                left.setdefault(value, set()).add(span)
        first, last = np.asarray(spans, dtype=np.int64).reshape(-1, 2).T
        return cls(ops=ops, tree=tree, first=first, last=last, left=left)

    def observed(self) -> Iterator[int]:
        """Yield the generations in which a value was found; any order explains the others."""
        finds = (self.ops.f != WRITE) & (self.ops.finish != NEVER) & (self.first == self.last)
        return map(int, np.unique(self.first[finds]))

    def may_begin_with(self, value: int, place: int) -> bool:
        """Tell whether a generation before the one at ``place``, whose log that continues, may have
        left ``value``.
        """
        before = self.tree.parents[place]
        return value == INITIAL or any(
            self.tree.ancestor(before, last) >= first for first, last in self.left.get(value, ())
        )


def _generation(one: _Register, place: int) -> tuple[Ops, tuple[int, ...] | None]:
    """Return the operations of the generation ``place``, and the values from which it may go on;
    ``None`` for those where it goes on from ``INITIAL``, as a register does.
    """
    here = (one.first <= place) & (place <= one.last)
    sure = here & (one.first == one.last)
    rows = np.flatnonzero(sure | here & (one.ops.f != READ))
    own = one.ops.take(rows)
    # Whether another took effect here is not known.
    own = attrs.evolve(own, finish=np.where(sure[rows], own.finish, NEVER))
    found = np.unique(own.seen[(own.f != WRITE) & (own.finish != NEVER)]).tolist()
    written = set(own.left[own.f != READ].tolist())
    if place == 0:
        # A value that is first written in a later one is found by the search alone.
        early = set(found) - written - {INITIAL}
        return own, (INITIAL,) if early else None
    # What an operation of unknown outcome found counts, too: where it took effect it found that.
    sought = np.unique(own.seen[own.f != WRITE]).tolist()
    possible = [value for value in sought if one.may_begin_with(value, place)]
    foreign = [value for value in found if value not in written]
    if len(possible) == len(foreign) == 1 and possible == foreign:
        # Nothing else can be where it began: it takes the place of the first value.
        (base,) = foreign
        at_base = own.seen == base
        left = np.where(at_base & (own.f == READ), INITIAL, own.left)
        return attrs.evolve(own, seen=np.where(at_base, INITIAL, own.seen), left=left), None
    if not possible and not foreign and not np.any(own.f == CAS):
        return own, None
    return own, (*possible, UNSEEN)
