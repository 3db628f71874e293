"""The corpus is what it says: reproducible, mixed, complete; its stores keep their promises."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import corpus
import oracle
import pytest
import store

from harness.clock import substream
from harness.history.schema import MICRO_OPS, TRANSACTIONS

REAL_TIME = {name for name in oracle.CYCLE_NAMES if name.endswith("-realtime")}
ORDERED = REAL_TIME | {name for name in oracle.CYCLE_NAMES if name.endswith("-process")}
READ_SKEW = {name for name in oracle.CYCLE_NAMES if name not in oracle.CYCLE_NAMES[:6]}


@cache
def cases():
    return corpus.corpus()


@cache
def verdicts():
    return [oracle.judge(case.txns) for case in cases()]


def fingerprint(some):
    return hashlib.sha256(repr(some).encode()).hexdigest()


def test_every_anomaly_is_there_twice_at_least():
    counts = Counter(name for verdict in verdicts() for name in verdict.names)
    assert {name: counts[name] for name in oracle.NAMES if counts[name] < 2} == {}
    assert sum(bool(verdict.lost) for verdict in verdicts()) >= 2


def test_good_and_bad_histories_are_mixed():
    outcomes = Counter(verdict.outcome("strict-serializable") for verdict in verdicts())
    assert outcomes["violation"] >= 60
    assert outcomes["valid"] >= 50
    assert len(cases()) == outcomes.total() == 200


def test_histories_are_small_and_well_formed():
    for case in cases():
        assert 5 <= len(case.txns) <= 60
        assert [txn.index for txn in case.txns] == list(range(len(case.txns)))
        assert all(txn.invoke <= txn.complete for txn in case.txns)
        appends = [append for txn in case.txns for append in txn.appends()]
        assert len(appends) == len(set(appends)), case.name


def test_a_process_does_one_thing_at_a_time_and_ends_with_a_crash():
    for case in cases():
        last = {}
        for txn in case.txns:
            before = last.get(txn.process)
            assert before is None or (before.complete < txn.invoke and before.type != "info")
            last[txn.process] = txn


def test_a_case_that_knows_what_it_shows_shows_exactly_that():
    known = [pair for pair in zip(cases(), verdicts(), strict=True) if pair[0].names is not None]
    assert len(known) >= 40
    for case, verdict in known:
        assert verdict.names == set(case.names), case.name


def test_a_smaller_corpus_is_a_prefix_and_another_seed_another_corpus():
    assert corpus.corpus(40) == cases()[:40]
    assert corpus.corpus(40, seed=6) != cases()[:40]


def test_the_corpus_is_the_same_under_any_hash_seed():
    code = (
        "import corpus, hashlib; print(hashlib.sha256(repr(corpus.corpus()).encode()).hexdigest())"
    )
    for seed in ("0", "77"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.strip() == fingerprint(cases())


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        ("strict", set()),
        ("stale-session", REAL_TIME),
        ("stale", ORDERED),
        ("snapshot", {"G2-item"}),
        ("snapshot-behind", ORDERED | {"G2-item"}),
        ("committed", {*READ_SKEW, "lost-update", "internal", "incompatible-order"}),
    ],
)
def test_a_simulated_level_shows_its_own_anomalies_and_no_others(level, allowed):
    """Under read committed a second read may see others' appends (``internal``), or what others
    commit before one's own appends that were read already (``incompatible-order``).
    """
    seen = set()
    for number in range(40):
        stream = substream(number, "oracle-level", level)
        txns = store.simulate(
            stream, corpus.LEVELS[level], size=stream.randint(8, 40), slots=5, keys=3
        )
        verdict = oracle.judge(txns)
        seen |= verdict.names
        assert verdict.names <= allowed, (number, verdict.names)
        assert not verdict.lost or level not in ("strict", "snapshot", "committed")
    assert bool(seen) is bool(allowed)


def test_tables_hold_every_step_in_the_schema_of_sealed_histories():
    for case in cases()[:20]:
        transactions, steps = corpus.as_tables(case)
        assert transactions.schema == TRANSACTIONS
        assert steps.schema == MICRO_OPS
        assert transactions.num_rows == len(case.txns)
        assert steps.num_rows == sum(len(txn.ops) for txn in case.txns)
        indices = [*transactions["invoke_index"], *transactions["complete_index"]]
        assert sorted(index.as_py() for index in indices) == list(range(2 * len(case.txns)))


def test_the_order_of_indices_is_the_order_of_time():
    """Imported histories are ordered by index alone: the same pairs must precede each other."""
    for case in cases()[:40]:
        transactions, _ = corpus.as_tables(case)
        begin = transactions["invoke_index"].to_pylist()
        end = transactions["complete_index"].to_pylist()
        for one in case.txns:
            for other in case.txns:
                earlier = end[one.index] < begin[other.index]
                assert earlier is (one.complete < other.invoke)


def test_the_text_forms_hold_what_was_observed_and_no_read_before_its_time():
    case = next(case for case in cases() if case.name.startswith("strict"))
    lines = [json.loads(line) for line in corpus.as_jsonl(case).splitlines()]
    assert [line["index"] for line in lines] == list(range(2 * len(case.txns)))
    invoked = [line for line in lines if line["type"] == "invoke"]
    reads = [step for line in invoked for step in line["value"] if step[0] == "r"]
    assert reads
    assert all(step[2] is None for step in reads)
    told = Counter(
        tuple(step[2])
        for line in lines
        if line["type"] == "ok"
        for step in line["value"]
        if step[0] == "r"
    )
    seen = Counter(
        value for txn in case.txns if txn.type == "ok" for f, _, value in txn.ops if f == "r"
    )
    assert told == seen


def test_edn_writes_nil_lists_and_keywords():
    txn = oracle.Txn(
        index=0,
        process=3,
        type="ok",
        invoke=5,
        complete=9,
        ops=(("append", 3, 1), ("r", 4, (1, 2)), ("r", 5, ())),
    )
    text = corpus.as_edn(corpus.Case(name="one", txns=(txn,)))
    assert text == (
        "{:type :invoke, :f :txn, :value [[:append 3 1] [:r 4 nil] [:r 5 nil]], "
        ":process 3, :time 5, :index 0}\n"
        "{:type :ok, :f :txn, :value [[:append 3 1] [:r 4 [1 2]] [:r 5 []]], "
        ":process 3, :time 9, :index 1}\n"
    )
