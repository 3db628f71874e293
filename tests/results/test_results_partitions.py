"""The strips of availability: a silence that nears what a limit allows is on them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import NS, valid

from harness.protocols.verdict import JudgedLimit, LimitState
from results.drawing.partitions import Touches, lanes, shortest_shown_s
from results.report.limit_rows import shortest_gap_s

StateSpan = tuple[float, float]
TICK_S = 0.1
LAST = 60  # in ticks: below, silences are held against a clock that stops at each of them

Tries = list[tuple[int, int, bool]]
TRIES = st.lists(st.tuples(st.integers(0, LAST), st.integers(1, 25), st.booleans()), min_size=1)


def touches(*tries: tuple[float, float, bool]) -> Touches:
    """Transactions of one partition: when each began and ended, and if it was acknowledged."""
    begun, ended, ok = zip(*tries, strict=True)
    return Touches(
        partition=np.zeros(len(tries), dtype=np.int64), begun_s=np.array(begun, dtype=np.float64),
        ended_s=np.array(ended, dtype=np.float64), ok=np.array(ok, dtype=np.bool_),
    )  # fmt: skip


def under_a_kill(gap_s: float) -> Touches:
    """Acknowledged each 50 ms of 40 s, but for ``gap_s`` from 10.2 s on, in which one is open."""
    at_s = [round(0.05 * n, 2) for n in range(800)]
    quick = [(s, s + 0.01, True) for s in at_s if not 10.2 < s + 0.01 < 10.2 + gap_s]
    return touches(*quick, (10.2, 10.2 + gap_s, True))


@pytest.mark.parametrize("gap_s", [1.1, 1.4, 1.75])
def test_a_silence_of_which_each_window_has_an_acknowledgement_is_shown_from_end_to_end(
    gap_s: float,
) -> None:
    (lane,) = lanes(under_a_kill(gap_s), 0.0, 40.0, allowed_s=1.0)

    (silence,) = lane.silent
    assert silence == pytest.approx((10.2, 10.2 + gap_s), abs=0.02)
    assert lane.served == ((0.0, silence[0]), (silence[1], 40.0))


def test_one_that_nears_a_limit_is_shown_and_a_shorter_one_is_not() -> None:
    near, far = under_a_kill(0.3), under_a_kill(0.2)

    assert lanes(near, 0.0, 40.0, allowed_s=0.5)[0].silent
    assert not lanes(far, 0.0, 40.0, allowed_s=0.5)[0].silent
    assert not lanes(near, 0.0, 40.0)[0].silent, "no limit asks for it"


def test_of_a_long_run_silences_within_a_limit_are_no_more_than_dots_and_not_shown() -> None:
    night_s = 8 * 3600.0

    assert shortest_shown_s(40.0, 1.0) == 0.5
    assert shortest_shown_s(night_s, 1.0) == 1.0, "half of it were less than a dot"
    assert shortest_shown_s(40.0, 3600.0) == shortest_shown_s(40.0, None) == 0.5


def test_a_time_in_which_no_client_asks_is_no_silence_and_one_begins_with_the_next_try() -> None:
    (idle,) = lanes(touches((1.0, 1.1, True), (5.0, 5.1, True)), 0.0, 10.0, 1.0)
    (late,) = lanes(touches((1.0, 1.1, True), (5.0, 5.9, True)), 0.0, 10.0, 1.0)
    (refused,) = lanes(touches((1.0, 1.1, True), (5.2, 5.8, False), (5.9, 6.5, True)), 0, 10, 1.0)

    assert idle.silent == ()
    assert late.silent == ((5.0, 5.9),)
    # The try that was refused leaves its window without an acknowledgement.
    assert refused.silent == ((5.0, 6.5),)


@given(TRIES, st.integers(2, 12))
def test_silences_are_those_that_a_clock_finds_tick_by_tick(tries: Tries, least: int) -> None:
    given_tries = [(a * TICK_S, min(a + n, LAST + 9) * TICK_S, ok) for a, n, ok in tries]
    allowed_s = 2 * least * TICK_S

    (lane,) = lanes(touches(*given_tries), 0.0, LAST * TICK_S, allowed_s)

    shown = shortest_shown_s(LAST * TICK_S, allowed_s) / TICK_S
    acks = {a + n for a, n, ok in tries if ok and a + n <= LAST}
    still = 0
    for tick in range(LAST):
        is_open = any(a <= tick and tick + 1 <= a + n for a, n, _ in tries)
        still = still + 1 if is_open and (tick not in acks or not still) else int(is_open)
        # Open without a break for so long, and nothing acknowledged in between.
        if still >= shown + 1e-6:
            middle_s = (tick + 0.5) * TICK_S
            assert any(low <= middle_s <= high for low, high in lane.silent), (tick, lane)
            assert not any(low < middle_s < high for low, high in lane.served), (tick, lane)
    for stretches in (lane.served, lane.silent):
        assert all(low < high for low, high in stretches)
        assert list(stretches) == sorted(stretches)
    for (_, low), (high, _) in zip(lane.silent, lane.silent[1:], strict=False):
        assert low <= high


def test_the_limit_that_asks_most_says_which_silences_are_shown() -> None:
    limits = tuple(
        JudgedLimit(
            name=name, allowed=allowed, measured=None, state=LimitState.UNDECIDED,
            start_ns=NS, end_ns=2 * NS,
        )
        for name, allowed in (
            ("promise.longest_gap_s", 3.0), ("promise.kill.longest_gap_s", 0.8),
            ("promise.recovered_within_s", 0.1),
        )
    )  # fmt: skip

    assert shortest_gap_s(msgspec.structs.replace(valid(), limits=limits)) == 0.8
    assert shortest_gap_s(valid()) is None
    assert shortest_gap_s(None) is None
