"""Limits over thousands of faults: in time by their number, and as loops over all of them say."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest

from checkers.engine.arrays import INFO, OK, Ints
from checkers.limits import gaps
from checkers.limits.client_outcomes import ClientOutcomes, Scope, Tries, open_in
from checkers.limits.gaps import UNASKED_SHARE, longest_gaps, silences
from checkers.limits.outcomes import indefinite_share, p99
from checkers.limits.recovery import unrecovered
from checkers.limits.stalls import Stalls
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.recovery import Calms

S = 1_000_000_000
EVERY_S, PER_S = 60, 20
# When nothing of a night is acknowledged: from within its 51st fault until 6 s after its heal.
OUT_S = (3_022, 3_032)
CPU_S = 15.0
SPIN_S = 0.13  # of a machine on which the bar is ``CPU_S``; a slower one may take longer


def span(number: int, begin_ns: int, healed_ns: int | None) -> FaultSpan:
    return FaultSpan(
        fault=number, kind="kill", target="n1", nodes=("n1",), roles=(), state="healed",
        begin_ns=begin_ns, effective_ns=begin_ns, healing_ns=healed_ns, healed_ns=healed_ns,
    )  # fmt: skip


def night(faults: int, out_s: tuple[int, int] = (0, 0)) -> ClientOutcomes:
    """A fault a minute, and twenty transactions a second on two partitions."""
    count = faults * EVERY_S * PER_S
    begun = np.arange(count, dtype=np.int64) * (S // PER_S)
    out = (begun >= out_s[0] * S) & (begun < out_s[1] * S)
    ended = begun + np.where(out, S, 5_000_000)
    halves = [np.arange(number, count, 2) for number in range(2)]
    return ClientOutcomes(
        txn=np.arange(count),
        intended=begun,
        begun=begun,
        ended=ended,
        type_=np.where(out, INFO, OK),
        by_partition={
            number: Tries.of(begun[half], ended[half], ended[half][~out[half]])
            for number, half in enumerate(halves)
        },
        drive=Scope(start_ns=0, end_ns=faults * EVERY_S * S),
        faults=tuple(
            span(number, (number * EVERY_S + 20) * S, (number * EVERY_S + 26) * S)
            for number in range(faults)
        ),
        arrivals=None,
    )


def slowness() -> float:
    """How much slower this machine is at this moment than that of the bar."""
    begun_s = time.process_time()
    sum(number for number in range(5_000_000))
    return max(1.0, (time.process_time() - begun_s) / SPIN_S)


def test_a_thousand_faults_are_judged_in_seconds() -> None:
    """2 s of a core for both; 130 s for one when each fault sorted all acknowledgements."""
    sound, out = night(1000), night(1000, OUT_S)
    each = tuple(
        Scope(start_ns=fault.begin_ns, end_ns=fault.healed_ns or 0, fault=fault)
        for fault in sound.faults
    )
    began_s = time.process_time()

    figures = [
        [
            unrecovered(got, (got.drive,), 4 * S),
            longest_gaps(got, each, 4 * S),
            indefinite_share(got, each, 0.0002),
            p99(got, each, 100.0),
        ]
        for got in (sound, out)
    ]

    assert (time.process_time() - began_s) / slowness() < CPU_S
    kept, broken = ([figure.broken for figure in of] for of in figures)
    assert kept == [(), (), (), ()]
    recovery, (gap, *of_partitions), (indefinite,), p99_of_the_acknowledged = broken
    assert {one.partition for one in recovery} == {None, 0, 1}
    assert {one.start_ns for one in recovery} == {3_026 * S}
    assert (gap.start_ns, gap.end_ns) == (OUT_S[0] * S, OUT_S[1] * S + 5_000_000)
    assert [one.partition for one in of_partitions] == [0, 1]
    assert (indefinite.start_ns, indefinite.end_ns) == (3_020 * S, 3_026 * S)
    assert p99_of_the_acknowledged == ()
    assert len(sound.without([(at, at + S) for at in range(0, sound.drive.end_ns, 9 * S)]).txn) > 0


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


def asked_by_a_loop(
    tries: Tries, stretch: Scope, last_ns: int, least: int
) -> list[tuple[int, int]]:
    """All silences of ``stretch``, one time between acknowledgements after another: of all runs of
    tries within it those whose widest time without a try is at most their share, and which are in
    no longer such run.
    """
    acks = tries.acks.tolist()
    until_ns = min(stretch.end_ns, last_ns)
    inside = [at for at in acks if stretch.start_ns < at < until_ns]
    behind = [at for at in acks if at >= until_ns]
    points = [stretch.start_ns, *inside, max(stretch.start_ns, min([last_ns, *behind[:1]]))]
    found = []
    for start, end in itertools.pairwise(points):
        rows = [
            (max(begun, start), min(max(begun, ended), end))
            for begun, ended in zip(tries.begun.tolist(), tries.ended.tolist(), strict=True)
            if begun < end and ended > start
        ]
        wholes = [
            (first, last)
            for first, last in itertools.combinations_with_replacement(range(len(rows)), 2)
            if asked_all_the_while(rows, first, last)
        ]
        found += [
            (rows[first][0], latest(rows, last))
            for first, last in wholes
            if last - first + 1 >= least
            and not any(
                other != (first, last) and other[0] <= first and other[1] >= last
                for other in wholes
            )
        ]
    return found


def latest(rows: list[tuple[int, int]], last: int) -> int:
    """By when all tries up to ``last`` had ended."""
    return max(until for _, until in rows[: last + 1])


def asked_all_the_while(rows: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether no time between these tries is a larger share of theirs than may be unasked; a run
    that begins while an earlier try is open is none of its own.
    """
    if first and rows[first][0] <= latest(rows, first - 1):
        return False
    length = latest(rows, last) - rows[first][0]
    widest = max(
        (rows[at][0] - latest(rows, at - 1) for at in range(first + 1, last + 1)), default=0
    )
    return widest <= UNASKED_SHARE * length


