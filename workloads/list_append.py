"""Transactions of reads and appends on lists: from the lists that reads see, a checker recovers the
order of versions, and with it every dependency between transactions.

The parameters are Elle's (Kingsbury and Alvaro, VLDB 2020; ``elle.list-append``): few live keys, of
which some are much hotter than others, each retired after so many appends that its lists stay
short.

An append reads before it writes, so a store's blind writes would go untried. A *once* transaction
has none: it puts elements under keys of their own, each written this one time without a look, which
is what an append to an empty list comes to, or it reads such keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Annotated, Any, Literal

import attrs
import msgspec
from msgspec import Meta

from harness.clock import below
from harness.errors import HarnessBug, PlanError
from harness.generators import Context, Generator, Nothing, Operation, UntilOk, Wait
from harness.history.records import Complete, Invoke, MicroOp
from harness.plan.plan import options as plan_options
from harness.protocols.client import READ_WRITE, Tx, read_all
from harness.protocols.workload import Workload, WorkloadSetting
from workloads.key_selection import (
    ORDINARY,
    KeySpace,
    ReadKinds,
    Turn,
    Turns,
    check_kinds,
    drawn_kind,
    replaced,
)

APPEND = "append"
READ = "r"
MIXED = 0.3  # of those that put fresh keys read one as well
ONCE_KEYS = 1 << 40  # keys from here on are written once; all others stay far below
ONCE_READ = 8  # of the keys that were last written so, one is read

_Length = Annotated[int, Meta(ge=1, le=100)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[workload]`` table."""

    min_length: Annotated[
        _Length, Meta(description="Micro-operations of a transaction, at least.")
    ] = 1
    max_length: Annotated[
        _Length, Meta(description="Micro-operations of a transaction, at most.")
    ] = 4
    read_fraction: Annotated[
        float,
        Meta(ge=0, le=1, description="The share of micro-operations that read; the others append."),
    ] = 0.5
    key_count: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description=(
                "Keys that are in use at a time, in each partition where transactions stay in one."
            ),
        ),
    ] = 10
    key_choice: Annotated[
        Literal["exponential", "uniform"],
        Meta(
            description="How keys are chosen; `exponential`: each half as often as the one before."
        ),
    ] = "exponential"
    max_appends: Annotated[
        int,
        Meta(
            ge=1, le=1_000_000, description="Appends to a key before a fresh one takes its place."
        ),
    ] = 32
    final_keys: Annotated[
        _Length, Meta(description="Keys of one transaction of the final reads, at most.")
    ] = 8
    read_kinds: Annotated[
        ReadKinds, Meta(description="Kinds of read-only transactions, one drawn for each.")
    ] = ORDINARY
    once_fraction: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description=(
                "The share of transactions that write keys that nothing else writes, or read such"
                " keys."
            ),
        ),
    ] = 0.0
    once_kinds: Annotated[
        ReadKinds, Meta(description="Kinds of the transactions that write such keys.")
    ] = ORDINARY


def build(options: Mapping[str, Any], setting: WorkloadSetting) -> Workload:
    """Build the workload for the plan's option table. Raises ``PlanError``."""
    chosen = plan_options(Options, options, "workload")
    check_kinds(chosen.read_kinds, setting)
    check_kinds(chosen.once_kinds, setting, "workload.once_kinds")
    if chosen.once_fraction and setting.transaction_scope == "partition":
        expected = "expected a store whose transactions span partitions"
        raise PlanError("workload.once_fraction", f"list-append: {expected}")
    if chosen.min_length > chosen.max_length:
        raise PlanError(
            "workload.min_length",
            f"expected at most max_length, {chosen.max_length} (got {chosen.min_length})",
        )
    return ListAppend(chosen, setting)


