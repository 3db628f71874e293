"""The register's checker: what it says of each kind of contradiction, and where it can't tell."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
import pytest
from checker_histories import Fault, Txn, fail, info, ok, write_run
from register_histories import verdict

from checkers.engine.analyze import analyze
from checkers.register import linearization_search
from harness.history.records import MicroOp
from harness.protocols.promise import Declaration, Promise
from harness.protocols.verdict import Verdict, encode

CHECKERS = ("register", "statistics", "availability", "evidence")


def w(value: int, start: int, finish: int, key: int = 1) -> Txn:
    return ok(("w", key, value), start=start, finish=finish)


def r(value: int | None, start: int, finish: int, key: int = 1) -> Txn:
    return ok(("r", key, value), start=start, finish=finish)


def cas(old: int, new: int, start: int, finish: int, key: int = 1) -> Txn:
    return ok(("cas", key, (old, new)), start=start, finish=finish)


def anomalies(found: Verdict) -> set[str]:
    return {*found.anomalies, *found.observed}


def text(found: Verdict, name: str = "nonlinearizable") -> str:
    (example,) = {**found.anomalies, **found.observed}[name].examples
    return example.text


GOOD = [r(None, 0, 5), w(1, 6, 10), r(1, 11, 20), w(2, 15, 30), r(1, 21, 28), r(2, 22, 35)]


def test_reads_that_fit_into_one_order_are_valid() -> None:
    found = verdict(GOOD, "register")

    assert found.outcome == "valid"
    assert found.statistics["register"] == {
        "registers": 1,
        "zones": 1,
        "search": 0,
        "undecided": 0,
    }


def test_a_stale_read_is_not_linearizable_and_one_that_touches_is() -> None:
    stale = verdict([w(1, 0, 10), w(2, 20, 30), r(1, 31, 40)], "register")
    touching = verdict([w(1, 0, 10), w(2, 20, 30), r(1, 30, 40)], "register")

    assert stale.outcome == "violation"
    assert text(stale) == (
        "not linearizable: register 1 must have held 1 all the time from the end of T0 to the "
        "start of T2, but T1, which wrote 2, can only have taken effect within that time"
    )
    assert touching.outcome == "valid"


def test_a_value_that_comes_back_is_not_linearizable() -> None:
    txns = [w(1, 0, 10), w(2, 0, 10), r(1, 11, 12), r(2, 13, 14), r(1, 15, 16), r(2, 17, 18)]

    found = verdict(txns, "register")

    assert found.outcome == "violation"
    assert "these times overlap" in text(found)
    assert verdict(txns[:3], "register").outcome == "valid"


def test_a_register_is_not_empty_again() -> None:
    found = verdict([w(1, 0, 10), r(None, 11, 12)], "register")

    assert found.outcome == "violation"
    assert text(found) == (
        "not linearizable: register 1 must have held nothing all the time from the beginning to "
        "the start of T1, but T0, which wrote 1, can only have taken effect within that time"
    )
    assert verdict([w(1, 0, 10), r(None, 10, 12)], "register").outcome == "valid"


def test_a_read_does_not_end_before_its_write_begins() -> None:
    found = verdict([r(1, 0, 5), w(1, 6, 10)], "register")

    assert text(found) == (
        "not linearizable: T0 read 1 from register 1 and had ended before T1, the only write of "
        "it, began"
    )
    assert verdict([r(1, 0, 6), w(1, 6, 10)], "register").outcome == "valid"


def test_what_nobody_wrote_is_garbage_and_what_failed_is_an_aborted_read() -> None:
    garbage = verdict([w(1, 0, 10), r(9, 11, 12)], "register")
    aborted = verdict([fail(("w", 1, 9), start=0, finish=10), r(9, 11, 12)], "register")
    possible = verdict([info(("w", 1, 9), start=0, finish=10), r(9, 11, 12)], "register")

    assert anomalies(garbage) == {"garbage-read"}
    assert text(garbage, "garbage-read").startswith("garbage read: T1 found 9 in register 1")
    assert anomalies(aborted) == {"G1a"}
    assert text(aborted, "G1a").endswith("which T0 wrote and then failed")
    assert garbage.outcome == aborted.outcome == "violation"
    assert possible.outcome == "valid"


def test_a_write_of_unknown_outcome_may_take_effect_late_or_never_but_not_twice() -> None:
    unknown = info(("w", 1, 9), start=0, finish=10)
    late = [unknown, w(1, 11, 20), r(1, 21, 30), r(9, 31, 40)]

    assert verdict([unknown, w(1, 11, 20), r(1, 21, 30)], "register").outcome == "valid"
    assert verdict(late, "register").outcome == "valid"
    assert verdict([*late, r(1, 41, 50)], "register").outcome == "violation"


def test_a_compare_and_set_needs_the_value_that_it_found() -> None:
    good = [w(1, 0, 10), cas(1, 2, 11, 20), cas(2, 3, 21, 30), r(3, 31, 40)]
    twice = [w(1, 0, 10), cas(1, 2, 11, 20), cas(1, 3, 21, 30)]

    valid, found = verdict(good, "register"), verdict(twice, "register")

    assert valid.outcome == "valid"
    assert valid.statistics["register"]["search"] == 1
    assert found.outcome == "violation"
    assert text(found) == (
        "not linearizable: no order of the operations on register 1 explains that T2 set 3 where "
        "it found 1: before what was open as it ended, the register held 2, and no order of what "
        "was open leads there"
    )
    assert {**found.anomalies, **found.observed}["nonlinearizable"].examples[0].txns == (2, 0, 1)


def test_a_mismatch_is_a_definite_failure_and_changes_nothing() -> None:
    mismatch = fail(("cas", 1, (7, 9)), start=11, finish=20, error="CAS-MISMATCH")

    assert verdict([w(1, 0, 10), mismatch, r(1, 21, 30)], "register").outcome == "valid"
    found = verdict([w(1, 0, 10), mismatch, r(9, 21, 30)], "register")
    assert anomalies(found) == {"G1a"}


def test_values_written_twice_are_searched() -> None:
    back = [w(1, 0, 1), w(2, 2, 3), w(1, 4, 5), r(1, 6, 7)]

    found = verdict(back, "register")

    assert found.outcome == "valid"
    assert found.statistics["register"]["search"] == 1
    assert verdict([*back, r(2, 8, 9)], "register").outcome == "violation"


def many_open_swaps(key: int) -> list[Txn]:
    """Overlapping compare-and-sets between any two of four values, of which every order must be
    tried, and reads that none explains.
    """
    pairs = itertools.permutations(range(4), 2)
    swaps = [cas(old, new, 10, 1000 + at, key) for at, (old, new) in enumerate(pairs)]
    reads = [r(value, 2000 + 2 * value, 2001 + 2 * value, key) for value in range(3)]
    return [w(0, 0, 1, key), *swaps, *reads]


def test_past_its_limit_the_search_says_that_it_can_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Never silently ok: the verdict is unknown, and a violation of another key still stands."""
    monkeypatch.setattr(linearization_search, "CONFIGURATIONS_EACH", 0)
    hard = many_open_swaps(2)

    found = verdict([*GOOD, *hard], "register", search_limit=100)
    both = verdict([*GOOD, *hard, r(None, 50, 60)], "register", search_limit=100)

    assert found.outcome == "unknown"
    assert found.reasons[0].startswith("undecided: 1 of 2 registers need more than")
    assert "(key 2): raise it by check --search-limit" in found.reasons[0]
    assert found.statistics["register"]["undecided"] == 1
    assert both.outcome == "violation"
    assert any(reason.startswith("undecided") for reason in both.reasons)


