"""Anomalies that one list or one transaction shows, each by its definition."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from oracle_history import (
    History,
    Txn,
    committed,
    known_reads,
    of_type,
    version_orders,
    writers,
)

LIST_NAMES = (
    "G1a",
    "G1b",
    "dirty-update",
    "duplicate-elements",
    "future-read",
    "garbage-read",
    "incompatible-order",
    "internal",
    "lost-update",
)


def list_names(history: History) -> set[str]:
    """The anomalies that need no cycle."""
    read = committed(history)
    tests = {
        "G1a": aborted_read(history),
        "G1b": intermediate_read(history),
        "dirty-update": dirty_update(history, read),
        "duplicate-elements": duplicates(read),
        "future-read": any(map(reads_its_future, of_type(history, "ok"))),
        "garbage-read": garbage(history, read),
        "incompatible-order": incompatible(read),
        "internal": any(map(contradicts_itself, of_type(history, "ok"))),
        "lost-update": lost_update(history),
    }
    return {name for name, holds in tests.items() if holds}


def aborted_read(history: History) -> bool:
    """G1a: an ok transaction read an element that a failed one appended."""
    failed = {append for txn in of_type(history, "fail") for append in txn.appends()}
    return any(
        (key, element) in failed
        for _, key, elements in known_reads(of_type(history, "ok"))
        for element in elements
    )


def intermediate_read(history: History) -> bool:
    """G1b: an ok transaction read a state that ends inside another transaction's appends."""
    by = writers(history)
    last = {(txn.index, key): element for txn in history for key, element in txn.appends()}
    for reader, key, elements in known_reads(of_type(history, "ok")):
        writer = by.get((key, elements[-1])) if elements else None
        if writer is None or writer.index == reader:
            continue
        if last[writer.index, key] != elements[-1]:
            return True
    return False


def contradicts_itself(txn: Txn) -> bool:
    """internal: a read differs from what the transaction's earlier reads and appends imply."""
    state: dict[int, tuple[int, ...]] = {}  # what the list is, or, in ``suffix``, how it ends
    suffix: dict[int, tuple[int, ...]] = {}
    for f, key, value in txn.ops:
        if f == "append" and isinstance(value, int):
            if key in state:
                state[key] += (value,)
            else:
                suffix[key] = (*suffix.get(key, ()), value)
            continue
        seen = value if isinstance(value, tuple) else ()
        end = suffix.pop(key, ())
        if key in state and seen != state[key]:
            return True
        if end and seen[-len(end) :] != end:
            return True
        state[key] = seen
    return False


def reads_its_future(txn: Txn) -> bool:
    """future-read: the transaction read an element that it appends only later."""
    for place, (f, key, value) in enumerate(txn.ops):
        if f == "r" and isinstance(value, tuple):
            later = [op[2] for op in txn.ops[place:] if op[:2] == ("append", key)]
            if any(element in value for element in later):
                return True
    return False


def duplicates(readers: History) -> bool:
    """duplicate-elements: one list holds an element more than once."""
    return any(len(set(elements)) < len(elements) for _, _, elements in known_reads(readers))


def garbage(history: History, readers: History) -> bool:
    """garbage-read: a list holds an element that nobody ever appended to it."""
    by = writers(history)
    return any(
        (key, element) not in by
        for _, key, elements in known_reads(readers)
        for element in elements
    )


def incompatible(readers: History) -> bool:
    """incompatible-order: of two lists read of one key neither is how the other begins."""
    lists: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for _, key, elements in known_reads(readers):
        lists[key].add(elements)
    return any(
        one[: len(other)] != other[: len(one)]
        for some in lists.values()
        for one, other in product(some, repeat=2)
    )


def lost_update(history: History) -> bool:
    """lost-update: two ok transactions first read the same of a key, and then appended to it."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for txn in of_type(history, "ok"):
        first: dict[int, tuple[int, ...]] = {}
        updated: set[int] = set()
        for f, key, value in txn.ops:
            if f == "r":
                first.setdefault(key, value if isinstance(value, tuple) else ())
            elif key in first:
                updated.add(key)
        mine = {(key, first[key]) for key in updated}
        if seen & mine:
            return True
        seen |= mine
    return False


def dirty_update(history: History, readers: History) -> bool:
    """dirty-update: an ok append lies on a failed one, with nothing but info ones between."""
    by = writers(history)
    for key, order in version_orders(readers).items():
        dirty = False
        for element in order:
            writer = by.get((key, element))
            kind = writer.type if writer else "info"
            if kind == "ok" and dirty:
                return True
            dirty = kind == "fail" or (dirty and kind == "info")
    return False
