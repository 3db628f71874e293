"""Transactions: a lock has one holder, an outcome is one, a snapshot stays as it was read.

Locks live in the memory of a primary. They are counted for each epoch by itself: what the primary
of an earlier epoch grants after its lease is judged by the leases, and nothing can come of it,
since the log refuses its commands. A prepared transaction holds its locks beyond its primary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from harness.protocols.claims import (
    AnswerClock,
    LockGrant,
    LockRelease,
    LoggedWrites,
    NewestRead,
    NewVersions,
    Outcome,
    OutcomeDrop,
    PreparedLocks,
    ReadsValid,
    SharedRead,
    SnapshotRead,
    TimestampOrder,
    TransactionEnd,
)

KEPT_EPOCHS = 3  # of each group: a primary that is behind by more grants nothing any more
KEPT_TRANSACTIONS = 20_000  # whose ends are remembered: none is open for so long
KEPT_SNAPSHOTS = 64  # of each key: no snapshot is open for so long


@attrs.define
class _Epoch:
    """The locks that one primary has granted; whether a lock is exclusive, by key and holder."""

    keys: dict[bytes, dict[str, bool]] = attrs.field(factory=dict)
    held: dict[str, dict[bytes, None]] = attrs.field(factory=dict)
    given_up: dict[str, dict[bytes, None]] = attrs.field(factory=dict)
    given_up_s: dict[str, float] = attrs.field(factory=dict)
    written: dict[str, None] = attrs.field(factory=dict)


@attrs.define
class _Group:
    epochs: dict[int, _Epoch] = attrs.field(factory=dict)
    prepared: dict[str, PreparedLocks] = attrs.field(factory=dict)
    # By key and transaction: the epoch, and whether exclusively.
    kept: dict[bytes, dict[str, tuple[int, bool]]] = attrs.field(factory=dict)
    finished: dict[str, None] = attrs.field(factory=dict)


class Locks:
    """Judges what primaries grant and write; an empty text where nothing is wrong."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def locked(self, fact: LockGrant) -> str:
        """A lock is granted."""
        group, epoch = self._at(fact.group, fact.epoch)
        holders = epoch.keys.setdefault(fact.key, {})
        text = next(self._conflicts(group, holders, fact), "")
        holders[fact.txn] = fact.exclusive or holders.get(fact.txn, False)
        epoch.held.setdefault(fact.txn, {})[fact.key] = None
        if fact.txn in epoch.given_up:
            epoch.given_up[fact.txn].pop(fact.key, None)
        return text

    def read(self, fact: SharedRead) -> str:
        """A key is read under a lock that nothing else tells of."""
        group = self._groups.get(fact.group)
        if group is None or not group.epochs:
            return ""
        number = max(group.epochs)
        wanted = LockGrant(fact.group, number, fact.txn, fact.key, exclusive=False)
        holders = group.epochs[number].keys.get(fact.key, {})
        return next(self._conflicts(group, holders, wanted), "")

    def valid(self, now_s: float, fact: ReadsValid) -> str:
        """What a transaction has read under its locks is told to be so until now."""
        _, epoch = self._at(fact.group, fact.epoch)
        lost, since_s = epoch.given_up.get(fact.txn), epoch.given_up_s.get(fact.txn, now_s)
        if not lost or since_s >= now_s:
            return ""
        keys = ", ".join(key.hex() for key in lost)
        return (
            f"what {fact.txn} has read in {fact.group} is told to be valid, and its lock of {keys} "
            f"was given up {now_s - since_s:.3f} s before"
        )

    def unlocked(self, now_s: float, fact: LockRelease) -> None:
        """All locks of a transaction are given up."""
        _, epoch = self._at(fact.group, fact.epoch)
        held = epoch.held.pop(fact.txn, None)
        if held is None:
            return
        for key in held:
            del epoch.keys[key][fact.txn]
            if not epoch.keys[key]:
                del epoch.keys[key]
        # What is in the log needs no lock any more.
        if fact.txn not in epoch.written:
            epoch.given_up.setdefault(fact.txn, {}).update(held)
            epoch.given_up_s[fact.txn] = now_s
            _forget(epoch.given_up)
            _forget(epoch.given_up_s)

    def prepared(self, fact: PreparedLocks) -> str | None:
        """A transaction is prepared: with all locks that it has here, or the next primary does not
        know of them. ``None`` where that was told before.
        """
        group, epoch = self._at(fact.group, fact.epoch)
        # A primary that was paused may tell it after the end.
        if fact.txn in group.finished or fact.txn in group.prepared:
            return None
        group.prepared[fact.txn] = fact
        for keys, exclusive in ((fact.shared, False), (fact.exclusive, True)):
            for key in keys:
                group.kept.setdefault(key, {})[fact.txn] = fact.epoch, exclusive
        logged = (*fact.shared, *fact.exclusive)
        lost = [key.hex() for key in epoch.held.get(fact.txn, ()) if key not in logged]
        if not lost:
            return ""
        return f"{fact.txn} is prepared in {fact.group} without its lock of {', '.join(lost)}"

    def finished(self, fact: TransactionEnd) -> None:
        """A prepared transaction has its outcome."""
        group = self._groups.setdefault(fact.group, _Group())
        group.finished[fact.txn] = None
        _forget(group.finished)
        prepared = group.prepared.pop(fact.txn, None)
        if prepared is not None:
            for key in (*prepared.shared, *prepared.exclusive):
                group.kept[key].pop(fact.txn, None)
                if not group.kept[key]:
                    del group.kept[key]

    def forgotten(self, fact: OutcomeDrop) -> str:
        """The outcome of a transaction is dropped."""
        for name, group in self._groups.items():
            if fact.txn in group.prepared:
                return f"the outcome of {fact.txn} is dropped, and {name} has not finished it"
        return ""

    def cut(self, group: str, txn: str) -> None:
        """A reset of ``group`` has cut off that ``txn`` is prepared."""
        self.finished(TransactionEnd(group, txn))

    def written(self, fact: LoggedWrites) -> tuple[str, str]:
        """Writes are in a log: what is wrong with the locks of others, and with its own."""
        group, epoch = self._at(fact.group, fact.epoch)
        epoch.written[fact.txn] = None
        _forget(epoch.written)
        shared = ""
        for key in fact.keys:
            wanted = LockGrant(fact.group, fact.epoch, fact.txn, key, exclusive=True)
            shared = shared or next(self._conflicts(group, epoch.keys.get(key, {}), wanted), "")
        lost = epoch.given_up.pop(fact.txn, {}) | self._left_behind(group, epoch, fact)
        if not lost:
            return shared, self._unprepared(fact)
        keys = ", ".join(key.hex() for key in lost)
        return shared, f"{fact.txn} writes in {fact.group}, and its lock of {keys} was given up"

    def _unprepared(self, fact: LoggedWrites) -> str:
        """What ``fact`` commits with locks that nothing keeps until its outcome is known."""
        parts = (fact.group, *(fact.others or ()))
        for name, group in self._groups.items() if fact.others is not None else ():
            if name in parts:
                continue
            for epoch in group.epochs.values():
                held = epoch.held.get(fact.txn) or epoch.given_up.get(fact.txn)
                if held:
                    keys = ", ".join(key.hex() for key in held)
                    return f"{fact.txn} commits, and {name} has its lock of {keys} unprepared"
        return ""

    def _left_behind(self, group: _Group, epoch: _Epoch, fact: LoggedWrites) -> dict[bytes, None]:
        """The keys whose locks earlier primaries had granted, and this one has not."""
        granted = epoch.held.get(fact.txn, {})
        return {
            key: None
            for number, earlier in group.epochs.items()
            if number < fact.epoch
            for key in (*earlier.held.get(fact.txn, ()), *earlier.given_up.get(fact.txn, ()))
            if key not in granted
        }

    def _conflicts(self, group: _Group, holders: dict[str, bool], fact: LockGrant) -> Iterator[str]:
        mode = "exclusively" if fact.exclusive else "to share"
        what = f"{fact.txn} has key {fact.key.hex()} of {fact.group} {mode}"
        for other, exclusive in holders.items():
            if other != fact.txn and (exclusive or fact.exclusive):
                yield f"{what}, and {other} holds it under the same epoch {fact.epoch}"
        for other, (epoch, exclusive) in group.kept.get(fact.key, {}).items():
            if other != fact.txn and epoch <= fact.epoch and (exclusive or fact.exclusive):
                yield f"{what}, and {other} has been prepared with it since epoch {epoch}"

    def _at(self, name: str, number: int) -> tuple[_Group, _Epoch]:
        group = self._groups.setdefault(name, _Group())
        epoch = group.epochs.get(number)
        if epoch is None:
            epoch = group.epochs[number] = _Epoch()
            for old in sorted(group.epochs)[:-KEPT_EPOCHS]:
                del group.epochs[old]
        return group, epoch


