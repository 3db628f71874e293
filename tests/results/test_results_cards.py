"""Anomalies for a reader: the plainest proof first, long texts as steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from harness.exit_codes import Outcome
from harness.protocols.cycle_words import explain
from harness.protocols.finding import Dependency, Explanation, Finding
from harness.protocols.verdict import Anomaly, Verdict, reason_of
from results.drawing.operation_texts import parting
from results.drawing.operation_texts import shortened as _elements
from results.report.finding_cards import clauses, headlines, plainest_first
from results.report.page import banner
from results.report.tabulate import CELL_CHARS, CHARS_MAX, DASH, cell, grids

EDGES = (
    Dependency(kind="realtime", source=1, target=2),
    Dependency(kind="rw", source=2, target=1, key=7, element=31),
)
RING = Finding(text=explain("G0", EDGES, ()), txns=(1, 2), keys=(7,), cycle=EDGES)
CYCLE = Anomaly(count=1, examples=(RING,))
GONE = Finding(
    text="lost write: an acknowledged append to key 7 (value 31) is in no later read",
    txns=(1, 2, 3),
    keys=(7,),
    explained_by=Explanation(text="during partition of n1"),
)
LOST = Anomaly(count=7, examples=(GONE,))


def test_what_a_fault_explains_comes_before_cycles() -> None:
    found = plainest_first({"G0": CYCLE, "lost-write": LOST, "other": Anomaly(count=1)})

    assert [name for name, _ in found] == ["lost-write", "other", "G0"]


def test_what_no_fault_explains_comes_after_what_one_does() -> None:
    by_none = Explanation(text="no fault was in force", no_fault=True)
    other = Anomaly(count=1, examples=(msgspec.structs.replace(GONE, explained_by=by_none),))

    found = plainest_first({"a-finding": other, "lost-write": LOST})

    assert [name for name, _ in found] == ["lost-write", "a-finding"]


def test_what_is_no_cycle_comes_before_cycles_that_a_fault_explains_as_well() -> None:
    explained = Explanation(text="during kill of n1")
    told = msgspec.structs.replace(RING, explained_by=explained)
    cycle = Anomaly(count=1, examples=(told,))
    plain = Anomaly(count=1, examples=(msgspec.structs.replace(told, cycle=()),))

    found = plainest_first({"G0": cycle, "lost-write": plain})

    assert [name for name, _ in found] == ["lost-write", "G0"]


def test_a_headline_names_the_loss_and_the_fault() -> None:
    assert list(headlines({"G0": CYCLE, "lost-write": LOST})) == [
        "lost-write (7): lost write: an acknowledged append to key 7 (value 31) is in no later "
        "read; during partition of n1",
        "G0 (1): write cycle (G0): the appends of these transactions are interleaved",
    ]


def test_reasons_that_quote_an_anomaly_are_not_said_twice() -> None:
    unproven = "fault 0 was never proven effective"
    found = {"G0": CYCLE, "lost-write": LOST}
    quoting = tuple(reason_of(name, anomaly, "it") for name, anomaly in found.items())
    verdict = Verdict(
        outcome=Outcome.VIOLATION,
        model="serializable",
        anomalies=found,
        reasons=("it was cut", *quoting, unproven),
    )

    assert verdict.other_reasons == ("it was cut", unproven)
    assert msgspec.structs.replace(verdict, anomalies={}).other_reasons == verdict.reasons


def test_a_cycle_is_told_step_by_step_and_no_other_text_is_taken_apart() -> None:
    assert clauses("G0", RING) == (
        "write cycle (G0): the appends of these transactions are interleaved",
        (
            "T1 is before T2, because it completed before T2 was invoked",
            "yet T2 is before T1, because T2 read key 7 without T1's append of 31: a contradiction",
        ),
    )
    line = "stays-up: the log of n1 has a line: a: b; c; d"
    assert clauses("panic", msgspec.structs.replace(GONE, text=line)) == (line, ())
    other = msgspec.structs.replace(RING, text="write cycle (G0): as its checker tells it; so")
    assert clauses("G0", other) == ("write cycle (G0): as its checker tells it; so", ())
    assert clauses("G1c", RING) == (RING.text, ())


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


def test_a_table_of_many_columns_and_few_rows_stands_on_its_side() -> None:
    """No page is wide enough for it; of many rows each stays a row."""
    of_one = {f"figure_{number}_ms": number for number in range(9)}

    (few,) = grids({"restarts": {"fault 2": of_one, "fault 3": of_one}})
    (many,) = grids({"restarts": {f"fault {number}": of_one for number in range(5)}})

    assert few.columns == ("", "fault 2", "fault 3")
    assert few.rows[1] == ("figure 1 (ms)", "1", "1")
    assert (len(few.rows), few.more) == (9, 0)
    assert (len(many.rows), many.columns[1]) == (5, "figure 0 (ms)")


def test_a_number_before_a_number_is_set_off() -> None:
    assert cell("by_partition", {"0": 1, "3": 2}) == "0: 1, 3: 2"
    assert cell("by_mode", {"late_ns": 10**9}) == "late (s) 1.000"


def test_a_chain_of_resets_is_not_cut_out_of_the_headline() -> None:
    chain = "; ".join(
        ["acknowledged " + "x" * 200, "after a reset " + "y" * 90, "then " + "z" * 90]
    )
    lost = Finding(text="lost write", txns=(), keys=(), explained_by=Explanation(text=chain))
    anomaly = Anomaly(count=1, examples=(lost,))
    verdict = Verdict(
        outcome=Outcome.VIOLATION,
        model="strict-serializable",
        anomalies={"lost-write": anomaly},
        reasons=("w" * 500,),
    )

    told, other = banner(verdict)

    assert told == f"lost-write (1): lost write; {chain}"
    assert other.endswith("(180 more characters)")


class Counted(Mapping[str, Any]):
    """A table of ``size`` entries that counts how many of them anybody looks at."""

    looked_at = 0

    def __init__(self, size: int, entry: Callable[[], Any]) -> None:
        self._size, self._entry = size, entry

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        for number in range(self._size):
            Counted.looked_at += 1
            yield f"name {number}"

    def __contains__(self, name: object) -> bool:
        return False

    def __getitem__(self, name: str) -> Any:
        Counted.looked_at += 1
        return self._entry()


BIG: dict[str, Callable[[int], Any]] = {
    "numbers": lambda n: Counted(n, lambda: 1),
    "tables": lambda n: Counted(n, lambda: Counted(n, lambda: 1)),
    "tables of lists": lambda n: Counted(n, lambda: Counted(n, lambda: [1] * n)),
    "tables in tables": lambda n: {"a": Counted(n, lambda: {"b": Counted(n, lambda: 1)})},
    "records": lambda n: {"a": [Counted(n, lambda: 1)] * n},
    "tables eight deep": lambda n: Counted(n, lambda: eight(n)),
}


def eight(size: int, depth: int = 7) -> Any:
    return Counted(size, lambda: eight(size, depth - 1)) if depth else 1


@pytest.mark.parametrize("shape", BIG)
def test_of_ten_times_as_much_data_no_more_is_looked_at(shape: str) -> None:
    looked_at = []
    for size in (1_000, 10_000):
        Counted.looked_at = 0
        found = grids(BIG[shape](size))
        looked_at.append(Counted.looked_at)

        assert sum(grid.more for grid in found) >= size - 200
        assert all(len(text) <= CELL_CHARS for grid in found for row in grid.rows for text in row)
        drawn = sum(len(text) for grid in found for row in grid.rows for text in row)
        assert drawn < CHARS_MAX + 20_000

    assert looked_at[0] == looked_at[1] < 200_000


def test_a_cell_tells_how_much_of_it_is_left_out() -> None:
    assert cell("rows", [7] * 100_000).endswith("7 … and 99,806 more")
    assert cell("rows", ["x" * CELL_CHARS, "y"]).endswith("x … and 1 more")
    assert cell("rows", ["a" * 300, "b" * 290, "c" * 300, "d"]).endswith("a … and 3 more")
    assert cell("rows", [7] * 50) == ", ".join("7" * 50)
    assert cell("x", [[[[[1]]]]]) == "…"
    assert cell("x", [[[[1]]]]) == "1"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.000"), (0.0005, "0.0005"), (-0.00042, "-0.00042"), (0.25, "0.250")],
)
def test_a_small_figure_is_not_shown_as_nothing(value: float, shown: str) -> None:
    assert cell("limit", value) == shown
