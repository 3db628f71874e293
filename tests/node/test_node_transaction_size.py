"""What a transaction may hold: its commit has to fit into a frame, and into one log entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from clusters.reference.node.tx import coordinator
from clusters.reference.node.tx.coordinator import Transaction, TxError
from clusters.reference.node.wire.messages import Committed, CommitTx, Failed, Read, ReadKey


class OneLeader:
    """``Routes`` of a store with one partition."""

    partitions = 1

    def leader(self, partition: int) -> str | None:
        return "n1"

    def forget(self, partition: int, node: str) -> None:
        raise AssertionError("n1 leads")


async def answer(node: str, body: ReadKey | CommitTx, limit_s: float) -> Read | Committed | Failed:
    return Read(None, 0) if isinstance(body, ReadKey) else Committed(1)


def run(steps: Callable[[Transaction], object]) -> None:
    """Take ``steps`` in a transaction of at most 100 bytes."""

    async def scenario() -> None:
        tx = Transaction(txn="t", limit_s=5.0, routes=OneLeader(), ask=answer)
        done = steps(tx)
        if asyncio.iscoroutine(done):
            await done

    asyncio.run(scenario())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "MAX_TX_BYTES", 100)
    monkeypatch.setattr(coordinator, "MAX_VALUE_BYTES", 60)


def test_a_value_over_its_limit_is_refused() -> None:
    run(lambda tx: tx.put(b"k", b"x" * 60))
    with pytest.raises(TxError, match="TX-TOO-LARGE: at most 60 bytes a value"):
        run(lambda tx: tx.put(b"k", b"x" * 61))


def test_writes_count_together_and_a_key_written_again_only_with_its_last_value() -> None:
    def often(tx: Transaction) -> None:
        for _ in range(50):
            tx.put(b"k", b"x" * 60)
        tx.put(b"l", b"x" * 38)

    def much(tx: Transaction) -> None:
        often(tx)
        tx.put(b"m", b"")

    run(often)
    with pytest.raises(TxError, match="TX-TOO-LARGE: at most 100 bytes a transaction"):
        run(much)


def test_keys_that_were_read_count_too_each_once() -> None:
    async def reads(tx: Transaction, count: int) -> None:
        for n in [*range(count), *range(count)]:
            await tx.get(b"%010d" % n)
        await tx.commit()

    run(lambda tx: reads(tx, 10))
    with pytest.raises(TxError, match="TX-TOO-LARGE: at most 100 bytes a transaction"):
        run(lambda tx: reads(tx, 11))
