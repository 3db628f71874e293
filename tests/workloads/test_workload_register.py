"""The register workload: unique values, keys that retire, and compare-and-set."""

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
from harness.protocols.client import StoreError
from harness.protocols.workload import Workload, WorkloadSetting
from workloads.register import CAS_MISMATCH, build


def made(options: dict[str, Any] | None = None, *, seed: int = 5) -> Workload:
    setting = WorkloadSetting(
        seed=seed,
        concurrency=6,
        transaction_scope="partition",
        partitions=3,
        partition_of=lambda key: key % 3,
    )
    return build(options or {}, setting)


def quick(operation: Operation, draw: random.Random) -> Reply:
    return Reply(after_ns=1_000_000)


def unsteady(operation: Operation, draw: random.Random) -> Reply:
    return Reply(type=draw.choice(list(OpType)), after_ns=draw.randrange(50_000_000))


def steps(workload: Workload, count: int = 3000) -> list[MicroOp]:
    history = simulate(Limit(count, workload.main()), quick, seed=1, concurrency=6)
    return [op for event in history if isinstance(event, Invoke) for op in event.ops]


class Memory:
    """One register of a store, read and written."""

    server_txn = None

    def __init__(self, held: Any) -> None:
        self.held = held

    async def read(self, key: int) -> Any:
        return self.held

    async def write(self, key: int, value: int) -> None:
        self.held = value


def executed(memory: Memory, op: MicroOp) -> tuple[MicroOp, ...]:
    return asyncio.run(made().execute(memory, (op,)))  # type: ignore[arg-type]


def new_value(op: MicroOp) -> Any:
    return op.value[-1] if isinstance(op.value, tuple) else op.value


def test_transactions_have_one_step_half_of_them_reads() -> None:
    drawn = steps(made())
    counts = Counter(op.f for op in drawn)

    assert len(drawn) == 3000
    assert counts["r"] == pytest.approx(1500, rel=0.1)
    assert counts["cas"] == pytest.approx(375, rel=0.2)


def test_no_value_is_written_twice() -> None:
    values = [new_value(op) for op in steps(made()) if op.f != "r"]

    assert len(values) == len(set(values)) > 1400


def test_every_other_live_key_has_no_compare_and_set() -> None:
    drawn = steps(made({"max_ops": 1000, "key_count": 4}), 1000)

    assert {op.key for op in drawn if op.f == "cas"} == {1, 3}
    assert {op.key for op in drawn if op.f == "w"} == {0, 1, 2, 3}


def test_a_key_retires_after_its_operations() -> None:
    counts = Counter(op.key for op in steps(made({"max_ops": 20, "key_count": 6})))

    assert max(counts.values()) == 20
    assert Counter(counts.values())[20] > 0.9 * len(counts)
    assert sorted(counts) == list(range(len(counts)))


def test_a_compare_and_set_expects_what_was_seen_last() -> None:
    workload = made({"key_count": 2, "max_ops": 10_000})
    history = simulate(Limit(2000, workload.main()), quick, seed=1, concurrency=1)
    seen: dict[int, int] = {}
    for event in history:
        (op,) = event.ops
        if isinstance(event, Invoke) and op.f == "cas":
            assert isinstance(op.value, tuple)
            assert op.value[:-1] == ((seen[op.key],) if op.key in seen else ())
        elif isinstance(event, Complete) and op.f != "r":
            seen[op.key] = new_value(op)
    assert len(seen) == 2


def test_what_a_slot_draws_does_not_depend_on_how_operations_end() -> None:
    """But for what a compare-and-set expects, which is what the store showed."""

    def shapes(seed: int) -> list[list[Any]]:
        workload = made({"max_ops": 10_000})
        history = simulate(
            workload.main(), unsteady, seed=seed, concurrency=6, until_ns=3 * NS_PER_S
        )
        drawn = [(e.process % 6, *e.ops) for e in history if isinstance(e, Invoke)]
        told = [(slot, op.f, op.key, new_value(op)) for slot, op in drawn]
        return [[row for row in told if row[0] == slot][:20] for slot in range(6)]

    assert shapes(1) == shapes(2)
    assert steps(made(seed=5), 50) == steps(made(seed=5), 50) != steps(made(seed=6), 50)


def test_steps_do_what_they_say() -> None:
    memory = Memory(None)

    assert executed(memory, MicroOp("r", 1)) == (MicroOp("r", 1, None),)
    assert executed(memory, MicroOp("w", 1, 5)) == (MicroOp("w", 1, 5),)
    assert executed(memory, MicroOp("r", 1)) == (MicroOp("r", 1, 5),)
    assert executed(memory, MicroOp("cas", 1, (5, 6))) == (MicroOp("cas", 1, (5, 6)),)
    assert memory.held == 6
    with pytest.raises(HarnessBug, match="can't execute"):
        executed(memory, MicroOp("append", 1, 5))
    with pytest.raises(HarnessBug, match="expected a value"):
        executed(Memory((1, 2)), MicroOp("r", 1))


def test_a_compare_and_set_of_a_register_without_a_write_takes_effect_on_that_alone() -> None:
    memory = Memory(None)

    assert executed(memory, MicroOp("cas", 1, (5,))) == (MicroOp("cas", 1, (5,)),)
    assert memory.held == 5
    with pytest.raises(StoreError, match="key 1 holds 5, not None"):
        executed(memory, MicroOp("cas", 1, (6,)))


@pytest.mark.parametrize("held", [None, 4])
def test_a_mismatch_is_an_error_of_the_store_and_writes_nothing(held: int | None) -> None:
    memory = Memory(held)

    with pytest.raises(StoreError, match=f"key 1 holds {held}, not 5") as caught:
        executed(memory, MicroOp("cas", 1, (5, 6)))

    assert caught.value.code == CAS_MISMATCH
    assert memory.held == held


def test_final_reads_are_repeated_until_each_was_ok() -> None:
    history = simulate(made().final((3, 8, 9)), unsteady, seed=2, concurrency=6)
    done = [e.ops for e in history if isinstance(e, Complete) and e.type is OpType.OK]

    assert sorted(op.key for (op,) in done) == [3, 8, 9]


def test_wrong_options_are_named() -> None:
    with pytest.raises(PlanError, match=r"workload\.max_ops"):
        made({"max_ops": 0})
