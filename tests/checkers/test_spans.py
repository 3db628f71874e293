from __future__ import annotations

import random

from checkers.engine.spans import Spans


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
