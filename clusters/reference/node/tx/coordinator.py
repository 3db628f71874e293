"""Interactive transactions on the node that the client talks to.

Reads go to the partition's leader, writes wait here; commit sends both to the leader once. A commit
is never sent twice: whether the first one happened is the client's to find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from clusters.reference.node import codes
from clusters.reference.node.placement import partition_of
from clusters.reference.node.wire.messages import Committed, CommitTx, Failed, Read, ReadKey

MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 1024 * 1024
MAX_TX_BYTES = 4 * 1024 * 1024  # of all writes and keys read; a quarter of a frame
MAX_TX_KEYS = 10_000
READ_LIMIT_S = 1.0  # for one answer; a leader that is slower is likely cut off
LEADER_WAIT_S = 1.0  # for an election to end; beyond it the client should hear about it
ROUTE_POLL_S = 0.05


class TxError(Exception):
    """A step failed; the transaction is over."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.code}: {failed.message}")
        self.failed = failed


class Routes(Protocol):
    """Who leads which partition, as far as this node knows."""

    partitions: int

    def leader(self, partition: int) -> str | None:
        """The leader, if one is known."""

    def forget(self, partition: int, node: str) -> None:
        """``node`` does not lead ``partition``."""


Ask = Callable[[str, ReadKey | CommitTx, float], Awaitable[Read | Committed | Failed]]


class Transaction:
    """One open transaction. After a ``TxError`` it must not be used again."""

    def __init__(self, *, txn: str, limit_s: float, routes: Routes, ask: Ask) -> None:
        """``limit_s`` from now on the store may give it up."""
        self.txn = txn
        self._deadline_s = asyncio.get_running_loop().time() + limit_s
        self._routes, self._ask = routes, ask
        self._partition: int | None = None
        self._reads: dict[bytes, Read] = {}
        self._writes: dict[bytes, bytes] = {}
        self._size_bytes = 0  # of what commit will send

    async def get(self, key: bytes) -> bytes | None:
        """The value as this transaction sees it: own writes, what it read before, the leader's."""
        partition = self._claim(key)
        if key in self._writes:
            return self._writes[key]
        if key not in self._reads:
            self._grow(len(key))
            self._reads[key] = await self._read(partition, key)
        return self._reads[key].value

    def put(self, key: bytes, value: bytes) -> None:
        """Buffer a write."""
        self._claim(key)
        if len(value) > MAX_VALUE_BYTES:
            raise _error(codes.TOO_LARGE, f"at most {MAX_VALUE_BYTES} bytes a value")
        held = self._writes.get(key)
        self._grow(len(value) + len(key) if held is None else len(value) - len(held))
        self._writes[key] = value

    async def commit(self) -> None:
        """Durable and visible on return. One message to one leader, whatever comes of it."""
        left_s = self._left_s()
        if self._partition is None:
            return
        leader = await self._leader(self._partition)
        left_s = self._left_s()
        answer = await self._ask(leader, self._command(self._partition, left_s), left_s)
        if isinstance(answer, Failed):
            raise TxError(answer)

    def _command(self, partition: int, left_s: float) -> CommitTx:
        return CommitTx(
            partition=partition,
            reads=tuple((key, read.version) for key, read in self._reads.items()),
            writes=tuple(self._writes.items()),
            limit_ms=max(1, int(left_s * 1000)),
        )

    def _grow(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if self._size_bytes > MAX_TX_BYTES:
            raise _error(codes.TOO_LARGE, f"at most {MAX_TX_BYTES} bytes a transaction")

    def _claim(self, key: bytes) -> int:
        """The partition of ``key``: the transaction's, from its first key on."""
        self._left_s()
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise _error(codes.TOO_LARGE, f"key: 1 to {MAX_KEY_BYTES} bytes (got {len(key)})")
        if len(self._reads) + len(self._writes) >= MAX_TX_KEYS:
            raise _error(codes.TOO_LARGE, f"at most {MAX_TX_KEYS} keys a transaction")
        partition = partition_of(key, self._routes.partitions)
        if self._partition is None:
            self._partition = partition
        if partition != self._partition:
            raise _error(
                codes.SCOPE,
                f"keys of one partition only: this is {self._partition}, the key is in {partition}",
            )
        return partition

    async def _read(self, partition: int, key: bytes) -> Read:
        """Ask whoever leads until one answers: reading again is harmless."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + LEADER_WAIT_S
        while True:
            leader = await self._leader(partition)
            limit_s = min(self._left_s(), READ_LIMIT_S)
            answer = await self._ask(leader, ReadKey(partition, key), limit_s)
            if isinstance(answer, Read):
                return answer
            self._routes.forget(partition, leader)
            if isinstance(answer, Failed) and loop.time() >= give_up_s:
                raise TxError(answer)
            await asyncio.sleep(ROUTE_POLL_S)

    async def _leader(self, partition: int) -> str:
        """The partition's leader, waiting for one within ``LEADER_WAIT_S`` and the deadline."""
        loop = asyncio.get_running_loop()
        give_up_s = min(loop.time() + LEADER_WAIT_S, self._deadline_s)
        while (leader := self._routes.leader(partition)) is None:
            if loop.time() >= give_up_s:
                raise _error(codes.NO_LEADER, f"partition {partition} has no known leader")
            await asyncio.sleep(ROUTE_POLL_S)
        return leader

    def _left_s(self) -> float:
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise _error(codes.EXPIRED, f"{self.txn} is over its deadline")
        return left_s


def _error(code: str, message: str) -> TxError:
    return TxError(Failed(code, message))
