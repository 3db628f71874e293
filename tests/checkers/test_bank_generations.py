"""Banks of which a partition was reset: one total in each generation, and no balance that the
partition never held."""

from __future__ import annotations

import random

import attrs
import pytest
from checker_histories import STRICT, Txn, info, ok
from reset_histories import ResetEvent, ResetHistory, verdict_of

from harness.protocols.verdict import Verdict, encode

RESET = ResetEvent(partition=1, generation=1, since=50, until=60)
SECOND = ResetEvent(partition=1, generation=2, since=150, until=160)
SET_UP = ok(*(("w", account, 50) for account in (1, 2, 3)), start=0, finish=4)
Step = tuple[str, int, int]


def moved(amount: int, start: int, held: tuple[int, int], payer: int = 1, payee: int = 2) -> Txn:
    """A transfer that finds ``held`` in its two accounts."""
    return ok(*steps(amount, held, payer, payee), start=start, finish=start + 4)


def steps(amount: int, held: tuple[int, int], payer: int, payee: int) -> list[Step]:
    return [
        *(("add", payer, -amount), ("add", payee, amount)),
        *(("r", payer, held[0]), ("r", payee, held[1])),
        *(("w", payer, held[0] - amount), ("w", payee, held[1] + amount)),
    ]


def read(start: int, *held: int | None) -> Txn:
    ops = (("r", account, balance) for account, balance in enumerate(held, 1))
    return ok(*ops, start=start, finish=start + 4)


def judged(*txns: Txn, resets: tuple[ResetEvent, ...] = (RESET,), **more: object) -> Verdict:
    history = ResetHistory(txns=(SET_UP, *txns), resets=resets)
    return verdict_of(history, checkers=("bank",), **more)


