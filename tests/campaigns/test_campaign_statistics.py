"""Rates, hunts and cells per finding, as values; and what a series ends with."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from harness.campaigns.campaign_summary import outcome_counts, totals
from harness.campaigns.cell import CellResult, RunStats
from harness.campaigns.rates import between, bounds, cells_per_finding, until_found
from harness.exit_codes import EXIT_INTERRUPTED, FAILED, Outcome, exit_code


def results(text: str) -> list[CellResult]:
    """One result for each letter: ``x`` is a finding."""
    return [
        CellResult(
            key=str(seed),
            seed=seed,
            name="n",
            workload="w",
            outcome=Outcome.VIOLATION if letter == "x" else Outcome.VALID,
        )
        for seed, letter in enumerate(text)
    ]


def hit(result: CellResult) -> bool:
    return result.outcome is Outcome.VIOLATION


@pytest.mark.parametrize(
    ("text", "findings", "most", "taken"),
    [
        ("x.x.x", 2, 9, "x.x"),
        ("..x....", 2, 3, "..x..."),
        ("....", 1, 3, "..."),
        ("..", 1, 3, ".."),
        (".x", 1, 2, ".x"),
    ],
)
def test_a_hunt_ends_with_its_last_finding_or_after_so_many_cells_without_one(
    text: str, findings: int, most: int, taken: str
) -> None:
    assert list(until_found(results(text), hit, findings, most)) == results(taken)


def test_no_cell_is_taken_from_a_pool_after_the_hunt_has_ended() -> None:
    waiting = iter(results("x..."))

    list(until_found(waiting, hit, 1, 9))
    assert len(list(waiting)) == 3


def test_cells_per_finding_count_from_the_one_before() -> None:
    assert cells_per_finding(results("..xx...x.."), hit) == (3, 1, 4)
    assert cells_per_finding(results("..."), hit) == ()


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    assert bounds(0, 10) == pytest.approx((0.0, 0.30850), abs=1e-5)  # 1 - 0.025 ** (1 / 10)
    assert bounds(10, 10) == pytest.approx((0.69150, 1.0), abs=1e-5)
    assert between(3, 5) == "between 15% and 95%"


def test_outcomes_are_counted_the_worst_first() -> None:
    assert list(outcome_counts(results("..x.")).items()) == [
        (Outcome.VIOLATION, 1),
        (Outcome.VALID, 3),
    ]


def test_an_interruption_outweighs_all_that_does_not_stand() -> None:
    codes = {outcome: exit_code(outcome, interrupted=True) for outcome in Outcome}

    assert codes.pop(Outcome.VIOLATION) == 1
    assert set(codes.values()) == {EXIT_INTERRUPTED}
    assert exit_code(Outcome.HARNESS_ERROR, interrupted=True, outweighed_by=FAILED) == 255
    for outcome in Outcome:
        assert exit_code(outcome, interrupted=False) == outcome.exit_code


def test_what_rebalances_came_to_is_summed_by_kind_where_there_were_any() -> None:
    bare = results("..")
    one, two = ({"completed": 2, "busy": 0}, {"completed": 0, "busy": 3})
    moved = [
        replace(result, stats=RunStats(ok=200, rebalances=counts, topology_changes=3))
        for result, counts in zip(bare, (one, two), strict=True)
    ]

    told = list(totals(moved, 1.0))
    assert "rebalances: completed 2, busy 3; 1 seeds with a completed one" in told
    share = "50% of seeds with 3 of them, a completed rebalance and 200 ok"
    assert f"changes of members or zones: 6, median 3 a seed; {share}" in told
    assert not [line for line in totals(bare, 1.0) if "rebalances" in line]


def test_full_restarts_and_what_copies_did_at_their_starts_are_summed_where_there_were_any() -> (
    None
):
    bare = results("..")
    stats = (
        RunStats(ok=1, full_restarts=2, chained_restarts=1, start_decisions={"starts": 3}),
        RunStats(ok=1, full_restarts=2, start_decisions={"starts": 1, "erases": 7}),
    )
    started = [replace(result, stats=each) for result, each in zip(bare, stats, strict=True)]

    lines = list(totals(started, 1.0))
    assert (
        "full restarts: 4, of which 1 (25%) began while the chain of a partition had several links"
        in lines
    )
    assert "start decisions: erases (7); starts (4)" in lines
    plain = [replace(result, stats=RunStats(ok=1)) for result in bare]
    assert not [line for line in totals(plain, 1.0) if "start" in line]


def test_sums_of_real_nodes_name_no_figures_of_simulated_ones() -> None:
    bare = results("..")
    simulated = replace(bare[0], stats=RunStats(ok=9, fail=1, simulated_s=5.0))

    assert list(totals(bare, 1.0)) == ["2 seeds: valid 2", "time: this command took 1 s"]
    lines = list(totals([simulated, bare[1]], 1.0))
    assert lines[1].startswith("operations: 10, median 10 a seed; ok: median 90%, least 90%")
