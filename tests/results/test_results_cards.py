"""Anomalies for a reader: the plainest proof first, long texts as steps."""

from __future__ import annotations

from harness.outcome import Outcome
from harness.protocols.verdict import Anomaly, Verdict
from results.report.cards import clauses, headlines, other_reasons, plainest_first
from results.report.page import banner
from results.report.steps import parting
from results.report.steps import shortened as _elements
from results.report.tabulate import DASH, grids

CYCLE = Anomaly(
    count=1,
    examples=(
        {
            "text": "write cycle (G0): interleaved: T1 is before T2; yet T2 is before T1",
            "txns": [1, 2],
        },
    ),
)
LOST = Anomaly(
    count=7,
    examples=(
        {
            "text": "lost write: an acknowledged append to key 7 (value 31) is in no later read",
            "txns": [1, 2, 3],
            "explained_by": {"text": "during partition of n1"},
        },
    ),
)


def test_what_a_fault_explains_comes_before_cycles() -> None:
    found = plainest_first({"G0": CYCLE, "lost-write": LOST, "other": Anomaly(count=1)})

    assert [name for name, _ in found] == ["lost-write", "other", "G0"]


def test_what_is_no_cycle_comes_before_cycles_that_a_fault_explains_as_well() -> None:
    told = {"txns": [1, 2], "explained_by": {"text": "during kill of n1"}}
    cycle = Anomaly(count=1, examples=(told | {"cycle": [{}]},))
    plain = Anomaly(count=1, examples=(told,))

    found = plainest_first({"G0": cycle, "lost-write": plain})

    assert [name for name, _ in found] == ["lost-write", "G0"]


def test_a_headline_names_the_loss_and_the_fault() -> None:
    assert headlines({"G0": CYCLE, "lost-write": LOST}) == [
        "lost-write (7): lost write: an acknowledged append to key 7 (value 31) is in no later "
        "read; during partition of n1",
        "G0 (1): write cycle (G0): interleaved",
    ]


def test_reasons_that_quote_an_anomaly_are_not_said_twice() -> None:
    reasons = ("G0 (1) breaks serializable: write cycle", "fault 0 was never proven effective")

    assert other_reasons(reasons, {"G0": CYCLE}) == ["fault 0 was never proven effective"]
    assert other_reasons(reasons, {}) == list(reasons)


def test_a_long_text_falls_into_head_and_steps_and_a_short_one_stays_whole() -> None:
    assert clauses("cycle (G0): meaning: T1 before T2; yet T2 before T1") == (
        "cycle (G0): meaning",
        ("T1 before T2", "yet T2 before T1"),
    )
    assert clauses("lost write: a; b") == ("lost write", ("a", "b"))
    assert clauses("lost write: gone") == ("lost write: gone", ())
    assert clauses("no colon; here") == ("no colon; here", ())


def test_lists_that_contradict_each_other_are_shown_where_they_part() -> None:
    one, two = list(range(40)), [*range(10), 99, *range(11, 40)]
    rows = [{"ops": [{"key": 7, "elements": read}]} for read in (one[:5], one, two)]

    assert parting(rows) == {7: 10}
    assert parting(rows[:2]) == {}
    assert _elements(two, 10) == "[… 3 before, 3 4 5 6 7 8 9 99 11 12 13 14 15 16, … 23 after]"
    assert _elements(two, None).startswith("[… 26 before, 26 27")
    assert _elements([1, 2], None) == "[1 2]"


def test_whatever_a_checker_says_becomes_a_table() -> None:
    pairs, matrix, records = grids(
        {
            "count": 12345,
            "gap_ns": 1_500_000_000,
            "by_node": {"n1": {"info": 1, "ok": 2}, "n2": {"fail": 3}},
            "rows": [{"txn": 5230, "late": True}, {"txn": 1, "extra": None}],
        }
    )

    assert pairs.rows == (("count", "12,345"), ("gap (s)", "1.500"))
    assert matrix.columns == ("", "ok", "fail", "info")
    assert matrix.rows == (("n1", "2", DASH, "1"), ("n2", DASH, "3", DASH))
    assert records.rows == (("5230", "yes", DASH), ("1", DASH, DASH))


def test_a_chain_of_resets_is_not_cut_out_of_the_headline() -> None:
    chain = "; ".join(
        ["acknowledged " + "x" * 200, "after a reset " + "y" * 90, "then " + "z" * 90]
    )
    anomaly = Anomaly(count=1, examples=({"text": "lost write", "explained_by": {"text": chain}},))
    verdict = Verdict(
        outcome=Outcome.VIOLATION,
        model="strict-serializable",
        anomalies={"lost-write": anomaly},
        reasons=("w" * 500,),
    )

    lost, other = banner(verdict)

    assert lost == f"lost-write (1): lost write; {chain}"
    assert other.endswith("(180 more characters)")
