"""Where the outcome of a transaction becomes durable: the outcomes that its commit partition keeps.

They are a part of the partition's replicated state. An outcome is decided by the first command
about it in the partition's log, ``Commit`` or ``Abort``, and durable once that is committed there:
a quorum holds it, and a snapshot of the partition does. It is kept until no participant can ask
for it any more.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.wire.messages import ResolveReply, TxnId


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of a transaction whose commit partition this is; ``ts`` 0: aborted."""

    ts: int
    participants: tuple[int, ...] = ()


class Outcomes:
    """The outcomes that one replica has applied. Below ``horizon`` a transaction without a row is
    aborted.
    """

    def __init__(self, rows: Iterable[tuple[TxnId, Outcome]] = (), horizon: int = 0) -> None:
        self.rows: dict[TxnId, Outcome] = dict(rows)
        self.horizon = horizon

    def decided(self, txn: TxnId) -> ResolveReply | None:
        """The outcome of ``txn``, if that is certain."""
        held = self.rows.get(txn)
        if held is not None:
            return ResolveReply(held.ts)
        # Forgotten: a participant that still asks has not finished it, so it did not commit.
        return ResolveReply(0) if txn.ts <= self.horizon else None

    def commit(self, txn: TxnId, ts: int, participants: tuple[int, ...]) -> None:
        """``txn``, not decided so far, has committed at ``ts``."""
        if participants and not planted("outcome-not-recorded"):
            # Kept until every participant has it: a participant that asks must find it. A
            # transaction of this partition alone has nobody who could ask.
            self.rows[txn] = Outcome(ts, participants)

    def abort(self, txn: TxnId) -> None:
        """``txn``, not decided so far, is aborted."""
        # An entry of its own: a commit that comes later in the log must find that it is too late.
        self.rows[txn] = Outcome(0)

    def forget(self, txns: Iterable[TxnId], horizon: int) -> None:
        """``txns`` are finished everywhere; all others below ``horizon`` are aborted."""
        for txn in txns:
            self.rows.pop(txn, None)
        # Never back: a row that was dropped below it would be in doubt again.
        self.horizon = max(self.horizon, horizon)
        # What is not known and below the horizon counts as aborted, so these need no row.
        for txn in [t for t, o in self.rows.items() if not o.ts and t.ts <= self.horizon]:
            reached("outcome of an abort forgotten")
            del self.rows[txn]
        if any(txn.ts <= horizon for txn in self.rows):
            reached("outcome of a commit kept below the horizon")