class ListAppend:
    """See the module."""

    name = "list-append"
    checkers: tuple[str, ...] = (
        "list-append",
        "lost-write",
        "statistics",
        "availability",
        "evidence",
    )

    def __init__(self, options: Options, setting: WorkloadSetting) -> None:
        self._recipe = Recipe(
            options=options,
            concurrency=setting.concurrency,
            space=KeySpace.of(setting, self.name),
            max_appends=max(1, options.max_appends // setting.drivers),
        )
        self._setting = setting

    def first(self) -> Generator:
        """See ``Workload``. An empty store will do."""
        return Nothing()

    def main(self) -> Generator:
        """See ``Workload``."""
        recipe = self._recipe
        return Appends(
            recipe=recipe,
            pools=fresh_pools(recipe),
            turns=Turns.of(self._setting.seed, recipe.concurrency),
            appended=(0,) * recipe.concurrency,
            once=(),
        )

    def final(self, keys: tuple[int, ...]) -> Generator:
        """See ``Workload``. Keys that may share a transaction do."""
        groups: dict[int | None, list[int]] = {}
        for key in keys:
            groups.setdefault(self._recipe.space.pool_of(key), []).append(key)
        together = self._recipe.space.keys_together
        size = self._recipe.options.final_keys if together is None else together
        return UntilOk(
            tuple(
                tuple(MicroOp(READ, key) for key in group[start : start + size])
                for group in groups.values()
                for start in range(0, len(group), size)
            )
        )

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """See ``Workload``."""
        if all(op.f == READ for op in ops):
            values = await read_all(tx, tuple(op.key for op in ops))
            return tuple(
                MicroOp(READ, op.key, _as_list(op.key, value))
                for op, value in zip(ops, values, strict=True)
            )
        observed = []
        for op in ops:
            if op.f == APPEND and isinstance(op.value, int):
                if op.key >= ONCE_KEYS:
                    await tx.write(op.key, op.value)
                else:
                    await tx.append(op.key, op.value)
                observed.append(op)
            elif op.f == READ:
                observed.append(MicroOp(READ, op.key, _as_list(op.key, await tx.read(op.key))))
            else:
                raise HarnessBug(f"list-append: can't execute {op}")
        return tuple(observed)


def _as_list(key: int, value: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, int) and key >= ONCE_KEYS:
        return (value,)
    if isinstance(value, int):
        raise HarnessBug(f"list-append: expected a list at key {key} (got {value})")
    return value


@attrs.frozen(kw_only=True)
class Recipe:
    """The constants of a run. Driver processes don't count each other's appends, so ``max_appends``
    of a key is the plan's, divided among them.
    """

    options: Options
    concurrency: int
    space: KeySpace
    max_appends: int


class Pool(msgspec.Struct, frozen=True):
    """The live keys of one partition, the hottest first, and the number of appends of each."""

    number: int
    keys: tuple[int, ...]
    appends: tuple[int, ...]

    def appended(self, recipe: Recipe, position: int) -> Pool:
        """Return the pool after an append to the key at ``position``, which may
        have been its last.
        """
        count = self.appends[position] + 1
        keys = self.keys
        if count >= recipe.max_appends:
            fresh = recipe.space.next(self.number, max(keys))
            keys, count = replaced(keys, position, fresh), 0
        return Pool(self.number, keys, replaced(self.appends, position, count))


def fresh_pools(recipe: Recipe) -> tuple[Pool, ...]:
    """Return pools of unused keys."""
    count = recipe.options.key_count
    return tuple(Pool(n, keys, (0,) * count) for n, keys in enumerate(recipe.space.first(count)))


class Appends(msgspec.Struct, frozen=True, kw_only=True):
    """The generator. ``appended`` counts elements by slot; the n-th of a slot is n x concurrency +
    slot: no two are equal. ``once`` are the keys that were last written once.
    """

    recipe: Recipe
    pools: tuple[Pool, ...]
    turns: Turns
    appended: tuple[int, ...]
    once: tuple[int, ...]

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        turn, turns = self.turns.next(context)
        share = self.recipe.options.once_fraction
        # Without the option nothing is drawn for it, so that a seed keeps its operations.
        if share and turn.draw.random() < share:
            return self._once(turn, turns, context)
        number = below(turn.draw, len(self.pools))
        ops, pool, elements = self._transaction(turn.draw, self.pools[number], turn.slot)
        after = Appends(
            recipe=self.recipe,
            pools=replaced(self.pools, number, pool),
            turns=turns,
            appended=replaced(self.appended, turn.slot, elements),
            once=self.once,
        )
        # An append would have used an element up.
        only_reads = elements == self.appended[turn.slot]
        kinds = self.recipe.options.read_kinds
        kind = drawn_kind(kinds, turn.draw) if only_reads else READ_WRITE
        return Operation(process=turn.process, ops=ops, at_ns=context.now_ns, kind=kind), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``. A key's appends count when they are drawn, so nothing changes."""
        return self

    def _once(self, turn: Turn, turns: Turns, context: Context) -> tuple[Operation, Generator]:
        """Return a transaction that puts fresh keys, some of them behind a read of another one, or
        one that reads keys of that kind.
        """
        draw, options = turn.draw, self.recipe.options
        elements, once = self.appended[turn.slot], self.once
        length = options.min_length + below(draw, options.max_length - options.min_length + 1)
        if once and draw.random() < options.read_fraction:
            ops = tuple(MicroOp(READ, once[below(draw, len(once))]) for _ in range(length))
            kind = drawn_kind(options.read_kinds, draw)
        else:
            first, step = elements * self.recipe.concurrency + turn.slot, self.recipe.concurrency
            values = range(first, first + length * step, step)
            read = once and draw.random() < MIXED
            ops = (MicroOp(READ, once[below(draw, len(once))]),) if read else ()
            ops += tuple(MicroOp(APPEND, ONCE_KEYS + value, value) for value in values)
            kind, elements = drawn_kind(options.once_kinds, draw), elements + length
            once = (*once, *(op.key for op in ops if op.f == APPEND))[-ONCE_READ:]
        after = msgspec.structs.replace(
            self, turns=turns, appended=replaced(self.appended, turn.slot, elements), once=once
        )
        return Operation(process=turn.process, ops=ops, at_ns=context.now_ns, kind=kind), after

    def _transaction(
        self, draw: Random, pool: Pool, slot: int
    ) -> tuple[tuple[MicroOp, ...], Pool, int]:
        """Return the micro-operations, and the pool and the slot's element count after them."""
        recipe, options = self.recipe, self.recipe.options
        elements = self.appended[slot]
        only = _position(draw, options) if recipe.space.keys_together == 1 else None
        key = None if only is None else pool.keys[only]
        ops = []
        lengths = options.max_length - options.min_length + 1
        for _ in range(options.min_length + below(draw, lengths)):
            position = _position(draw, options) if only is None else only
            target = pool.keys[position] if key is None else key
            if draw.random() < options.read_fraction:
                ops.append(MicroOp(READ, target))
            else:
                ops.append(MicroOp(APPEND, target, elements * recipe.concurrency + slot))
                elements += 1
                pool = pool.appended(recipe, position)
        return tuple(ops), pool, elements


def _position(draw: Random, options: Options) -> int:
    """Draw a position among the live keys. Exponentially: of 2^n - 1 lots, key i holds 2^(n-1-i);
    in integers, so that it is the same on every machine.
    """
    count = options.key_count
    if options.key_choice == "uniform":
        return below(draw, count)
    return count - (1 + below(draw, (1 << count) - 1)).bit_length()