T1, T2 = moved(10, 10, (50, 50)), moved(5, 20, (40, 60))
# Both accounts in the partition that is reset, 1 and 3.
INSIDE = moved(10, 10, (50, 50), 1, 3)
CASES: dict[str, tuple[tuple[Txn, ...], str | None]] = {
    "nothing torn": ((T1, T2, read(80, 35, 65, 50)), None),
    "the last one torn": ((T1, T2, read(80, 40, 65, 50)), None),
    "both torn": ((T1, T2, read(80, 50, 65, 50)), None),
    "the first one torn alone": ((T1, T2, read(80, 45, 65, 50)), "mixed-generations"),
    "more than there was": ((T1, read(80, 60, 60, 50)), "mixed-generations"),
    "torn inside the partition": ((INSIDE, read(80, 50, 50, 60)), "mixed-generations"),
    "lost inside the partition": ((INSIDE, read(80, 50, 50, 50)), None),
    "moved again since": (
        (T1, read(80, 50, 60, 50), moved(7, 90, (50, 60)), read(100, 43, 67, 50)), None),
    "lost since without a reset": (
        (T1, read(80, 50, 60, 50), moved(7, 90, (50, 60)), read(100, 50, 67, 50)), "bank-total"),
    "torn before the reset": ((T1, read(20, 50, 60, 50)), "bank-total"),
    "kept, then lost": ((T1, read(80, 40, 60, 50), read(100, 50, 60, 50)), "bank-total"),
    "of unknown outcome": (
        (info(*steps(10, (50, 50), 1, 2), start=10, finish=14), read(80, 50, 60, 50)), None),
    "while it was reset": ((moved(10, 52, (50, 50)), read(80, 40, 60, 50)), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_reset_takes_accounts_back_to_one_moment(name: str) -> None:
    txns, told = CASES[name]
    found = judged(*txns)

    if told is None:
        assert (found.outcome, found.anomalies) == ("valid", {})
    else:
        assert found.outcome == "violation"
        assert told in found.anomalies
        assert found.anomalies[told].examples[0].text


def test_each_of_two_resets_takes_back_what_the_one_before_left() -> None:
    first = (T1, T2, read(80, 40, 65, 50), moved(3, 90, (40, 65)))

    kept = judged(*first, read(180, 37, 68, 50), resets=(RESET, SECOND))
    torn = judged(*first, read(180, 40, 68, 50), resets=(RESET, SECOND))
    twice = judged(*first, read(180, 35, 68, 50), resets=(RESET, SECOND))

    assert (kept.outcome, torn.outcome) == ("valid", "valid")
    assert "mixed-generations" in twice.anomalies


ANEW = ResetEvent(partition=1, generation=1, since=50, until=60, survivors=(), base=0, asked=True)
# Accounts 1 and 3 are of the partition that begins anew; 2 is of another.
INTO = ok(
    *(("add", 2, -4), ("add", 1, 4), ("r", 2, 50), ("r", 1, None), ("w", 2, 46), ("w", 1, 4)),
    start=90,
    finish=94,
)
EMPTY = read(80, None, 50, None)
SINCE: dict[str, tuple[tuple[Txn, ...], str | None]] = {
    "nothing in it": ((EMPTY,), None),
    "moved into it since": ((EMPTY, INTO, read(100, 4, 46, None)), None),
    "while it was reset": ((read(52, None, 50, None),), None),
    "more than was moved into it": ((INTO, read(100, 5, 46, 0)), "mixed-generations"),
    "what it had held": ((T1, read(80, 40, 60, 50)), "mixed-generations"),
    "before the reset": ((read(20, None, 50, None),), "bank-total"),
    "in another partition": ((read(80, None, None, None),), None),
}


def test_accounts_of_a_partition_that_begins_anew_hold_nothing_until_something_is_moved() -> None:
    for name, (txns, told) in SINCE.items():
        found = judged(*txns, declaration=STRICT, resets=(ANEW,))
        if name == "in another partition":
            assert "nil-balance" in found.anomalies, name
        elif told is not None:
            assert told in found.anomalies, name
        else:
            assert found.outcome == "valid", (name, found.anomalies, found.reasons)

    kept = judged(EMPTY, INTO, read(100, None, 46, None), resets=(ANEW,))
    assert {"bank-total"} <= set(kept.anomalies)


def test_an_account_that_was_written_since_may_not_be_empty_again() -> None:
    back = ok(
        *(("add", 1, -4), ("add", 2, 4), ("r", 1, 4), ("r", 2, 46), ("w", 1, 0), ("w", 2, 50)),
        start=96,
        finish=98,
    )
    whole = (EMPTY, INTO, back)

    right = judged(*whole, read(100, 0, 50, None), resets=(ANEW,))
    wrong = judged(*whole, read(100, None, 50, None), resets=(ANEW,))

    assert right.outcome == "valid", right.anomalies
    assert "nil-balance" in wrong.anomalies


def test_what_a_partition_lost_by_beginning_anew_is_told_with_its_generation() -> None:
    found = judged(EMPTY, read(100, None, 50, None), resets=(ANEW,))

    assert set(found.observed) == {"emptied-by-reset"}
    told = found.observed["emptied-by-reset"]
    assert told.count == 2
    assert [example.keys for example in told.examples] == [(1,), (3,)]
    assert "generation 1 of partition 1 began anew" in told.examples[0].text
    assert told.examples[0].details == {"partition": 1, "generation": 1}


@pytest.mark.parametrize("change", [{"asked": False}, {"survivors": ("n1",)}, {"survivors": None}])
def test_only_a_reset_that_was_asked_for_and_left_no_copy_empties_accounts(
    change: dict[str, object],
) -> None:
    reset = attrs.evolve(ANEW, **change)

    assert "nil-balance" in judged(EMPTY, resets=(reset,)).anomalies


def test_a_reset_behind_it_may_leave_its_accounts_empty_still() -> None:
    goes_on = attrs.evolve(SECOND, survivors=("n1",), asked=True)
    whole = (EMPTY, INTO, read(100, 4, 46, None))

    for first in (None, 4):
        late = read(180, first, 46, None)
        assert judged(*whole, late, resets=(ANEW, goes_on)).outcome == "valid"
    odd = judged(*whole, read(180, 50, 46, None), resets=(ANEW, goes_on))
    assert "mixed-generations" in odd.anomalies


def test_what_a_generation_held_before_is_not_known_without_a_read_of_it() -> None:
    found = judged(T1, read(180, 50, 60, 50), resets=(RESET, SECOND))

    assert found.outcome == "unknown"
    assert any("what they held before or after is not known" in why for why in found.reasons)


def test_in_sc_a_reset_excuses_no_total() -> None:
    assert "bank-total" in judged(T1, read(80, 50, 60, 50), declaration=STRICT).anomalies


def test_splits_do_not_change_what_is_said_of_banks() -> None:
    txns, _ = CASES["the first one torn alone"]
    history = ResetHistory(txns=(SET_UP, *txns), resets=(RESET,))

    anew = ResetHistory(txns=(SET_UP, EMPTY, INTO, read(100, 4, 46, None)), resets=(ANEW,))

    for each in (history, anew):
        one, many = (verdict_of(each, checkers=("bank",), splits=n) for n in (1, 4))
        assert encode(one) == encode(many)


def test_generated_banks_that_lose_a_suffix_are_never_accused() -> None:
    torn = 0
    for seed in range(60):
        stream = random.Random(seed)
        held, log, txns = {1: 50, 2: 50, 3: 50}, list[tuple[int, int, int]](), list[Txn]()
        cut = stream.randint(51, 59)
        for at in [*sorted(stream.sample(range(6, 120, 2), 8)), 140]:
            if at > cut and log is not None:
                kept = stream.randint(0, len(log))
                torn += kept < len(log)
                for payer, payee, amount in reversed(log[kept:]):
                    # Both accounts of the partition that was reset are 1 and 3.
                    held[payer] += amount if payer != 2 else 0
                    held[payee] -= amount if payee != 2 else 0
                log, cut = [], 10_000
            if at == 140 or stream.random() < 0.3:
                txns.append(read(at, held[1], held[2], held[3]))
                continue
            payer, payee = stream.sample((1, 2, 3), 2)
            amount = stream.randint(1, 5)
            found = (held[payer], held[payee])
            start, finish = at - stream.randint(0, 3), at + stream.randint(1, 3)
            txns.append(ok(*steps(amount, found, payer, payee), start=start, finish=finish))
            held[payer] -= amount
            held[payee] += amount
            log.append((payer, payee, amount))
        assert judged(*txns).outcome == "valid", seed

    assert torn >= 20


@pytest.mark.spark
def test_spark_says_the_same_of_banks_byte_for_byte() -> None:
    txns, _ = CASES["the first one torn alone"]
    history = ResetHistory(txns=(SET_UP, *txns), resets=(RESET,))

    here, there = (
        verdict_of(history, checkers=("bank",), splits=3, executor=name)
        for name in ("local", "spark")
    )
    assert encode(here) == encode(there)
