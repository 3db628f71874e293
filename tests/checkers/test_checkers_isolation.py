"""What breaks in one checker stays there, and what Spark lacks is said in a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from checker_histories import a, ok, r, setting, source

from checkers.engine.analyze import judge
from checkers.engine.kernel_output import KernelOutput, merge
from checkers.engine.spark import gateway, session
from checkers.engine.spark.executor import run_on_spark
from checkers.engine.spark.java import JavaChoice
from checkers.promises.lost_write import CHECKER as LOST_WRITE
from checkers.promises.statistics import CHECKER as STATISTICS
from harness.errors import HarnessError
from harness.exit_codes import Outcome
from harness.history import schema
from harness.protocols.checker import Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.consistency_models import (
    NONE_DECLARED,
    OBSERVED,
    Meaning,
    Meanings,
    breaking,
)
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly, Verdict, encode

LOSS = [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1))]


def raising(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    raise ZeroDivisionError("division by zero")


@attrs.frozen
class Broken:
    """A checker with a bug: in its kernel, or in its judgement."""

    name: str = "broken"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        raise KeyError("nope")


@attrs.frozen
class Accuser:
    """A checker of somebody else's that finds G1a, or what else, with these examples."""

    name: str
    texts: tuple[str, ...]
    finds: str = "G1a"
    meanings: Meanings = NONE_DECLARED
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        examples = tuple({"text": text, "txns": [0], "keys": [1]} for text in self.texts)
        found = {self.finds: Anomaly(count=3, examples=examples)}
        return Part(anomalies=found, meanings=self.meanings)


def judged(*checkers: Any, **more: Any) -> Verdict:
    return judge(
        source(LOSS, splits=2),
        setting=setting(**more),
        checkers=checkers,
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
    ).verdict


@pytest.mark.parametrize("exchange", list(Exchange))
def test_a_kernel_that_breaks_makes_only_its_own_checker_unknown(exchange: Exchange) -> None:
    broken = Broken(kernels=(Kernel(name="broken", exchange=exchange, run=raising),))

    found = judged(broken, STATISTICS)

    assert found.outcome == "unknown"
    place = f"test_checkers_isolation.py:{raising.__code__.co_firstlineno + 1}"
    (reason,) = found.reasons
    assert reason == f"checker broken gave up: ZeroDivisionError: division by zero ({place})"
    assert found.statistics["transactions"]["ok"] == 3