def test_a_long_history_of_a_key_is_no_harder_than_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linearization_search, "CONFIGURATIONS_EACH", 2)
    turns = [w(at % 3, 2 * at, 2 * at + 1) for at in range(2000)] + [r(1, 4500, 4501)]

    assert verdict(turns, "register", search_limit=100).outcome == "valid"
    broken = [*turns, r(0, 5000, 5001)]
    assert verdict(broken, "register", search_limit=100).outcome == "violation"


@pytest.mark.parametrize(("last", "outcome"), [(2, "valid"), (0, "violation")])
def test_writes_without_an_outcome_that_do_the_same_make_a_history_no_harder(
    monkeypatch: pytest.MonkeyPatch, last: int, outcome: str
) -> None:
    monkeypatch.setattr(linearization_search, "CONFIGURATIONS_EACH", 2)
    unknown = [Txn("info", [("w", 1, at % 3)], start=at, finish=at + 1) for at in range(600)]
    # Each of three values may have been written 200 times, and comes back as often.
    reads = [r(at % 3, 1000 + 2 * at, 1001 + 2 * at) for at in range(600)]

    found = verdict([*unknown, *reads, r(last, 5000, 5001)], "register", search_limit=100)

    assert found.outcome == outcome, found.reasons


def test_an_old_read_of_a_kind_without_real_time_is_fine_but_not_one_of_nothing() -> None:
    declared = Declaration(
        system="paper",
        mode="SC",
        promises=(
            Promise(kind="read-write"),
            Promise(kind="snapshot", model="serializable", staleness_s=1.5),
        ),
    )
    never = fail(("w", 1, 9), start=6, finish=7)

    def of_snapshot(seen: int | None) -> Verdict:
        old = attrs.evolve(r(seen, 50, 60), kind="snapshot")
        return verdict([*GOOD, never, old], "register", declaration=declared)

    assert of_snapshot(1).outcome == of_snapshot(None).outcome == "valid"
    assert set(of_snapshot(99).anomalies) == {"garbage-read"}
    assert set(of_snapshot(9).anomalies) == {"G1a"}


