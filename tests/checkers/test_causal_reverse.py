"""Orders that a kind of transaction does not promise: cycles that need them are told, no more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import attrs
import pytest
from checker_generator import generate
from checker_histories import Txn, a, names, ok, r, verdict, write_run
from checker_oracle import SESSION, UNTIMED, Oracle, judge
from test_checkers_oracle import CYCLES, apart, counts

from checkers.engine.analyze import analyze
from harness.protocols.consistency_models import CAUSAL_REVERSE
from harness.protocols.promise import Declaration, Promise
from harness.protocols.verdict import Verdict, encode

DECLARED = Declaration(
    system="paper",
    mode="SC",
    promises=(
        Promise(kind="read-write"),
        # Older than any history here, so that staleness has no say.
        Promise(kind=UNTIMED, model="serializable", staleness_s=1.0),
        Promise(kind=SESSION, model="strong-session-serializable", staleness_s=1.0),
    ),
)
NO_TIME = (UNTIMED, SESSION)
X, Y = 1, 2
FIRST = ok(a(X, 1), start=0, finish=10, process=1)
SECOND = ok(a(Y, 1), start=20, finish=30, process=2)
REVERSED = ok(r(X), r(Y, 1), start=40, finish=50, process=3)


def told(txns: list[Txn], **more: Any) -> Verdict:
    return verdict(txns, declaration=DECLARED, **more)


def of(kind: str, txn: Txn, **more: Any) -> Txn:
    return attrs.evolve(txn, kind=kind, **more)


@pytest.mark.parametrize("kind", NO_TIME)
def test_a_snapshot_may_see_the_later_write_of_one_node_and_miss_the_earlier_of_another(
    kind: str,
) -> None:
    found = told([FIRST, SECOND, of(kind, REVERSED)])

    assert found.outcome == "valid"
    assert (set(found.anomalies), set(found.observed)) == (set(), {CAUSAL_REVERSE})
    assert (found.not_, found.also_not) == ((), ())
    (example,) = found.observed[CAUSAL_REVERSE].examples
    assert example.text.startswith("causal reverse: a transaction that promises no real time saw")
    assert sorted(step.kind for step in example.cycle) == ["realtime", "rw", "wr"]
    assert sorted(example.txns) == [0, 1, 2]


def test_a_transaction_that_promises_real_time_may_not() -> None:
    found = told([FIRST, SECOND, REVERSED])

    assert found.outcome == "violation"
    assert "G-single-item-realtime" in found.anomalies
    assert CAUSAL_REVERSE not in names(found)


@pytest.mark.parametrize("kind", NO_TIME)
def test_what_a_snapshot_saw_in_part_or_in_no_order_is_as_wrong_as_ever(kind: str) -> None:
    """No order is needed for these, whatever the transactions' times are."""
    torn = [ok(a(X, 1), a(Y, 1), start=0, finish=10), of(kind, REVERSED)]
    skewed = [FIRST, SECOND, of(kind, REVERSED)]
    skewed.append(of(kind, ok(r(X, 1), r(Y)), start=40, finish=50, process=4))

    assert "G-single-item" in told(torn).anomalies
    assert told(skewed).outcome == "violation"
    assert "G-nonadjacent-item" in told(skewed).anomalies


@pytest.mark.parametrize("kind", NO_TIME)
def test_a_snapshot_hides_no_cycle_of_transactions_that_promise_real_time(kind: str) -> None:
    missed = ok(r(X), a(3, 1), start=20, finish=30, process=5)
    history = [FIRST, SECOND, of(kind, REVERSED), missed]

    assert "G-single-item-realtime" in told(history).anomalies
    assert CAUSAL_REVERSE not in names(told(history))
    assert told([*history[:3], attrs.evolve(missed, ops=[r(X, 1)])]).outcome == "valid"


@pytest.mark.parametrize("kind", NO_TIME)
def test_of_one_process_a_snapshot_keeps_the_order_where_its_model_says_so(kind: str) -> None:
    one = [FIRST, attrs.evolve(SECOND, process=1), of(kind, REVERSED)]
    own = [FIRST, of(kind, ok(r(X)), start=20, finish=30, process=1)]
    later = [of(kind, ok(r(X)), start=0, finish=10, process=1), attrs.evolve(FIRST, start=11)]

    for history, name in ((one, "G-single-item-process"), (own, "G-single-item-process")):
        found = told(history)
        if kind == SESSION:
            assert (found.outcome, set(found.anomalies)) == ("violation", {name})
        else:
            assert found.outcome == "valid"
            assert set(found.observed) <= {CAUSAL_REVERSE}
    assert told([attrs.evolve(t, finish=t.start + 9) for t in later]).outcome == "valid"


