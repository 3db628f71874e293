"""Choices that workloads share: whose turn it is, sets of keys that may share a transaction, the
kind of a read-only transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.clock import substream
from harness.errors import HarnessError, PlanError
from harness.generators import Context, next_process
from harness.protocols.client import READ_WRITE
from harness.protocols.workload import WorkloadSetting

MAX_KEY_SEARCH = 1_000_000  # keys tried for one of a partition; a hash that needs more is broken
ReadKinds = Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
ORDINARY: ReadKinds = (READ_WRITE,)


@attrs.frozen(kw_only=True)
class KeySpace:
    """The sets of keys, *pools*, that may share a transaction.

    ``owner`` names the workload in errors; ``pools`` is the number of pools, ``pool_of`` maps a key
    to its pool. ``keys_together`` is 1 where two keys may not share a transaction, else ``None``.
    """

    owner: str
    pools: int
    pool_of: Callable[[int], int | None]
    keys_together: int | None = None

    @staticmethod
    def of(setting: WorkloadSetting, owner: str) -> KeySpace:
        """Return a pool for each partition where transactions stay in one; where the store does not
        report a key's partition, only one key a transaction is safe.
        """
        bounded = setting.transaction_scope == "partition"
        told = bounded and setting.partitions is not None
        return KeySpace(
            owner=owner,
            pools=setting.partitions if told and setting.partitions else 1,
            pool_of=setting.partition_of if told else _one_pool,
            keys_together=1 if bounded and not told else None,
        )

    def first(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Return the first ``count`` keys of each pool, ascending, in one sweep. Raises
        ``HarnessError`` where a pool lacks them.
        """
        keys: list[list[int]] = [[] for _ in range(self.pools)]
        missing = self.pools * count
        for key in range(MAX_KEY_SEARCH):
            number = self.pool_of(key)
            if number is not None and len(keys[number]) < count:
                keys[number].append(key)
                missing -= 1
            if not missing:
                return tuple(tuple(own) for own in keys)
        raise self._lacks(next(n for n, own in enumerate(keys) if len(own) < count), 0)

    def next(self, pool: int, after: int) -> int:
        """Return the first key of ``pool`` above ``after``. Raises ``HarnessError`` where none is
        near.
        """
        for key in range(after + 1, after + 1 + MAX_KEY_SEARCH):
            if self.pool_of(key) == pool:
                return key
        raise self._lacks(pool, after)

    def _lacks(self, pool: int, after: int) -> HarnessError:
        tried = f"among the {MAX_KEY_SEARCH} after {after}"
        return HarnessError(f"{self.owner}: partition {pool} lacks keys {tried}")


def _one_pool(_key: int) -> int:
    return 0


def replaced(values: tuple[Any, ...], position: int, value: object) -> tuple[Any, ...]:
    """Return ``values`` with ``value`` at ``position``."""
    return values[:position] + (value,) + values[position + 1 :]  # noqa: RUF005 (half the time)


def check_kinds(
    kinds: ReadKinds, setting: WorkloadSetting, path: str = "workload.read_kinds"
) -> None:
    """Raise ``PlanError`` for a kind at ``path`` that the store does not have."""
    for kind in kinds:
        if kind not in setting.kinds:
            known = ", ".join(setting.kinds)
            raise PlanError(path, f"expected kinds of this store: {known} (got {kind!r})")


def drawn_kind(kinds: ReadKinds, draw: Random) -> str:
    """Draw one of ``kinds``, each as often as it is listed; a single kind uses no draw."""
    return kinds[0] if len(kinds) == 1 else draw.choice(kinds)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The ``count``-th operation of ``slot``, by ``process``; ``draw`` is for it alone."""

    process: int
    slot: int
    count: int
    draw: Random


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Operations begun so far, by slot. Draws are keyed by (slot, the slot's own count), so that
    one slot's draws do not depend on the others' progress.
    """

    seed: int
    begun: tuple[int, ...]
    last_slot: int = -1

    @staticmethod
    def of(seed: int, concurrency: int) -> Turns:
        """Return the turns before the first operation."""
        return Turns(seed=seed, begun=(0,) * concurrency)

    def next(self, context: Context) -> tuple[Turn, Turns]:
        """Return the next turn among the idle processes, and the turns after it."""
        process = next_process(context, self.last_slot)
        slot = process % context.concurrency
        count = self.begun[slot]
        turn = Turn(
            process=process, slot=slot, count=count, draw=substream(self.seed, "ops", slot, count)
        )
        after = Turns(seed=self.seed, begun=replaced(self.begun, slot, count + 1), last_slot=slot)
        return turn, after
