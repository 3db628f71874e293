"""The list-append workload: what it draws, and what it does with a transaction."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from generator_model import Reply, simulate

from harness.clock import NS_PER_S
from harness.errors import HarnessBug, HarnessError, PlanError
from harness.generators import Limit, Operation
from harness.history.records import Complete, Invoke, MicroOp, OpType
from harness.protocols.client import Committed
from harness.protocols.workload import Workload, WorkloadSetting
from workloads.list_append import MIXED, ONCE_KEYS, build

PARTITIONS = 5


def partition_of(key: int) -> int:
    return (key * 2_654_435_761 >> 7) % PARTITIONS


def made(
    options: dict[str, Any] | None = None,
    *,
    scope: str = "partition",
    partitions: int | None = PARTITIONS,
    concurrency: int = 6,
    seed: int = 11,
    of: Callable[[int], int | None] = partition_of,
    kinds: tuple[str, ...] = ("read-write",),
) -> Workload:
    setting = WorkloadSetting(
        seed=seed,
        concurrency=concurrency,
        transaction_scope=scope,
        partitions=partitions,
        partition_of=of,
        kinds=kinds,
    )
    return build(options or {}, setting)


def quick(operation: Operation, draw: random.Random) -> Reply:
    return Reply(after_ns=1_000_000)


def unsteady(operation: Operation, draw: random.Random) -> Reply:
    return Reply(type=draw.choice(list(OpType)), after_ns=draw.randrange(50_000_000))


def transactions(workload: Workload, count: int = 3000, concurrency: int = 6) -> list[Invoke]:
    history = simulate(Limit(count, workload.main()), quick, seed=1, concurrency=concurrency)
    return [event for event in history if isinstance(event, Invoke)]


def appends(invokes: list[Invoke]) -> list[MicroOp]:
    return [op for invoke in invokes for op in invoke.ops if op.f == "append"]


def test_transactions_have_one_to_four_steps_half_of_them_reads() -> None:
    drawn = transactions(made())
    lengths = Counter(len(i.ops) for i in drawn)
    reads = sum(op.f == "r" for i in drawn for op in i.ops)

    assert sorted(lengths) == [1, 2, 3, 4]
    assert min(lengths.values()) > 0.8 * len(drawn) / 4
    assert reads == pytest.approx(sum(len(i.ops) for i in drawn) / 2, rel=0.05)


def test_no_two_elements_of_a_run_are_equal() -> None:
    values = [op.value for op in appends(transactions(made()))]

    assert len(values) == len(set(values)) > 3000


def test_a_key_is_retired_after_its_last_append() -> None:
    counts = Counter(op.key for op in appends(transactions(made({"max_appends": 8}))))
    spread = Counter(counts.values())

    assert max(counts.values()) == 8
    assert spread[8] > 0.8 * len(counts)


def test_hot_keys_are_chosen_twice_as_often_as_the_next() -> None:
    options = {"key_count": 4, "max_appends": 1_000_000}
    drawn = transactions(made(options, scope="cluster", partitions=None))
    counts = Counter(op.key for i in drawn for op in i.ops)
    total = sum(counts.values())

    assert [counts[key] / total for key in range(4)] == pytest.approx(
        [8 / 15, 4 / 15, 2 / 15, 1 / 15], abs=0.02
    )


def test_uniform_keys_are_chosen_alike() -> None:
    options = {"key_count": 4, "max_appends": 1_000_000, "key_choice": "uniform"}
    drawn = transactions(made(options, scope="cluster", partitions=None))
    counts = Counter(op.key for i in drawn for op in i.ops)

    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) < 1.15 * min(counts.values())


def test_a_transaction_stays_in_one_partition_where_it_must() -> None:
    bounded = transactions(made())
    free = transactions(made(scope="cluster"))

    assert all(len({partition_of(op.key) for op in i.ops}) == 1 for i in bounded)
    assert {partition_of(op.key) for i in bounded for op in i.ops} == set(range(PARTITIONS))
    assert any(len({partition_of(op.key) for op in i.ops}) > 1 for i in free)
    assert any(len({op.key for op in i.ops}) > 1 for i in bounded)


def test_a_transaction_has_one_key_where_partitions_are_not_told() -> None:
    workload = made(partitions=None, of=lambda key: None)
    drawn = transactions(workload)

    assert all(len({op.key for op in i.ops}) == 1 for i in drawn)
    assert len({op.key for i in drawn for op in i.ops}) > 10
    history = simulate(workload.final((3, 4, 5)), quick, seed=1, concurrency=6)
    assert {len(e.ops) for e in history} == {1}


def test_what_a_slot_draws_does_not_depend_on_how_operations_end() -> None:
    """Faults change outcomes and times; which f at which position of which pool stays."""

    def shapes(latency: Callable[..., Reply], latency_seed: int) -> list[list[Any]]:
        history = simulate(
            made({"max_appends": 1_000_000}).main(),
            latency,
            seed=latency_seed,
            concurrency=6,
            until_ns=2 * NS_PER_S,
        )
        invokes = [e for e in history if isinstance(e, Invoke)]
        return [[i.ops for i in invokes if i.process % 6 == slot][:30] for slot in range(6)]

    assert shapes(quick, 1) == shapes(unsteady, 2) == shapes(unsteady, 3)


def test_the_seed_is_the_whole_choice() -> None:
    assert transactions(made(), 50) == transactions(made(), 50)
    assert transactions(made(), 50) != transactions(made(seed=12), 50)


def test_final_reads_name_every_key_once_and_are_repeated_until_ok() -> None:
    keys = tuple(range(0, 900, 3))
    history = simulate(made().final(keys), unsteady, seed=2, concurrency=6)
    read = [
        op.key for e in history if isinstance(e, Complete) and e.type is OpType.OK for op in e.ops
    ]

    assert sorted(read) == list(keys)
    assert all(len({partition_of(op.key) for op in e.ops}) == 1 for e in history)
    assert max(len(e.ops) for e in history) == 8
    assert {op.f for e in history for op in e.ops} == {"r"}


@attrs.define
class ListTx:
    lists: dict[int, Any]
    server_txn: str | None = None

    async def read(self, key: int) -> Any:
        return self.lists.get(key)

    async def write(self, key: int, value: int) -> None:
        self.lists[key] = value

    async def append(self, key: int, element: int) -> None:
        self.lists[key] = (*self.lists.get(key, ()), element)

    async def commit(self) -> Committed:
        return Committed()

    async def rollback(self) -> None:
        pass


def test_execute_returns_what_was_observed_and_an_absent_list_is_empty() -> None:
    ops = (MicroOp("r", 1), MicroOp("append", 2, 9), MicroOp("r", 2))

    observed = asyncio.run(made().execute(ListTx({2: (4,)}), ops))

    assert observed == (MicroOp("r", 1, ()), MicroOp("append", 2, 9), MicroOp("r", 2, (4, 9)))


@pytest.mark.parametrize(
    ("ops", "problem"),
    [((MicroOp("w", 1, 2),), "can't execute"), ((MicroOp("r", 1),), "expected a list at key 1")],
)
def test_execute_refuses_what_is_no_list_append(ops: tuple[MicroOp, ...], problem: str) -> None:
    with pytest.raises(HarnessBug, match=problem):
        asyncio.run(made().execute(ListTx({1: 7}), ops))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key_cuont": 3}, r"workload\.key_cuont: unknown key \(did you mean 'key_count'\?\)"),
        ({"key_count": 0}, r"workload\.key_count: expected an integer >= 1 \(got 0\)"),
        ({"key_choice": "zipf"}, r"workload\.key_choice: expected one of .*'uniform'"),
        ({"min_length": 5}, r"workload\.min_length: expected at most max_length, 4 \(got 5\)"),
        ({"max_appends": "x"}, r"workload\.max_appends: expected an integer \(got 'x'\)"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(PlanError, match=problem):
        made(options)


def test_a_partition_without_keys_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(HarnessError, match="partition 1 lacks keys"):
        made(partitions=2, of=lambda key: 0).main()


def test_only_what_does_nothing_but_read_is_of_another_kind() -> None:
    options, kinds = {"read_kinds": ["snapshot"]}, ("read-write", "snapshot")
    drawn = transactions(made(options, kinds=kinds))
    reading = [all(op.f == "r" for op in i.ops) for i in drawn]

    assert [i.kind == "snapshot" for i in drawn] == reading
    assert 0 < sum(reading) < len(drawn)
    assert [i.ops for i in drawn] == [i.ops for i in transactions(made())]


def test_a_kind_that_the_store_does_not_have_is_named() -> None:
    with pytest.raises(PlanError, match=r"read_kinds: .*read-write \(got 'snapshot'\)"):
        made({"read_kinds": ["read-write", "snapshot"]})


ONCE = {"once_fraction": 0.5, "once_kinds": ["one-shot"], "read_kinds": ["read-write", "one-shot"]}
KINDS = ("read-write", "one-shot")


def test_keys_that_are_written_once_are_written_once_and_then_read() -> None:
    drawn = transactions(made(ONCE, scope="cluster", partitions=None, kinds=KINDS))
    of_once = [i for i in drawn if any(op.key >= ONCE_KEYS for op in i.ops)]
    writes = Counter(op.key for op in appends(of_once))
    read = {op.key for i in of_once for op in i.ops if op.f == "r"}

    assert len(of_once) == pytest.approx(len(drawn) / 2, rel=0.1)
    assert set(writes.values()) == {1}
    assert all(op.key == ONCE_KEYS + op.value for op in appends(of_once))  # type: ignore[operator]
    assert len(read) > 100
    assert read < set(writes)
    assert len({op.value for op in appends(drawn)}) == len(appends(drawn))


def test_a_transaction_of_keys_written_once_never_reads_what_it_writes() -> None:
    drawn = transactions(made(ONCE, scope="cluster", partitions=None, kinds=KINDS))

    writing, mixed = 0, 0
    for invoke in drawn:
        if any(op.key >= ONCE_KEYS for op in invoke.ops):
            written = [op.key for op in invoke.ops if op.f == "append"]
            read = [op.key for op in invoke.ops if op.f == "r"]
            assert not set(written) & set(read)
            if written:
                assert invoke.kind == "one-shot"
                assert len(read) <= 1
                writing, mixed = writing + 1, mixed + len(read)
        elif any(op.f == "append" for op in invoke.ops):
            assert invoke.kind == "read-write"
    assert mixed / writing == pytest.approx(MIXED, rel=0.2)


def test_without_keys_written_once_the_draws_are_those_of_before() -> None:
    plain = transactions(made(scope="cluster", partitions=None))
    none = transactions(made({"once_fraction": 0.0}, scope="cluster", partitions=None))

    assert [i.ops for i in none] == [i.ops for i in plain]
    assert all(op.key < ONCE_KEYS for i in plain for op in i.ops)


@pytest.mark.parametrize(
    ("options", "scope", "key"),
    [
        ({"once_fraction": 0.1}, "partition", "workload.once_fraction"),
        ({"once_kinds": ["nonesuch"]}, "cluster", "workload.once_kinds"),
    ],
    ids=["bounded transactions", "unknown kind"],
)
def test_keys_written_once_that_a_store_can_not_have_are_refused(
    options: dict[str, Any], scope: str, key: str
) -> None:
    with pytest.raises(PlanError) as refused:
        made(options, scope=scope)
    assert refused.value.path == key


@attrs.define
class BlindTx:
    """A transaction that can't read before it writes."""

    server_txn: str | None = None
    values: dict[int, int] = attrs.field(factory=dict)

    async def read(self, key: int) -> int | None:
        return self.values.get(key)

    async def write(self, key: int, value: int) -> None:
        self.values[key] = value

    async def append(self, key: int, element: int) -> None:
        raise AssertionError("an append reads")

    async def commit(self) -> Committed:
        return Committed()

    async def rollback(self) -> None:
        self.values.clear()


def test_a_key_written_once_is_put_blindly_and_read_as_a_list() -> None:
    workload, tx, key = made(scope="cluster"), BlindTx(), ONCE_KEYS + 5
    written = (MicroOp("append", key, 5),)

    assert asyncio.run(workload.execute(tx, written)) == written
    reads = (MicroOp("r", key), MicroOp("r", key + 1))
    assert asyncio.run(workload.execute(tx, reads)) == (
        MicroOp("r", key, (5,)),
        MicroOp("r", key + 1, ()),
    )