def test_a_snapshot_that_precedes_what_its_process_did_before_is_a_cycle_of_that_process() -> None:
    """It read what nobody had appended when its process went on to append it."""
    history = [
        of(SESSION, ok(r(X, 1)), start=0, finish=10, process=1),
        ok(a(X, 1), start=11, finish=20, process=1),
    ]

    assert "G1c-process" in told(history).anomalies
    assert told([of(UNTIMED, history[0]), history[1]]).outcome == "valid"


def with_kinds(seed: int, txns: list[Txn]) -> list[Txn]:
    """Some of ``txns`` as of kinds without real time; writers among them, as some stores have."""
    draw = random.Random(seed)
    kinds = ["read-write", *draw.choice((NO_TIME, NO_TIME[:1], NO_TIME[1:]))]
    return [
        txn if draw.random() < 0.4 else attrs.evolve(txn, kind=draw.choice(kinds)) for txn in txns
    ]


def by_clocks(seed: int) -> list[Txn]:
    """Appends and reads of single keys in the order of time, and snapshots of several keys that may
    be older for one key than for another, as clocks apart make them.
    """
    draw = random.Random(seed)
    kinds = draw.choice((NO_TIME, NO_TIME[:1], NO_TIME[1:]))
    held: dict[int, list[int]] = {key: [] for key in range(draw.randint(2, 3))}
    lag = draw.choice((1, 2, 9))
    floor = dict.fromkeys(held, 0)
    txns = []
    for number in range(9):
        start = 10 * number
        when: dict[str, Any] = {"start": start, "finish": start + draw.choice((5, 10, 14))}
        when["process"] = draw.randrange(3) + 10 * (number % 2)
        if draw.random() < 0.6:
            key = draw.choice(list(held))
            seen = r(key, *held[key])
            held[key].append(number)
            ops = [seen, a(key, number)] if draw.random() < 0.5 else [a(key, number)]
            txns.append(ok(*ops, **when))
            continue
        some = draw.sample(list(held), draw.randint(2, len(held)))
        ops = []
        for key in some:
            least = floor[key] if draw.random() < 0.9 else 0
            upto = draw.randint(
                max(len(held[key]) - lag, min(least, len(held[key]))), len(held[key])
            )
            floor[key] = max(floor[key], upto)
            ops.append(r(key, *held[key][:upto]))
        txns.append(ok(*ops, kind=draw.choice(kinds), **when))
    return txns


OF_CUTS = {"fractured-snapshot", "stale-snapshot", "snapshot-went-back", "lost-write"}


def cycles_of(found: Verdict) -> dict[str, int]:
    return {name: count for name, count in counts(found).items() if name not in OF_CUTS}


@pytest.mark.parametrize("hundred", range(8))
def test_the_oracle_agrees_on_generated_histories_of_all_kinds(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history = by_clocks(seed) if seed % 2 else with_kinds(seed, generate(seed))
        expected = {n: c for n, c in judge(history).counts.items() if n not in OF_CUTS}
        found = told(history)
        assert cycles_of(found) == expected, f"seed {seed}"
        assert CAUSAL_REVERSE not in found.anomalies


def test_histories_by_clocks_are_reversed_and_wrong_often_enough() -> None:
    reversed_ = violated = valid = 0
    for seed in range(200):
        found = told(by_clocks(seed))
        reversed_ += CAUSAL_REVERSE in found.observed
        violated += bool(cycles_of(found)) and found.outcome == "violation"
        valid += not names(found)

    assert min(reversed_, violated, valid) > 20


def test_a_reverse_that_is_shown_needs_an_order_that_one_on_it_does_not_promise() -> None:
    shown = 0
    for seed in range(200):
        history = by_clocks(seed)
        edges = Oracle(history).edges()
        found = told(history).observed.get(CAUSAL_REVERSE)
        for example in found.examples if found else ():
            shown += 1
            used = {step.kind for step in example.cycle}
            kinds = {history[txn].kind for txn in example.txns}
            assert used & {"process", "realtime"}
            assert UNTIMED in kinds or (SESSION in kinds and "realtime" in used)
            for step in example.cycle:
                if step.kind in ("process", "realtime"):
                    assert step.kind in edges[step.source, step.target]
    assert shown > 20


@pytest.mark.spark
def test_both_executors_tell_of_reverses_in_the_same_bytes(tmp_path: Path) -> None:
    histories = [by_clocks(seed) for seed in range(40)]
    joined = apart([*histories, *CYCLES.values(), [FIRST, SECOND, of(SESSION, REVERSED)]])
    run = write_run(tmp_path / "run", joined, declaration=DECLARED)

    on_spark, in_process = analyze(run, executor="spark"), analyze(run, executor="local")

    assert CAUSAL_REVERSE in in_process.observed
    assert encode(on_spark) == encode(in_process)
