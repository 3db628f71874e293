"""Anomalies in words: the broken promise, then what it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.protocols.checker import EXAMPLES_MAX, Tables
from harness.protocols.finding import Finding
from harness.protocols.verdict import Anomaly
from harness.text import inert

KEY_NAMES = "key_names"  # of an imported history, beside its tables
_KEYS = ("key", "least_key", "strange")

_FINDINGS = {
    "G1a": "aborted read (G1a): T{txn} read {element} in key {key}, which T{other} appended and "
    "then failed",
    "G1b": "intermediate read (G1b): T{txn} read key {key} up to {element}, which T{other} "
    "followed with another append before it committed",
    "garbage-read": "garbage read: T{txn} read {element} in key {key}, which nobody appended",
    "duplicate-elements": "duplicate elements: T{txn} read {element} in key {key} more than once",
    "incompatible-order": "incompatible order: of the lists at key {key} that T{txn} and T{other} "
    "read neither is a prefix of the other",
    "internal": "internal inconsistency: T{txn} read key {key} in a state that contradicts its own "
    "earlier operations",
    "future-read": "future read: T{txn} read {element} in key {key} before it appended it itself",
    "dirty-update": "dirty update: the append of {element} to key {key} by T{other}, which failed, "
    "lies under a committed append of T{txn}",
    "lost-update": "lost update: T{txn} and T{other} read the same version of key {key} and both "
    "committed an append to it",
    "fractured-snapshot": "fractured snapshot: T{txn} saw T{other} only in part, without its "
    "append of {element} to key {key}",
    "stale-snapshot": "stale snapshot: T{txn} read key {key} without {element}, though T{other} "
    "was acknowledged longer before than the promised staleness",
    "snapshot-went-back": "snapshot went back: T{txn} read key {key} without {element}, though an "
    "earlier snapshot of its process, T{other}, had seen the transaction that appended it",
}


class KeyNames:
    """The keys of a history as its source names them: an import keeps numbers for others."""

    def __init__(self, tables: Tables) -> None:
        self._names: pa.Table | None = tables.get(KEY_NAMES)

    def __call__(self, key: int) -> str:
        """Return the name of ``key``, or its number."""
        if self._names is None or not self._names.num_rows:
            return str(key)
        place = pc.index(self._names["key"], pa.scalar(key, pa.int64())).as_py()
        return str(key) if place < 0 else inert(self._names["name"][place].as_py())

    def within(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return ``row`` with the names of its keys, for a sentence."""
        named = {name: self(row[name]) for name in _KEYS if row.get(name) is not None}
        return row | named


def of_finding(row: dict[str, Any]) -> str:
    """Format one row of ``lists.findings``, whose key has its name, as a sentence."""
    return _FINDINGS[row["anomaly"]].format(**row)


def of_texts(texts: Sequence[str]) -> Anomaly:
    """An anomaly of no operations, each occurrence of which is one of ``texts``."""
    examples = tuple(Finding(text=text, txns=(), keys=()) for text in texts[:EXAMPLES_MAX])
    return Anomaly(count=len(texts), examples=examples)


def of_lost_write(key: str, element: int, seen: int | None = None) -> str:
    """Format a lost write as a sentence; ``seen`` is the last transaction that still read it."""
    what = f"lost write: an acknowledged append to key {key} (value {element})"
    if seen is None:
        return f"{what} is in no later read"
    return f"{what}, which T{seen} was the last to read, is in none of the final reads"
