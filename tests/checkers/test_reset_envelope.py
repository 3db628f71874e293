"""What a reset may cost: histories at the border of the envelope, beside a brute-force oracle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import msgspec
import pytest
from checker_histories import STRICT, Txn, a, info, ok, r
from reset_generator import generated
from reset_histories import (
    HA,
    MS,
    ResetEvent,
    ResetHistory,
    Sample,
    verdict_of,
)
from reset_oracle import permitted

from harness.protocols.verdict import encode

GENERATED = 200


def w(key: int, element: int, start: int, finish: int | None = None) -> Txn:
    return ok(a(key, element), start=start, finish=start + 4 if finish is None else finish)


def s(start: int, *reads: tuple[int, tuple[int, ...]], finish: int | None = None) -> Txn:
    ops = [r(key, *seen) for key, seen in reads]
    return ok(*ops, start=start, finish=start + 4 if finish is None else finish)


def reset(generation: int = 1, since: int = 50, until: int = 60, **more: Any) -> ResetEvent:
    return ResetEvent(partition=1, generation=generation, since=since, until=until, **more)


def restored(generation: int, previous: int, since: int, **more: Any) -> ResetEvent:
    return reset(generation, since, since + 10, previous=previous, restores=True, **more)


def of(*parts: Any) -> ResetHistory:
    return ResetHistory(
        txns=tuple(p for p in parts if isinstance(p, Txn)),
        resets=tuple(p for p in parts if isinstance(p, ResetEvent)),
        samples=tuple(p for p in parts if isinstance(p, Sample)),
    )


AB = (w(1, 1, 0), w(1, 2, 10))
CASES: dict[str, tuple[ResetHistory, str | None]] = {
    # One reset, one key.
    "nothing lost": (of(*AB, reset(), s(80, (1, (1, 2)))), None),
    "the last write lost": (of(*AB, reset(), s(80, (1, (1,)))), "lost-by-reset"),
    "all lost": (of(*AB, reset(), s(80, (1, ()))), "lost-by-reset"),
    "no reset told": (of(*AB, s(80, (1, (1,)))), "lost-write"),
    "a reset of another partition": (
        of(*AB, attrs.evolve(reset(), partition=0), s(80, (1, (1,)))), "lost-write"),
    "acknowledged after the reset": (
        of(w(1, 1, 0), w(1, 2, 70), reset(), s(80, (1, (1,)))), "lost-write"),
    "in flight while it was reset": (
        of(w(1, 1, 0), w(1, 2, 45, 65), reset(), s(80, (1, (1,)))), "lost-by-reset"),
    "acknowledged seconds after what cut it": (
        of(w(1, 1, 0), w(1, 2, 45, 1200), reset(), s(1210, (1, (1,)))), "lost-write"),
    "begun within the error of its time": (
        of(w(1, 1, 0), w(1, 2, 58, 63), reset(), s(80, (1, (1,)))), "lost-by-reset"),
    "read before the reset was over": (
        of(*AB, s(40, (1, (1,))), reset()), "lost-write"),
    "read while it was reset": (of(*AB, s(52, (1, (1,))), reset()), "lost-by-reset"),
    "a new suffix": (
        of(*AB, reset(), w(1, 3, 70), s(80, (1, (1, 3)))), "lost-by-reset"),
    "the middle lost": (
        of(*AB, w(1, 3, 20), s(30, (1, (1, 2, 3))), reset(), s(80, (1, (1, 3)))),
        "mixed-generations"),
    "the first lost": (
        of(*AB, s(30, (1, (1, 2))), reset(), s(80, (1, (2,)))), "mixed-generations"),
    "in another order": (
        of(*AB, s(30, (1, (1, 2))), reset(), s(80, (1, (2, 1)))), "mixed-generations"),
    # What was lost comes back.
    "back in the same generation": (
        of(*AB, reset(), s(80, (1, (1,))), s(90, (1, (1, 2)))), "G-single-item-realtime"),
    "back after new writes": (
        of(*AB, reset(), w(1, 3, 70), s(80, (1, (1, 3))), s(90, (1, (1, 3, 2)))),
        "G0-realtime"),
    "back with the next reset": (
        of(*AB, reset(), s(80, (1, (1,))), reset(2, 100, 110), s(120, (1, (1, 2)))),
        "returned-write"),
    "back in place of what came after": (
        of(*AB, reset(), w(1, 3, 70), s(80, (1, (1, 3))), reset(2, 100, 110),
           s(120, (1, (1, 2)))), "mixed-generations"),
    "restored": (
        of(*AB, reset(), s(80, (1, (1,))), restored(2, 0, 100), s(120, (1, (1, 2)))), None),
    "restored in part": (
        of(*AB, w(1, 3, 20), reset(), s(80, (1, (1,))), restored(2, 0, 100),
           s(120, (1, (1, 2)))), "restored-in-part"),
    "restored and not there": (
        of(*AB, reset(), restored(2, 0, 100), s(120, (1, (1,)))), "restored-in-part"),
    "restored over a write": (
        of(*AB, reset(), w(1, 3, 70), restored(2, 0, 100), s(120, (1, (1, 2)))),
        "restored-over-writes"),
    "restored over a write of another key": (
        of(*AB, reset(), w(3, 3, 70), restored(2, 0, 100), s(120, (1, (1, 2)), (3, ()))),
        "restored-over-writes"),
    "restored, then lost with a third reset": (
        of(*AB, reset(), restored(2, 0, 100), s(120, (1, (1, 2))), reset(3, 140, 150),
           s(160, (1, (1,)))), "lost-by-reset"),
    # Several resets.
    "each reset costs once": (
        of(*AB, w(1, 3, 20), reset(), s(70, (1, (1, 2))), reset(2, 100, 110),
           s(120, (1, (1,)))), "lost-by-reset"),
    "one reset costs twice": (
        of(*AB, w(1, 3, 20), reset(), s(70, (1, (1, 2))), s(120, (1, (1,)))), "lost-write"),
    "the second reset takes what was written since": (
        of(*AB, reset(), w(1, 3, 70), reset(2, 100, 110), s(120, (1, (1, 2)))),
        "lost-by-reset"),
    "what was written since is lost without one": (
        of(*AB, reset(), w(1, 3, 70), s(120, (1, (1, 2)))), "lost-write"),
    "gone before the reset, as a read shows": (
        of(*AB, s(30, (1, (1,))), reset(), s(80, (1, (1,)))), "lost-write"),
    "gone before the second reset, as a read shows": (
        of(*AB, reset(), w(1, 3, 70), s(85, (1, (1, 2))), reset(2, 100, 110),
           s(120, (1, (1, 2)))), "lost-write"),
    "missed by a read that another one contradicts": (
        of(*AB, reset(), w(1, 3, 70), s(80, (1, (1, 2))), s(90, (1, (1, 2, 3))),
           reset(2, 100, 110), s(120, (1, (1, 2)))), "G-single-item-realtime"),
    # Over the keys of a partition.
    "a later write of another key is lost, too": (
        of(w(1, 1, 0), w(3, 2, 10), reset(), s(80, (1, ()), (3, ()))), "lost-by-reset"),
    "an earlier write of another key is kept": (
        of(w(1, 1, 0), w(3, 2, 10), reset(), s(80, (1, (1,)), (3, ()))), "lost-by-reset"),
    "a later write of another key is kept": (
        of(w(1, 1, 0), w(3, 2, 10), reset(), s(80, (1, ()), (3, (2,)))), "not-a-prefix"),
    "writes at once: either may be lost": (
        of(w(1, 1, 0, 20), w(3, 2, 10, 25), reset(), s(80, (1, ()), (3, (2,)))),
        "lost-by-reset"),
    "one of a transaction's two keys": (
        of(ok(a(1, 1), a(3, 2), start=0, finish=9), reset(), s(80, (1, (1,)), (3, ()))),
        "torn-in-partition"),
    "served again after another was read": (
        of(w(1, 1, 0), w(3, 2, 10), s(52, (1, ())), s(58, (3, (2,))), reset(1, 50, 64),
           s(80, (1, ()), (3, ()))), "mixed-generations"),
    # Over partitions.
    "torn by a reset": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), reset(), s(80, (1, ()), (2, (2,)))),
        "torn-by-reset"),
    "torn where nothing was reset": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), reset(), s(80, (1, (1,)), (2, ()))),
        "lost-write"),
    "given up with the outcome that a reset took": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), reset(), s(80, (1, ()), (2, ()))),
        "torn-by-reset"),
    "given up in one of two other keys": (
        of(ok(a(1, 1), a(2, 2), a(4, 3), start=0, finish=9), reset(),
           s(80, (1, ()), (2, ()), (4, (3,)))), "lost-write"),
    "given up though it was read": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), s(20, (2, (2,))), reset(),
           s(80, (1, ()), (2, ()))), "lost-write"),
    "given up though another followed": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), w(2, 3, 20), reset(),
           s(80, (1, ()), (2, (3,)))), "lost-write"),
    "given up, and another follows later": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), reset(), w(2, 3, 70),
           s(80, (1, ()), (2, (3,)))), "torn-by-reset"),
    "given up before there was a reset": (
        of(ok(a(1, 1), a(2, 2), start=0, finish=9), s(20, (2, ())), reset(), s(80, (1, ()))),
        "lost-write"),
    "given up with a write that nobody lost": (
        of(w(1, 1, 0), w(2, 2, 10), reset(), s(80, (1, ()), (2, ()))), "lost-write"),
    "missed before the reset": (
        of(w(1, 1, 0), s(20, (1, ())), reset(), s(80, (1, ()))), "G-single-item-realtime"),
    # A write that depends on what is lost.
    "dependent in another partition": (
        of(w(1, 1, 0), ok(r(1, 1), a(2, 2), start=10, finish=15), reset(),
           s(80, (1, ()), (2, (2,)))), "lost-by-reset"),
    # Of unknown outcome.
    "unknown, seen and lost": (
        of(info(a(1, 1), start=0, finish=5), s(20, (1, (1,))), reset(), s(80, (1, ()))), None),
    "unknown, takes effect after the reset": (
        of(w(1, 1, 0), info(a(1, 2), start=20, finish=25), reset(), w(1, 3, 70),
           s(80, (1, (1, 3, 2)))), None),
    # Held by a survivor.
    "held by a survivor": (
        of(*AB, Sample(node="n1", partition=1, asked=20, answered=21, index=2, acting=True),
           Sample(node="n2", partition=1, asked=30, answered=31, index=2),
           reset(survivors=("n2",)), s(80, (1, (1,)))), "lost-write"),
    "held by none that survives": (
        of(*AB, Sample(node="n1", partition=1, asked=20, answered=21, index=2, acting=True),
           Sample(node="n2", partition=1, asked=30, answered=31, index=1),
           Sample(node="n3", partition=1, asked=30, answered=31, index=2),
           reset(survivors=("n2",)), s(80, (1, (1,)))), "lost-by-reset"),
    "held by a survivor of the first reset, by none of the second": (
        of(*AB, Sample(node="n1", partition=1, asked=20, answered=21, index=2, acting=True),
           Sample(node="n2", partition=1, asked=30, answered=31, index=2),
           reset(survivors=("n2",)),
           Sample(node="n2", partition=1, asked=80, answered=81, index=2, acting=True,
                  generation=1),
           Sample(node="n3", partition=1, asked=80, answered=81, index=1, generation=1),
           reset(2, 100, 110, survivors=("n3",)), s(120, (1, (1,)))), "lost-by-reset"),
    "held by a survivor of each of two resets": (
        of(*AB, Sample(node="n1", partition=1, asked=20, answered=21, index=2, acting=True),
           Sample(node="n2", partition=1, asked=30, answered=31, index=2),
           reset(survivors=("n2",)),
           Sample(node="n2", partition=1, asked=80, answered=81, index=2, acting=True,
                  generation=1),
           Sample(node="n3", partition=1, asked=80, answered=81, index=2, generation=1),
           reset(2, 100, 110, survivors=("n3",)), s(120, (1, (1,)))), "lost-write"),
    "cut below what a survivor had applied": (
        of(*AB, Sample(node="n2", partition=1, asked=30, answered=31, index=2),
           reset(survivors=("n2",), base=1), s(80, (1, (1, 2)))), "reset-over-survivor"),
}  # fmt: skip

PERMITTED = {"lost-by-reset", "torn-by-reset", None}


@pytest.mark.parametrize("name", CASES)
def test_a_history_at_the_border_is_judged_as_the_oracle_does(name: str) -> None:
    history, told = CASES[name]
    last = max(txn.start for txn in history.txns)
    found = verdict_of(history, phases=(("drive", 0), ("final-reads", last * MS)))

    assert (found.outcome == "violation") is (told not in PERMITTED)
    assert permitted(history) is (told in PERMITTED)
    if told in PERMITTED:
        assert not found.anomalies
        assert told is None or told in found.observed
        assert told is not None or not set(found.observed) & PERMITTED
    else:
        assert told in found.anomalies
        assert all(example.text for example in found.anomalies[told].examples)


def test_there_are_forty_of_them() -> None:
    assert len(CASES) >= 40


def test_generated_histories_are_judged_as_the_oracle_does() -> None:
    met: Counter[tuple[bool, bool]] = Counter()
    for seed in range(GENERATED):
        history = generated(seed)
        found = verdict_of(history)
        may = permitted(history)
        assert (found.outcome == "violation") is not may, seed
        met[may, "lost-by-reset" in found.observed] += 1

    assert met[True, True] >= 20
    assert met[False, True] + met[False, False] >= 20


@pytest.mark.parametrize("mode", ["SC", "of another store"])
def test_without_ha_a_reset_permits_nothing(mode: str) -> None:
    history, _ = CASES["the last write lost"]
    strict = msgspec.structs.replace(STRICT, mode=mode)

    found = verdict_of(history, declaration=strict)

    assert found.outcome == "violation"
    assert "lost-write" in found.anomalies
    assert ("reset-in-sc" in found.anomalies) is (mode == "SC")


@pytest.mark.parametrize("name", CASES)
def test_in_sc_a_reset_that_an_operator_asked_for_has_the_envelope_of_ha(name: str) -> None:
    history, _ = CASES[name]
    asked = tuple(attrs.evolve(each, asked=True) for each in history.resets)

    strict = verdict_of(attrs.evolve(history, resets=asked), declaration=STRICT)
    available = verdict_of(history)

    assert strict.outcome == available.outcome
    assert strict.anomalies == available.anomalies
    assert strict.observed == available.observed


def test_in_sc_a_loss_needs_the_reset_that_was_asked_for_and_no_other() -> None:
    # The second of two resets of the partition takes a write, and only the first was asked for.
    asked, other = reset(asked=True), reset(2, 100, 110)
    history = of(*AB, asked, w(1, 3, 80), other, s(120, (1, (1, 2))))

    found = verdict_of(history, declaration=STRICT)

    assert {"reset-in-sc", "lost-write"} <= found.anomalies.keys()
    assert "lost-by-reset" not in found.observed
    history = of(*AB, asked, w(1, 3, 80), attrs.evolve(other, asked=True), s(120, (1, (1, 2))))
    assert verdict_of(history, declaration=STRICT).outcome == "valid"


def test_a_reset_in_sc_is_a_violation_though_nothing_was_lost() -> None:
    history, _ = CASES["nothing lost"]

    found = verdict_of(history, declaration=STRICT)

    assert list(found.anomalies) == ["reset-in-sc"]
    [example] = found.anomalies["reset-in-sc"].examples
    assert example.details == {"partition": 1, "generation": 1}
    assert verdict_of(history, declaration=HA).outcome == "valid"


def test_a_survivors_clause_that_no_states_tell_is_said_to_be_unjudged() -> None:
    without, _ = CASES["the last write lost"]
    sampled, _ = CASES["held by none that survives"]

    first, second = verdict_of(without), verdict_of(sampled)

    assert first.statistics["lost_writes"]["of_these_survivors_unjudged"] == 1
    assert "not judged" in first.observed["lost-by-reset"].examples[0].text
    assert second.statistics["lost_writes"]["of_these_survivors_unjudged"] == 0


@pytest.mark.parametrize(
    ("base", "base_term", "kept"), [(5, 1, False), (5, 2, True), (1, 3, False)]
)
def test_a_longer_log_of_an_earlier_term_lacks_what_a_survivor_had_applied(
    base: int, base_term: int, kept: bool
) -> None:
    # n2 has applied the second entry, of term 2; the reset goes on from the log of n3.
    applied = Sample(node="n2", partition=1, asked=30, answered=30, index=2, term=2)
    event = reset(survivors=("n2", "n3"), base=base, base_term=base_term)

    found = verdict_of(of(*AB, applied, event, s(80, (1, (1, 2)))))

    assert list(found.anomalies) == ([] if kept else ["reset-over-survivor"])


def test_splits_do_not_change_what_is_said_of_resets() -> None:
    for name in (
        "a later write of another key is kept",
        "torn by a reset",
        "each reset costs once",
    ):
        history, _ = CASES[name]
        assert encode(verdict_of(history)) == encode(verdict_of(history, splits=5))


@pytest.mark.spark
def test_spark_says_the_same_of_resets_byte_for_byte() -> None:
    # A few: each starts a session.
    for name in (
        "torn by a reset",
        "restored in part",
        "a later write of another key is kept",
        "given up with the outcome that a reset took",
    ):
        history, _ = CASES[name]
        here = encode(verdict_of(history, splits=3))
        assert here == encode(verdict_of(history, splits=3, executor="spark")), name