def split_by_key(exchange: Exchange) -> Broken:
    """A checker of a kernel that gives its table other columns for key 1 than for other keys."""

    # A function within a function travels to the workers of Spark by value.
    def run(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
        kind = pa.int64() if 1 in tables["micro_ops"]["key"].to_pylist() else pa.string()
        return {"own": pa.table({"n": pa.array([None], kind)}), "other": pa.table({"n": [1]})}

    return Broken(kernels=(Kernel(name="own.rows", exchange=exchange, run=run),))


def judged_beside(broken: Broken, executor: str) -> Verdict:
    others = [ok(a(key, 1)) for key in range(2, 10)]
    return judge(
        source([*LOSS, *others], splits=2),
        setting=setting(),
        checkers=(broken, LOST_WRITE),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor=executor,
    ).verdict


@pytest.mark.parametrize("exchange", [Exchange.EARLY, Exchange.KEY])
def test_a_table_with_other_columns_in_another_split_breaks_its_own_checker(
    exchange: Exchange,
) -> None:
    found = judged_beside(split_by_key(exchange), "local")

    assert found.outcome == "violation"
    assert "lost-write" in found.anomalies
    assert (
        "checker broken gave up: table 'own' of a kernel: expected the same columns whichever keys "
        "a kernel is given (got n: int64 and n: string)"
    ) in found.reasons


@pytest.mark.spark
def test_spark_says_of_a_table_with_other_columns_what_the_process_says() -> None:
    broken = split_by_key(Exchange.KEY)

    assert encode(judged_beside(broken, "spark")) == encode(judged_beside(broken, "local"))


def misnumbered(columns: Any, number: int = 0) -> Broken:
    """A checker whose kernel declares ``columns`` of its table to hold numbers of transactions."""

    def run(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
        return {"own": pa.table({"txn": [number], "word": ["a"]})}

    kernel = Kernel(name="own.rows", exchange=Exchange.KEY, run=run, numbers={"own": columns})
    return Broken(kernels=(kernel,))


def laid_down(columns: Any, *, leaves: bool = False) -> Broken:
    """A checker whose STRETCH kernel takes ``columns`` of a table of its KEY kernel."""

    def run(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
        return {"own": pa.table({"txn": [0], "word": ["a"]})}

    def nothing(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
        return {}

    def no_pair(tables: Tables) -> Any:
        raise SystemExit(0)

    by_key = Kernel(name="own.rows", exchange=Exchange.KEY, run=run, numbers={"own": ("txn",)})
    by_stretch = Kernel(
        name="own.cycles",
        exchange=Exchange.STRETCH,
        run=nothing,
        takes={"own": columns},
        leads_back=no_pair if leaves else None,
    )
    return Broken(kernels=(by_key, by_stretch))


OWN = "kernel 'own.rows': table 'own'"
MISDECLARED = {
    "a column that is not there": (
        misnumbered(("nope",)),
        f"{OWN}: column 'nope': expected one column of that name (got 0)",
    ),
    "a column of texts": (
        misnumbered(("word",)),
        f"{OWN}: column 'word': expected signed integers, or lists of them (got string)",
    ),
    "numbers of no transaction": (
        misnumbered(("txn",), 10**9),
        f"{OWN}: expected numbers of transactions that the kernel was given",
    ),
    "a text for columns": (
        misnumbered("txn"),
        "kernel 'own.rows': numbers: expected a tuple of columns by table (got 'own': 'txn')",
    ),
    "a column to take that is not there": (
        laid_down(("nope",)),
        "kernel 'own.cycles': table 'own': column 'nope': expected one column of that name (got 0)",
    ),
    "no columns to take": (
        laid_down(()),
        "kernel 'own.cycles': takes: expected a tuple of columns by table (got 'own': ())",
    ),
    "an exit as it tells what leads back": (laid_down(("txn",), leaves=True), "SystemExit: 0 ("),
}


@pytest.mark.parametrize(("broken", "why"), MISDECLARED.values(), ids=MISDECLARED)
def test_columns_that_a_kernel_declares_and_does_not_give_break_its_own_checker(
    broken: Broken, why: str
) -> None:
    found = judged_beside(broken, "local")

    assert found.outcome == "violation"
    assert "lost-write" in found.anomalies
    (reason,) = (each for each in found.reasons if each.startswith("checker broken"))
    assert reason.startswith(f"checker broken gave up: {why}")


@pytest.mark.spark
def test_spark_says_of_declared_columns_what_the_process_says() -> None:
    for broken, _ in MISDECLARED.values():
        assert encode(judged_beside(broken, "spark")) == encode(judged_beside(broken, "local"))


def test_nothing_of_a_broken_kernel_is_merged() -> None:
    rows = pa.table({"n": [1]})
    whole = KernelOutput(tables={"a": rows, "b": rows}, makers={"a": "first", "b": "second"})
    other = KernelOutput(tables={"b": rows}, broken={"first": "why"}, makers={"b": "second"})

    assert merge([whole, whole]).tables == {name: pa.concat_tables([rows] * 2) for name in "ab"}
    assert merge([whole, other]).tables == {"b": pa.concat_tables([rows] * 2)}


def test_a_violation_stands_beside_a_checker_that_breaks() -> None:
    found = judged(Broken(), LOST_WRITE)

    assert found.outcome == "violation"
    place = f"test_checkers_isolation.py:{Broken.judge.__code__.co_firstlineno + 1}"
    assert f"checker broken gave up: KeyError: 'nope' ({place})" in found.reasons


def test_a_transaction_that_is_not_in_the_history_is_named() -> None:
    """Where the checker gets it, the place would be one of the harness."""

    @attrs.frozen
    class Stranger:
        name: str = "stranger"
        kernels: tuple[Kernel, ...] = ()

        def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
            lookup.operations((0, 99_999))
            return Part(outcome=Outcome.VALID)

    assert judged(Stranger()).reasons == (
        "checker stranger gave up: operations: expected transactions of the history, from 0 to "
        "below 3 (got 99999)",
    )


def test_an_accusation_without_an_example_is_none() -> None:
    found = judged(Accuser("vague", ()), STATISTICS)

    assert found.outcome == "unknown"
    assert found.reasons[0].startswith("checker vague gave up: ")
    assert "'G1a': expected an example with a text" in found.reasons[0]
    assert found.statistics["transactions"]["ok"] == 3


def test_what_two_checkers_find_under_one_name_is_added_up() -> None:
    found = judged(Accuser("first", ("one", "two")), Accuser("second", ("three",)))

    assert found.outcome == "violation"
    assert found.anomalies["G1a"].count == 6
    assert [e.text for e in found.anomalies["G1a"].examples] == ["one", "two", "three"]


def accuser(meanings: Meanings, name: str = "counter", finds: str = "wrong-count") -> Accuser:
    return Accuser(name, ("4 of 8 increments are gone",), finds, meanings)


def test_an_anomaly_of_a_checkers_own_is_a_violation_whatever_was_asked() -> None:
    found = judged(accuser({}), model="read-uncommitted")

    assert found.outcome == "violation"
    assert list(found.anomalies) == ["wrong-count"]
    assert found.reasons == (
        "wrong-count (3) breaks the promise of checker counter: 4 of 8 increments are gone",
    )
    assert (found.not_, found.observed) == ((), {})


def test_an_anomaly_that_breaks_a_model_decides_where_that_was_asked_for() -> None:
    meanings = {"wrong-count": breaking("snapshot-isolation")}

    above = judged(accuser(meanings), model="serializable")
    below = judged(accuser(meanings), STATISTICS, model="read-committed")

    assert (above.outcome, list(above.anomalies)) == ("violation", ["wrong-count"])
    assert (above.not_, "serializable" in above.also_not) == (("snapshot-isolation",), True)
    assert (below.outcome, list(below.observed)) == ("valid", ["wrong-count"])


def test_what_a_checker_only_observes_decides_nothing() -> None:
    found = judged(accuser({"wrong-count": OBSERVED}), STATISTICS)

    assert (found.outcome, list(found.observed), found.anomalies) == ("valid", ["wrong-count"], {})


def test_of_two_checkers_that_mean_different_things_by_a_name_the_one_that_accuses_counts() -> None:
    found = judged(accuser({"wrong-count": OBSERVED}), accuser({}, name="second"))

    assert found.outcome == "violation"
    assert found.anomalies["wrong-count"].count == 6


@pytest.mark.parametrize("known", ["G0", "lost-write", "liveness", "panic", "diverged-logs"])
def test_no_checker_gives_a_known_anomaly_another_meaning(known: str) -> None:
    found = judged(accuser({known: OBSERVED}, finds=known), STATISTICS)

    assert found.outcome == "unknown"
    assert f"anomaly {known!r} has its meaning, and 'counter' declares another" in found.reasons[0]


def test_a_meaning_names_models_that_there_are() -> None:
    found = judged(accuser({"wrong-count": Meaning(breaks=("serialisable",))}), STATISTICS)

    assert found.outcome == "unknown"
    assert "unknown consistency model 'serialisable'" in found.reasons[0]


def test_no_checker_at_all_is_no_pass() -> None:
    assert judged().outcome == "unknown"


def test_a_prefix_is_unknown_at_best_and_says_so() -> None:
    from checkers.promises.vacuity import CHECKER

    found = judged(CHECKER, state="prefix", cut_ns=1_500_000_000)

    assert found.outcome == "unknown"
    assert found.reasons == ("the history is incomplete: a prefix of the run, cut at 1.500 s",)


def test_spark_without_java_is_an_error_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = JavaChoice(home=None, version=None, origin="none", reason="no Java 17 or newer")
    monkeypatch.setattr(session, "find_java", lambda: nothing)
    # A JVM that another test has started here needs no Java any more.
    for kept in ("_running", "_starting"):
        monkeypatch.setattr(gateway, kept, [])

    with pytest.raises(HarnessError, match="Spark can't start: no Java 17 or newer"):
        run_on_spark(LOST_WRITE.kernels, source(LOSS), setting())


@pytest.mark.spark
def test_tables_in_memory_go_to_spark_too() -> None:
    on_spark = judge(
        source(LOSS, splits=3),
        setting=setting(),
        checkers=(LOST_WRITE,),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor="spark",
    ).verdict

    assert on_spark == judged(LOST_WRITE)


# In a process of its own: one whose JVM is dead makes no other session. As a signal to the whole
# process group does it, the JVM goes first.
INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from checkers.engine.spark import session
from checkers.engine.spark.options import SparkOptions
try:
    with session.session(SparkOptions(master="local[1]"), Path(sys.argv[1])) as begun:
        os.kill(int(begun._jvm.ProcessHandle.current().pid()), signal.SIGKILL)
        raise KeyboardInterrupt
except BaseException as error:
    print("ended by", type(error).__name__)
"""


@pytest.mark.spark
def test_an_interruption_that_ends_the_jvm_as_well_is_told_as_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert ended.stdout == "ended by KeyboardInterrupt\n", ended.stderr
