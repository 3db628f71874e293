"""Read-only snapshot transactions: one timestamp, no locks, nobody waits for them.

The timestamp is the contacted node's clock at the beginning, so one session never goes back. Each
primary refuses a timestamp that may lack what it acknowledged longer than ``STALENESS_S`` ago: the
promise rests on its monotonic clock, not on wall clocks agreeing.
"""

from __future__ import annotations

import asyncio

from clusters.reference.node import codes
from clusters.reference.node.placement import partition_of
from clusters.reference.node.tx.calls import Calls
from clusters.reference.node.tx.limits import Limits, TxError, error
from clusters.reference.node.tx.partition import SNAPSHOT_S
from clusters.reference.node.tx.waits import PATIENCE_S
from clusters.reference.node.wire.messages import Failed, ReadAt, TxnId, Version

MAX_OPEN_S = SNAPSHOT_S / 2  # versions are kept for twice as long


class Snapshot:
    """One open snapshot transaction at the timestamp ``txn.ts``."""

    def __init__(self, *, txn: TxnId, limit_s: float, partitions: int, calls: Calls) -> None:
        self.txn = txn
        self._limits = Limits(txn, min(limit_s, MAX_OPEN_S))
        self._partitions, self._calls = partitions, calls
        self._begun_s = asyncio.get_running_loop().time()
        self._reads: dict[bytes, bytes | None] = {}

    async def get(self, key: bytes, *, to_write: bool = False) -> bytes | None:
        """The value at the snapshot's time; refused ``to_write``."""
        if to_write:
            raise error(codes.READ_ONLY, "a snapshot transaction does not write")
        self._limits.touch(key)
        if key not in self._reads:
            self._reads[key] = await self._read(key)
            self._limits.read(self._reads[key])
        return self._reads[key]

    async def put(self, key: bytes, value: bytes) -> None:
        """Refused."""
        raise error(codes.READ_ONLY, "a snapshot transaction does not write")

    async def commit(self) -> int:
        """Nothing is left to do; the timestamp."""
        self._limits.left_s()
        return self.txn.ts

    def give_up(self) -> None:
        """Nothing is held."""

    async def _read(self, key: bytes) -> bytes | None:
        partition = partition_of(key, self._partitions)
        age_s = asyncio.get_running_loop().time() - self._begun_s
        body = ReadAt(
            partition=partition,
            key=key,
            ts=self.txn.ts,
            age_ms=int(age_s * 1000),
            limit_ms=self._limits.left_ms(),
        )
        patience_s = min(PATIENCE_S, self._limits.left_s())
        answer = await self._calls.primary(partition, body, patience_s)
        if not isinstance(answer, Version):
            raise TxError(
                answer if isinstance(answer, Failed) else Failed(codes.LOST, f"got {answer!r}")
            )
        return answer.value
