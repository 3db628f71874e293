"""Finishes the transactions of a primary that lost their coordinator, or that are decided.

As home of a committed transaction the primary sends its outcome until each participant has applied
it, and only then forgets it (``outcome_sender``). As a participant it recovers what is in doubt
(``in_doubt``).
"""

from __future__ import annotations

from clusters.reference.node.markers import reached
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.runtime.concurrency import Spawn
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.in_doubt import InDoubt
from clusters.reference.node.tx.limits import INTERNAL_TIMEOUT_S
from clusters.reference.node.tx.outcome_sender import OutcomeSender
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire.messages import Ack

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
        self._primary, self._outcomes = primary, outcomes
        self._clock, self._spawn = clock, spawn
        self._in_doubt = InDoubt(primary=primary, primaries=primaries, leases=leases, spawn=spawn)
        self._forget_in_flight = False

    def turn(self) -> None:
        """Start everything that is due; called at least every ``FINISH_EVERY_S``."""
        primary = self._primary
        if not primary.serving:
            # Another primary may forget these rows by now; the entries here would then never go.
            self._outcomes.finished.clear()
            return
        primary.sweep(self._in_doubt.coordinator_dead)
        self._outcomes.send_unfinished()
        self._in_doubt.start_recoveries()
        self._forget()

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
