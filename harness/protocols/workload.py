"""The protocol of workloads: what clients do, and which checkers judge it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from harness.generators.generator import Generator, Phases
from harness.history.records import MicroOp
from harness.protocols.client import READ_WRITE, Tx


@attrs.frozen(kw_only=True)
class Share:
    """One driver process, ``number`` from 0, ``of`` so many: every ``of``-th slot is its own."""

    number: int = 0
    of: int = 1


WHOLE = Share()


@attrs.frozen(kw_only=True)
class WorkloadSetting:
    """What a workload may know of the run it is made for.

    ``concurrency`` counts the slots of all driver processes: values that are unique by slot are
    unique in the run. Each of ``drivers`` processes has a generator of its own, which sees only
    what its own slots do. ``partitions`` and ``partition_of`` are ``None``-valued where the store
    does not tell; ``transaction_scope`` is the declaration's: ``partition`` forbids keys of several
    partitions. ``kinds`` are the kinds of transactions that the declaration promises something of.
    """

    seed: int
    concurrency: int
    drivers: int = 1
    transaction_scope: str
    partitions: int | None
    partition_of: Callable[[int], int | None]
    kinds: tuple[str, ...] = (READ_WRITE,)


class Workload(Protocol):
    """Built by its entry point from the plan's ``[workload]`` table and a ``WorkloadSetting``."""

    name: str
    checkers: tuple[str, ...]

    def first(self) -> Generator:
        """What has to end before any operation of ``main`` begins, in one process of the run;
        ``Nothing`` where there is no such thing.
        """

    def main(self) -> Generator:
        """The operations of the drive phase; endless, the driver bounds it by time."""

    def final(self, keys: tuple[int, ...]) -> Generator:
        """Reads of every key in ``keys`` (ascending), each repeated until one is ok."""

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """Run ``ops`` on ``tx``, without commit; return what was done and observed."""


def whole(workload: Workload) -> Generator:
    """Everything that one process alone does in the drive phase."""
    return Phases((workload.first(), workload.main()))
