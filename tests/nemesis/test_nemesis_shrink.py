"""Delta debugging ends with something that still fails and of which nothing can be left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nemesis.delta_debugging import fewest, least

Part = tuple[int, ...]


class Failing:
    """Fails where all ``needed`` are there; counts what it was asked."""

    def __init__(self, needed: frozenset[int]) -> None:
        self.needed, self.asked = needed, 0

    def __call__(self, candidates: list[Part]) -> int | None:
        for place, candidate in enumerate(candidates):
            self.asked += 1
            if self.needed <= set(candidate):
                return place
        return None


@given(st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_exactly_what_is_needed_is_left_in_its_order(drawn: tuple[int, set[int]]) -> None:
    count, needed = drawn
    fails = Failing(frozenset(needed))

    assert fewest(range(count), fails) == tuple(sorted(needed))
    assert fails.asked <= 2 + count * count + 6 * count


@given(st.lists(st.booleans(), min_size=1, max_size=10))
def test_where_either_of_two_will_do_one_is_left(flags: list[bool]) -> None:
    def fails(candidates: list[tuple[bool, ...]]) -> int | None:
        return next((i for i, candidate in enumerate(candidates) if any(candidate)), None)

    if any(flags):
        assert fewest(flags, fails) == (True,)


def test_nothing_is_left_where_nothing_is_needed() -> None:
    assert fewest([1, 2, 3], Failing(frozenset())) == ()


def test_a_value_gets_smaller_as_long_as_it_fails() -> None:
    def ways(value: int) -> list[int]:
        return [value // 2, value - 1] if value else []

    found = least(100, ways, lambda candidates: next((c for c in candidates if c >= 13), None))

    assert found == 13
    assert least(100, ways, lambda candidates: None) == 100