@pytest.mark.parametrize("in_steps", [False, True])
def test_the_silences_are_those_that_a_loop_over_all_acknowledgements_finds(
    in_steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "FIRST_ROUND", 2)
    draw = random.Random(7)
    for _ in range(400):
        count, allowed, least = draw.randrange(40), draw.randrange(1, 12), draw.choice([1, 3])
        begun = np.array([draw.randrange(100) for _ in range(count)], dtype=np.int64)
        took = np.array([draw.randrange(9) for _ in range(count)], dtype=np.int64)
        ok = np.array([draw.random() < 0.4 for _ in range(count)], dtype=np.bool_)
        ended = begun + took
        # As steps are told: when a try had begun for certain, and may have ended at the earliest.
        tries = Tries.of(begun + 3 * in_steps, ended, ended[ok])
        low = draw.randrange(100)
        stretch = Scope(start_ns=low, end_ns=low + draw.randrange(60))

        starts, ends = silences(tries, stretch, 105, allowed, least=least)

        found = list(zip(starts.tolist(), ends.tolist(), strict=True))
        wanted = asked_by_a_loop(tries, stretch, 105, least)
        longest = max((end - start for start, end in wanted), default=0)
        assert set(found) <= set(wanted)
        assert {one for one in wanted if one[1] - one[0] > allowed} <= set(found)
        assert max((end - start for start, end in found), default=0) == longest


def test_no_silence_goes_on_past_the_end_of_the_drive() -> None:
    """A fault whose healing is proven late, and a transaction that ends behind the drive."""
    at = np.array([1, 50, 55], dtype=np.int64)
    ended = np.array([2, 53, 70], dtype=np.int64)
    tries = Tries.of(at, ended, ended)

    starts, ends = silences(tries, Scope(start_ns=50, end_ns=75), 60, 1)

    assert int((ends - starts).max()) == 5
    assert int(ends.max()) <= 60


