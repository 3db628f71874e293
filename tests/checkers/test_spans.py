from __future__ import annotations

import random

import numpy as np

from checkers.engine.spans import FOREVER_NS, NONE, FirstInForce, Overlaps, OwnedSpans, Spans


def test_a_span_reaches_from_its_begin_to_its_end_and_no_further() -> None:
    spans = Spans.of([(10, 20), (30, None)])
    assert spans.any_from_to(10, 20)
    assert not spans.any_from_to(9, 20)
    assert not spans.any_from_to(10, 21)
    assert spans.any_from_to(30, 10**15)
    assert not Spans().any_from_to(10**15, 0)


def test_spans_answer_as_a_look_at_each_of_them_does() -> None:
    rng = random.Random(7)
    for _ in range(200):
        given = [
            (start, None if rng.random() < 0.1 else start + rng.randrange(9))
            for start in (rng.randrange(30) for _ in range(rng.randrange(8)))
        ]
        spans = Spans.of(given)
        for by_ns in range(32):
            for until_ns in range(0, 40, 3):
                expected = any(
                    start <= by_ns and (end is None or end >= until_ns) for start, end in given
                )
                assert spans.any_from_to(by_ns, until_ns) == expected, (given, by_ns, until_ns)


def some_spans(rng: random.Random) -> list[tuple[int, int, int]]:
    """Spans, each its owner, begin and end; a few end before they begin."""
    starts = [rng.randrange(20) for _ in range(rng.randrange(8))]
    return [(rng.randrange(4), start, start + rng.randrange(-1, 9)) for start in starts]


def test_the_spans_of_others_answer_as_a_look_at_each_of_them_does() -> None:
    rng, moments = random.Random(3), np.arange(-1, 30)
    found = set()
    for _ in range(150):
        given = some_spans(rng)
        spans = OwnedSpans.of(given)
        for owner in range(4):
            for until_ns in range(0, 30, 4):
                told = spans.others_from_to(owner, moments, np.full(len(moments), until_ns))
                expected = [
                    any(o != owner and start <= by and end >= until_ns for o, start, end in given)
                    for by in moments.tolist()
                ]
                assert told.tolist() == expected, (given, owner, until_ns)
                found |= set(expected)
        several = [
            len({o for o, start, end in given if start <= at <= end}) > 1 for at in moments.tolist()
        ]
        assert spans.several_at(moments).tolist() == several, given
    assert found == {True, False}


def test_the_first_in_force_is_the_first_of_those_that_a_look_at_each_finds() -> None:
    rng, moments = random.Random(4), np.arange(-1, 30)
    for _ in range(300):
        given = [span[1:] for span in some_spans(rng)]
        told = FirstInForce.of(*zip(*given, strict=True)) if given else FirstInForce.of((), ())
        expected = [
            next((i for i, (start, end) in enumerate(given) if start <= at <= end), NONE)
            for at in moments.tolist()
        ]
        assert told.at(moments).tolist() == expected, given


def test_overlaps_are_as_long_as_the_moments_at_which_several_go_on() -> None:
    rng = random.Random(5)
    for _ in range(300):
        given = [span[1:] for span in some_spans(rng)]
        overlaps = Overlaps.of(given)
        for start_ns in range(-1, 30, 3):
            for end_ns in range(start_ns, 30, 4):
                expected = sum(
                    sum(start <= at < end for start, end in given) > 1
                    for at in range(start_ns, end_ns)
                )
                assert overlaps.between_ns(start_ns, end_ns) == expected, (given, start_ns, end_ns)


def test_the_last_end_of_those_before_is_that_of_any_that_began_earlier() -> None:
    spans = Spans.of([(10, 50), (20, 30), (40, None)])

    assert spans.latest_end_before(10) is None
    assert spans.latest_end_before(11) == 50
    assert spans.latest_end_before(40) == 50
    assert spans.latest_end_before(41) == FOREVER_NS
