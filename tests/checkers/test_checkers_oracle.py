"""The checkers against an independent judge that enumerates everything."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs
import pytest
from checker_generator import generate
from checker_histories import Txn, a, ok, r, times, verdict, write_run
from checker_oracle import BASES, ORDERS, Judgement, Oracle, judge, kind_of

from checkers.engine.analyze import analyze
from harness.protocols.verdict import Verdict, encode

MODELS = ("strict-serializable", "serializable", "snapshot-isolation", "read-committed")


def counts(found: Verdict) -> dict[str, int]:
    return {name: x.count for name, x in {**found.anomalies, **found.observed}.items()}


def assert_agree(found: Verdict, expected: Judgement) -> None:
    assert counts(found) == expected.counts
    assert set(found.not_) == expected.not_
    assert set(found.also_not) == expected.also_not
    assert (found.outcome == "violation") == expected.breaks(found.model)


@pytest.mark.parametrize("hundred", range(4))
def test_the_oracle_agrees_on_generated_histories(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history = generate(seed)
        try:
            assert_agree(verdict(history, model=MODELS[seed % 4]), judge(history))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_generated_histories_are_worth_it() -> None:
    found = [judge(generate(seed)) for seed in range(200)]
    invalid = [x for x in found if x.counts]

    assert 0.3 < len(invalid) / len(found) < 0.95
    assert len({name for x in found for name in x.counts}) >= 16


X, Y = 1, 2
WRITES, READS = {"start": 0, "finish": 10, "process": 0}, {"start": 10, "finish": 20, "process": 0}
EARLY, LATE, LONG = (
    {"finish": 9, "start": 0},
    {"start": 11, "finish": 20},
    {"start": 0, "finish": 30},
)

CYCLES: dict[str, list[Txn]] = {
    "G0": [ok(a(X, 1), a(Y, 1), **LONG), ok(a(X, 2), a(Y, 2), **LONG), ok(r(X, 1, 2), r(Y, 2, 1))],
    "G0-process": [ok(a(X, 1), **WRITES), ok(a(X, 2), **READS), ok(r(X, 2, 1), **LONG)],
    "G0-realtime": [ok(a(X, 1), **EARLY), ok(a(X, 2), **LATE), ok(r(X, 2, 1), **LONG)],
    "G1c": [ok(a(X, 1), r(Y, 1), **LONG), ok(a(Y, 1), r(X, 1), **LONG)],
    "G1c-process": [ok(r(X, 1), **WRITES), ok(a(X, 1), **READS)],
    "G1c-realtime": [ok(r(X, 1), **EARLY), ok(a(X, 1), **LATE)],
    "G-single-item": [ok(r(X), r(Y, 1), **LONG), ok(a(X, 1), a(Y, 1), **LONG)],
    "G-single-item-process": [ok(a(X, 1), **WRITES), ok(r(X), **READS)],
    "G-single-item-realtime": [ok(a(X, 1), **EARLY), ok(r(X), **LATE)],
    "G-nonadjacent-item": [
        ok(a(X, 1), **LONG),
        ok(a(Y, 1), **LONG),
        ok(r(X, 1), r(Y), **LONG),
        ok(r(X), r(Y, 1), **LONG),
    ],
    "G-nonadjacent-item-process": [
        ok(a(X, 1), **WRITES),
        ok(r(Y), **READS),
        ok(a(Y, 1), **WRITES | {"process": 1}),
        ok(r(X), **READS | {"process": 1}),
    ],
    "G-nonadjacent-item-realtime": [
        ok(a(X, 1), **EARLY),
        ok(r(Y), **LATE),
        ok(a(Y, 1), **LONG),
        ok(r(Y, 1), r(X), **LONG),
    ],
    "G2-item": [ok(r(X), a(Y, 1), **LONG), ok(r(Y), a(X, 1), **LONG)],
    "G2-item-process": [
        ok(a(Y, 1), **WRITES),
        ok(r(X), **READS),
        ok(a(X, 1), r(Y), **LONG | {"process": 1}),
    ],
    "G2-item-realtime": [ok(a(Y, 1), **EARLY), ok(r(X), **LATE), ok(a(X, 1), r(Y), **LONG)],
}


def test_there_is_a_history_for_every_kind_of_cycle() -> None:
    assert sorted(CYCLES) == sorted(base + order for base in BASES for order in ORDERS)


@pytest.mark.parametrize("anomaly", sorted(CYCLES))
def test_a_cycle_has_its_name_and_the_oracle_agrees(anomaly: str) -> None:
    found = verdict(CYCLES[anomaly])

    assert_agree(found, judge(CYCLES[anomaly]))
    assert set(counts(found)) - {"lost-write"} == {anomaly}
    (example,) = found.anomalies[anomaly].examples
    steps = example.cycle
    assert [step.target for step in steps] == [step.source for step in steps[1:] + steps[:1]]
    assert example.text.endswith("a contradiction")


def test_a_cycle_that_is_shown_is_of_its_kind_and_no_other_is_shorter() -> None:
    shown = 0
    for history in [generate(seed) for seed in range(150)] + list(CYCLES.values()):
        found = verdict(history)
        components = Oracle(history).kinds()
        for name, anomaly in {**found.anomalies, **found.observed}.items():
            for example in anomaly.examples:
                if example.cycle:
                    shown += 1
                    kind = kind_of(tuple(step.kind for step in example.cycle))
                    (shortest,) = (s for c, s in components if set(example.txns) <= c)
                    assert kind is not None
                    assert BASES[kind[0]] + ORDERS[kind[1]] == name
                    assert len(example.cycle) <= shortest[kind]
    assert shown > 50


@pytest.mark.spark
def test_both_executors_give_the_same_bytes_on_forty_histories_at_once(tmp_path: Path) -> None:
    histories = [generate(seed) for seed in range(25)] + list(CYCLES.values())
    run = write_run(tmp_path / "run", apart(histories))

    on_spark, in_process = analyze(run, executor="spark"), analyze(run, executor="local")

    assert on_spark.outcome == "violation"
    assert encode(on_spark) == encode(in_process)


def apart(histories: list[list[Txn]]) -> list[Txn]:
    """One history of many: keys, processes and times of each are its own."""
    joined = []
    for number, history in enumerate(histories):
        for txn, (process, start, finish) in zip(history, times(history), strict=True):
            joined.append(
                attrs.evolve(
                    txn,
                    ops=[(f, k + 10 * number, v) for f, k, v in txn.ops],
                    process=process + 100 * number,
                    start=start + 10_000 * number,
                    finish=finish + 10_000 * number,
                )
            )
    return joined


def test_many_histories_as_one_are_what_they_are_alone() -> None:
    histories = [generate(seed) for seed in range(60)] + list(CYCLES.values())
    total: Counter[str] = Counter()
    for history in histories:
        total.update(judge(history).counts)

    assert counts(verdict(apart(histories))) == dict(total)