def test_what_is_measured_of_silences_depends_on_no_limit() -> None:
    """Tries that follow one another at intervals of all sizes."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        begun_s = np.cumsum(rng.choice([0.02, 0.3, 1.0, 4.0], 200) * rng.exponential(1, 200))
        got = rare(begun_s, rng.random(200) < 0.8)
        limits = [S // 100, S // 3, S, 3 * S, 9 * S, 30 * S, 300 * S]

        figures = [longest_gaps(got, (got.drive,), allowed_ns) for allowed_ns in limits]

        measured = {(one.measured, one.start_ns, one.end_ns) for one in figures}
        assert len(measured) == 1
        for allowed_ns, one in zip(limits, figures, strict=True):
            assert bool(one.broken) == (one.measured * S > allowed_ns)


def rare(begun_s: Ints, out: Ints) -> ClientOutcomes:
    """Transactions of 10 ms each, begun at these times; those ``out`` end after a second, and
    without an outcome.
    """
    begun = np.asarray(begun_s * S, dtype=np.int64)
    ended = begun + np.where(out, S, S // 100)
    return ClientOutcomes(
        txn=np.arange(len(begun)), intended=begun, begun=begun, ended=ended,
        type_=np.where(out, INFO, OK), by_partition={}, faults=(), arrivals=None,
        drive=Scope(start_ns=0, end_ns=int(ended.max())),
    )  # fmt: skip


def test_an_outage_is_found_among_more_pauses_that_are_longer() -> None:
    """150 bursts of 5 s, 9 s apart; for the last 3 s of the 70th nothing is acknowledged."""
    begun_s = np.concatenate([14.0 * burst + np.arange(0, 5, 0.05) for burst in range(150)])
    out = (begun_s >= 14 * 69 + 2) & (begun_s < 14 * 69 + 5)

    figure = longest_gaps(rare(begun_s, out), (Scope(start_ns=0, end_ns=3000 * S),), 2 * S)

    (gap,) = figure.broken
    assert (gap.start_ns, figure.measured) == ((14 * 69 + 2) * S, pytest.approx(3.95))


def test_an_outage_is_found_in_a_night_in_which_clients_seldom_ask() -> None:
    """0.4 a second for 8 hours; four tries within 3 s find nothing."""
    rng = np.random.default_rng(3)
    begun_s = np.cumsum(rng.exponential(2.5, 11_000))
    at_s = float(begun_s[5_000])
    begun_s = begun_s[(begun_s <= at_s) | (begun_s > at_s + 4)]
    tries_s = at_s + np.array([0.1, 0.9, 1.8, 2.7])
    begun_s = np.sort(np.append(begun_s, tries_s))

    figure = longest_gaps(
        rare(begun_s, np.isin(begun_s, tries_s)), (Scope(start_ns=0, end_ns=30_000 * S),), 2 * S
    )

    (gap,) = figure.broken
    assert gap.measured == pytest.approx(3.6)


def test_every_breach_is_counted_and_the_longest_are_told() -> None:
    begun_s = np.arange(0, 3000, 0.1)
    out = (begun_s % 10 >= 5) & (begun_s % 10 < 7 + begun_s / 3000)
    got = rare(begun_s, out)

    figure = longest_gaps(got, (got.drive,), 2 * S)
    starved = longest_gaps(
        got, (got.drive,), 2 * S, Stalls(periods=((0, 1000 * S),), lengths_ns=(1000 * S,))
    )

    assert len(figure.broken) + figure.untold == 300
    assert all(one.end_ns > 2_700 * S for one in figure.broken), "each tenth of a second longer"
    assert len(starved.broken) + starved.untold == 200
    assert starved.measured == figure.measured


def test_a_heal_is_alone_until_what_a_loop_over_all_faults_says() -> None:
    draw = random.Random(5)
    for _ in range(300):
        begins = sorted(draw.randrange(60) for _ in range(draw.randrange(1, 7)))
        faults = tuple(
            span(number, at, None if draw.random() < 0.1 else at + draw.randrange(25))
            for number, at in enumerate(begins)
        )
        calms = Calms.of(faults, 0, 70)
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
            assert calms.until(fault, fault.healed_ns) == max(until, fault.healed_ns)
