"""Appends and reads of lists as flat arrays: the input of every inference over them."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, Ints, codes, group_starts, ints, lists
from checkers.engine.transactions import Transactions, transactions_of
from harness.errors import MalformedHistory
from harness.protocols.checker import Tables
from harness.protocols.setting import Setting

_KINDS_OF_STEP = ("r", "append")


@attrs.frozen(kw_only=True, eq=False)
class Appends:
    """One row an append, sorted by (key, element); ``k`` is the key's position in ``keys``."""

    txn: Ints
    pos: Ints
    k: Ints
    element: Ints


@attrs.frozen(kw_only=True, eq=False)
class Reads:
    """One row a read whose result is known, sorted by (key, transaction, position); its list is
    ``elements[start:start + length]``.
    """

    txn: Ints
    pos: Ints
    k: Ints
    start: Ints
    length: Ints


@attrs.frozen(kw_only=True, eq=False)
class ListOps:
    """The list operations of some keys, all of those keys."""

    txns: Transactions
    keys: Ints
    appends: Appends
    reads: Reads
    elements: Ints
    append_codes: _Codes

    def writer(self, k: Ints, element: Ints) -> Ints:
        """Return the row in ``appends`` that wrote ``element`` to key ``k``, or -1 where no append
        did.
        """
        return self.append_codes.find(k, element)


# Of a table with a place for each code, for each append that it holds: one of 32 appends to a key
# takes 1, one of histories that number elements throughout up to the number of their keys.
PLACES_MAX = 16


@attrs.frozen(kw_only=True, eq=False)
class _Codes:
    """Pairs (k, element) of the appends as sorted numbers, for lookups: in a table with a place for
    each number where that is not much larger, else by bisection.

    Elements are first replaced by their rank where a pair would not fit in 64 bits.
    """

    codes: Ints
    low: int
    span: int
    ranks: Ints | None
    places: Ints | None

    @classmethod
    def of(cls, k: Ints, element: Ints) -> tuple[_Codes, Ints]:
        """Return the codes of these pairs, and the order of the rows that the codes are in."""
        low, high = (int(element.min()), int(element.max())) if len(element) else (0, 0)
        span = high - low + 1
        # Python's integers: the product could overflow numpy's.
        size = span * (int(k.max(initial=0)) + 1)
        ranks = None
        # Only for keys with elements far apart, as of an imported history: ranks cost a sort.
        if size >= 2**62:
            ranks = np.unique(element)
            low, span = 0, len(ranks)
            element = np.searchsorted(ranks, element)
        codes = k * span + (element - low)
        if size <= PLACES_MAX * len(k):
            places = np.full(size, -1)
            places[codes] = np.arange(len(k))
            taken = np.flatnonzero(places >= 0)
            # Fewer where an element is appended twice: both rows are needed to say so.
            if len(taken) == len(k):
                order = places[taken]
                places[taken] = np.arange(len(k))
                return cls(codes=taken, low=low, span=span, ranks=None, places=places), order
        order = np.argsort(codes, kind="stable")
        return cls(codes=codes[order], low=low, span=span, ranks=ranks, places=None), order

    def find(self, k: Ints, element: Ints) -> Ints:
        if not len(self.codes):
            return np.full(len(k), -1, dtype=np.int64)
        known = np.ones(len(k), dtype=np.bool_)
        if self.ranks is not None:
            rank = np.minimum(np.searchsorted(self.ranks, element), len(self.ranks) - 1)
            known = self.ranks[rank] == element
            element = rank
        else:
            # Elements out of range would wrap into the codes of another key.
            known = (element >= self.low) & (element <= self.low + self.span - 1)
            element = np.where(known, element, self.low)
        wanted = k * self.span + (element - self.low)
        if self.places is not None:
            # Keys behind the last one that is appended to have no places.
            known &= wanted < len(self.places)
            return np.where(known, self.places[np.where(known, wanted, 0)], -1)
        # Bisection gives one past the end for what is greater than all.
        row = np.minimum(np.searchsorted(self.codes, wanted), len(self.codes) - 1)
        return np.where(known & (self.codes[row] == wanted), row, -1)


def append_codes_of(k: Ints, element: Ints) -> tuple[_Codes, Ints]:
    """Return what ``ListOps.append_codes`` is for these appends, and the order that they are to be
    in.
    """
    return _Codes.of(k, element)


def list_ops(tables: Tables, setting: Setting) -> ListOps:
    """Return the list operations of ``micro_ops``.

    An empty read of an ok transaction may be stored as null; a null in any other transaction is an
    unknown result, and no read. Raises ``MalformedHistory`` for an element appended twice: nothing
    can be inferred of such a key.
    """
    txns = transactions_of(tables, setting)
    table = in_order(tables["micro_ops"])
    f = codes(table, "f", _KINDS_OF_STEP)
    txn, pos = ints(table, "txn"), ints(table, "pos")
    keys, k = ranked(table.column("key"))
    start, length, elements, known = lists(table, "elements")
    read = np.flatnonzero((f == 0) & (known | (txns.type[txn] == OK)))
    # Stable: within a key the rows stay in the order of (transaction, position).
    read = read[np.argsort(k[read], kind="stable")]
    # Failed appends as well: to recognise a read of one (G1a), its writer must be known.
    append = np.flatnonzero(f == 1)
    # Sorted once: every inference looks appends up by (key, element).
    append_codes, order = _Codes.of(k[append], ints(table, "value")[append])
    append = append[order]
    appends = Appends(
        txn=txn[append], pos=pos[append], k=k[append], element=ints(table, "value")[append]
    )
    _refuse_repetition(keys, appends)
    return ListOps(
        txns=txns,
        keys=keys,
        appends=appends,
        reads=Reads(
            txn=txn[read], pos=pos[read], k=k[read], start=start[read], length=length[read]
        ),
        elements=elements,
        append_codes=append_codes,
    )


def in_order(micro_ops: pa.Table) -> pa.Table:
    """Return the rows sorted by (transaction, position), as sealed files are."""
    txn, pos = ints(micro_ops, "txn"), ints(micro_ops, "pos")
    step = np.diff(txn)
    if np.all((step > 0) | ((step == 0) & (np.diff(pos) > 0))):
        return micro_ops
    return micro_ops.take(pa.array(np.lexsort((pos, txn))))


def ranked(column: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Return the distinct values, ascending, and the position among them of each row's value."""
    # Many rows, few keys: only the distinct ones are sorted.
    values = np.sort(np.asarray(pc.unique(column).to_numpy(), dtype=np.int64))
    rank = pc.index_in(column, value_set=pa.array(values, column.type))
    return values, np.asarray(rank.to_numpy(), dtype=np.int64)


def _refuse_repetition(keys: Ints, appends: Appends) -> None:
    again = np.flatnonzero(~group_starts(appends.k, appends.element))
    if len(again):
        row = again[0]
        raise MalformedHistory(
            "history",
            f"key {keys[appends.k[row]]}",
            f"element {appends.element[row]} is appended twice (by transactions "
            f"{appends.txn[row - 1]} and {appends.txn[row]}); elements must be unique per key",
        )
