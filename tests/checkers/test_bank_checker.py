"""The bank's checker: totals, balances, and what it can't tell."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from checker_histories import Fault, Txn, fail, info, ok, write_run
from register_histories import verdict

from checkers.engine.analyze import analyze
from harness.protocols.promise import Declaration, Promise
from harness.protocols.verdict import Verdict, encode

CHECKERS = ("bank", "statistics", "availability", "evidence")
SET_UP = ok(("w", 1, 6), ("w", 2, 4), ("w", 3, 0))


def transfer(payer: tuple[int, int], payee: tuple[int, int], amount: int) -> Txn:
    """Of (account, balance) to (account, balance)."""
    (a, held_a), (b, held_b) = payer, payee
    return ok(
        ("add", a, -amount),
        ("add", b, amount),
        ("r", a, held_a),
        ("r", b, held_b),
        ("w", a, held_a - amount),
        ("w", b, held_b + amount),
    )


def balances(*held: int | None) -> Txn:
    return ok(*(("r", account, value) for account, value in enumerate(held, 1)))


def anomalies(found: Verdict) -> set[str]:
    return {*found.anomalies, *found.observed}


GOOD = [
    SET_UP,
    balances(6, 4, 0),
    transfer((1, 6), (3, 0), 2),
    balances(4, 4, 2),
    fail(("add", 1, -1), ("add", 2, 1)),
    info(("add", 2, -3), ("add", 1, 3)),
    ok(("r", 2, 1), ("r", 3, 2)),
    balances(7, 1, 2),
    balances(7, 1, 2),
]


def changed(number: int, txn: Txn) -> list[Txn]:
    return [*GOOD[:number], txn, *GOOD[number + 1 :]]


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_transfers_leave_the_total_alone(splits: int) -> None:
    found = verdict(GOOD, "bank", splits=splits)

    assert found.outcome == "valid"
    assert anomalies(found) == set()
    assert found.statistics["bank"] == {
        "banks": 1,
        "accounts": 3,
        "whole_reads": 4,
        "wrong_reads": 0,
        "unverified_accounts": 1,
    }


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_a_wrong_total_is_found_however_accounts_are_split(splits: int) -> None:
    found = verdict(changed(7, balances(7, 1, 3)), "bank", splits=splits)

    assert found.outcome == "violation"
    assert anomalies(found) == {"bank-total"}
    (example,) = {**found.anomalies, **found.observed}["bank-total"].examples
    assert example.text == (
        "wrong total: in what T7 read, the bank of 3 accounts held 11 instead of 10"
    )
    assert example.txns == (7,)
    assert example.keys == (1, 2, 3)
    assert found.reasons[0].startswith("bank-total (1) breaks strict-serializable: wrong total")


def test_a_balance_below_zero_is_wrong_even_where_the_total_is_right() -> None:
    found = verdict(changed(7, balances(9, 2, -1)), "bank")

    assert found.outcome == "violation"
    assert anomalies(found) == {"negative-balance"}
    (example,) = {**found.anomalies, **found.observed}["negative-balance"].examples
    assert example.text.startswith("negative balance: T7 read -1 in account 3")


def test_an_account_that_lost_its_balance_is_a_wrong_total() -> None:
    found = verdict(changed(7, balances(7, None, 2)), "bank")

    (example,) = {**found.anomalies, **found.observed}["bank-total"].examples
    assert "held 9 instead of 10, and 1 of them nothing at all" in example.text


@pytest.mark.parametrize("type_", ["fail", "info"])
def test_reads_that_were_not_committed_are_no_evidence(type_: str) -> None:
    wrong = Txn(type_, balances(7, 1, 3).ops)

    assert verdict(changed(7, wrong), "bank").outcome == "valid"


def test_a_snapshot_may_be_older_than_the_bank_but_no_other_read_may() -> None:
    declared = Declaration(
        system="paper",
        mode="SC",
        promises=(
            Promise(kind="read-write"),
            Promise(kind="snapshot", model="serializable", staleness_s=1.5),
        ),
        transaction_scope="cluster",
    )
    nothing = balances(None, None, None)
    old = attrs.evolve(nothing, kind="snapshot")

    assert verdict(changed(1, old), "bank", declaration=declared).outcome == "valid"
    assert anomalies(verdict(changed(1, nothing), "bank", declaration=declared)) == {"bank-total"}
    torn = attrs.evolve(balances(6, None, None), kind="snapshot")
    assert anomalies(verdict(changed(1, torn), "bank", declaration=declared)) == {"bank-total"}


def test_a_read_of_a_part_of_the_bank_says_nothing() -> None:
    assert verdict(changed(7, ok(("r", 1, 70), ("r", 2, 1))), "bank").outcome == "valid"


def test_a_transfer_that_got_lost_as_a_whole_is_a_lost_write() -> None:
    """The total is right, but money that was acknowledged to have moved is where it was."""
    txns = [SET_UP, transfer((1, 6), (3, 0), 2), balances(4, 4, 2)]
    unknown = info(("add", 1, 2), ("add", 3, -2))

    assert verdict(txns, "bank", splits=3).outcome == "valid"
    lost = verdict([*txns[:2], balances(6, 4, 0)], "bank", splits=3)
    assert lost.outcome == "violation"
    assert lost.anomalies["lost-write"].count == 2
    assert lost.anomalies["lost-write"].examples[0].text == (
        "lost write: account 1 held 6 when T2 read it last, but its first balance and 1 "
        "acknowledged transfers make 4: the -2 of T1 is missing"
    )
    assert verdict([*txns[:2], unknown, balances(6, 4, 0)], "bank").outcome == "valid"
    assert verdict([*txns[:2], unknown, balances(7, 4, -1)], "bank").outcome == "violation"


def test_a_lost_write_names_the_transfer_whose_amount_is_missing_and_no_bystander() -> None:
    txns = [
        SET_UP,
        transfer((1, 6), (3, 0), 2),
        transfer((1, 4), (2, 4), 1),  # acknowledged last, and all there
        balances(5, 5, 0),
    ]
    (example, *_) = verdict(txns, "bank").anomalies["lost-write"].examples
    several = [*txns[:3], balances(6, 4, 0)]
    sums = verdict(several, "bank").anomalies["lost-write"].examples

    assert example.keys == (1,)
    assert example.txns == (1, 3)
    assert example.text.endswith("acknowledged transfers make 3: the -2 of T1 is missing")
    assert sums[0].txns == (2, 3)
    assert sums[0].text.endswith("acknowledged transfers make 3"), "no single one is missing"


HALVES = [
    SET_UP,
    transfer((1, 6), (3, 0), 2),
    balances(4, 4, 2),
    transfer((1, 4), (2, 4), 2),  # its payee never got it
    transfer((1, 2), (3, 2), 1),
    balances(1, 4, 3),
]


def test_a_wrong_total_names_the_transfer_of_which_a_half_is_missing() -> None:
    found = verdict(HALVES, "bank").anomalies["bank-total"]
    (example,) = found.examples

    assert example.txns == (3, 5)
    assert [shown.txn for shown in example.operations] == [3, 5]
    assert example.text == (
        "wrong total: in what T5 read, the bank of 3 accounts held 8 instead of 10; the 2 too "
        "little is the amount that T3 moved from account 1 to 2"
    )


def test_of_transfers_of_one_amount_the_one_whose_half_the_read_shows_is_named() -> None:
    txns = [
        SET_UP,
        info(("add", 1, -2), ("add", 2, 2)),
        transfer((1, 6), (3, 0), 2),  # all of it is there
        transfer((2, 4), (3, 2), 2),  # and of this one half
        fail(("add", 1, -2), ("add", 3, 2)),
        balances(4, 2, 2),
    ]
    (example,) = verdict(txns, "bank").anomalies["bank-total"].examples
    unsure = [*HALVES[:4], info(("add", 3, -2), ("add", 2, 2)), *HALVES[4:]]
    (other,) = verdict(unsure, "bank").anomalies["bank-total"].examples

    assert example.txns == (3, 5)
    assert example.text.endswith("moved from account 2 to 3, of which the read shows one half")
    assert other.txns == (4, 6)
    assert other.text.endswith("(1 more moved as much then)")


def test_where_no_transfer_moved_the_excess_none_is_named() -> None:
    (example,) = verdict([*HALVES[:5], balances(1, 6, 7)], "bank").anomalies["bank-total"].examples

    assert example.txns == (5,)
    assert example.text.endswith("held 14 instead of 10")


def test_a_wrong_total_is_explained_by_the_fault_around_its_transfer(tmp_path: Path) -> None:
    faults = [
        Fault("kill", "n2", 28, 39, ("n2",)),
        Fault("partition", "n1", 50, 60, ("n1",)),
    ]
    run = write_run(tmp_path / "run", HALVES, faults, checkers=CHECKERS)

    (example,) = analyze(run, executor="local").anomalies["bank-total"].examples

    assert example.txns == (3, 5)
    assert example.explained_by.kind == "kill"


def test_under_a_model_that_allows_it_a_wrong_total_is_only_observed() -> None:
    found = verdict(changed(7, balances(7, 1, 3)), "bank", model="read-committed")

    assert found.outcome == "valid"
    assert set(found.observed) == {"bank-total"}


@pytest.mark.parametrize("model", ["serializable", "snapshot-isolation", "repeatable-read"])
def test_models_that_keep_transfers_whole_are_broken_by_a_wrong_total(model: str) -> None:
    assert verdict(changed(7, balances(7, 1, 3)), "bank", model=model).outcome == "violation"


def test_nothing_at_all_is_right_only_before_the_set_up_is_acknowledged() -> None:
    early = [
        ok(("r", 1, None), ("r", 2, None), ("r", 3, None), start=0, finish=9),
        ok(*SET_UP.ops, start=5, finish=20),
        ok(*balances(6, 4, 0).ops, start=30, finish=40),
    ]
    lost = [*early, ok(("r", 1, None), ("r", 2, None), ("r", 3, None), start=50, finish=60)]

    assert verdict(early, "bank").outcome == "valid"
    found = verdict(lost, "bank")
    assert found.outcome == "violation"
    assert "held 0 instead of 10" in found.reasons[0]


def test_a_set_up_that_was_tried_again_is_one_bank() -> None:
    found = verdict([info(*SET_UP.ops), *GOOD], "bank")
    lost = verdict([info(*SET_UP.ops), *GOOD, balances(None, None, None)], "bank")

    assert found.outcome == "valid"
    assert found.statistics["bank"]["banks"] == 1
    assert lost.outcome == "violation"


def test_each_bank_has_a_total_of_its_own() -> None:
    other = [
        ok(("w", 11, 50), ("w", 12, 50)),
        ok(("r", 11, 60), ("r", 12, 40)),
    ]
    found = verdict([*GOOD, *other], "bank", splits=3)
    wrong = verdict([*GOOD, *other, ok(("r", 11, 5), ("r", 12, 5))], "bank", splits=3)

    assert found.outcome == "valid"
    assert found.statistics["bank"]["banks"] == 2
    assert "the bank of 2 accounts held 10 instead of 100" in wrong.reasons[0]


@pytest.mark.parametrize(
    "other", [(("w", 1, 9), ("w", 2, 9), ("w", 3, 0)), (("w", 1, 6), ("w", 2, 4))]
)
def test_a_set_up_that_failed_sets_nothing_up(other: tuple[tuple[str, int, int], ...]) -> None:
    assert verdict([fail(*other), *GOOD], "bank").outcome == "valid"
    assert verdict([ok(*other), *GOOD], "bank").outcome != "valid"


def test_a_history_without_a_bank_or_without_whole_reads_is_unknown() -> None:
    none = verdict([ok(("r", 1, None))], "bank")
    unread = verdict([SET_UP, transfer((1, 6), (3, 0), 2)], "bank")

    assert none.outcome == unread.outcome == "unknown"
    assert none.reasons == ("no bank: no transaction wrote accounts that it had not read",)
    assert unread.reasons == (
        "vacuous: the bank of 3 accounts that T0 set up was never read as a whole",
    )


def test_a_wrong_total_names_the_fault_that_is_nearest(tmp_path: Path) -> None:
    kill = Fault("kill", "n2", 35, 60, ("n2",))
    run = write_run(tmp_path / "run", changed(7, balances(7, 1, 3)), [kill], checkers=CHECKERS)

    found = analyze(run, executor="local")

    (example,) = {**found.anomalies, **found.observed}["bank-total"].examples
    assert found.outcome == "violation"
    assert example.explained_by.kind == "kill"


@pytest.mark.spark
@pytest.mark.parametrize("last", [balances(7, 1, 2), balances(7, 1, -3), balances(7, 1, 5)])
def test_spark_says_of_a_bank_what_the_process_says(tmp_path: Path, last: Txn) -> None:
    run = write_run(tmp_path / "run", changed(7, last), checkers=CHECKERS)

    on_spark, in_process = analyze(run, executor="spark"), analyze(run, executor="local")

    assert encode(on_spark) == encode(in_process)
    assert in_process.outcome == ("valid" if last.ops[2][2] == 2 else "violation")


def test_an_account_that_holds_nothing_is_wrong_even_where_the_total_is_right() -> None:
    emptied = [*GOOD, transfer((2, 1), (1, 7), 1)]
    found = verdict([*emptied, balances(8, None, 2)], "bank")

    assert anomalies(found) == {"nil-balance"}
    assert found.outcome == "violation"
    assert "nothing in 1 of the 3 accounts" in found.anomalies["nil-balance"].examples[0].text
    assert anomalies(verdict([*emptied, balances(8, 0, 2)], "bank")) == set()


def test_a_bank_claims_no_more_than_was_tested() -> None:
    (told,) = verdict(GOOD, "bank").reasons

    assert "that the store is strict-serializable is not claimed" in told
