"""The lock table: wait-die as values, and as a state machine that asks for anything."""

from __future__ import annotations

import contextvars

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from clusters.reference.node import bugs
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.wire.messages import TxnId

KEYS = (b"a", b"b", b"c")


def txn(age: int) -> TxnId:
    """The greater ``age``, the younger."""
    return TxnId(age, "n1~1", 1)


OLD, MIDDLE, YOUNG = txn(1), txn(2), txn(3)


def test_sharers_share_and_a_writer_is_alone() -> None:
    locks = LockTable()

    assert locks.acquire(OLD, b"a", exclusive=False) is Answer.GRANTED
    assert locks.acquire(YOUNG, b"a", exclusive=False) is Answer.GRANTED
    assert locks.acquire(OLD, b"b", exclusive=True) is Answer.GRANTED
    assert locks.acquire(YOUNG, b"b", exclusive=False) is Answer.DIED
    assert locks.acquire(OLD, b"b", exclusive=False) is Answer.GRANTED  # its own


def test_the_older_waits_for_the_younger_and_the_younger_dies() -> None:
    locks = LockTable()
    locks.acquire(MIDDLE, b"a", exclusive=True)

    assert locks.acquire(OLD, b"a", exclusive=True) is Answer.WAITING
    assert locks.acquire(YOUNG, b"a", exclusive=True) is Answer.DIED
    assert locks.release(MIDDLE) == [OLD]
    assert locks.writer(b"a") == OLD


def test_of_two_sharers_who_want_to_write_the_younger_dies_and_the_older_gets_it() -> None:
    locks = LockTable()
    locks.acquire(OLD, b"a", exclusive=False)
    locks.acquire(YOUNG, b"a", exclusive=False)

    assert locks.acquire(OLD, b"a", exclusive=True) is Answer.WAITING
    assert locks.acquire(YOUNG, b"a", exclusive=True) is Answer.DIED
    assert locks.release(YOUNG) == [OLD]


def test_waiters_are_served_the_youngest_first_so_that_nobody_waits_for_an_older_one() -> None:
    locks = LockTable()
    locks.acquire(YOUNG, b"a", exclusive=True)
    locks.acquire(OLD, b"a", exclusive=True)
    locks.acquire(MIDDLE, b"a", exclusive=True)

    assert locks.release(YOUNG) == [MIDDLE]
    assert locks.broken() is None
    assert locks.release(MIDDLE) == [OLD]


def test_anybody_waits_for_who_is_settled() -> None:
    locks = LockTable()
    locks.acquire(OLD, b"a", exclusive=True)
    assert locks.acquire(YOUNG, b"a", exclusive=False) is Answer.DIED

    locks.settle(OLD)

    assert locks.acquire(YOUNG, b"a", exclusive=False) is Answer.WAITING
    assert locks.release(OLD) == [YOUNG]


def test_who_stops_waiting_lets_the_others_pass() -> None:
    locks = LockTable()
    locks.acquire(YOUNG, b"a", exclusive=False)
    locks.acquire(MIDDLE, b"a", exclusive=True)
    assert locks.acquire(OLD, b"a", exclusive=False) is Answer.WAITING  # behind the writer

    assert locks.withdraw(MIDDLE) == [OLD]
    assert sorted(locks.held(OLD)) == [b"a"]


PATIENT = settings(
    max_examples=1000,
    deadline=None,
    phases=[Phase.generate],  # a smaller example than the first is not needed
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class LockMachine(RuleBasedStateMachine):
    """Transactions ask, wait, settle, end; a graph of who waits for whom is drawn beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = LockTable()
        self.waiting: dict[TxnId, tuple[bytes, bool]] = {}
        self.held: dict[TxnId, dict[bytes, bool]] = {}
        self.settled: dict[TxnId, None] = {}
        self.died: dict[TxnId, None] = {}

    @rule(age=st.integers(1, 6), key=st.sampled_from(KEYS), exclusive=st.booleans())
    def acquire(self, age: int, key: bytes, exclusive: bool) -> None:
        asking = txn(age)
        if asking in self.waiting or asking in self.settled or asking in self.died:
            return
        answer = self.locks.acquire(asking, key, exclusive=exclusive)
        if answer is Answer.GRANTED:
            self.grant(asking, key, exclusive)
        elif answer is Answer.WAITING:
            self.waiting[asking] = key, exclusive
        else:
            older = [o for o, keys in self.held.items() if o < asking and key in keys]
            assert older, "nobody dies for a younger one"
            self.died[asking] = None

    def grant(self, asking: TxnId, key: bytes, exclusive: bool) -> None:
        keys = self.held.setdefault(asking, {})
        keys[key] = exclusive or keys.get(key, False)

    @rule(age=st.integers(1, 6))
    def end(self, age: int) -> None:
        self.held.pop(txn(age), None)
        self.settled.pop(txn(age), None)
        self.died.pop(txn(age), None)
        self.waiting.pop(txn(age), None)
        self.granted(self.locks.release(txn(age)))

    @rule(age=st.integers(1, 6))
    def give_up_waiting(self, age: int) -> None:
        self.waiting.pop(txn(age), None)
        self.granted(self.locks.withdraw(txn(age)))

    @rule(age=st.integers(1, 6))
    def settle(self, age: int) -> None:
        if txn(age) in self.held and txn(age) not in self.waiting:
            self.locks.settle(txn(age))
            self.settled[txn(age)] = None

    def granted(self, txns: list[TxnId]) -> None:
        for each in txns:
            self.grant(each, *self.waiting.pop(each))

    @invariant()
    def holds(self) -> None:
        assert self.locks.broken() is None
        for each, keys in self.held.items():
            assert sorted(self.locks.held(each)) == sorted(keys)
        assert self.locks.waiting == len(self.waiting)

    @invariant()
    def nobody_waits_in_a_circle(self) -> None:
        """Whoever waits is reached from someone who does not, along what is held."""
        free = {t for t in self.held if t not in self.waiting}
        left = dict(self.waiting)
        while True:
            moved = [
                t
                for t, (key, exclusive) in left.items()
                if all(
                    o in free or o == t or not (exclusive or keys[key])
                    for o, keys in self.held.items()
                    if key in keys
                )
            ]
            if not moved:
                break
            for each in moved:
                free.add(each)
                del left[each]
        assert not left, "a circle"

    @precondition(lambda self: self.waiting)
    @rule()
    def who_waits_gets_it_in_the_end(self) -> None:
        """End everybody who does not wait, again and again: nobody is left over."""
        for _ in range(20):
            for each in [t for t in self.held if t not in self.waiting]:
                self.end(each.ts)
        assert not self.waiting


TestLocks = LockMachine.TestCase
TestLocks.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("bug", ["reader-joins-writer", "upgrade-unchecked"])
def test_the_machine_finds_the_planted_bug(bug: str) -> None:
    def run() -> None:
        bugs.switch_on([bug])
        run_state_machine_as_test(LockMachine, settings=PATIENT)

    with pytest.raises(AssertionError):
        contextvars.copy_context().run(run)
