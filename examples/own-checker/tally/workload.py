"""What clients do: they add one to a counter, or read it. An increment is a read and a write in one
transaction, so that a store that lets two of them through at once loses one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.api import Generator, MicroOp, Mix, Nothing, Repeat, Tx, UntilOk, WorkloadSetting
from harness.api import options as plan_options

ADD, READ = "add", "r"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[workload]`` table: so many counters, and so many reads for an increment."""

    counters: Annotated[int, Meta(ge=1, le=100)] = 8
    reads: Annotated[int, Meta(ge=1, le=100)] = 1


@attrs.frozen
class Tally:
    """The workload. ``checkers`` are names of entry points: its own, and those for any history."""

    options: Options
    setting: WorkloadSetting
    name: str = "tally"
    checkers: tuple[str, ...] = ("tally", "statistics", "availability", "evidence")

    def first(self) -> Generator:
        """See ``Workload``. A counter that holds nothing holds 0."""
        return Nothing()

    def main(self) -> Generator:
        """See ``Workload``."""
        counters = range(self.options.counters)
        adds = tuple((1, Repeat((MicroOp(ADD, key, 1),))) for key in counters)
        reads = tuple((self.options.reads, Repeat((MicroOp(READ, key),))) for key in counters)
        return Mix((*adds, *reads), self.setting.seed)

    def final(self, keys: tuple[int, ...]) -> Generator:
        """See ``Workload``."""
        return UntilOk(tuple((MicroOp(READ, key),) for key in keys))

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """See ``Workload``. What was read stands in what it returns."""
        (op,) = ops
        held = await tx.read(op.key)
        count = held if isinstance(held, int) else 0
        if op.f == READ:
            return (MicroOp(READ, op.key, count),)
        await tx.write(op.key, count + 1)
        return ops


def build(options: Mapping[str, Any], setting: WorkloadSetting) -> Tally:
    """The workload for the plan's option table. Raises ``PlanError``."""
    return Tally(plan_options(Options, options, "workload"), setting)