def test_keys_are_judged_apart() -> None:
    other = [w(1, 0, 10, key=2), r(None, 11, 20, key=2)]

    found = verdict([*GOOD, *other], "register", splits=3)

    assert found.outcome == "violation"
    ((name, anomaly),) = {**found.anomalies, **found.observed}.items()
    assert (name, anomaly.count, anomaly.examples[0].keys) == ("nonlinearizable", 1, (2,))


def test_without_a_promise_of_real_time_it_is_only_observed() -> None:
    stale = [w(1, 0, 10), w(2, 20, 30), r(1, 31, 40)]

    found = verdict(stale, "register", model="serializable")

    assert found.outcome == "valid"
    assert set(found.observed) == {"nonlinearizable"}


def test_a_transaction_of_several_steps_is_refused() -> None:
    found = verdict([ok(("w", 1, 1), ("r", 1, 1))], "register")

    assert found.outcome == "unknown"
    assert "has several steps" in found.reasons[0]


def test_a_stale_read_names_the_fault_that_is_nearest(tmp_path: Path) -> None:
    stale = [w(1, 0, 10), w(2, 20, 30), r(1, 31, 40)]
    kill = Fault("kill", "n2", 25, 28, ("n2",))

    found = analyze(write_run(tmp_path / "run", stale, [kill], checkers=CHECKERS), executor="local")

    (example,) = {**found.anomalies, **found.observed}["nonlinearizable"].examples
    assert example.explained_by.kind == "kill"
    assert example.operations[0].ops == (MicroOp("w", 1, 1),)


@pytest.mark.spark
@pytest.mark.parametrize("last", [r(3, 70, 80, 3), r(1, 70, 80, 3)])
def test_spark_says_of_registers_what_the_process_says(tmp_path: Path, last: Txn) -> None:
    searched = [w(1, 0, 10, 3), cas(1, 2, 11, 20, 3), cas(2, 3, 21, 30, 3)]
    run = write_run(tmp_path / "run", [*GOOD, *searched, last], checkers=CHECKERS)

    on_spark, in_process = analyze(run, executor="spark"), analyze(run, executor="local")

    assert encode(on_spark) == encode(in_process)
    assert in_process.outcome == ("valid" if last.ops[0][2] == 3 else "violation")


def test_where_nothing_that_was_written_is_read_nothing_was_tested() -> None:
    for vacuous in ([r(None, 0, 1)], [r(None, 0, 1), r(None, 2, 3)], [w(1, 0, 1), w(2, 2, 3)]):
        found = verdict(vacuous, "register")
        assert found.outcome == "unknown"
        assert found.reasons == (
            "vacuous: no register that was written was read, so nothing was tested",
        )

    assert verdict([r(None, 0, 1), w(1, 2, 3)], "register").outcome == "valid"
    assert verdict([r(7, 0, 1)], "register").outcome == "violation"


def test_a_compare_and_set_from_nothing_finds_a_register_that_was_never_written() -> None:
    claims = ok(("cas", 1, (7,)), start=10, finish=20)

    assert verdict([claims, r(7, 21, 30)], "register").outcome == "valid"
    assert verdict([claims, w(1, 0, 30), r(1, 31, 40)], "register").outcome == "valid"
    stale = verdict([w(1, 0, 5), claims, r(7, 21, 30)], "register")
    twice = verdict([claims, ok(("cas", 1, (8,)), start=21, finish=30)], "register")

    assert stale.outcome == twice.outcome == "violation"
    assert "T1 set 7 where it found nothing" in text(stale)
    assert "set 8 where it found nothing" in text(twice)
