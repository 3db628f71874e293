"""The checkers against the oracle, over the corpus: nothing in common but the histories.

What is compared: the outcome, the names under ``anomalies`` and ``observed``, ``not``,
``also_not``, and in how many components each class of cycles is told.
"""

import random
from collections import Counter
from functools import cache

import attrs
import corpus
import msgspec
import oracle
import oracle_models
import pytest

from checkers.engine.analyze import checkers_named, judge
from checkers.engine.source import Source
from harness.history.schema import EVENTS, FAULTS
from harness.importers.jepsen.imported_history import read_jepsen
from harness.protocols.promise import Declaration, Promise
from harness.protocols.setting import Setting

CHECKERS = ("list-append", "lost-write", "evidence")
CYCLE_NAMES = {*oracle.CYCLE_NAMES, "causal-reverse"}
MODELS = ("strict-serializable", "serializable", "snapshot-isolation", "read-committed")


@cache
def cases():
    return corpus.corpus()


@cache
def judgement(place):
    return oracle.judge(cases()[place].txns)


def verdict_on(case, model, *, executor="local"):
    return verdict_of(Source.of_tables(*corpus.as_tables(case)), model, executor=executor)


def verdict_of(source, model, *, executor="local"):
    # Staler than any case is long: how old a snapshot may be is asked elsewhere.
    promises = (
        Promise(kind="read-write", model=model),
        Promise(kind="untimed", model="serializable", staleness_s=3600.0),
        Promise(kind="session", model="strong-session-serializable", staleness_s=3600.0),
    )
    declaration = Declaration(system="simulated", mode="SC", promises=promises)
    return judge(
        source,
        setting=Setting(model=model, declaration=declaration, planned=False, min_ok=0),
        checkers=checkers_named(CHECKERS),
        faults=FAULTS.empty_table(),
        events=EVENTS.empty_table(),
        executor=executor,
    ).verdict


def told_by_checkers(verdict):
    shown = verdict.anomalies | verdict.observed
    return {
        "outcome": str(verdict.outcome),
        "names": sorted(shown),
        "components": {name: shown[name].count for name in shown if name in CYCLE_NAMES},
        "not": sorted(verdict.not_),
        "also_not": sorted(verdict.also_not),
    }


def told_by_oracle(judged, model):
    return {
        "outcome": judged.outcome(model),
        "names": sorted([*judged.names, *([oracle.LOST_WRITE] if judged.lost else [])]),
        "components": dict(judged.components),
        "not": sorted(judged.not_),
        "also_not": sorted(judged.also_not),
    }


@pytest.mark.parametrize("place", range(200))
def test_the_checkers_say_what_the_oracle_says(place):
    case, model = cases()[place], MODELS[0]
    expected = told_by_oracle(judgement(place), model)
    assert told_by_checkers(verdict_on(case, model)) == expected, case.name


@pytest.mark.parametrize("model", MODELS[1:])
def test_the_outcome_is_about_the_model_that_was_asked_for(model):
    for place, case in enumerate(cases()[:60]):
        expected = told_by_oracle(judgement(place), model)
        assert told_by_checkers(verdict_on(case, model)) == expected, case.name


def test_what_decides_stands_apart_from_what_was_only_observed():
    for place, case in enumerate(cases()[:60]):
        verdict = verdict_on(case, "snapshot-isolation")
        deciding = {
            name
            for name in judgement(place).names
            if "snapshot-isolation" in frozenset().union(*oracle_models.ruled_out({name}))
        }
        assert set(verdict.anomalies) == deciding, case.name


OF_CUTS = {"fractured-snapshot", "snapshot-went-back"}
"""What checkers say of snapshots apart from cycles."""


def without_real_time(case, number):
    """The case, some of whose transactions are of kinds that promise no real time."""
    stream = random.Random(number)
    kinds = stream.choice((("untimed",), ("session",), ("untimed", "session")))
    share = stream.choice((0.2, 0.6))
    txns = [
        attrs.evolve(txn, kind=stream.choice(kinds)) if stream.random() < share else txn
        for txn in case.txns
    ]
    return attrs.evolve(case, txns=tuple(txns))


@pytest.mark.parametrize("place", range(200))
def test_of_kinds_without_real_time_the_checkers_say_what_the_oracle_says(place):
    case, model = without_real_time(cases()[place], place), MODELS[0]
    expected = told_by_oracle(oracle.judge(case.txns), model)
    found = told_by_checkers(verdict_on(case, model))
    of_cuts = OF_CUTS.intersection(found["names"])
    found["names"] = [name for name in found["names"] if name not in OF_CUTS]
    # What a fractured snapshot decides, and which models the loss of a write without real time
    # rules out, the oracle does not say.
    unsaid = ["outcome"] if of_cuts else []
    unsaid += ["not", "also_not"] if oracle.LOST_WRITE in expected["names"] else []
    assert found | dict.fromkeys(unsaid) == expected | dict.fromkeys(unsaid), case.name


def test_the_kinds_without_real_time_spare_some_cases_and_not_all():
    judged = [oracle.judge(without_real_time(cases()[n], n).txns) for n in range(200)]
    assert sum("causal-reverse" in one.names for one in judged) > 2
    fewer = sum(not one.names and bool(judgement(n).names) for n, one in enumerate(judged))
    assert fewer > 3
    assert sum(one.outcome(MODELS[0]) == "violation" for one in judged) > 50


@pytest.mark.parametrize("form", ["edn", "jsonl"])
def test_histories_as_jepsen_records_them_are_judged_alike(form, tmp_path):
    write = {"edn": corpus.as_edn, "jsonl": corpus.as_jsonl}[form]
    for place, case in enumerate(cases()[:40]):
        path = tmp_path / f"{place}.{form}"
        path.write_text(write(case))
        imported = read_jepsen(path, workload="list-append")
        splits = [imported.micro_ops(split) for split in range(imported.manifest.splits)]
        source = Source.of_tables(imported.transactions(), *splits)
        expected = told_by_oracle(judgement(place), MODELS[0])
        assert told_by_checkers(verdict_of(source, MODELS[0])) == expected, case.name


def of_forty():
    """What must be said of forty cases one after another, from what is said of each."""
    parts = [judgement(place) for place in range(40)]
    names = {name for part in parts for name in part.names}
    not_, also_not = oracle_models.ruled_out(names)
    lost = {oracle.LOST_WRITE} if any(part.lost for part in parts) else set()
    return {
        "outcome": "violation",
        "names": sorted(names | lost),
        "components": dict(sum((Counter(part.components) for part in parts), Counter())),
        "not": sorted(not_),
        "also_not": sorted(also_not),
    }


def test_forty_cases_as_one_dataset_show_what_each_shows():
    verdict = verdict_on(corpus.combined(cases()[:40]), MODELS[0])
    assert told_by_checkers(verdict) == of_forty()


@pytest.mark.spark
def test_spark_says_the_same_of_forty_cases_byte_for_byte():
    forty = corpus.combined(cases()[:40])
    on_spark = verdict_on(forty, MODELS[0], executor="spark")
    assert told_by_checkers(on_spark) == of_forty()
    in_process = verdict_on(forty, MODELS[0])
    assert msgspec.json.encode(on_spark) == msgspec.json.encode(in_process)
