"""Reads, writes and compare-and-set of single registers: every operation must take effect at one
moment between its invocation and its completion.

Written values are unique; a fresh key replaces a key after so many operations, so that a checker's
search stays short. Every other key has no compare-and-set: such a key can be judged without any
search.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.errors import HarnessBug
from harness.generators import Context, Generator, Nothing, Operation, UntilOk, Wait
from harness.history.records import Complete, Invoke, MicroOp, OpType
from harness.plan.plan import options as plan_options
from harness.protocols.client import StoreError, Tx
from harness.protocols.workload import Workload, WorkloadSetting
from workloads.key_selection import Turns, replaced

READ = "r"
WRITE = "w"
CAS = "cas"
CAS_MISMATCH = "CAS-MISMATCH"

_Fraction = Annotated[float, Meta(ge=0, le=1)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[workload]`` table."""

    key_count: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description=(
                "Registers that are in use at a time. Where there are many, a lost write shows "
                "only if the register is read before it is written again."
            ),
        ),
    ] = 24
    max_ops: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Operations on a register before a fresh one takes its place.",
        ),
    ] = 100
    read_fraction: Annotated[_Fraction, Meta(description="The share of operations that read.")] = (
        0.5
    )
    cas_fraction: Annotated[
        _Fraction,
        Meta(
            description=(
                "Of the others, on every other register, the share that compare and set; the rest"
                " writes."
            )
        ),
    ] = 0.5


def build(options: Mapping[str, Any], setting: WorkloadSetting) -> Workload:
    """Build the workload for the plan's option table. Raises ``PlanError``."""
    return Register(plan_options(Options, options, "workload"), setting)


class Register:
    """See the module."""

    name = "register"
    checkers: tuple[str, ...] = ("register", "statistics", "availability", "evidence")

    def __init__(self, options: Options, setting: WorkloadSetting) -> None:
        self._options, self._setting = options, setting

    def first(self) -> Generator:
        """See ``Workload``. An empty store will do."""
        return Nothing()

    def main(self) -> Generator:
        """See ``Workload``."""
        # Each driver process counts its own operations on a key alone.
        shared = max(1, self._options.max_ops // self._setting.drivers)
        options = msgspec.structs.replace(self._options, max_ops=shared)
        return Accesses(
            turns=Turns.of(self._setting.seed, self._setting.concurrency),
            concurrency=self._setting.concurrency,
            options=options,
            live=tuple(Live(key) for key in range(options.key_count)),
            next_key=options.key_count,
        )

    def final(self, keys: tuple[int, ...]) -> Generator:
        """See ``Workload``."""
        return UntilOk(tuple((MicroOp(READ, key),) for key in keys))

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """See ``Workload``. A compare-and-set that finds another value raises ``StoreError``: it is
        rolled back, and certainly did nothing.
        """
        (op,) = ops
        match op:
            case MicroOp(f="r"):
                return (MicroOp(READ, op.key, await _value(tx, op.key)),)
            case MicroOp(f="w", value=int(value)):
                await tx.write(op.key, value)
            case MicroOp(f="cas", value=(*expected, new)):
                # Without an expected value it is that of a register that was never written.
                old = expected[0] if expected else None
                held = await _value(tx, op.key)
                if held != old:
                    raise StoreError(CAS_MISMATCH, f"key {op.key} holds {held}, not {old}")
                await tx.write(op.key, new)
            case _:
                raise HarnessBug(f"register: can't execute {op}")
        return ops


async def _value(tx: Tx, key: int) -> int | None:
    value = await tx.read(key)
    if isinstance(value, tuple):
        raise HarnessBug(f"register: expected a value at key {key} (got {value})")
    return value


@attrs.frozen
class Live:
    """A live key, the number of operations drawn on it, and its last value seen; ``None`` as long
    as no write was.
    """

    key: int
    drawn: int = 0
    seen: int | None = None


@attrs.frozen(kw_only=True)
class Accesses:
    """The generator. A slot's draws depend on nothing but its own count of operations; only a
    compare-and-set expects the value that was last seen, since any other would fail. The n-th value
    of a slot is 1 + n x concurrency + slot: no two are equal.
    """

    turns: Turns
    concurrency: int
    options: Options
    live: tuple[Live, ...]
    next_key: int

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        turn, turns = self.turns.next(context)
        place = turn.draw.randrange(len(self.live))
        fresh = 1 + turn.count * self.concurrency + turn.slot
        step = self._step(turn.draw, place, fresh)
        live, next_key = self.live[place], self.next_key
        live = attrs.evolve(live, drawn=live.drawn + 1)
        if live.drawn >= self.options.max_ops:
            live, next_key = Live(next_key), next_key + 1
        after = attrs.evolve(
            self,
            live=replaced(self.live, place, live),
            turns=turns,
            next_key=next_key,
        )
        return Operation(process=turn.process, ops=(step,), at_ns=context.now_ns), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``. Remembers the last values seen of the live keys."""
        if isinstance(event, Invoke) or event.type is not OpType.OK:
            return self
        (op,) = event.ops
        held = op.value[-1] if isinstance(op.value, tuple) and op.f == CAS else op.value
        if not isinstance(held, int):
            return self
        live = tuple(attrs.evolve(x, seen=held) if x.key == op.key else x for x in self.live)
        return attrs.evolve(self, live=live)

    def _step(self, draw: Random, place: int, fresh: int) -> MicroOp:
        live = self.live[place]
        if draw.random() < self.options.read_fraction:
            return MicroOp(READ, live.key)
        # By the place, in which a fresh key follows the old one: so a key has it always or never.
        if place % 2 and draw.random() < self.options.cas_fraction:
            return MicroOp(CAS, live.key, (fresh,) if live.seen is None else (live.seen, fresh))
        return MicroOp(WRITE, live.key, fresh)
