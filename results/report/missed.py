"""The moment where the value of a register or an account departs from the acknowledged writes.

A checker proves a lost balance by sums over a whole run: by the acknowledged transfers and the last
read. A reader needs the moment: the first transaction that found neither the value that the last
acknowledged one before it had left, nor any that a later one may have left since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

# Every read is compared with every write of the key.
STEPS_MAX = 20_000  # on one key; with more, the moment is not computed

Row = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class MissedWrite:
    """``reader`` found ``found`` at ``key``, where ``writer`` was acknowledged with ``left``."""

    key: int
    writer: int
    left: int
    reader: int
    found: int | None


@attrs.frozen(kw_only=True)
class _Access:
    txn: int
    invoke: int
    complete: int
    acknowledged: bool
    value: int | None


def first_missed(
    key: int, steps: Sequence[Row], times: Mapping[int, Row], reader: int | None = None
) -> MissedWrite | None:
    """Return the first transaction (or none but ``reader``) that missed an acknowledged write of
    ``key``.

    ``steps`` are all micro-operations on ``key``, by (txn, pos); ``times`` their transactions.
    """
    if len(steps) > STEPS_MAX:
        return None
    writes, reads = _accesses(steps, times)
    # By completion: the last one that ended before a read is the one it must not miss.
    acknowledged = sorted((w for w in writes if w.acknowledged), key=lambda w: w.complete)
    unknown_since = _unknown_since(steps, times)
    for read in sorted(reads, key=lambda r: r.invoke):
        if reader not in (None, read.txn):
            continue
        # It may have come behind what is not known; the next to begin may have ended before.
        if unknown_since is not None and read.complete > unknown_since:
            continue
        # Only what ended before the read began is sure to precede it; the rest is concurrent.
        before = [w for w in acknowledged if w.complete < read.invoke]
        if not before:
            continue
        last = before[-1]
        left = last.value
        if left is not None and read.value not in _possible(writes, last, read):
            return MissedWrite(
                key=key, writer=last.txn, left=left, reader=read.txn, found=read.value
            )
    return None


def _unknown_since(steps: Sequence[Row], times: Mapping[int, Row]) -> int | None:
    """Return when the first transaction of unknown outcome began of which the record has what it
    would add, and not what it left: from then on any value may be right.
    """
    told = {step["txn"] for step in steps if step["f"] == "w"}
    added = {step["txn"] for step in steps if step["f"] == "add"} - told
    begun = (times[txn]["invoke_index"] for txn in added if times[txn]["type"] == "info")
    return min(begun, default=None)


def _possible(writes: Iterable[_Access], last: _Access, read: _Access) -> set[int | None]:
    """Return the values that ``read`` may find: of every write that was not surely overwritten by
    then.
    """
    return {
        write.value
        for write in writes
        if write is last
        # Concurrent with the last write, or with the read: in which order is open.
        or (write.complete > last.invoke and write.invoke < read.complete)
        or not write.acknowledged  # it may take effect at any time
    }


def _accesses(
    steps: Iterable[Row], times: Mapping[int, Row]
) -> tuple[list[_Access], list[_Access]]:
    """Return the last write of each transaction that may have happened, and the first read of each
    that was acknowledged, unless it came after its own write.
    """
    writes: dict[int, _Access] = {}
    reads: dict[int, _Access] = {}
    for step in steps:
        row = times[step["txn"]]
        if row["type"] == "fail" or step["f"] not in ("r", "w"):
            continue
        access = _Access(
            txn=step["txn"],
            # Indices, not times: those of an imported history may be missing or go back.
            invoke=row["invoke_index"],
            complete=row["complete_index"],
            acknowledged=row["type"] == "ok",
            value=step["value"],
        )
        if step["f"] == "w":
            writes[access.txn] = access
        elif access.acknowledged and access.txn not in writes:
            reads.setdefault(access.txn, access)
    return list(writes.values()), list(reads.values())
