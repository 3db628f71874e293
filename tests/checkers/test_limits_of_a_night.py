"""Limits over thousands of faults: in time by their number, and as loops over all of them say."""

from __future__ import annotations

import random
import time

import numpy as np

from checkers.engine.arrays import OK
from checkers.limits.gaps import longest_gaps
from checkers.limits.outcomes import indefinite_share, p99
from checkers.limits.recovery import _Others, unrecovered
from checkers.limits.served import Served, Stretch, Tries, open_in
from harness.protocols.fault_spans import FaultSpan

S = 1_000_000_000
EVERY_S, PER_S = 60, 20


def span(number: int, begin_ns: int, healed_ns: int | None) -> FaultSpan:
    return FaultSpan(
        fault=number, kind="kill", target="n1", nodes=("n1",), roles=(), state="healed",
        begin_ns=begin_ns, effective_ns=begin_ns, healing_ns=healed_ns, healed_ns=healed_ns,
    )  # fmt: skip


def night(faults: int) -> Served:
    """A fault a minute, and twenty transactions a second on two partitions."""
    count = faults * EVERY_S * PER_S
    begun = np.arange(count, dtype=np.int64) * (S // PER_S)
    ended = begun + 5_000_000
    halves = [slice(number, None, 2) for number in range(2)]
    return Served(
        txn=np.arange(count),
        intended=begun,
        begun=begun,
        ended=ended,
        type_=np.full(count, OK),
        by_partition={
            number: Tries.of(begun[half], ended[half], ended[half])
            for number, half in enumerate(halves)
        },
        drive=Stretch(start_ns=0, end_ns=faults * EVERY_S * S),
        faults=tuple(
            span(number, (number * EVERY_S + 20) * S, (number * EVERY_S + 26) * S)
            for number in range(faults)
        ),
        rate_per_s=None,
    )


def test_a_thousand_faults_are_judged_in_seconds() -> None:
    """0.9 s of a core; 130 s when each fault sorted all acknowledgements."""
    got = night(1000)
    each = tuple(
        Stretch(start_ns=fault.begin_ns, end_ns=fault.healed_ns or 0, fault=fault)
        for fault in got.faults
    )
    began_s = time.process_time()

    figures = [
        unrecovered(got, (got.drive,), 4 * S),
        longest_gaps(got, each, 4 * S),
        p99(got, each, 100.0),
        indefinite_share(got, each, 0.1),
    ]

    assert time.process_time() - began_s < 15
    assert [figure.broken for figure in figures] == [()] * 4
    assert len(got.without([(at, at + S) for at in range(0, got.drive.end_ns, 9 * S)]).txn) > 0


def test_what_was_open_in_some_period_is_what_a_loop_over_all_finds() -> None:
    draw = random.Random(3)
    for _ in range(300):
        begun = np.array([draw.randrange(100) for _ in range(30)], dtype=np.int64)
        ended = begun + np.array([draw.randrange(20) for _ in range(30)], dtype=np.int64)
        periods = [
            (at, at + draw.randrange(15))
            for at in (draw.randrange(110) for _ in range(draw.randrange(6)))
        ]

        found = open_in(begun, ended, periods).tolist()

        assert found == [
            any(first <= high and last >= low for low, high in periods)
            for first, last in zip(begun, ended, strict=True)
        ]


def test_a_heal_is_alone_until_what_a_loop_over_all_faults_says() -> None:
    draw = random.Random(5)
    for _ in range(300):
        begins = sorted(draw.randrange(60) for _ in range(draw.randrange(1, 7)))
        faults = tuple(
            span(number, at, None if draw.random() < 0.1 else at + draw.randrange(25))
            for number, at in enumerate(begins)
        )
        one = night(1)
        got = Served(
            **{name: getattr(one, name) for name in ("txn", "intended", "begun", "ended", "type_")},
            by_partition={}, drive=Stretch(start_ns=0, end_ns=70), faults=faults, rate_per_s=None,
        )  # fmt: skip
        others = _Others.of(got)
        for fault in faults:
            if fault.healed_ns is None:
                continue
            until = 70
            for other in faults:
                if other.fault == fault.fault:
                    continue
                if other.begin_ns > fault.healed_ns:
                    until = min(until, other.begin_ns)
                elif other.healed_ns is None or other.healed_ns > fault.healed_ns:
                    until = fault.healed_ns
                    break
            assert others.calm_until(fault, fault.healed_ns) == until
