"""Clients write numbers and read them back: each read and each write is judged as one
of a register, by the checker that firedrill brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.api import Generator, MicroOp, Mix, Nothing, Repeat, Tx, UntilOk, WorkloadSetting
from harness.api import options as plan_options

READ, WRITE = "r", "w"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[workload]`` table."""

    keys: Annotated[int, Meta(ge=1, le=1000, description="How many.")] = 60
    values: Annotated[
        int, Meta(ge=1, le=1000, description="Different values that are written into each.")
    ] = 20
    reads: Annotated[int, Meta(ge=1, le=100, description="Reads for each write.")] = 2


@attrs.frozen
class Ledger:
    """The workload. ``checkers`` are names of entry points; these suit any history of registers."""

    options: Options
    setting: WorkloadSetting
    name: str = "ledger"
    checkers: tuple[str, ...] = ("register", "statistics", "availability", "evidence")

    def first(self) -> Generator:
        """See ``Workload``. Nothing has to be there before."""
        return Nothing()

    def main(self) -> Generator:
        """See ``Workload``. Every operation is drawn from the seed, for each client anew."""
        keys, values = range(self.options.keys), range(1, self.options.values + 1)
        writes = tuple((1, Repeat((MicroOp(WRITE, k, v),))) for k in keys for v in values)
        weight = self.options.reads * self.options.values
        reads = tuple((weight, Repeat((MicroOp(READ, key),))) for key in keys)
        return Mix((*writes, *reads), self.setting.seed)

    def final(self, keys: tuple[int, ...]) -> Generator:
        """See ``Workload``. ``keys`` are those that were written."""
        return UntilOk(tuple((MicroOp(READ, key),) for key in keys))

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """See ``Workload``. What was read stands in what it returns."""
        (op,) = ops
        match op:
            case MicroOp(f="w", value=int(value)):
                await tx.write(op.key, value)
                return ops
            case _:
                return (MicroOp(READ, op.key, await tx.read(op.key)),)


def build(options: Mapping[str, Any], setting: WorkloadSetting) -> Ledger:
    """The workload for the plan's option table. Raises ``PlanError``."""
    return Ledger(plan_options(Options, options, "workload"), setting)
