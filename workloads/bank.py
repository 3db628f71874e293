"""Transfers between the accounts of a bank, and reads of the whole bank: the total never changes.

A first transaction gives each account its balance; nothing else begins before it is acknowledged.
Where transactions stay in one partition there is a bank in each. Parameters and idea are those of
Jepsen's bank test; here a transfer reads both accounts before it writes them, so that a lost update
shows in the total.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.errors import HarnessBug, PlanError
from harness.generators import Context, Generator, Operation, UntilOk, Wait
from harness.history.records import Complete, Invoke, MicroOp
from harness.plan.plan import options as plan_options
from harness.protocols.client import READ_WRITE, Tx, read_all
from harness.protocols.workload import Workload, WorkloadSetting
from workloads.key_selection import ORDINARY, KeySpace, ReadKinds, Turns, check_kinds, drawn_kind

ADD = "add"
READ = "r"
WRITE = "w"

MAX_MONEY = 1_000_000_000_000


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[workload]`` table."""

    banks: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="How many banks, in each partition where transactions stay in one.",
        ),
    ] = 1
    accounts: Annotated[int, Meta(ge=2, le=100, description="Accounts of a bank.")] = 8
    total: Annotated[
        int,
        Meta(ge=0, le=MAX_MONEY, description="What the accounts of a bank hold together, always."),
    ] = 100
    max_transfer: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_MONEY,
            description="A transfer moves 1 to so much from one account to another.",
        ),
    ] = 5
    read_fraction: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="The share of transactions that read all accounts of a bank; the others "
            "transfer.",
        ),
    ] = 0.5
    read_kinds: Annotated[
        ReadKinds, Meta(description="Kinds of transactions that read, one drawn for each.")
    ] = ORDINARY


def build(options: Mapping[str, Any], setting: WorkloadSetting) -> Workload:
    """Build the workload for the plan's option table.

    Raises ``PlanError`` for an option, or a store whose transactions can't hold two accounts.
    """
    chosen = plan_options(Options, options, "workload")
    check_kinds(chosen.read_kinds, setting)
    space = KeySpace.of(setting, Bank.name)
    if space.keys_together == 1:
        expected = "expected a store that says which keys may share a transaction"
        raise PlanError("workload.name", f"bank: {expected}")
    return Bank(chosen, setting, space)


class Bank:
    """See the module."""

    name = "bank"
    checkers: tuple[str, ...] = ("bank", "statistics", "availability", "evidence")

    def __init__(self, options: Options, setting: WorkloadSetting, space: KeySpace) -> None:
        self._options, self._setting = options, setting
        size = options.accounts
        self._banks = tuple(
            keys[start : start + size]
            for keys in space.first(size * options.banks)
            for start in range(0, len(keys), size)
        )

    def first(self) -> Generator:
        """See ``Workload``. Every account gets its balance."""
        return UntilOk(tuple(map(self._first_balances, self._banks)))

    def main(self) -> Generator:
        """See ``Workload``."""
        return Transfers(
            turns=Turns.of(self._setting.seed, self._setting.concurrency),
            options=self._options,
            banks=self._banks,
        )

    def final(self, keys: tuple[int, ...]) -> Generator:
        """See ``Workload``. A bank is read as a whole, also where only a part was touched."""
        touched = frozenset(keys)
        banks = [bank for bank in self._banks if not touched.isdisjoint(bank)]
        return UntilOk(tuple(map(whole_read, banks)))

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """See ``Workload``.

        A completed transfer is recorded as requested, with its reads and writes; one that would
        have overdrawn an account is recorded with the reads alone.
        """
        if all(op.f == ADD for op in ops):
            return await _transfer(tx, ops)
        if all(op.f == READ for op in ops):
            balances = await read_all(tx, tuple(op.key for op in ops))
            return tuple(
                MicroOp(READ, op.key, _as_balance(op.key, value))
                for op, value in zip(ops, balances, strict=True)
            )
        observed = []
        for op in ops:
            if op.f == READ:
                observed.append(MicroOp(READ, op.key, await _balance(tx, op.key)))
            elif op.f == WRITE and isinstance(op.value, int):
                await tx.write(op.key, op.value)
                observed.append(op)
            else:
                raise HarnessBug(f"bank: can't execute {op}")
        return tuple(observed)

    def _first_balances(self, bank: tuple[int, ...]) -> tuple[MicroOp, ...]:
        """Divide the total as evenly as possible: the first accounts take the remainder."""
        share, left = divmod(self._options.total, len(bank))
        return tuple(MicroOp(WRITE, key, share + (n < left)) for n, key in enumerate(bank))


def whole_read(bank: tuple[int, ...]) -> tuple[MicroOp, ...]:
    """Return a read of every account of ``bank``."""
    return tuple(MicroOp(READ, key) for key in bank)


async def _transfer(tx: Tx, adds: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
    """Read first, so that no write is sent that the other account's balance would forbid."""
    reads = [MicroOp(READ, add.key, await _balance(tx, add.key)) for add in adds]
    writes = [_added(add, read) for add, read in zip(adds, reads, strict=True)]
    if any(balance < 0 for _, balance in writes):
        return tuple(reads)
    for key, balance in writes:
        await tx.write(key, balance)
    return (*adds, *reads, *(MicroOp(WRITE, key, balance) for key, balance in writes))


def _added(add: MicroOp, read: MicroOp) -> tuple[int, int]:
    """Return the account and its new balance. An account that the store lost counts as empty."""
    held = read.value if isinstance(read.value, int) else 0
    if not isinstance(add.value, int):
        raise HarnessBug(f"bank: can't add {add}")
    return add.key, held + add.value


async def _balance(tx: Tx, key: int) -> int | None:
    return _as_balance(key, await tx.read(key))


def _as_balance(key: int, value: int | tuple[int, ...] | None) -> int | None:
    if isinstance(value, tuple):
        raise HarnessBug(f"bank: expected a balance at key {key} (got {value})")
    return value


@attrs.frozen(kw_only=True)
class Transfers:
    """The generator. A slot's draws depend on nothing but its own count of operations."""

    turns: Turns
    options: Options
    banks: tuple[tuple[int, ...], ...]

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        turn, turns = self.turns.next(context)
        kind, ops = self._transaction(turn.draw)
        after = attrs.evolve(self, turns=turns)
        return Operation(process=turn.process, ops=ops, at_ns=context.now_ns, kind=kind), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return self

    def _transaction(self, draw: Random) -> tuple[str, tuple[MicroOp, ...]]:
        """Return its kind and its steps."""
        bank = self.banks[draw.randrange(len(self.banks))]
        if draw.random() < self.options.read_fraction:
            return drawn_kind(self.options.read_kinds, draw), whole_read(bank)
        payer, payee = draw.sample(bank, 2)
        amount = draw.randint(1, self.options.max_transfer)
        return READ_WRITE, (MicroOp(ADD, payer, -amount), MicroOp(ADD, payee, amount))
