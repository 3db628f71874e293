"""Reads and writes of registers within transactions as flat arrays."""

from __future__ import annotations

import attrs
import numpy as np

from checkers.engine.arrays import FAIL, OK, Bools, Ints, codes, group_starts, ints
from checkers.engine.transactions import Transactions, transactions_of
from checkers.lists.list_ops import append_codes_of, in_order, ranked
from harness.errors import MalformedHistory
from harness.protocols.checker import Tables
from harness.protocols.setting import Setting

_STEPS = ("r", "w")
NO_WRITE = -1


@attrs.frozen(kw_only=True, eq=False)
class Writes:
    """One row a write, sorted by (key, value); ``k`` is the key's position in ``keys``. ``final``:
    its transaction's last one to the key, the only one that others may see.
    """

    txn: Ints
    pos: Ints
    k: Ints
    value: Ints
    final: Bools


@attrs.frozen(kw_only=True, eq=False)
class Reads:
    """One row a read whose result is known, sorted by (key, transaction, position).

    ``value`` is any number where ``nothing`` was found; ``write`` is the row of the write of the
    value, ``NO_WRITE`` where none wrote it. ``first``: the transaction had not touched the key
    before, so that the read is of what others did; else ``wrong`` says that it differs from what
    the transaction had last read or written there.
    """

    txn: Ints
    pos: Ints
    k: Ints
    value: Ints
    nothing: Bools
    write: Ints
    first: Bools
    wrong: Bools


@attrs.frozen(kw_only=True, eq=False)
class RegisterOps:
    """The operations on some registers, all of these registers."""

    txns: Transactions
    keys: Ints
    writes: Writes
    reads: Reads

    @property
    def external(self) -> Ints:
        """Return the rows of reads that count towards an order: of what others did, by transactions
        that did not fail.
        """
        counts = self.reads.first & (self.txns.type[self.reads.txn] != FAIL)
        return np.flatnonzero(counts)

    def group(self, k: Ints, txn: Ints) -> Ints:
        """Number each (key, transaction), ascending."""
        return k * max(len(self.txns.type), 1) + txn


def register_ops(tables: Tables, setting: Setting) -> RegisterOps:
    """Return the operations of ``micro_ops``. A null read by a transaction that is not ok is an
    unknown result, and no read.

    Raises ``MalformedHistory`` for a value that is written twice to one register, of which no read
    tells what it saw, for a write without a value, and for another operation than these.
    """
    txns = transactions_of(tables, setting)
    table = in_order(tables["micro_ops"])
    f, txn, pos = codes(table, "f", _STEPS), ints(table, "txn"), ints(table, "pos")
    value = ints(table, "value")
    held = np.asarray(table.column("value").is_valid(), dtype=np.bool_)
    _refuse(f < 0, txn, "expected reads and writes of registers alone")
    _refuse((f == 1) & ~held, txn, "a write must have a value")
    keys, k = ranked(table.column("key"))
    row = np.flatnonzero((f == 1) | held | (txns.type[txn] == OK))
    # Stable: within a key the rows stay in the order of (transaction, position).
    row = row[np.argsort(k[row], kind="stable")]
    f, held = f[row], held[row]
    txn, pos, k, value = (column[row] for column in (txn, pos, k, value))
    starts = group_starts(k, txn)
    before = np.maximum(np.arange(len(row)) - 1, 0)
    same = (held == held[before]) & ((value == value[before]) | ~held)
    wrote, read = np.flatnonzero(f == 1), np.flatnonzero(f == 0)
    final = _last_of_groups(k[wrote], txn[wrote])
    write_codes, order = append_codes_of(k[wrote], value[wrote])
    wrote, final = wrote[order], final[order]
    writes = Writes(txn=txn[wrote], pos=pos[wrote], k=k[wrote], value=value[wrote], final=final)
    _refuse_repetition(keys, writes)
    found = np.where(held[read], write_codes.find(k[read], value[read]), NO_WRITE)
    return RegisterOps(
        txns=txns,
        keys=keys,
        writes=writes,
        reads=Reads(
            txn=txn[read],
            pos=pos[read],
            k=k[read],
            value=value[read],
            nothing=~held[read],
            write=found,
            first=starts[read],
            wrong=~starts[read] & ~same[read],
        ),
    )


def _last_of_groups(k: Ints, txn: Ints) -> Bools:
    last = np.ones(len(k), dtype=np.bool_)
    last[:-1] = group_starts(k, txn)[1:]
    return last


def _refuse(wrong: Bools, txn: Ints, why: str) -> None:
    if wrong.any():
        raise MalformedHistory("history", f"transaction {txn[wrong].min()}", why)


def _refuse_repetition(keys: Ints, writes: Writes) -> None:
    again = np.flatnonzero(~group_starts(writes.k, writes.value))
    if len(again):
        row = again[0]
        raise MalformedHistory(
            "history",
            f"key {keys[writes.k[row]]}",
            f"value {writes.value[row]} is written twice (by transactions {writes.txn[row - 1]} "
            f"and {writes.txn[row]}); in transactions values must be unique per register",
        )
