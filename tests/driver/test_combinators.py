"""The algebra of generators, run against models of a store."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.clock import NS_PER_S
from harness.errors import UsageError
from harness.generators.combinators import (
    After,
    AnyOf,
    Cycle,
    Delay,
    EachSlot,
    Filter,
    FlipFlop,
    InOrder,
    Map,
    OnSlots,
    OnUpdate,
    ProcessLimit,
    Synchronize,
    UntilFirstOk,
    reserve,
    then,
)
from harness.generators.generator import (
    Context,
    Generator,
    Limit,
    Mix,
    Nothing,
    Operation,
    Phases,
    Repeat,
    Stagger,
    TimeLimit,
    Wait,
)
from harness.generators.simulation import (
    Latency,
    Reply,
    imperfect,
    perfect,
    perfect_info,
    quick,
    simulate,
)
from harness.history.records import Complete, Invoke, MicroOp, OpType

MS = 1_000_000
A, B, C = ((MicroOp("r", key),) for key in (1, 2, 3))
NAMES = {A: "a", B: "b", C: "c"}


def history(
    generator: Generator, model: Latency = perfect, concurrency: int = 3, for_s: float = 1.0
) -> list[Invoke | Complete]:
    until_ns = int(for_s * NS_PER_S)
    return simulate(generator, model, seed=1, concurrency=concurrency, until_ns=until_ns)


def invokes(generator: Generator, model: Latency = perfect, concurrency: int = 3) -> list[Invoke]:
    found = history(generator, model, concurrency)
    return [event for event in found if isinstance(event, Invoke)]


def letters(generator: Generator, model: Latency = perfect, concurrency: int = 3) -> str:
    return "".join(NAMES[i.ops] for i in invokes(generator, model, concurrency))


def few(ops: tuple[MicroOp, ...], count: int) -> Generator:
    return Limit(count, Repeat(ops))


def slowly(operation: Operation, draw: random.Random) -> Reply:
    return Reply(after_ns=10 * MS)


def test_in_order_does_not_wait_and_then_does() -> None:
    ordered = invokes(InOrder((few(A, 1), few(B, 2))), slowly)
    waited = invokes(then(few(A, 1), few(B, 2)), slowly)

    assert [i.at_ns for i in ordered] == [0, 0, 0]
    assert [i.at_ns for i in waited] == [0, 10 * MS, 10 * MS]
    assert letters(InOrder((few(A, 1), few(B, 2)))) == "abb"


def test_synchronize_waits_for_what_is_open_once() -> None:
    both = InOrder((few(A, 2), Synchronize(few(B, 4))))

    assert [i.at_ns // MS for i in invokes(both, slowly)] == [0, 0, 10, 10, 10, 20]


def test_a_cycle_begins_again_and_ends_after_its_times() -> None:
    assert letters(Cycle(InOrder((few(A, 1), few(B, 2))), times=3)) == "abbabbabb"
    assert letters(Limit(5, Cycle(few(A, 2)))) == "aaaaa"
    assert letters(Cycle(Nothing())) == ""
    assert letters(Cycle(few(A, 2), times=0)) == ""


def test_a_flip_flop_alternates_and_ends_with_the_first_that_ends() -> None:
    assert letters(FlipFlop((few(A, 9), few(B, 2)))) == "ababa"


def test_any_of_takes_the_soonest() -> None:
    mixed = AnyOf((After(5 * MS, few(A, 1)), few(B, 2), After(9 * MS, few(C, 1))))

    assert letters(mixed) == "bbac"
    assert [i.intended_ns // MS for i in invokes(mixed)] == [0, 0, 5, 9]


def test_an_arrival_that_was_passed_over_does_not_move() -> None:
    """Or a busy part would keep an open loop from ever beginning."""
    both = AnyOf((Delay(100 * MS, Repeat(A)), Stagger(20.0, 3, Repeat(B)), Repeat(C)))
    alone = [i.intended_ns for i in invokes(Stagger(20.0, 3, Repeat(B)), slowly)]
    found = invokes(both, slowly)

    assert [i.intended_ns for i in found if i.ops == A] == [n * 100 * MS for n in range(10)]
    own = [i.intended_ns for i in found if i.ops == B]
    assert len(own) > 8
    assert own == alone[: len(own)]


def test_a_part_that_waits_for_its_time_leaves_the_idle_to_the_others() -> None:
    shared = reserve([(2, Repeat(A))], Delay(100 * MS, Repeat(B)))
    found = invokes(TimeLimit(1000 * MS, shared), slowly)

    assert [i.at_ns // MS for i in found if i.ops == B] == [n * 100 for n in range(10)]
    assert [i.at_ns // MS for i in found if i.ops == A] == [
        n * 10 for n in range(100) for _ in "ab"
    ]


def test_what_counts_from_the_first_question_does_not_move_while_others_go_on() -> None:
    late = After(50 * MS, Delay(10 * MS, Repeat(A)))
    brief = After(20 * MS, TimeLimit(30 * MS, Delay(10 * MS, Repeat(C))))
    nested = AnyOf((OnSlots(lambda slot: slot == 1, late), OnSlots(lambda slot: slot == 2, brief)))
    both = reserve([(1, Repeat(B))], nested)
    found = invokes(TimeLimit(90 * MS, both), perfect_ms)

    assert [i.at_ns // MS for i in found if i.ops == A] == [50, 60, 70, 80]
    assert [i.at_ns // MS for i in found if i.ops == C] == [20, 30, 40]
    assert len([i for i in found if i.ops == B]) == 90


def test_a_turn_of_a_mix_goes_to_who_has_something_now() -> None:
    waiting = AnyOf((After(5 * MS, few(A, 1)),))

    assert letters(Mix(((1, waiting), (1, few(B, 3))), seed=1)) == "bbba"
    assert letters(TimeLimit(4 * MS, waiting)) == ""


def perfect_ms(operation: Operation, draw: random.Random) -> Reply:
    return Reply(after_ns=MS)


def test_slots_are_reserved() -> None:
    shared = reserve([(1, Repeat(A)), (2, Repeat(B))], Repeat(C))
    found = invokes(Limit(60, shared), slowly, concurrency=5)

    slots = {ops: {i.process % 5 for i in found if i.ops == ops} for ops in (A, B, C)}
    assert slots == {A: {0}, B: {1, 2}, C: {3, 4}}
    with pytest.raises(UsageError, match=r"reserve: expected at least 1 slot \(got 0\)"):
        reserve([(0, Repeat(A))], Repeat(B))


def test_only_the_chosen_slots_take_part_and_phases_within_wait_for_them_alone() -> None:
    two = OnSlots(lambda slot: slot < 2, Phases((few(A, 2), few(B, 2))))
    other = OnSlots(lambda slot: slot == 2, Map(_later, few(C, 1)))
    found = invokes(AnyOf((two, other)), slowly)

    assert {i.process for i in found if i.ops != C} == {0, 1}
    assert [i.at_ns // MS for i in found if i.ops == B] == [10, 10]
    assert invokes(OnSlots(lambda slot: False, Repeat(A))) == []


def _later(operation: Operation) -> Operation:
    return replace(operation, at_ns=operation.at_ns + 5 * MS)


def test_each_slot_has_a_copy_of_its_own() -> None:
    found = invokes(EachSlot(InOrder((few(A, 2), few(B, 1)))), imperfect, concurrency=4)

    by_slot = [[NAMES[i.ops] for i in found if i.process % 4 == slot] for slot in range(4)]
    assert by_slot == [["a", "a", "b"]] * 4


def test_map_and_filter_change_and_choose() -> None:
    assert letters(Filter(lambda o: o.ops != A, FlipFlop((few(A, 3), few(B, 3))))) == "bbb"

    as_b = Map(lambda operation: replace(operation, ops=B), few(A, 3))
    assert letters(as_b) == "bbb"


def test_a_filter_that_accepts_nothing_says_so() -> None:
    with pytest.raises(UsageError, match="filter: none of 100000 operations was accepted"):
        invokes(Filter(lambda _: False, Repeat(A)))


def test_a_delay_is_an_open_loop_to_the_nanosecond() -> None:
    found = invokes(Limit(5, Delay(3 * MS, Repeat(A))), slowly, concurrency=1)

    assert [i.intended_ns // MS for i in found] == [0, 3, 6, 9, 12]
    assert [i.at_ns // MS for i in found] == [0, 10, 20, 30, 40]


def test_until_first_ok_ends_with_a_success() -> None:
    def third(operation: Operation, draw: random.Random) -> Reply:
        type_ = OpType.OK if operation.at_ns >= 30 * MS else OpType.FAIL
        return Reply(type=type_, after_ns=10 * MS)

    found = invokes(UntilFirstOk(Repeat(A)), third, concurrency=1)

    assert [i.at_ns // MS for i in found] == [0, 10, 20, 30]


def test_a_process_limit_counts_processes_and_uncertain_operations_use_them_up() -> None:
    assert len(invokes(ProcessLimit(7, Repeat(A)), perfect_info, concurrency=2)) == 7
    assert len(invokes(Limit(50, ProcessLimit(2, Repeat(A))), perfect, concurrency=2)) == 50


def test_what_reacts_to_events_can_change_what_comes() -> None:
    def react(inner: Generator, context: Context, event: Invoke | Complete) -> Generator:
        return few(B, 1) if isinstance(event, Complete) and event.ops == A else inner

    assert letters(OnUpdate(react, Repeat(A)), slowly, concurrency=2) == "aabb"


def test_the_models_answer_as_they_are_called() -> None:
    def types(model: Latency) -> set[OpType]:
        return {e.type for e in history(few(A, 60), model) if isinstance(e, Complete)}

    assert types(quick) == types(perfect) == {OpType.OK}
    assert types(perfect_info) == {OpType.INFO}
    assert types(imperfect) == set(OpType)
    assert {e.at_ns for e in history(few(A, 9), quick)} == {0}


LEAVES = st.builds(few, st.sampled_from((A, B, C)), st.integers(0, 6))
NUMBERS = st.integers(0, 4)


def _branches(inner: st.SearchStrategy[Generator]) -> st.SearchStrategy[Generator]:
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(InOrder, several),
        st.builds(Phases, several),
        st.builds(AnyOf, several),
        st.builds(FlipFlop, several),
        st.builds(Synchronize, inner),
        st.builds(EachSlot, inner),
        st.builds(Cycle, inner, NUMBERS),
        st.builds(Limit, NUMBERS, inner),
        st.builds(ProcessLimit, NUMBERS, inner),
        st.builds(UntilFirstOk, inner),
        st.builds(Delay, st.integers(0, MS), inner),
        st.builds(After, st.integers(0, MS), inner),
        st.builds(TimeLimit, st.integers(0, MS), inner),
        st.builds(Stagger, st.just(5000.0), NUMBERS, inner),
        st.builds(lambda part, seed: Mix(((1, part), (2, few(A, 3))), seed), inner, NUMBERS),
        st.builds(lambda part, rest: reserve([(1, part)], rest), inner, inner),
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


@given(GENERATORS, st.integers(1, 4), st.sampled_from((quick, perfect, perfect_info, imperfect)))
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
    found = simulate(Limit(count, inner), imperfect, seed=2, concurrency=concurrency)
    whole = simulate(inner, imperfect, seed=2, concurrency=concurrency)

    assert sum(isinstance(e, Invoke) for e in found) == min(
        count, sum(isinstance(e, Invoke) for e in whole)
    )


@given(GENERATORS, GENERATORS, st.integers(1, 4))
def test_phases_never_overlap(first: Generator, second: Generator, concurrency: int) -> None:
    def tagged(inner: Generator, key: int) -> Generator:
        return Map(lambda operation: replace(operation, ops=(MicroOp("w", key, 1),)), inner)

    found = simulate(
        then(tagged(first, 1), tagged(second, 2)), imperfect, seed=3, concurrency=concurrency
    )
    keys = [event.ops[0].key for event in found]

    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda g: Limit(-1, g), "0 operations or more, found -1"),
        (lambda g: TimeLimit(-1, g), "0 ns or more, found -1"),
        (lambda g: Stagger(0.0, 1, g), "a rate above 0, found 0"),
        (lambda g: Stagger(float("nan"), 1, g), "a rate above 0, found nan"),
        (lambda g: Mix(((1, g), (0, g)), 1), r"weights above 0, found \[1, 0\]"),
        (lambda g: Cycle(g, -1), "0 times or more, found -1"),
        (lambda _: FlipFlop(()), "at least one part, found none"),
        (lambda g: Delay(-5, g), "0 ns or more, found -5"),
        (lambda g: After(-5, g), "0 ns or more, found -5"),
        (lambda g: ProcessLimit(-1, g), "0 processes or more, found -1"),
    ],
)
def test_what_no_generator_can_be_is_refused_when_it_is_made(
    wrong: Callable[[Generator], Generator], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        wrong(Nothing())
