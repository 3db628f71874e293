"""Transactions that only read ask for all their keys at once where the store can answer so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.history.records import MicroOp
from harness.protocols.client import READ_WRITE
from harness.protocols.workload import WorkloadSetting
from workloads import bank, list_append

SETTING = WorkloadSetting(
    seed=1,
    concurrency=1,
    transaction_scope="cluster",
    partitions=None,
    partition_of=lambda _: None,
    kinds=(READ_WRITE,),
)


class Tx:
    """Knows of each key how often it was asked for, and with what else."""

    def __init__(self, values: dict[int, Any]) -> None:
        self.values, self.asked = values, list[tuple[int, ...]]()

    async def read(self, key: int) -> Any:
        self.asked.append((key,))
        return self.values.get(key)

    async def append(self, key: int, element: int) -> None:
        self.values[key] = (*self.values.get(key, ()), element)


class TogetherTx(Tx):
    async def read_together(self, keys: tuple[int, ...]) -> tuple[Any, ...]:
        self.asked.append(keys)
        return tuple(self.values.get(key) for key in keys)


@pytest.mark.parametrize(
    ("build", "held", "observed"),
    [(list_append.build, {1: (5, 6)}, [(5, 6), ()]), (bank.build, {1: 70}, [70, None])],
)
def test_reads_alone_are_one_request_where_the_store_answers_several(
    build: Any, held: dict[int, Any], observed: list[Any]
) -> None:
    workload = build({}, SETTING)
    reads = (MicroOp("r", 1), MicroOp("r", 2))
    together, singly = TogetherTx(dict(held)), Tx(dict(held))

    found = asyncio.run(workload.execute(together, reads))

    assert [op.value for op in found] == observed
    assert asyncio.run(workload.execute(singly, reads)) == found
    assert (together.asked, singly.asked) == ([(1, 2)], [(1,), (2,)])


def test_reads_beside_appends_are_made_one_by_one_in_their_order() -> None:
    workload = list_append.build({}, SETTING)
    ops = (MicroOp("append", 1, 4), MicroOp("r", 1))
    tx = TogetherTx({})

    found = asyncio.run(workload.execute(tx, ops))

    assert found[1].value == (4,)
    assert tx.asked == [(1,)]
