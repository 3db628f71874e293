"""Transactions that are open at a primary: their deadlines, and the waiters for their locks and
ends.
"""

from __future__ import annotations

import asyncio

from clusters.reference.node.markers import reached
from clusters.reference.node.runtime.concurrency import settle, within
from clusters.reference.node.wire.messages import TxnId

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
    """All of a primary. Numbers are never used twice, so that lost locks are noticed."""

    def __init__(self) -> None:
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

    def clear(self) -> None:
        """End all of them."""
        transactions, self._transactions = self._transactions, {}
        for tx in transactions.values():
            tx.end()