class Outcomes:
    """What has been told of each transaction."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int | None, str]] = {}
        self._forgotten: dict[str, None] = {}
        self._cut: dict[str, None] = {}

    def cut(self, txn: str) -> None:
        """A reset has cut off a part of the transaction: it may be torn, or get another outcome."""
        self._cut[txn] = None
        _forget(self._cut)

    def forgotten(self, fact: OutcomeDrop) -> None:
        """Of the transaction nothing is known any more: a late question finds it aborted."""
        self._forgotten[fact.txn] = None
        _forget(self._forgotten)

    def told(self, node: str, message: str, fact: Outcome) -> str:
        """An outcome is told in ``message``; the text is empty where it is the one before."""
        place = f"{node}, {message}"
        before = self._told.get(fact.txn)
        if before is None:
            self._told[fact.txn] = fact.ts, place
            _forget(self._told)
            return ""
        ts, where = before
        if ts == fact.ts or (fact.ts is None and fact.txn in self._forgotten):
            return ""
        if fact.txn in self._cut:
            return ""
        return f"{fact.txn} is {_worded(fact.ts)}, and was {_worded(ts)} before ({where})"


class Snapshots:
    """What snapshots have read, and which versions came to be."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, bytes], list[int]] = {}
        self._read: dict[tuple[str, bytes], dict[tuple[int, int], None]] = {}

    def read(self, fact: SnapshotRead) -> str:
        """A snapshot has read a key."""
        place = fact.group, fact.key
        if fact.version_ts > fact.ts:
            return f"a snapshot at {fact.ts} has read the later version of {fact.version_ts}"
        # The last ones only: older ones were there when the snapshot began, and were compared then.
        for ts in reversed(self._versions.get(place, [])):
            if fact.version_ts < ts <= fact.ts:
                return _overtaken(fact.key, fact.ts, fact.version_ts, ts)
            if ts <= fact.version_ts:
                break
        reads = self._read.setdefault(place, {})
        reads[(fact.version_ts, fact.ts)] = None
        if len(reads) > KEPT_SNAPSHOTS:
            del reads[next(iter(reads))]
        return ""

    def cut(self, group: str) -> None:
        """A reset may have cut off versions of ``group``: those of its log come once more."""
        for places in (self._versions, self._read):
            for place in [each for each in places if each[0] == group]:
                del places[place]

    def installed(self, fact: NewVersions) -> str:
        """Versions came to be."""
        for key in fact.keys:
            place = fact.group, key
            self._versions.setdefault(place, []).append(fact.ts)
            for version_ts, ts in self._read.get(place, ()):
                if version_ts < fact.ts <= ts:
                    return _overtaken(key, ts, version_ts, fact.ts)
        return ""


