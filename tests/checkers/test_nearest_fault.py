"""The fault that explains a loss is the one that a look at each pair of them finds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkers.engine.spans import FOREVER_NS
from checkers.explain.nearest_fault import Faults, Moments

moments = st.integers(0, 20)
spans = st.tuples(moments, moments | st.none())
losses = st.tuples(moments, moments, moments)


def by_pairs(faults: Sequence[tuple[int, int | None]], loss: tuple[int, int, int]) -> int:
    since, ack, read = loss
    met = [
        (max(begin - ack, ack - (FOREVER_NS if end is None else end), 0), place)
        for place, (begin, end) in enumerate(faults)
        if begin <= read and (end is None or end >= since)
    ]
    return min(met)[1] if met else -1


def nearest(
    faults: Sequence[tuple[int, int | None]], lost: Sequence[tuple[int, int, int]]
) -> list[int]:
    columns = np.array(lost, np.int64).reshape(-1, 3).T
    found: list[int] = Faults.of(faults).nearest(Moments.of(*columns)).tolist()
    return found


@given(st.lists(spans, max_size=8), st.lists(losses, max_size=8))
def test_the_nearest_fault_is_the_one_that_a_look_at_each_pair_finds(
    faults: list[tuple[int, int | None]], lost: list[tuple[int, int, int]]
) -> None:
    assert nearest(faults, lost) == [by_pairs(faults, loss) for loss in lost]


@given(st.lists(st.tuples(moments, moments), max_size=12), st.lists(losses, max_size=12))
def test_so_it_is_where_faults_end_after_they_began_and_losses_are_in_order(
    faults: list[tuple[int, int]], lost: list[tuple[int, int, int]]
) -> None:
    ordered = [(min(span), max(span)) for span in faults]
    sound = [tuple(sorted(loss)) for loss in lost]

    assert nearest(ordered, sound) == [by_pairs(ordered, loss) for loss in sound]  # type: ignore[arg-type]


def test_faults_of_a_long_run_are_found_the_same() -> None:
    rng = random.Random(3)
    faults = [(at, at + rng.randrange(40)) for at in (rng.randrange(2_000) for _ in range(300))]
    lost = [(at, at + rng.randrange(30), at + 60) for at in range(0, 2_000, 7)]

    assert nearest(faults, lost) == [by_pairs(faults, loss) for loss in lost]
