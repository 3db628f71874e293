"""The checkers against the oracle, over the corpus: nothing in common but the histories.

What is compared: the outcome, the names under ``anomalies`` and ``observed``, ``not``,
``also_not``, and in how many components each class of cycles is told.
"""

from collections import Counter
from functools import cache

import corpus
import msgspec
import oracle
import oracle_models
import pytest

from checkers.engine.analyze import checkers_named, judge
from checkers.engine.source import Source
from harness.history.schema import EVENTS, FAULTS
from harness.importers.jepsen.imported_history import read_jepsen
from harness.protocols.checker import Setting
from harness.protocols.promise import Declaration, Promise

CHECKERS = ("list-append", "lost-write", "evidence")
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
    promises = (Promise(kind="read-write", model=model),)
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
        "components": {name: shown[name].count for name in shown if name in oracle.CYCLE_NAMES},
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
