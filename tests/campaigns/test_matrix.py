"""The cells of a campaign: which there are, in what order, and who runs them."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaigns.cell import Cell, CellResult, RunStats, result_of
from harness.campaigns.cell_table import outcome_of, row_of
from harness.campaigns.matrix import Past, Place, by_risk, places, quarantined, read, shard
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.plan.plan import loads

MATRIX = """
name = "night"
seeds = 3
seed = 7

[matrix]
workload = ["list-append", "bank"]
faults = ["kill", "partition,pause"]
"drive.rate_per_s" = [50.0]

[[exclude]]
where = { workload = "bank", faults = "kill" }

[[quarantine]]
where = { faults = "kill" }
until = 2026-12-01
reason = "a known defect"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "night.toml"
    path.write_text(MATRIX)
    return path


def test_cells_are_the_product_without_what_is_excluded(file: Path) -> None:
    found = places(read(file))

    assert len(found) == 3 * 3
    assert len({place.seed for place in found}) == 3
    assert {place.seed for place in found if "bank" in place.axes} == {p.seed for p in found}
    assert not [place for place in found if "bank" in place.axes and "kill" in place.axes]
    assert found[0].overrides() == {
        "seed": 7,
        "workload.name": "list-append",
        "nemesis.mix": ["kill"],
        "drive.rate_per_s": 50.0,
    }


def test_a_quarantine_ends_with_its_day(file: Path) -> None:
    asked = read(file)
    killed, other = places(asked)[0], places(asked)[-1]

    assert quarantined(asked, killed, date(2026, 12, 1)) is not None
    assert quarantined(asked, killed, date(2026, 12, 2)) is None
    assert quarantined(asked, other, date(2026, 11, 1)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("matrix = { workload = [] }", "a value at least"),
        ('matrix = { workload = ["bank", "bank"] }', "each value once"),
        ('matrix = { worklaod = ["bank"] }', "workload"),
        ('seeds = 10_000\nmatrix = { workload = ["a", "b"] }', "at most"),
        ("nights = 3", "nights"),
        ('matrix = { provider = ["sim"], "cluster.provider" = ["docker"] }', "found two"),
        ('[[exclude]]\nwhere = { workload = "bank" }', "an axis of the matrix"),
        (
            'matrix = { workload = ["bank"] }\n[[exclude]]\nwhere = { workload = "bnak" }',
            "a value of the axis",
        ),
        ('matrix = { workload = ["bank"] }\n[[exclude]]\nwhere = {}', "left to run"),
        ('[[quarantine]]\nwhere = {}\nuntil = 2026-01-01\nreason = ""', "reason"),
    ],
)
def test_a_file_that_can_not_be_meant_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)

    with pytest.raises(PlanError, match=problem) as refusal:
        read(path)
    assert str(refusal.value).startswith(f"{path}: ")


@given(lengths=st.lists(st.floats(0.1, 100), min_size=1, max_size=40), of=st.integers(1, 6))
def test_shards_hold_every_cell_once_and_are_balanced(lengths: list[float], of: int) -> None:
    sized = [(Place(values=(), seed=seed), length) for seed, length in enumerate(lengths)]
    shards = [shard(sized, number + 1, of) for number in range(of)]
    loads_s = [sum(lengths[place.seed] for place in each) for each in shards]

    assert Counter(place.seed for each in shards for place in each) == Counter(range(len(lengths)))
    # Graham's bound for the longest first: no shard is over the mean by more than one cell.
    assert max(loads_s) <= sum(lengths) / of + max(lengths) + 1e-6


def test_the_riskiest_come_first() -> None:
    names = ("known", "red", "changed", "new", "rare", "uncovered")
    roles = frozenset({("kill", "other voter"), ("kill", "metastorage leader")})
    found = [Place(values=(("workload", name),), seed=s) for name in names for s in (1, 2)]
    past = {
        "workload=known": Past(runs=9, covered=roles),
        "workload=red": Past(runs=9, red=True, covered=roles),
        "workload=changed": Past(runs=9, changed=True, covered=roles),
        "workload=rare": Past(runs=2, covered=roles),
        "workload=uncovered": Past(runs=9, covered=frozenset({("kill", "other voter")})),
    }

    ordered = [(place.values[0][1], place.seed) for place in by_risk(found, past)]

    firsts = ["new", "changed", "red", "uncovered", "rare", "known"]
    assert ordered == [(name, 1) for name in firsts] + [(name, 2) for name in firsts]


CELL = Cell(plan=loads("seed = 1"))
PLACE = Place(values=(("workload", "bank"),), seed=0)


def came_to(outcome: Outcome, digest: str = "") -> CellResult:
    return result_of(CELL, outcome, digest=digest, stats=RunStats(ok=9, fail=1))


@pytest.mark.parametrize(
    ("runs", "label"),
    [
        ([came_to(Outcome.VALID)], ""),
        ([came_to(Outcome.VIOLATION, "a")] * 3, "reproducible 3 of 3, byte for byte"),
        ([came_to(Outcome.VIOLATION)] * 3, "reproducible 3 of 3 (fails between 29% and 100%"),
        ([came_to(Outcome.VIOLATION), came_to(Outcome.VALID)], "flaky 1 of 2"),
        ([came_to(Outcome.VIOLATION)], "not repeated"),
        ([came_to(Outcome.VIOLATION), came_to(Outcome.HARNESS_ERROR)], "not repeated"),
    ],
)
def test_a_failure_says_whether_it_comes_again(runs: list[CellResult], label: str) -> None:
    row = row_of(PLACE, CELL.key, runs)

    assert row.label.startswith(label)
    assert (row.label == "") == (label == "")


@pytest.mark.parametrize("first", [Outcome.HARNESS_ERROR, Outcome.VALID, Outcome.UNKNOWN])
def test_a_violation_of_a_repetition_stays_where_the_first_run_was_broken(first: Outcome) -> None:
    # Broken by its environment, a cell is repeated; taken up again, its first run comes anew.
    bad = result_of(CELL, Outcome.VIOLATION, run="r2", anomalies={"lost-write": 1})

    row = row_of(PLACE, CELL.key, [came_to(first), bad])

    assert (row.outcome, row.anomalies, row.run) == (Outcome.VIOLATION, {"lost-write": 1}, "r2")
    assert outcome_of([row], 0.0) is Outcome.VIOLATION


def test_what_is_quarantined_does_not_count_and_nothing_run_is_no_pass() -> None:
    bad = row_of(PLACE, "a", [came_to(Outcome.VIOLATION)])
    spared = row_of(PLACE, "b", [came_to(Outcome.VIOLATION)], quarantine="until tomorrow")
    good = row_of(PLACE, "c", [came_to(Outcome.VALID)])
    vain = row_of(PLACE, "d", [came_to(Outcome.UNKNOWN)])
    missing = row_of(PLACE, "e", [])

    assert outcome_of([spared, good], 0.0) is Outcome.VALID
    assert outcome_of([bad, spared, good], 0.0) is Outcome.VIOLATION
    assert outcome_of([spared], 0.0) is Outcome.UNKNOWN
    assert outcome_of([good, vain], 0.02) is Outcome.UNKNOWN
    assert outcome_of([good] * 99 + [vain], 0.02) is Outcome.VALID
    assert outcome_of([missing], 0.0) is Outcome.UNKNOWN
