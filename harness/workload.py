"""The protocol of workloads: what clients do, and which checkers judge it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from harness.client import Tx
from harness.generator import Generator
from harness.records import MicroOp


@attrs.frozen(kw_only=True)
class WorkloadSetting:
    """What a workload may know of the run it is made for.

    ``partitions`` and ``partition_of`` are ``None``-valued where the store does not tell;
    ``transaction_scope`` is the declaration's: ``partition`` forbids keys of several partitions.
    """

    seed: int
    concurrency: int
    transaction_scope: str
    partitions: int | None
    partition_of: Callable[[int], int | None]


class Workload(Protocol):
    """Built by its entry point from the plan's ``[workload]`` table and a ``WorkloadSetting``."""

    name: str
    checkers: tuple[str, ...]

    def main(self) -> Generator:
        """The operations of the drive phase; endless, the driver bounds it by time."""

    def final(self, keys: tuple[int, ...]) -> Generator:
        """Reads of every key in ``keys`` (ascending), each repeated until one is ok."""

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """Run ``ops`` on ``tx``, without commit; return what was done and observed."""
