"""What became of a transaction, at the primary of its home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusters.reference.node.tx import commands
from clusters.reference.node.tx.limits import INTERNAL_TIMEOUT_S, LOCK_TIMEOUT_S
from clusters.reference.node.wire.messages import Failed, Resolve, ResolveReply

if TYPE_CHECKING:
    from clusters.reference.node.tx.primary import Primary


async def resolve(primary: Primary, body: Resolve) -> ResolveReply | Failed:
    """The outcome, which is *aborted* from now on where there is none. A commit that waits for a
    lock here is waited for: who asked for it lives, and it comes to something.
    """
    tx = primary.transactions.get(body.txn)
    if tx is not None and tx.waits:
        await tx.ended(LOCK_TIMEOUT_S)
    outcome = primary.partition.outcome(body.txn)
    if outcome is None:
        done = await primary.propose(commands.Abort(primary.epoch, body.txn), INTERNAL_TIMEOUT_S)
        if not isinstance(done, ResolveReply):
            return done if isinstance(done, Failed) else primary.refusal()
        outcome = done
    return outcome if primary.serving else primary.refusal()
