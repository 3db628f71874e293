"""Transactions as plain values, and what can be said of their reads without judging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

Value = int | tuple[int, ...] | None
Op = tuple[str, int, Value]
Read = tuple[int, int, tuple[int, ...]]


@attrs.frozen(kw_only=True)
class Txn:
    """One transaction: ``ops`` are ``("append", key, element)`` or ``("r", key, elements)``.

    ``index`` counts invocations from 0. A read of ``None`` saw the empty list if the transaction is
    ok; else it is not known what it saw. Times are on one axis, in no particular unit.
    """

    index: int
    process: int
    type: str
    invoke: int
    complete: int
    ops: tuple[Op, ...]
    kind: str = "read-write"

    def reads(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(key, elements) of every read whose answer is known, in order."""
        for f, key, value in self.ops:
            if f == "r" and isinstance(value, tuple):
                yield key, value
            elif f == "r" and self.type == "ok":
                yield key, ()

    def appends(self) -> Iterator[tuple[int, int]]:
        """(key, element) of every append, in order."""
        for f, key, value in self.ops:
            if f == "append" and isinstance(value, int):
                yield key, value


History = Sequence[Txn]


def of_type(history: History, *types: str) -> list[Txn]:
    """The transactions that ended as one of ``types``."""
    return [txn for txn in history if txn.type in types]


def committed(history: History) -> list[Txn]:
    """The ok transactions, and the info ones of which a committed one read an element."""
    proven = {txn.index for txn in of_type(history, "ok")}
    by = writers(history)
    while True:
        seen = {
            by[key, element].index
            for txn in history
            for key, elements in txn.reads()
            for element in elements
            if txn.index in proven and (key, element) in by
        }
        more = {txn.index for txn in of_type(history, "info")} & seen - proven
        if not more:
            return [txn for txn in history if txn.index in proven]
        proven |= more


def known_reads(txns: History) -> list[Read]:
    """(transaction, key, elements) of all reads of ``txns``, in order."""
    return [(txn.index, *read) for txn in txns for read in txn.reads()]


def writers(history: History) -> dict[tuple[int, int], Txn]:
    """Who appended (key, element), whatever became of it."""
    return {append: txn for txn in history for append in txn.appends()}


def version_orders(readers: History) -> dict[int, list[int]]:
    """The longest list that was read of each key, repetitions dropped."""
    longest: dict[int, tuple[int, ...]] = {}
    for _, key, elements in known_reads(readers):
        if len(elements) > len(longest.get(key, ())):
            longest[key] = elements
    return {key: list(dict.fromkeys(elements)) for key, elements in longest.items()}
