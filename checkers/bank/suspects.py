"""The transfer behind a wrong total: the one of that amount of which only a half was applied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import FAIL, INFO, OK, TYPES, Ints, codes, ints
from harness.protocols.checker import Lookup
from harness.protocols.finding import RecordedOperation

LOOKED_AT_MAX = 300  # of the transactions that may first show in a read, the latest: fetched whole
_RANK = {TYPES[INFO]: 1, TYPES[OK]: 2}


@attrs.frozen(kw_only=True)
class Suspect:
    """A transfer of the amount in question. ``half_shown``: the read shows what it wrote to one of
    its accounts, and in the other what it had found there.
    """

    transfer: RecordedOperation
    payer: int
    payee: int
    half_shown: bool

    @property
    def rank(self) -> tuple[int, int, int]:
        """The most suspicious first: a transfer whose half shows, then one whose outcome is
        unknown, then the last one.
        """
        certainty = 0 if self.half_shown else _RANK[self.transfer.type]
        return certainty, -self.transfer.invoke_ns, self.transfer.txn


def transfers_of(
    row: dict[str, Any], read: RecordedOperation, transactions: pa.Table, lookup: Lookup
) -> tuple[Suspect, ...]:
    """Return the transfers of the amount ``excess`` that may first show between ``since`` and
    ``until`` (both of ``row``), by their rank. ``read`` is the read of the whole bank.
    """
    if not row["excess"]:
        return ()
    operations = lookup.operations(tuple(_between(row, transactions).tolist()))
    held = {op.key: op.value for op in read.ops if op.f == "r"}
    amount = abs(row["excess"])
    found = (_suspect(operation, amount, held) for operation in operations.values())
    return tuple(sorted((each for each in found if each), key=lambda each: each.rank))


def _between(row: dict[str, Any], transactions: pa.Table) -> Ints:
    start, finish = ints(transactions, "invoke_ns"), ints(transactions, "complete_ns")
    type_ = codes(transactions, "type", TYPES)
    # A transfer of unknown outcome may take effect long after its recorded end.
    in_time = (start <= row["until"]) & ((finish >= row["since"]) | (type_ == INFO))
    may_show = in_time & (type_ != FAIL)
    txns = np.flatnonzero(may_show)
    return txns[np.argsort(start[txns], kind="stable")][-LOOKED_AT_MAX:]


def _suspect(operation: RecordedOperation, amount: int, held: dict[int, Any]) -> Suspect | None:
    adds = {op.key: op.value for op in operation.ops if op.f == "add"}
    payer = next((key for key, value in adds.items() if value == -amount), None)
    payee = next((key for key, value in adds.items() if value == amount), None)
    if payer is None or payee is None or not adds.keys() <= held.keys():
        return None
    sides = sorted(_sides(operation, (payer, payee), held))
    if sides == ["w", "w"]:
        return None  # the read shows all of it
    return Suspect(
        transfer=operation,
        payer=payer,
        payee=payee,
        half_shown=sides == ["r", "w"],
    )


def _sides(
    operation: RecordedOperation, accounts: tuple[int, int], held: dict[int, Any]
) -> Iterator[str]:
    """Yield for each account whether it holds what the transfer wrote there, or what it read."""
    for account in accounts:
        for op in operation.ops:
            if op.key == account and op.f in ("r", "w") and op.value == held[account]:
                yield op.f
