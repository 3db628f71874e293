"""Transactions on registers: what the checker says beside an oracle that tries every order, each
anomaly by name, and the same from splits, windows and Spark.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from checker_histories import Txn, fail, info, names, ok, setting, source, verdict
from register_transactions import generate, has_snapshots, rd, serializable, w
from test_cycle_windows import by_windows, stages_of
from test_splits_alone import assert_told_alone, by_key

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.engine.stages import run_in_process
from checkers.rw_register.checker import CHECKER
from harness.history import schema
from harness.protocols.consistency_models import STRICT_SERIALIZABLE
from harness.protocols.verdict import Verdict, encode

X, Y = 1, 2
LONG = {"start": 0, "finish": 100}


def judged(txns: list[Txn], model: str = STRICT_SERIALIZABLE) -> Verdict:
    return verdict(txns, model=model, checkers=("rw-register",))


@pytest.mark.parametrize("hundred", range(4))
def test_no_order_that_explains_a_history_is_ruled_out_and_nearly_all_others_are(
    hundred: int,
) -> None:
    ruled_out, broken = Counter[str](), Counter[str]()
    for seed in range(hundred * 100, hundred * 100 + 100):
        txns = generate(seed)
        holds = {
            STRICT_SERIALIZABLE: serializable(txns, order="realtime"),
            "strong-session-serializable": serializable(txns, order="process"),
            "serializable": serializable(txns),
            "snapshot-isolation": has_snapshots(txns),
        }
        found = judged(txns)
        assert not [reason for reason in found.reasons if "gave up" in reason], (seed, found)
        for model, sound in holds.items():
            said = model in {*found.not_, *found.also_not}
            assert not (sound and said), (seed, model, found.anomalies)
            broken[model] += not sound
            ruled_out[model] += said
    assert min(broken.values()) > 10
    # Of the order of versions only a part can be known.
    assert ruled_out[STRICT_SERIALIZABLE] >= 0.95 * broken[STRICT_SERIALIZABLE]
    assert ruled_out["serializable"] >= 0.85 * broken["serializable"]


NAMED: dict[str, list[Txn]] = {
    "G1a": [fail(w(X, 1)), ok(rd(X, 1))],
    "G1b": [ok(w(X, 1), w(X, 2)), ok(rd(X, 1))],
    "G1c": [ok(w(X, 1), rd(Y, 1), **LONG), ok(w(Y, 1), rd(X, 1), **LONG)],
    "garbage-read": [ok(w(X, 1)), ok(rd(X, 2))],
    "internal": [ok(w(X, 1), rd(X, None))],
    "future-read": [ok(rd(X, 1), w(X, 1))],
    "lost-update": [ok(w(X, 1)), ok(rd(X, 1), w(X, 2)), ok(rd(X, 1), w(X, 3))],
    "G-single-item": [ok(w(X, 1), w(Y, 1), **LONG), ok(rd(X, 1), rd(Y, None), **LONG)],
    "G-single-item-process": [
        ok(w(X, 1), process=0, start=0, finish=1),
        ok(rd(X, None), process=0, start=2, finish=3),
    ],
    "G-single-item-realtime": [ok(w(X, 1)), ok(w(X, 2)), ok(rd(X, 1))],
    "G-nonadjacent-item": [
        ok(w(X, 1), **LONG),
        ok(w(Y, 1), **LONG),
        ok(rd(X, 1), rd(Y, None), **LONG),
        ok(rd(X, None), rd(Y, 1), **LONG),
    ],
    "G2-item": [ok(rd(X, None), w(Y, 1), **LONG), ok(rd(Y, None), w(X, 1), **LONG)],
}


@pytest.mark.parametrize(("name", "txns"), NAMED.items(), ids=NAMED)
def test_each_anomaly_has_its_name(name: str, txns: list[Txn]) -> None:
    found = judged(txns)

    assert name in names(found)
    assert found.outcome == "violation"
    example = {**found.anomalies, **found.observed}[name].examples[0]
    assert "append" not in example.text
    assert example.operations


# The order of versions rests on time or a process alone: so does the cycle.
ORDERED = {
    "G-single-item-realtime": [
        ok(w(X, 1)),
        ok(w(X, 2), w(Y, 5)),
        ok(rd(X, 1), rd(Y, 5)),
    ],
    "G-single-item-process": [
        ok(w(X, 1), process=0, start=0, finish=1),
        ok(w(X, 2), w(Y, 5), process=0, start=2, finish=3),
        ok(rd(X, 1), rd(Y, 5), process=1, start=0, finish=9),
    ],
}


@pytest.mark.parametrize(("name", "txns"), ORDERED.items(), ids=ORDERED)
def test_what_time_tells_of_versions_accuses_no_store_that_does_not_promise_it(
    name: str, txns: list[Txn]
) -> None:
    assert {name} == names(judged(txns))
    assert judged(txns, "serializable").outcome == "valid"


def test_an_unknown_outcome_that_was_read_counts_and_another_does_not() -> None:
    skew = [info(w(X, 1), w(Y, 1), **LONG), ok(rd(X, 1), rd(Y, None), **LONG)]

    assert "G-single-item" in names(judged(skew))
    assert judged([info(w(X, 1)), ok(rd(X, None)), ok(w(X, 2)), ok(rd(X, 2))]).outcome == "valid"


def test_a_value_that_is_written_twice_can_not_be_judged_and_says_so() -> None:
    found = judged([ok(w(X, 1)), ok(w(X, 1))])

    assert found.outcome == "unknown"
    (reason,) = (reason for reason in found.reasons if "gave up" in reason)
    assert "value 1 is written twice (by transactions 0 and 1)" in reason


def test_many_updates_of_one_version_cost_no_pairs_and_are_all_lost() -> None:
    txns = [ok(w(X, 1))] + [ok(rd(X, 1), w(X, 10 + n), **LONG) for n in range(300)]
    found = judged(txns)

    assert found.anomalies["lost-update"].count == 299
    assert found.outcome == "violation"


def mixed(seed: int) -> list[Txn]:
    """Many open at once: some of unknown outcome, some reads stale."""
    draw = random.Random(seed)
    clients, keys, size = draw.choice([3, 8, 25]), draw.choice([2, 5, 20]), draw.choice([60, 150])
    stale, unknown = draw.choice([0, 0.01, 0.05]), draw.choice([0, 0.05, 0.2])
    versions: dict[int, list[int | None]] = {key: [None] for key in range(keys)}
    free, process, txns, now = [0] * clients, list(range(clients)), [], 0
    for number in range(1, size):
        client = draw.randrange(clients)
        now = max(now + draw.randint(0, 3), free[client])
        finish = now + draw.randint(1, 40)
        free[client] = finish + draw.choice([0, 1])
        ops = []
        for key in draw.sample(range(keys), draw.randint(1, 2)):
            late = draw.randint(1, 3) if draw.random() < stale else 0
            held = versions[key][max(0, len(versions[key]) - 1 - late)]
            if draw.random() < 0.6:
                ops.append(rd(key, held))
            if draw.random() < 0.5:
                versions[key].append(number)
                ops.append(w(key, number))
        type_ = "info" if draw.random() < unknown else "ok"
        txns.append(Txn(type_, ops, process[client], now, finish))
        process[client] += 1000 * (type_ == "info")
    return sorted(txns, key=lambda txn: txn.start or 0)


def verdict_of(history: Source, executor: str = "local") -> Verdict:
    return judge(
        history,
        setting=setting(),
        checkers=(CHECKER,),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor=executor,
    ).verdict


@pytest.mark.parametrize("stretch", [3, 20])
def test_windows_lose_and_make_no_cycle(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several, outcomes = 0, Counter[str]()
    for seed in range(30):
        history = source(mixed(seed), splits=1 + seed % 3)
        with monkeypatch.context() as patch:
            whole = verdict_of(history)
            by_windows(patch, stretch)
            seen = stages_of(patch)
            assert encode(verdict_of(history)) == encode(whole), seed
        several += seen["COMPONENT"]
        outcomes[whole.outcome] += 1
    assert several > 10
    assert min(outcomes["valid"], outcomes["violation"]) > 3


def test_registers_are_told_alone_as_among_all() -> None:
    rows = [
        assert_told_alone(by_key(CHECKER), source(mixed(n), splits=3), setting()) for n in range(20)
    ]
    assert sum(rows) > 1000


def test_spark_says_the_same_byte_for_byte() -> None:
    for seed in range(6):
        history = source(mixed(seed), splits=3)
        assert encode(verdict_of(history, "spark")) == encode(verdict_of(history)), seed


def test_dependencies_are_few_however_long_a_register_lives() -> None:
    """What one version precedes is all later ones: only those that follow next have a row."""
    few, many = (
        run_in_process(by_key(CHECKER), source(sound(size)), setting())
        .tables["lists.edges"]
        .num_rows
        for size in (200, 1600)
    )
    assert 200 < many <= 10 * few  # 64 times the pairs


def sound(size: int) -> list[Txn]:
    """One register, 20 clients, each transaction at once in the middle of its time."""
    draw, held, txns = random.Random(7), None, []
    for number in range(1, size):
        ops = [rd(X, held)] if draw.random() < 0.5 else [w(X, number)]
        held = number if ops[0][0] == "w" else held
        at = number * 10
        txns.append(Txn("ok", ops, number % 20, at - draw.randint(0, 90), at + draw.randint(0, 90)))
    return txns
