"""Transactions that are open at a primary, each with its deadline, its locks, and the waiters for
its locks and its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from clusters.reference.node import declarations
from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.runtime.concurrency import settle, within
from clusters.reference.node.tx.commands import Prepare
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, LockToken, TxnId

MAX_OPEN_TRANSACTIONS = 10_000  # open in one partition; one more is refused


class OpenTransaction:
    """One transaction at one primary, open since ``since_s``. ``ts``: it can't commit below this;
    once ``proposed``, only the log ends it. ``durable_s``: before this time its command was not in
    the log.
    """

    def __init__(self, txn: TxnId, number: int, since_s: float, deadline_s: float) -> None:
        self.txn, self.number = txn, number
        self.since_s, self.deadline_s = since_s, deadline_s
        self.proposed = self.over = False
        self.ts = self.asked = 0
        self.proposed_s = self.durable_s = 0.0
        self._grant: asyncio.Future[bool] | None = None
        self._ends: list[asyncio.Future[bool]] = []

    def propose(self, ts: int) -> None:
        """Its command is on the way to the log: it can't have been acknowledged before now."""
        self.ts, self.proposed = ts, True
        self.proposed_s = self.durable_s = asyncio.get_running_loop().time()

    def found(self, ts: int) -> None:
        """Its command was found in the log: since when it is there is unknown."""
        self.propose(ts)
        # As old as can be: a snapshot that had to wait for it is refused rather than stale.
        self.durable_s = float("-inf")

    def ask(self) -> None:
        """Count one more request for a lock in ``asked``. A coordinator that gave up an answer asks
        again, and the waiter of the former request is refused.
        """
        self._answer(granted=False)
        self.asked += 1

    async def wait(self, limit_s: float) -> bool:
        """Whether the lock that it waits for was granted in time, and it is not over."""
        grant: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._grant = grant
        try:
            return await within(limit_s, grant, False)
        finally:
            # A later request of this transaction may have put its own future here.
            if self._grant is grant:
                self._grant = None

    def granted(self) -> None:
        """It has the lock that it waited for."""
        self._answer(granted=True)

    async def ended(self, limit_s: float) -> bool:
        """Whether it is over in time."""
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ends.append(ended)
        try:
            return await within(limit_s, ended, False)
        finally:
            self._ends.remove(ended)

    @property
    def waits(self) -> bool:
        """Whether it waits for a lock."""
        return self._grant is not None

    @property
    def awaited(self) -> bool:
        """Whether any task waits for its end."""
        return bool(self._ends)

    def end(self) -> None:
        """The transaction is over here: refuse its lock request, and answer all that wait for its
        end.
        """
        self.over = True
        self._answer(granted=False)
        for ended in self._ends:
            settle(ended, True)

    def _answer(self, *, granted: bool) -> None:
        # The timer of ``within`` may have settled it in the same turn of the loop.
        if self._grant is not None and not self._grant.done():
            self._grant.set_result(granted)


