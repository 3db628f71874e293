"""The register's kernel against an exhaustive search over the orders of small histories."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from checker_histories import Txn, setting
from register_histories import source

from checkers.register.checker import judge_keys
from checkers.register.linearization_search import Contradiction, Linearization, search
from checkers.register.ops import CAS, INITIAL, NEVER, READ, WRITE
from checkers.register.timeline import Op

HISTORIES = 20_000
MIX = 2_654_435_761


def explained(ops: list[Op]) -> bool:
    """Whether an order explains ``ops``: every one is tried, from the definition alone."""
    return _from(INITIAL, tuple(ops))


def _from(state: int, left: tuple[Op, ...]) -> bool:
    if all(op.finish == NEVER for op in left):
        return True
    for place, op in enumerate(left):
        if any(other.finish < op.start for other in left):
            continue
        if op.f != WRITE and op.seen != state:
            continue
        if _from(op.left, (*left[:place], *left[place + 1 :])):
            return True
    return False


def interval(draw: random.Random) -> tuple[int, int]:
    """From a few moments half of the time, so that many are equal."""
    moments = range(6) if draw.random() < 0.5 else range(40)
    start, finish = sorted((draw.choice(moments), draw.choice(moments)))
    return start, finish


def unique_writes(draw: random.Random) -> list[Op]:
    """1 to 7 operations; 15 % of the writes have an unknown outcome, few reads see garbage."""
    ops: list[Op] = []
    count = draw.randint(1, 7)
    writes = draw.randint(0, count)
    for value in range(writes):
        start, finish = interval(draw)
        ops.append(Op(WRITE, INITIAL, value, start, NEVER if draw.random() < 0.15 else finish))
    for _ in range(count - writes):
        start, finish = interval(draw)
        seen = draw.randint(INITIAL, writes if draw.random() < 0.05 else max(writes - 1, INITIAL))
        ops.append(Op(READ, seen, seen, start, finish))
    return ops


def any_operations(draw: random.Random) -> list[Op]:
    """1 to 7 operations over three values, written again and again."""
    ops = []
    for _ in range(draw.randint(1, 7)):
        start, finish = interval(draw)
        f = draw.choice((READ, WRITE, CAS))
        value, old = draw.randint(0, 2), draw.randint(0, 2)
        end = NEVER if f != READ and draw.random() < 0.15 else finish
        if f == READ:
            value = draw.randint(INITIAL, 2)
            ops.append(Op(READ, value, value, start, end))
        else:
            ops.append(Op(f, old if f == CAS else INITIAL, value, start, end))
    return ops


def open_changes(draw: random.Random) -> list[Op]:
    """3 to 8 operations, most of them changes without an outcome that do what others do."""
    ops = []
    for _ in range(draw.randint(3, 8)):
        start, finish = interval(draw)
        f = draw.choice((READ, WRITE, WRITE, CAS))
        value, old = draw.randint(0, 1), draw.randint(0, 1)
        if f == READ:
            ops.append(Op(READ, value, value, start, finish))
        else:
            end = NEVER if draw.random() < 0.7 else finish
            ops.append(Op(f, old if f == CAS else INITIAL, value, start, end))
    return ops


def transaction(key: int, op: Op) -> Txn:
    seen = None if op.seen == INITIAL else op.seen
    step = {
        READ: ("r", key, seen),
        WRITE: ("w", key, op.left),
        CAS: ("cas", key, (op.seen, op.left)),
    }[op.f]
    finish = op.start + 100 if op.finish == NEVER else op.finish
    type_ = "info" if op.finish == NEVER else "ok"
    return Txn(type_, [step], start=op.start, finish=finish)


def contradicted(histories: list[list[Op]], splits: int) -> set[int]:
    """The histories that the kernel accuses, each on a key of its own."""
    txns = [transaction(key, op) for key, ops in enumerate(histories) for op in ops]
    random.Random(3).shuffle(txns)
    made, accused = source(txns, splits=splits), set()
    for split in range(splits):
        tables = {"transactions": made.transactions, "micro_ops": made.micro_ops(split)}
        given = judge_keys(tables, setting())
        accused |= set(given["register.findings"].column("key").to_pylist())
        assert "undecided" not in given["register.keys"].column("judged").to_pylist()
    return accused


@pytest.mark.parametrize("make", [unique_writes, any_operations, open_changes])
@pytest.mark.parametrize("splits", [1, 3])
def test_the_kernel_agrees_with_every_order_tried(
    make: Callable[[random.Random], list[Op]], splits: int
) -> None:
    draw = random.Random(splits)
    histories = [make(draw) for _ in range(HISTORIES // 2)]

    expected = {key for key, ops in enumerate(histories) if not explained(ops)}

    assert contradicted(histories, splits) == expected
    assert 0.2 * len(histories) < len(expected) < 0.8 * len(histories)


def test_the_search_agrees_with_every_order_tried() -> None:
    draw = random.Random(7)
    histories = [
        make(draw)
        for _ in range(HISTORIES // 2)
        for make in (unique_writes, any_operations, open_changes)
    ]

    for ops in histories:
        answer = search(ops, 500_000)
        assert isinstance(answer, Linearization if explained(ops) else Contradiction), ops
