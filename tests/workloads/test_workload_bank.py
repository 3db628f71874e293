"""The bank workload: set-up first, transfers that never overdraw, whole reads."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from generator_model import Reply, simulate

from harness.clock import NS_PER_S
from harness.errors import HarnessBug, PlanError
from harness.generators import Limit, Operation
from harness.history.records import Complete, Invoke, MicroOp, OpType
from harness.protocols.client import Committed
from harness.protocols.workload import Workload, WorkloadSetting, whole
from workloads.bank import build

PARTITIONS = 3


def partition_of(key: int) -> int:
    return key % PARTITIONS


def made(
    options: dict[str, Any] | None = None, *, scope: str = "partition", **more: Any
) -> Workload:
    setting = {
        "seed": 5,
        "concurrency": 6,
        "transaction_scope": scope,
        "partitions": PARTITIONS,
        "partition_of": partition_of,
    } | more
    return build(options or {}, WorkloadSetting(**setting))


def quick(operation: Operation, draw: random.Random) -> Reply:
    return Reply(after_ns=1_000_000)


def unsteady(operation: Operation, draw: random.Random) -> Reply:
    return Reply(type=draw.choice(list(OpType)), after_ns=draw.randrange(50_000_000))


def invokes(workload: Workload, count: int = 1000) -> list[Invoke]:
    history = simulate(Limit(count, whole(workload)), quick, seed=1, concurrency=6)
    return [event for event in history if isinstance(event, Invoke)]


class Memory:
    """A store of one transaction at a time, enough to execute one."""

    server_txn = None

    def __init__(self, held: dict[int, Any]) -> None:
        self.held = held

    async def read(self, key: int) -> Any:
        return self.held.get(key)

    async def write(self, key: int, value: int) -> None:
        self.held[key] = value

    async def append(self, key: int, element: int) -> None:
        raise NotImplementedError

    async def commit(self) -> Committed:
        return Committed()

    async def rollback(self) -> None:
        return None


def executed(held: dict[int, Any], *ops: MicroOp) -> tuple[MicroOp, ...]:
    return asyncio.run(made().execute(Memory(held), ops))


def test_each_bank_is_set_up_once_and_holds_the_total() -> None:
    set_up = invokes(made({"accounts": 7, "total": 100}))[:PARTITIONS]

    assert all(op.f == "w" for i in set_up for op in i.ops)
    assert [len({op.key for op in i.ops}) for i in set_up] == [7] * PARTITIONS
    assert [sum(op.value for op in i.ops) for i in set_up] == [100] * PARTITIONS
    assert [{partition_of(op.key) for op in i.ops} for i in set_up] == [{0}, {1}, {2}]


def test_several_banks_share_no_account_and_each_holds_the_total() -> None:
    drawn = invokes(made({"banks": 3, "accounts": 5, "total": 40}, scope="cluster"))
    banks = [frozenset(op.key for op in i.ops) for i in drawn[:3]]

    assert [sum(op.value for op in i.ops) for i in drawn[:3]] == [40] * 3
    assert len(frozenset().union(*banks)) == 15
    assert {
        next(n for n, bank in enumerate(banks) if touched <= bank)
        for i in drawn[3:]
        if (touched := frozenset(op.key for op in i.ops))
    } == {0, 1, 2}


def test_nothing_begins_before_every_set_up_was_acknowledged() -> None:
    for seed in range(20):
        history = simulate(Limit(200, whole(made())), unsteady, seed=seed, concurrency=6)
        first = next(
            n for n, e in enumerate(history) if isinstance(e, Invoke) and e.ops[0].f != "w"
        )
        done = [e for e in history[:first] if isinstance(e, Complete) and e.type is OpType.OK]
        assert len({e.ops for e in done}) == PARTITIONS
        assert all(e.ops[0].f != "w" for e in history[first:])


def test_transfers_move_money_within_a_bank_and_reads_see_all_of_it() -> None:
    drawn = invokes(made({"max_transfer": 5}))[PARTITIONS:]
    transfers = [i.ops for i in drawn if i.ops[0].f == "add"]
    reads = [i.ops for i in drawn if i.ops[0].f == "r"]

    assert len(transfers) == pytest.approx(len(drawn) / 2, rel=0.1)
    assert {(len(ops), sum(op.value for op in ops)) for ops in transfers} == {(2, 0)}
    assert {ops[1].value for ops in transfers} == {1, 2, 3, 4, 5}
    assert all(ops[0].key != ops[1].key for ops in transfers)
    assert {len({op.key for op in ops}) for ops in reads} == {8}
    assert all(len({partition_of(op.key) for op in ops}) == 1 for ops in transfers + reads)
    assert len(Counter(op.key for ops in transfers for op in ops)) == 8 * PARTITIONS


def test_one_bank_spans_the_cluster_where_transactions_may() -> None:
    drawn = invokes(made(scope="cluster"))

    assert {op.key for i in drawn for op in i.ops} == set(range(8))


def test_where_two_keys_may_not_meet_there_is_no_bank() -> None:
    with pytest.raises(PlanError, match="bank: expected a store that says which keys"):
        made(partitions=None, partition_of=lambda key: None)


@pytest.mark.parametrize(
    ("options", "path"),
    [({"accounts": 1}, "workload.accounts"), ({"acounts": 8}, "workload.acounts")],
)
def test_wrong_options_are_named(options: dict[str, Any], path: str) -> None:
    with pytest.raises(PlanError) as caught:
        made(options)
    assert caught.value.path == path


def test_a_transfer_records_what_was_asked_for_and_what_was_done() -> None:
    held = {1: 7, 2: 3}

    done = executed(held, MicroOp("add", 1, -5), MicroOp("add", 2, 5))

    assert held == {1: 2, 2: 8}
    assert done == (
        MicroOp("add", 1, -5),
        MicroOp("add", 2, 5),
        MicroOp("r", 1, 7),
        MicroOp("r", 2, 3),
        MicroOp("w", 1, 2),
        MicroOp("w", 2, 8),
    )


def test_a_transfer_that_would_overdraw_only_reads() -> None:
    held = {1: 4, 2: 3}

    done = executed(held, MicroOp("add", 1, -5), MicroOp("add", 2, 5))

    assert held == {1: 4, 2: 3}
    assert done == (MicroOp("r", 1, 4), MicroOp("r", 2, 3))


def test_set_up_and_reads_do_what_they_say() -> None:
    held: dict[int, Any] = {}

    executed(held, MicroOp("w", 1, 9))

    assert executed(held, MicroOp("r", 1), MicroOp("r", 2)) == (
        MicroOp("r", 1, 9),
        MicroOp("r", 2, None),
    )
    with pytest.raises(HarnessBug, match="can't execute"):
        executed(held, MicroOp("append", 1, 9))
    with pytest.raises(HarnessBug, match="expected a balance"):
        executed({1: (1, 2)}, MicroOp("r", 1))


def test_final_reads_see_every_bank_that_was_touched_until_each_was_ok() -> None:
    history = simulate(made().final((0, 4)), unsteady, seed=2, concurrency=6)
    done = [e for e in history if isinstance(e, Complete) and e.type is OpType.OK]

    assert sorted(len(e.ops) for e in done) == [8, 8]
    assert {partition_of(op.key) for e in done for op in e.ops} == {0, 1}


def test_what_a_slot_draws_does_not_depend_on_how_operations_end() -> None:
    def shapes(seed: int) -> list[list[Any]]:
        history = simulate(whole(made()), unsteady, seed=seed, concurrency=6, until_ns=3 * NS_PER_S)
        drawn = [e for e in history if isinstance(e, Invoke) and e.ops[0].f != "w"]
        return [[i.ops for i in drawn if i.process % 6 == slot][:20] for slot in range(6)]

    assert shapes(1) == shapes(2)
    assert invokes(made(seed=5)) == invokes(made(seed=5)) != invokes(made(seed=6))


def test_whole_reads_are_of_the_kinds_that_were_asked_for_and_transfers_never() -> None:
    kinds = ("read-write", "snapshot")
    drawn = invokes(made({"read_kinds": ["snapshot", "read-write"]}, kinds=kinds))[PARTITIONS:]
    reads = [i.kind for i in drawn if i.ops[0].f == "r"]

    assert reads.count("snapshot") == pytest.approx(len(reads) / 2, rel=0.15)
    assert set(reads) == set(kinds)
    assert {i.kind for i in drawn if i.ops[0].f == "add"} == {"read-write"}


def test_a_kind_that_the_store_does_not_have_is_named() -> None:
    with pytest.raises(PlanError, match=r"read_kinds: .*read-write \(got 'snapshot'\)"):
        made({"read_kinds": ["snapshot"]})
