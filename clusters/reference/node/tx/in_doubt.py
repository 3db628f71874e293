"""Transactions in doubt: prepared here, and without an outcome though one is due.

The primary of the participant asks their home: that answers with the outcome, or makes abortion the
outcome first, so that a coordinator that was only slow can't commit any more.
"""

from __future__ import annotations

import asyncio

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.placement.lease_expiry import EXPIRED_S, LeaseTable
from clusters.reference.node.runtime.concurrency import Spawn
from clusters.reference.node.tx.limits import LOCK_TIMEOUT_S, RECOVER_AFTER_S
from clusters.reference.node.tx.open_transactions import OpenTransaction
from clusters.reference.node.tx.outcome_sender import FINISH_TIMEOUT_S, PerTransaction
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire.messages import Finish, Resolve, ResolveReply, TxnId


class InDoubt:
    """Finds and recovers what is in doubt at one primary."""

    def __init__(
        self, *, primary: Primary, primaries: PrimaryClient, leases: LeaseTable, spawn: Spawn
    ) -> None:
        self._primary, self._primaries, self._leases = primary, primaries, leases
        self._recoveries = PerTransaction(spawn, self._recover)

    def start_recoveries(self) -> None:
        """Ask for the outcome of everything that is in doubt, once at a time each."""
        for txn in list(self._primary.partition.prepared):
            tx = self._primary.transactions.get(txn)
            if tx is not None and (self._overdue(tx) or self.coordinator_dead(tx)):
                reached("prepared transaction without an outcome")
                self._recoveries.start(txn)

    def _overdue(self, tx: OpenTransaction) -> bool:
        """Whether a prepared transaction should have been decided by now. The other participants
        may have let it wait for locks; a wait at home is known there.
        """
        settled = self._primary.locks.settled(tx.txn)
        timeout_s = RECOVER_AFTER_S + (0.0 if settled else LOCK_TIMEOUT_S)
        return tx.proposed_s < asyncio.get_running_loop().time() - timeout_s

    def coordinator_dead(self, tx: OpenTransaction) -> bool:
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
