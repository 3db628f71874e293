"""Finishes the transactions of a primary that lost their coordinator, or that are decided.

As home of a committed transaction the primary sends its outcome until each participant has applied
it, and only then forgets it (``outcome_sender``). As a participant it asks the home of a prepared
transaction whose coordinator's lease has expired: home answers with the outcome, or makes
abortion the outcome first, so that a coordinator that was only slow can't commit any more.
"""

from __future__ import annotations

import asyncio

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.placement.lease_expiry import EXPIRED_S, LeaseTable
from clusters.reference.node.runtime.concurrency import Spawn
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.limits import INTERNAL_TIMEOUT_S, LOCK_TIMEOUT_S, RECOVER_AFTER_S
from clusters.reference.node.tx.open_transactions import OpenTransaction
from clusters.reference.node.tx.outcome_sender import (
    FINISH_TIMEOUT_S,
    OutcomeSender,
    PerTransaction,
)
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire.messages import Ack, Finish, Resolve, ResolveReply, TxnId

FINISH_EVERY_S = 0.25
# Longer than any transaction may be open: one that began before that can't be about to commit.
OUTCOME_RETENTION_S = 120.0


class Finisher:
    """Finishes, recovers and forgets the transactions of one primary while it serves."""

    def __init__(
        self,
        *,
        primary: Primary,
        outcomes: OutcomeSender,
        primaries: PrimaryClient,
        clock: Hlc,
        leases: LeaseTable,
        spawn: Spawn,
        retention_s: float | None = None,
    ) -> None:
        """By default outcomes are kept for ``OUTCOME_RETENTION_S``."""
        self._retention = span(retention_s or OUTCOME_RETENTION_S)
        self._primary, self._outcomes, self._primaries = primary, outcomes, primaries
        self._clock, self._leases, self._spawn = clock, leases, spawn
        self._recoveries = PerTransaction(spawn, self._recover)
        self._forget_in_flight = False

    def turn(self) -> None:
        """Start everything that is due; called at least every ``FINISH_EVERY_S``."""
        primary = self._primary
        if not primary.serving:
            # Another primary may forget these rows by now; the entries here would then never go.
            self._outcomes.finished.clear()
            return
        primary.sweep(self._coordinator_dead)
        self._outcomes.send_unfinished()
        for txn in list(primary.partition.prepared):
            tx = primary.transactions.get(txn)
            if tx is not None and (self._overdue(tx) or self._coordinator_dead(tx)):
                reached("prepared transaction without an outcome")
                self._recoveries.start(txn)
        self._forget()

    def _overdue(self, tx: OpenTransaction) -> bool:
        """Whether a prepared transaction should have been decided by now. The other participants
        may have let it wait for locks; a wait at home is known there.
        """
        settled = self._primary.locks.settled(tx.txn)
        timeout_s = RECOVER_AFTER_S + (0.0 if settled else LOCK_TIMEOUT_S)
        return tx.proposed_s < asyncio.get_running_loop().time() - timeout_s

    def _coordinator_dead(self, tx: OpenTransaction) -> bool:
        """Whether the coordinator's lease has expired. One that has just started may serve a while
        before its lease is known here.
        """
        known_s = asyncio.get_running_loop().time() - EXPIRED_S
        return tx.since_s < known_s and self._leases.coordinator_dead(tx.txn.origin)

    async def _recover(self, txn: TxnId) -> None:
        prepared = self._primary.partition.prepared.get(txn)
        # Finished by home since the turn that started this.
        if prepared is None:
            return
        home = prepared.home
        answer = await self._primaries.ask(home, Resolve(home, txn), FINISH_TIMEOUT_S)
        if planted("in-doubt-aborted"):
            answer = ResolveReply(0)
        if isinstance(answer, ResolveReply):
            reached("prepared transaction finished by its participant")
            self._primary.counters["recovered"] += 1
            # Like a request of home, so that lease and epoch are checked as for any other.
            await self._primary.serve(Finish(self._primary.number, txn, answer.ts))

    def _forget(self) -> None:
        """Drop outcomes that no participant can ask for any more."""
        partition, finished = self._primary.partition, self._outcomes.finished
        horizon = self._clock.last - self._retention
        # Only aborts need the horizon: a commit's row goes once all participants have it.
        old = any(not o.ts and txn.ts < horizon for txn, o in partition.outcomes.rows.items())
        if self._forget_in_flight or not (finished or old):
            return
        # One at a time: the next turn would name the same transactions again.
        self._forget_in_flight = True
        if old:
            reached("horizon of outcomes moved")
        # 0 leaves the horizon where it is: ``Outcomes.forget`` takes the greater one.
        command = commands.Forget(self._primary.epoch, tuple(finished), horizon if old else 0)
        self._spawn(self._propose_forget(command))

    async def _propose_forget(self, command: commands.Forget) -> None:
        try:
            done = await self._primary.propose(command, INTERNAL_TIMEOUT_S)
        finally:
            self._forget_in_flight = False
        if isinstance(done, Ack):
            for txn in command.txns:
                self._outcomes.finished.pop(txn, None)
