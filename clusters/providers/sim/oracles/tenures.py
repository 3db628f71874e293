"""How long locks are held: a transaction that has ended, or whose time is over, lets them go; so
does one of which the log has decided, at the primary that has committed that.

A lock that stays breaks no order, it only keeps others from a key. Whether a primary lets go is
judged by what it goes on doing: one that grants locks, again and again and under the same epoch,
has had its turns to end what is over. So neither pauses nor lost leases count against it.
"""

from __future__ import annotations

from math import inf

import attrs

from harness.protocols.claims import LockGrant, TransactionOver

# Of a primary that grants, after the end: one that was told lets go at once, one that has to notice
# goes through its transactions now and then.
TOLD_TURNS, TOLD_APART_S = 2, 0.1
TURNS, APART_S = 4, 0.3
KEPT_EPOCHS = 2  # of each group: an earlier primary grants nothing any more


@attrs.define
class _Tenure:
    """A transaction's locks at one primary on ``node``; ``turns`` of it since ``due_s``."""

    node: str
    due_s: float
    why: str
    told: bool = False
    turns: int = 0
    last_s: float = 0.0

    def turn(self, now_s: float) -> bool:
        """Its primary grants locks; whether it has had its turns."""
        most, apart_s = (TOLD_TURNS, TOLD_APART_S) if self.told else (TURNS, APART_S)
        if now_s >= max(self.due_s, self.last_s) + apart_s:
            self.turns, self.last_s = self.turns + 1, now_s
        return self.turns >= most


class Tenures:
    """Judges what primaries hold; an empty text where nothing is wrong."""

    def __init__(self) -> None:
        # By group, epoch and transaction.
        self._groups: dict[str, dict[int, dict[str, _Tenure]]] = {}

    def granted(self, now_s: float, node: str, fact: LockGrant) -> str:
        """A lock is granted; the text names a transaction that should hold none any more."""
        epochs = self._groups.setdefault(fact.group, {})
        held = epochs.setdefault(fact.epoch, {})
        for old in sorted(epochs)[:-KEPT_EPOCHS]:
            del epochs[old]
        late = ""
        for txn, tenure in list(held.items()):
            if tenure.turn(now_s):
                del held[txn]
                late = late or f"{txn} holds locks of {fact.group} still: {tenure.why}"
        if fact.limit_s and fact.txn not in held:
            due_s = now_s + fact.limit_s
            held[fact.txn] = _Tenure(node, due_s, f"its time was over at {due_s:.3f} s")
        return late

    def over(self, now_s: float, node: str, fact: TransactionOver) -> None:
        """The coordinator on ``node`` has ended a transaction: what this node holds for it goes
        with that, what others hold with a message that may be lost.
        """
        for epochs in self._groups.values():
            for held in epochs.values():
                tenure = held.get(fact.txn)
                if tenure is not None and tenure.node == node and now_s < tenure.due_s:
                    why = f"{node} has ended it at {now_s:.3f} s"
                    held[fact.txn] = _Tenure(node, now_s, why, told=True)

    def ended(self, group: str, txn: str) -> None:
        """The transaction holds nothing in ``group``."""
        for held in self._groups.get(group, {}).values():
            held.pop(txn, None)

    def logged(self, group: str, txn: str) -> None:
        """The log of ``group`` decides how long the transaction keeps its locks there."""
        for held in self._groups.get(group, {}).values():
            if txn in held:
                held[txn].due_s = inf

    def decided(self, now_s: float, leader: str, group: str, txn: str) -> None:
        """The log has decided, as ``leader`` knows, which has committed that: a primary on another
        node may hear of it late.
        """
        for held in self._groups.get(group, {}).values():
            tenure = held.get(txn)
            if tenure is not None and tenure.node == leader:
                why = f"its end in the log is committed since {now_s:.3f} s"
                held[txn] = _Tenure(leader, now_s, why)
