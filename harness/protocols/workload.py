"""The protocol of workloads: the operations of clients, and the checkers that judge them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from harness.generators import Generator, Phases
from harness.history.records import MicroOp
from harness.protocols.client import READ_WRITE, Tx


@attrs.frozen(kw_only=True)
class Share:
    """The share of one driver process, ``number`` from 0, of ``of`` processes: every ``of``-th
    slot.
    """

    number: int = 0
    of: int = 1


WHOLE = Share()


@attrs.frozen(kw_only=True)
class WorkloadSetting:
    """The facts about a run that a workload may use.

    ``concurrency`` counts the slots of all driver processes: values that are unique by slot are
    unique in the run. Each of ``drivers`` processes has a generator of its own, which sees only the
    operations of its own slots. ``partitions`` is ``None``, and ``partition_of`` returns it, where
    the store does not report partitions; ``transaction_scope`` is the declaration's: ``partition``
    forbids keys of several partitions in one transaction. ``kinds`` are the kinds of transactions
    for which the declaration has a promise.
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
        """Return the operations that have to end before any operation of ``main`` begins, run by
        one process of the run; ``Nothing`` where there are none.
        """

    def main(self) -> Generator:
        """Return the operations of the drive phase; endless, because the driver bounds it by
        time.
        """

    def final(self, keys: tuple[int, ...]) -> Generator:
        """Return reads of every key in ``keys`` (ascending), each repeated until one is ok."""

    async def execute(self, tx: Tx, ops: tuple[MicroOp, ...]) -> tuple[MicroOp, ...]:
        """Run ``ops`` on ``tx``, without commit; return the operations with their observed
        values.
        """


def whole(workload: Workload) -> Generator:
    """Return all operations that a single driver process runs in the drive phase."""
    return Phases((workload.first(), workload.main()))


def trouble_of(workload: Workload) -> str:
    """Describe what makes ``workload`` unfit for a run, as far as its members show before one;
    empty where it is fit. Raises what its methods raise.
    """
    if not isinstance(workload.name, str) or not workload.name.isprintable():
        return f"name: expected a printable text (got {workload.name!r:.100})"
    checkers = workload.checkers
    if not isinstance(checkers, (tuple, list)) or not all(isinstance(c, str) for c in checkers):
        return f"checkers: expected a tuple of names (got {checkers!r:.100})"
    for method in (workload.first, workload.main):
        generator = method()
        if not hasattr(generator, "op") or not hasattr(generator, "update"):
            kind = type(generator).__name__
            return f"{method.__name__}: expected a Generator, with 'op' and 'update' (got {kind})"
    return ""