class OpenTransactions:
    """All of the primary of one partition, under one ``epoch`` after the other: 0 while it is
    closed. Numbers are never used twice, so that lost locks are noticed.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.epoch = 0
        self.locks = LockTable()
        self._transactions: dict[TxnId, OpenTransaction] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._transactions)

    def get(self, txn: TxnId) -> OpenTransaction | None:
        """``txn`` as it is open here, if it is."""
        return self._transactions.get(txn)

    def all(self) -> tuple[OpenTransaction, ...]:
        """Every one, the oldest first."""
        # A copy: ``Primary.sweep`` drops transactions while it goes through them.
        return tuple(self._transactions.values())

    def add(self, txn: TxnId, limit_s: float, *, forced: bool = False) -> OpenTransaction | None:
        """Open ``txn``; ``None`` at ``MAX_OPEN_TRANSACTIONS``, unless it is ``forced``."""
        if len(self._transactions) >= MAX_OPEN_TRANSACTIONS and not forced:
            reached("too many open transactions")
            return None
        self._number += 1
        now_s = asyncio.get_running_loop().time()
        tx = OpenTransaction(txn, self._number, now_s, now_s + limit_s)
        self._transactions[txn] = tx
        return tx

    def remove(self, txn: TxnId) -> OpenTransaction | None:
        """Take it out."""
        return self._transactions.pop(txn, None)

    def begin(self, epoch: int) -> None:
        """End all of them, and go on under ``epoch`` without any."""
        self.epoch, self.locks = epoch, LockTable()
        transactions, self._transactions = self._transactions, {}
        for tx in transactions.values():
            tx.end()

    def open_or_resume(
        self, txn: TxnId, token: LockToken, limit_ms: int
    ) -> OpenTransaction | Failed:
        """``txn`` as it is open here, opened now where it is not."""
        tx = self.get(txn)
        # A token of a former hold proves that its locks were given to others since.
        shown = 0 if planted("lost-hold-ignored") else token.number
        if shown and (tx is None or tx.proposed or token != LockToken(self.epoch, tx.number)):
            reached("locks lost")
            return Failed(codes.LOST, f"{txn} has lost its locks in partition {self._partition}")
        if tx is None:
            tx = self.add(txn, limit_ms / 1000)
            if tx is None:
                return Failed(
                    codes.OVERLOADED, f"partition {self._partition}: too many transactions"
                )
        return tx

    def ask(self, tx: OpenTransaction, key: bytes, *, exclusive: bool) -> Answer:
        """Ask for the lock. Of several requests of one transaction the last counts: a transaction
        waits for one key at a time.
        """
        tx.ask()
        self.withdraw(tx.txn)
        answer = self.locks.acquire(tx.txn, key, exclusive=exclusive)
        if answer is Answer.DIED and planted("conflict-ignored"):
            return Answer.GRANTED
        return answer

    def withdraw(self, txn: TxnId) -> None:
        """``txn`` waits for no lock any more."""
        self._grant(self.locks.withdraw(txn))

    def drop(self, txn: TxnId) -> None:
        """``txn`` is over here: its locks go to the transactions that wait."""
        tx = self.remove(txn)
        if tx is not None:
            tx.end()
            declarations.released(self._partition, self.epoch, txn)
            self._grant(self.locks.release(txn))

    def _grant(self, txns: list[TxnId]) -> None:
        for txn in txns:
            tx = self.get(txn)
            if tx is not None:
                tx.granted()

    def restore(self, prepared: Prepare) -> None:
        """Open a transaction that is prepared in the log, with its locks."""
        # Beyond the limit of open ones if need be: it was admitted before.
        # The deadline does not count: ``found`` marks it as
        # proposed, and ``sweep`` leaves that alone.
        tx = self.add(prepared.txn, 0.0, forced=True)
        if tx is not None:
            tx.found(prepared.ts)
        for key in prepared.reads:
            self.locks.restore(prepared.txn, key, exclusive=False)
        for key, _ in prepared.writes:
            self.locks.restore(prepared.txn, key, exclusive=True)
        # Whether it waits for a lock elsewhere is not in the log; a
        # circle is broken by each wait's limit.
        self.locks.settle(prepared.txn)

    def broken(self, prepared: Iterable[Prepare]) -> str | None:
        """The text of the first broken invariant, ``None`` when all hold: what is prepared is
        protected as its log says, and only what is open holds locks.
        """
        if (problem := self.locks.broken()) is not None or not self.epoch:
            return problem
        for key, txn, _, _ in self.locks.rows():
            if self.get(txn) is None:
                return f"key {key!r}: locked by {txn}, which is over"
        for one in prepared:
            wanted = (*((key, False) for key in one.reads),)
            wanted += (*((key, True) for key, _ in one.writes),)
            for key, exclusive in wanted:
                if not self.locks.holds(one.txn, key, exclusive=exclusive):
                    return f"key {key!r}: {one.txn} is prepared with it, and has no lock of it"
        return None
