"""What a transaction may hold: its commit has to fit into a frame, and into one log entry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from clusters.reference.node.clock import Hlc
from clusters.reference.node.tx import coordinator
from clusters.reference.node.tx.calls import Calls
from clusters.reference.node.tx.coordinator import Transaction, TxError
from clusters.reference.node.wire.messages import (
    Fine,
    Hold,
    Lock,
    Locked,
    PeerAnswer,
    PeerBody,
    TxnId,
)


async def answer(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
    return Locked(Hold(1, 1), None) if isinstance(body, Lock) else Fine()


def run(steps: Callable[[Transaction], Awaitable[object]]) -> None:
    """Take ``steps`` in a transaction of at most 100 bytes."""

    async def scenario() -> None:
        calls = Calls(route=lambda _: "n1", ask=answer, tell=lambda node, body: None)
        await steps(
            Transaction(
                txn=TxnId(1, "n1~1", 1),
                limit_s=5.0,
                partitions=1,
                calls=calls,
                clock=Hlc(wall_ns=lambda: 0, monotonic_s=lambda: 0.0),
            )
        )

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
    async def often(tx: Transaction) -> None:
        for _ in range(50):
            await tx.put(b"k", b"x" * 60)
        await tx.put(b"l", b"x" * 38)

    async def much(tx: Transaction) -> None:
        await often(tx)
        await tx.put(b"m", b"")

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
