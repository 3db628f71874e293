"""The search on long histories of busy registers, which a simulated register makes: those that it
made are explained, however many outcomes are unknown, and a read of another value is not.
"""

from __future__ import annotations

import random

import attrs
import pytest

from checkers.register.linearization_search import Contradiction, Linearization, search
from checkers.register.ops import CAS, INITIAL, NEVER, READ, WRITE
from checkers.register.timeline import Op

LIMIT = 500_000  # the plan's
SEEDS = 6


@attrs.define
class Client:
    """An operation under way: what it asks for, and what the register answered once it did."""

    f: int
    old: int
    new: int
    start: int
    answer: int | None = None

    def act(self, held: int) -> int:
        """Take effect on a register that holds ``held``; what it holds then."""
        self.answer = held
        if self.f == READ or (self.f == CAS and held != self.old):
            return held
        return self.new

    def op(self, finish: int) -> Op | None:
        """What a recorder keeps; a compare-and-set that found another value says nothing."""
        if self.f == READ:
            return Op(READ, self.answer or 0, self.answer or 0, self.start, finish)
        if self.f == WRITE:
            return Op(WRITE, INITIAL, self.new, self.start, finish)
        succeeded = finish == NEVER or self.answer == self.old
        return Op(CAS, self.old, self.new, self.start, finish) if succeeded else None


def history(seed: int, *, count: int, clients: int, unknown: float, values: int) -> list[Op]:
    """``count`` operations of ``clients`` that are always busy, on a register that begins with 0; a
    share ``unknown`` of the changes ends without an answer, and perhaps without an effect.
    """
    draw = random.Random(seed)
    held, at, busy, ops = 0, 0, list[Client](), list[Op]()
    started = 0
    while started < count or busy:
        at += draw.randint(1, 3)
        if started < count and len(busy) < clients:
            kind = draw.choice((READ, WRITE, CAS))
            busy.append(Client(kind, draw.randrange(values), draw.randrange(values), at))
            started += 1
            continue
        one = draw.choice(busy)
        lost = one.f != READ and draw.random() < unknown
        if one.answer is None and not (lost and draw.random() < 0.5):
            held = one.act(held)
        elif lost or draw.random() < 0.5:
            busy.remove(one)
            if (op := one.op(NEVER if lost or one.answer is None else at)) is not None:
                ops.append(op)
    return ops


@pytest.mark.parametrize(
    ("clients", "unknown", "values"), [(5, 0.02, 5), (10, 0.1, 5), (10, 0.02, 50), (30, 0.02, 5)]
)
def test_what_a_register_did_is_explained(clients: int, unknown: float, values: int) -> None:
    for seed in range(SEEDS):
        ops = history(seed, count=1500, clients=clients, unknown=unknown, values=values)
        assert sum(op.finish == NEVER for op in ops) > 5

        assert search(ops, LIMIT, base=0) == Linearization(), seed


@pytest.mark.parametrize("clients", [5, 20])
def test_a_read_of_what_the_register_no_longer_held_is_not(clients: int) -> None:
    for seed in range(SEEDS):
        ops = history(seed, count=300, clients=clients, unknown=0.02, values=50)
        done = [op for op in ops if op.finish != NEVER]
        end = max(op.finish for op in done)
        last = max(done, key=lambda op: op.start)
        possible = {last.left, *(op.left for op in ops if op.finish == NEVER)}
        unread = next(value for value in range(50) if value not in possible)
        stale = [
            Op(WRITE, INITIAL, unread, end + 1, end + 2),
            Op(WRITE, INITIAL, last.left, end + 3, end + 4),
            Op(READ, unread, unread, end + 5, end + 6),
        ]

        found = search([*ops, *stale], LIMIT, base=0)

        assert found == Contradiction(len(ops) + 2, (last.left,)), seed