def timestamp_order(fact: TimestampOrder) -> str:
    """What comes to be is above all that readers were promised."""
    if fact.ts > fact.promised:
        return ""
    return f"{fact.what} is {fact.ts}, and up to {fact.promised} readers may have been promised"


def answer_clock(fact: AnswerClock) -> str:
    """A node that has read a timestamp gives later ones only."""
    if fact.ts > fact.asked_ts:
        return ""
    return f"it answers at {fact.ts} what it was asked at {fact.asked_ts}"


def newest_read(fact: NewestRead) -> str:
    """A leader that is asked tells of everything that was committed before."""
    if fact.revision >= fact.least:
        return ""
    return f"it tells of revision {fact.revision}, and {fact.least} was committed before"


def _overtaken(key: bytes, ts: int, version_ts: int, between: int) -> str:
    read = f"the version of {version_ts}" if version_ts else "nothing"
    return f"a snapshot at {ts} has read {read} of key {key.hex()}, which has one of {between}"


def _worded(ts: int | None) -> str:
    return "aborted" if ts is None else f"committed at {ts}"


def _forget(entries: dict[str, Any]) -> None:
    """Drop the oldest of ``entries`` beyond the limit."""
    if len(entries) > KEPT_TRANSACTIONS:
        del entries[next(iter(entries))]
