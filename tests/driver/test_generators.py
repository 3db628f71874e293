"""Generators, run without a cluster."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest
from generator_model import Latency, Reply, simulate
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.clock import NS_PER_S
from harness.errors import UsageError
from harness.generators import (
    Context,
    Generator,
    Limit,
    Mix,
    Nothing,
    Operation,
    Phases,
    Repeat,
    Stagger,
    UntilOk,
    Wait,
    next_process,
    paced,
)
from harness.history.records import Complete, Invoke, MicroOp, OpType

MS = NS_PER_S // 1000
A, B, LAST = ((MicroOp("r", key),) for key in (1, 2, 3))


def quick(operation: Operation, draw: random.Random) -> Reply:
    return Reply(after_ns=10 * MS)


def unsteady(operation: Operation, draw: random.Random) -> Reply:
    return Reply(
        type=draw.choice([OpType.OK, OpType.FAIL, OpType.INFO]), after_ns=draw.randrange(50) * MS
    )


def invokes(
    generator: Generator, concurrency: int = 3, until_ns: int | None = None
) -> list[Invoke]:
    history = simulate(generator, quick, seed=1, concurrency=concurrency, until_ns=until_ns)
    return [event for event in history if isinstance(event, Invoke)]


def test_idle_processes_take_turns() -> None:
    context = Context(now_ns=0, free=(5, 1, 7), concurrency=5)

    assert [next_process(context, slot) for slot in (-1, 0, 1, 2, 4)] == [5, 1, 7, 5, 5]
    assert [i.process for i in invokes(Limit(5, Repeat(A)), 3)] == [0, 1, 2, 0, 1]


def test_a_closed_loop_starts_again_as_soon_as_a_process_is_idle() -> None:
    starts = [i.at_ns // MS for i in invokes(Limit(6, Repeat(A)), 2)]

    assert starts == [0, 0, 10, 10, 20, 20]


def test_a_limit_counts_operations_and_not_questions() -> None:
    assert len(invokes(Limit(7, Repeat(A)))) == 7
    assert invokes(Limit(0, Repeat(A))) == []


def test_arrivals_of_an_open_loop_do_not_wait_for_the_store() -> None:
    def slow(operation: Operation, draw: random.Random) -> Reply:
        return Reply(after_ns=NS_PER_S)

    generator = Limit(50, Stagger(100.0, 5, Repeat(A)))
    fast = [i.intended_ns for i in invokes(generator, 50)]
    stalled = simulate(generator, slow, seed=1, concurrency=2)

    assert [e.intended_ns for e in stalled if isinstance(e, Invoke)] == fast
    assert max(e.at_ns - e.intended_ns for e in stalled if isinstance(e, Invoke)) > 20 * NS_PER_S
    assert all(a <= b for a, b in pairwise(fast))
    assert fast[-1] == pytest.approx(NS_PER_S // 2, rel=0.4)


def test_another_seed_is_another_process_of_arrivals() -> None:
    def arrivals(seed: int) -> list[int]:
        return [i.intended_ns for i in invokes(Limit(9, Stagger(100.0, seed, Repeat(A))))]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def test_paced_without_a_rate_is_the_generator_itself() -> None:
    generator = Repeat(A)

    assert paced(generator, None, 1) is generator
    assert isinstance(paced(generator, 5.0, 1), Stagger)


def test_a_mix_follows_its_weights() -> None:
    drawn = [i.ops for i in invokes(Limit(4000, Mix(((3, Repeat(A)), (1, Repeat(B))), seed=2)))]

    assert drawn.count(A) == pytest.approx(3000, rel=0.05)


def test_the_choices_of_a_slot_do_not_depend_on_how_the_others_fare() -> None:
    generator = Mix(((1, Repeat(A)), (1, Repeat(B))), seed=2)

    def first_of_slot_0(latency_seed: int) -> list[tuple[MicroOp, ...]]:
        history = simulate(
            generator, unsteady, seed=latency_seed, concurrency=4, until_ns=5 * NS_PER_S
        )
        return [e.ops for e in history if isinstance(e, Invoke) and e.process % 4 == 0][:40]

    assert first_of_slot_0(1) == first_of_slot_0(2)


def test_a_mix_ends_with_its_last_part() -> None:
    mixed = Mix(((1, Limit(2, Repeat(A))), (1, Limit(30, Repeat(B))), (9, Nothing())), seed=2)
    drawn = [i.ops for i in invokes(mixed)]

    assert (drawn.count(A), drawn.count(B)) == (2, 30)


def test_a_part_of_a_mix_that_waits_leaves_its_turn_to_the_others() -> None:
    waiting = UntilOk((A,))
    context = Context(now_ns=0, free=(0, 1), concurrency=2)
    _, waiting_after = waiting.op(context)
    mixed: Generator = Mix(((1_000_000, waiting_after), (1, Repeat(B))), seed=2)

    answer, mixed = mixed.op(context)
    assert isinstance(answer, Operation)
    assert answer.ops == B

    alone: Generator = Mix(((1, waiting_after),), seed=2)
    assert alone.op(context)[0] is Wait.PENDING


def test_a_phase_begins_when_the_one_before_is_over() -> None:
    history = simulate(
        Phases((Limit(5, Repeat(A)), Limit(2, Repeat(B)))), unsteady, seed=3, concurrency=3
    )
    last_end = max(e.at_ns for e in history if isinstance(e, Complete) and e.ops == A)
    first_start = min(e.at_ns for e in history if isinstance(e, Invoke) and e.ops == B)

    assert first_start >= last_end
    assert len(history) == 14


def test_until_ok_repeats_what_did_not_succeed_and_nothing_else() -> None:
    transactions = tuple((MicroOp("r", key),) for key in range(50))
    history = simulate(UntilOk(transactions), unsteady, seed=4, concurrency=5)
    ok = [e.ops for e in history if isinstance(e, Complete) and e.type is OpType.OK]
    tries = [e for e in history if isinstance(e, Invoke)]

    assert len(ok) == len(transactions)
    assert set(ok) == set(transactions)
    assert len(tries) > 50
    assert invokes(UntilOk(())) == []


def test_an_info_ends_the_process_and_its_slot_goes_on() -> None:
    def info(operation: Operation, draw: random.Random) -> Reply:
        return Reply(type=OpType.INFO, after_ns=MS)

    history = simulate(Limit(6, Repeat(A)), info, seed=1, concurrency=2)

    assert [e.process for e in history if isinstance(e, Invoke)] == [0, 1, 2, 3, 4, 5]


def test_generators_are_values() -> None:
    generator = Limit(9, Stagger(100.0, 5, Mix(((1, Repeat(A)), (1, Repeat(B))), seed=2)))
    context = Context(now_ns=7, free=(0, 1), concurrency=2)

    assert generator.op(context) == generator.op(context)
    assert simulate(generator, unsteady, seed=1, concurrency=2) == simulate(
        generator, unsteady, seed=1, concurrency=2
    )


def test_a_simulation_ends_at_its_time_and_refuses_to_run_without_processes() -> None:
    assert max(i.at_ns for i in invokes(Repeat(A), until_ns=NS_PER_S)) < NS_PER_S
    with pytest.raises(UsageError, match="concurrency: expected at least 1"):
        invokes(Repeat(A), concurrency=0)


LEAVES = st.builds(lambda ops, n: Limit(n, Repeat(ops)), st.sampled_from((A, B)), st.integers(0, 6))
NUMBERS = st.integers(0, 4)


def _branches(inner: st.SearchStrategy[Generator]) -> st.SearchStrategy[Generator]:
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Phases, several),
        st.builds(Limit, NUMBERS, inner),
        st.builds(Stagger, st.just(5000.0), NUMBERS, inner),
        st.builds(lambda part, seed: Mix(((1, part), (2, UntilOk((A, B)))), seed), inner, NUMBERS),
    )


GENERATORS = st.recursive(LEAVES, _branches, max_leaves=6)


@attrs.frozen
class Pure:
    """Asks everything twice, and asks also for what it then does not use."""

    inner: Generator

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        self.inner.op(replace(context, now_ns=context.now_ns + 7))
        first, again = self.inner.op(context), self.inner.op(context)
        assert first == again
        return first[0], Pure(first[1])

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        first, again = (self.inner.update(context, event) for _ in range(2))
        assert first == again
        return Pure(first)


@given(GENERATORS, st.integers(1, 4), st.sampled_from((quick, unsteady)))
def test_whatever_is_put_together_is_pure_and_ends_and_keeps_the_rules(
    generator: Generator, concurrency: int, model: Latency
) -> None:
    found = simulate(generator, model, seed=1, concurrency=concurrency)

    assert found == simulate(Pure(generator), model, seed=1, concurrency=concurrency)
    busy: dict[int, int] = {}
    ended = set()
    for event in found:
        slot = event.process % concurrency
        if isinstance(event, Invoke):
            assert slot not in busy
            assert event.process not in ended
            assert event.at_ns >= event.intended_ns
            busy[slot] = event.index
        else:
            assert busy.pop(slot) == event.invoke
            if event.type is OpType.INFO:
                ended.add(event.process)
    assert not busy
    assert all(a.at_ns <= b.at_ns for a, b in pairwise(found))


@given(GENERATORS, st.integers(0, 8), st.integers(1, 4))
def test_limits_hold_whatever_is_within(inner: Generator, count: int, concurrency: int) -> None:
    found = simulate(Limit(count, inner), unsteady, seed=2, concurrency=concurrency)
    whole = simulate(inner, unsteady, seed=2, concurrency=concurrency)

    assert sum(isinstance(e, Invoke) for e in found) == min(
        count, sum(isinstance(e, Invoke) for e in whole)
    )


@given(GENERATORS, st.integers(0, 6), st.integers(1, 4))
def test_phases_never_overlap(first: Generator, count: int, concurrency: int) -> None:
    both = Phases((first, Limit(count, Repeat(LAST))))
    found = simulate(both, unsteady, seed=3, concurrency=concurrency)
    places = [event.ops == LAST for event in found]

    assert places == sorted(places)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda g: Limit(-1, g), "0 operations or more, found -1"),
        (lambda g: Stagger(0.0, 1, g), "a rate above 0, found 0"),
        (lambda g: Stagger(float("nan"), 1, g), "a rate above 0, found nan"),
        (lambda g: Mix(((1, g), (0, g)), 1), r"weights above 0, found \[1, 0\]"),
    ],
)
def test_what_no_generator_can_be_is_refused_when_it_is_made(
    wrong: Callable[[Generator], Generator], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        wrong(Nothing())
