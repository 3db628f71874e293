"""The lock table of a partition's primary: shared and exclusive locks per key, wait-die.

The rule (Rosenkrantz, Stearns, Lewis 1978): a transaction that asks for a lock of an *older* one
dies; only the older waits for the younger, so waits never form a circle. A *settled* holder has
everything that it needs and only awaits its outcome: waiting for it can't close a circle, so
any may. Waiters of a key are served the youngest first: each that is left waits for one that is
younger still, and each holder is older than the one before, so the oldest gets its turn.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.wire.messages import TxnId


class Answer(enum.Enum):
    """The result of a request."""

    GRANTED = "granted"
    WAITING = "waiting"
    DIED = "died"


class _Lock:
    """One key. ``holders``: exclusive or not; ``queue``: the youngest first, with the mode asked
    for.
    """

    __slots__ = ("holders", "queue")

    def __init__(self) -> None:
        self.holders: dict[TxnId, bool] = {}
        self.queue: list[tuple[TxnId, bool]] = []


class LockTable:
    """Pure: it returns which transactions have to wait. Each waits for one key at a time."""

    def __init__(self) -> None:
        # Dictionaries instead of sets: the order of grants must be the same in each simulated run.
        self._locks: dict[bytes, _Lock] = {}
        self._held: dict[TxnId, dict[bytes, None]] = {}
        self._waiting: dict[TxnId, bytes] = {}
        self._settled: dict[TxnId, None] = {}

    def acquire(self, txn: TxnId, key: bytes, *, exclusive: bool) -> Answer:
        """Ask for ``key``. ``WAITING``: a later ``release`` or ``withdraw`` names the granted ones.

        A shared lock becomes exclusive by asking again; an exclusive one stays so.
        """
        lock = self._locks.setdefault(key, _Lock())
        held = lock.holders.get(txn)
        if held is not None and (held or not exclusive):
            return Answer.GRANTED
        if held is not None:
            reached("shared lock to be made exclusive")
        upgrades = held is not None and planted("upgrade-unchecked")
        if upgrades or self._grantable(lock, txn, exclusive):
            self._grant(lock, key, txn, exclusive)
            return Answer.GRANTED
        for other, other_exclusive in lock.holders.items():
            conflicts = other != txn and (exclusive or other_exclusive)
            if conflicts and other not in self._settled and other < txn:
                self._tidy(key, lock)
                return Answer.DIED
        # Behind all younger ones, since the youngest is served first.
        younger = sum(waiter > txn for waiter, _ in lock.queue)
        if lock.queue:
            reached("several wait for a lock")
        lock.queue.insert(younger, (txn, exclusive))
        self._waiting[txn] = key
        return Answer.WAITING

    def settle(self, txn: TxnId) -> None:
        """``txn`` holds all that it needs, and asks for no lock any more."""
        self._settled[txn] = None

    def settled(self, txn: TxnId) -> bool:
        """Whether ``txn`` certainly asks for no lock any more, here or elsewhere."""
        return txn in self._settled

    def restore(self, txn: TxnId, key: bytes, *, exclusive: bool) -> None:
        """Take over a lock from the log: prepared transactions never conflict with each other."""
        lock = self._locks.setdefault(key, _Lock())
        self._grant(lock, key, txn, exclusive)

    def release(self, txn: TxnId) -> list[TxnId]:
        """Drop all that ``txn`` holds and waits for; returns the waiters that were granted."""
        # Its own wait first: left in a queue, it could be granted a lock after its end.
        granted = self.withdraw(txn)
        self._settled.pop(txn, None)
        for key in self._held.pop(txn, {}):
            lock = self._locks[key]
            del lock.holders[txn]
            granted += self._serve(key, lock)
        return granted

    def withdraw(self, txn: TxnId) -> list[TxnId]:
        """``txn`` waits no more; returns the waiters that were granted."""
        key = self._waiting.pop(txn, None)
        if key is None:
            return []
        lock = self._locks[key]
        lock.queue = [waiter for waiter in lock.queue if waiter[0] != txn]
        return self._serve(key, lock)

    def held(self, txn: TxnId) -> tuple[bytes, ...]:
        """The keys that ``txn`` holds."""
        return tuple(self._held.get(txn, ()))

    def holds(self, txn: TxnId, key: bytes, *, exclusive: bool) -> bool:
        """Whether ``txn`` holds ``key``, in that mode at least."""
        lock = self._locks.get(key)
        held = None if lock is None else lock.holders.get(txn)
        return held is not None and (held or not exclusive)

    def writer(self, key: bytes) -> TxnId | None:
        """The transaction that holds ``key`` exclusively."""
        lock = self._locks.get(key)
        for txn, exclusive in lock.holders.items() if lock is not None else ():
            if exclusive:
                return txn
        return None

    def waited_for(self, txn: TxnId) -> bool:
        """Whether any transaction waits for a key that ``txn`` holds."""
        return any(self._locks[key].queue for key in self._held.get(txn, ()))

    def rows(self) -> Iterator[tuple[bytes, TxnId, bool, int]]:
        """For people: key, holder, whether exclusively, and how many wait for the key."""
        for key, lock in self._locks.items():
            for txn, exclusive in lock.holders.items():
                yield key, txn, exclusive, len(lock.queue)

    @property
    def waiting(self) -> int:
        """How many transactions wait."""
        return len(self._waiting)

    @property
    def count(self) -> int:
        """How many locks are held."""
        return sum(map(len, self._held.values()))

    def broken(self) -> str | None:
        """The text of the first broken invariant, ``None`` when all hold."""
        for key, lock in self._locks.items():
            if not lock.holders:
                return f"key {key!r}: kept, and held by none"
            if len(lock.holders) > 1 and any(lock.holders.values()):
                return f"key {key!r}: exclusive, and held by {len(lock.holders)}"
            for waiter, exclusive in lock.queue:
                for holder, held in lock.holders.items():
                    conflicts = holder != waiter and (exclusive or held)
                    if conflicts and holder < waiter and holder not in self._settled:
                        return f"key {key!r}: {waiter} waits for {holder}, which is older"
                if self._grantable(lock, waiter, exclusive):
                    return f"key {key!r}: {waiter} waits for none"
        return None

    def _grantable(self, lock: _Lock, txn: TxnId, exclusive: bool) -> bool:
        """Compatible with every holder, and with every waiter that is served before."""
        for other, held in lock.holders.items():
            if other != txn and (exclusive or (held and not planted("reader-joins-writer"))):
                return False
        for other, asked in lock.queue:
            if other <= txn:
                return True  # from here on they are older, or this is our own request
            if exclusive or asked:
                return False
        return True

    def _grant(self, lock: _Lock, key: bytes, txn: TxnId, exclusive: bool) -> None:
        # Never weaker than before: a shared request leaves an exclusive lock exclusive.
        lock.holders[txn] = exclusive or lock.holders.get(txn, False)
        self._held.setdefault(txn, {})[key] = None

    def _serve(self, key: bytes, lock: _Lock) -> list[TxnId]:
        """Grant every request that can be granted in ``lock``."""
        granted: list[TxnId] = []
        # A copy: each grant takes a waiter out of the queue.
        for txn, exclusive in list(lock.queue):
            if self._grantable(lock, txn, exclusive):
                lock.queue.remove((txn, exclusive))
                del self._waiting[txn]
                self._grant(lock, key, txn, exclusive)
                granted.append(txn)
                reached("waiter granted a lock")
        self._tidy(key, lock)
        return granted

    def _tidy(self, key: bytes, lock: _Lock) -> None:
        # Or the table would keep every key that was ever locked.
        if not lock.holders and not lock.queue:
            del self._locks[key]
