"""What a primary does for transactions that nobody else looks after any more.

As home of a committed transaction it tells the participants until each has finished, and only then
forgets the outcome. As a participant it asks the home of a prepared transaction whose coordinator
has gone silent: home answers with the outcome, or makes abortion the outcome first, so that a
coordinator that was only slow can't commit any more.
"""

from __future__ import annotations

import asyncio

from clusters.reference.node.bugs import planted
from clusters.reference.node.placement.lease_table import DRIFT, LEASE_S, LeaseTable
from clusters.reference.node.runtime.clock import Hlc, span
from clusters.reference.node.runtime.tasks import all_of
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.limits import INTERNAL_TIMEOUT_S, LOCK_TIMEOUT_S, RECOVER_AFTER_S
from clusters.reference.node.tx.open_transactions import OpenTransaction
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient, Spawn, Work
from clusters.reference.node.wire.messages import Ack, Finish, Resolve, ResolveReply, TxnId

TEND_S = 0.25
FINISH_TIMEOUT_S = 2.0
MAX_AT_ONCE = 1000  # transactions that one primary finishes or recovers; the others wait
# Longer than any transaction may be open: who began before that can't be about to commit.
OUTCOME_RETENTION_S = 120.0


class Finisher:
    """Looks after one primary."""

    def __init__(
        self,
        *,
        primary: Primary,
        primaries: PrimaryClient,
        clock: Hlc,
        leases: LeaseTable,
        spawn: Spawn,
    ) -> None:
        self._primary, self._primaries = primary, primaries
        self._clock, self._leases, self._spawn = clock, leases, spawn
        self._under_way: dict[TxnId, None] = {}
        self._finished: dict[TxnId, None] = {}
        self._forget_in_flight = False
        primary.on_commit = self._committed

    def tend(self) -> None:
        """Start whatever is due; called every ``TEND_S``."""
        primary = self._primary
        if not primary.serving:
            self._finished.clear()
            return
        primary.sweep(self._coordinator_dead)
        for txn, outcome in list(primary.partition.outcomes.items()):
            if outcome.ts and txn not in self._finished:
                self._committed(txn)
        for txn in list(primary.partition.prepared):
            tx = primary.transactions.get(txn)
            if tx is not None and (self._overdue(tx) or self._coordinator_dead(tx)):
                self._start(txn, self._recover)
        self._forget()

    def _overdue(self, tx: OpenTransaction) -> bool:
        """Whether a prepared transaction should have been decided by now. The other participants
        may have let it wait for locks; what home lets it wait for is known there.
        """
        settled = self._primary.locks.settled(tx.txn)
        timeout_s = RECOVER_AFTER_S + (0.0 if settled else LOCK_TIMEOUT_S)
        return tx.proposed_s < asyncio.get_running_loop().time() - timeout_s

    def _coordinator_dead(self, tx: OpenTransaction) -> bool:
        """Whether the coordinator is gone. One that has just started may serve a while before its
        lease is known here.
        """
        known_s = asyncio.get_running_loop().time() - LEASE_S * (1 + DRIFT)
        return tx.since_s < known_s and self._leases.coordinator_dead(tx.txn.origin)

    def _committed(self, txn: TxnId) -> None:
        self._start(txn, self._finish_participants)

    def _start(self, txn: TxnId, work: Work) -> None:
        if txn not in self._under_way and len(self._under_way) < MAX_AT_ONCE:
            self._under_way[txn] = None
            self._spawn(self._run(txn, work))

    async def _run(self, txn: TxnId, work: Work) -> None:
        try:
            await work(txn)
        finally:
            del self._under_way[txn]

    async def _finish_participants(self, txn: TxnId) -> None:
        """Finish ``txn`` at its participants; what fails is tried again at a later turn."""
        outcome = self._primary.partition.outcomes.get(txn)
        if outcome is None:
            return
        answers = await all_of(
            self._primaries.primary(p, Finish(p, txn, outcome.ts), FINISH_TIMEOUT_S)
            for p in outcome.participants
        )
        if all(isinstance(answer, Ack) for answer in answers):
            self._finished[txn] = None

    async def _recover(self, txn: TxnId) -> None:
        prepared = self._primary.partition.prepared.get(txn)
        if prepared is None:
            return
        home = prepared.home
        answer = await self._primaries.primary(home, Resolve(home, txn), FINISH_TIMEOUT_S)
        if planted("in-doubt-aborted"):
            answer = ResolveReply(0)
        if isinstance(answer, ResolveReply):
            self._primary.counters["recovered"] += 1
            await self._primary.serve(Finish(self._primary.number, txn, answer.ts))

    def _forget(self) -> None:
        """Drop outcomes that nobody can ask for any more."""
        partition = self._primary.partition
        horizon = self._clock.last - span(OUTCOME_RETENTION_S)
        old = any(not o.ts and txn.ts < horizon for txn, o in partition.outcomes.items())
        if self._forget_in_flight or not (self._finished or old):
            return
        self._forget_in_flight = True
        txns = tuple(self._finished)
        command = commands.Forget(self._primary.epoch, txns, horizon if old else 0)
        self._spawn(self._propose_forget(command))

    async def _propose_forget(self, command: commands.Forget) -> None:
        try:
            done = await self._primary.propose(command, INTERNAL_TIMEOUT_S)
        finally:
            self._forget_in_flight = False
        if isinstance(done, Ack):
            for txn in command.txns:
                self._finished.pop(txn, None)
