"""Home's side of finishing: the primary of a commit partition sends each outcome to the other
participants until all of them have applied it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from clusters.reference.node.markers import reached
from clusters.reference.node.runtime.concurrency import Spawn, all_of, settle, within
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire.messages import Ack, Finish, TxnId

FINISH_TIMEOUT_S = 2.0
MAX_AT_ONCE = 1000  # transactions that one primary finishes, and as many that it recovers


class PerTransaction:
    """Runs at most one piece of work a transaction at a time, and ``MAX_AT_ONCE`` in all; work that
    is refused is tried again at a later turn.
    """

    def __init__(self, spawn: Spawn, work: Callable[[TxnId], Coroutine[None, None, None]]) -> None:
        self._spawn, self._work = spawn, work
        self._in_flight: dict[TxnId, None] = {}

    def start(self, txn: TxnId) -> None:
        """Begin the work for ``txn``, unless it goes on already."""
        if txn not in self._in_flight and len(self._in_flight) < MAX_AT_ONCE:
            self._in_flight[txn] = None
            self._spawn(self._run(txn))

    async def _run(self, txn: TxnId) -> None:
        try:
            await self._work(txn)
        finally:
            del self._in_flight[txn]


class OutcomeSender:
    """Sends the outcomes that ``partition`` keeps to their participants. ``finished`` are those
    that every participant has applied: they may be forgotten.
    """

    def __init__(self, *, partition: Partition, primaries: PrimaryClient, spawn: Spawn) -> None:
        self._partition, self._primaries = partition, primaries
        self._work = PerTransaction(spawn, self._finish_participants)
        self._waiting: dict[TxnId, asyncio.Future[bool]] = {}
        self.finished: dict[TxnId, None] = {}

    @property
    def unsent(self) -> bool:
        """Whether some participant may not have applied the outcome of a commit here yet."""
        rows = self._partition.outcomes.rows
        return any(outcome.ts and txn not in self.finished for txn, outcome in rows.items())

    def send(self, txn: TxnId) -> None:
        """Send the outcome of ``txn``, which has committed here, until it is answered or fails."""
        self._work.start(txn)

    async def delivered(self, txn: TxnId, limit_s: float) -> bool:
        """Send the outcome of ``txn``; whether every participant has applied it within
        ``limit_s``.
        """
        applied: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[txn] = applied
        self.send(txn)
        try:
            return await within(limit_s, applied, False)
        finally:
            del self._waiting[txn]

    def send_unfinished(self) -> None:
        """Send every outcome that some participant may not have applied yet."""
        for txn, outcome in list(self._partition.outcomes.rows.items()):
            # Aborts are not sent: their participants ask for them (``Finisher``).
            if outcome.ts and txn not in self.finished:
                self.send(txn)

    async def _finish_participants(self, txn: TxnId) -> None:
        outcome = self._partition.outcomes.rows.get(txn)
        # Forgotten since it was started: every participant has it.
        if outcome is None:
            return
        answers = await all_of(
            self._primaries.ask(p, Finish(p, txn, outcome.ts), FINISH_TIMEOUT_S)
            for p in outcome.participants
        )
        if all(isinstance(answer, Ack) for answer in answers):
            self.finished[txn] = None
            if (waiting := self._waiting.get(txn)) is not None:
                settle(waiting, True)
        else:
            reached("outcome not told to every participant")
