"""What a store served in calm, compared with what it served before."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from harness.campaigns.baseline import (
    CHANGE_LEAST,
    SEEDS_MIN,
    Baseline,
    described,
    read,
    served,
    worse,
    write,
)
from harness.campaigns.cell import CalmCounts, CellResult, RunStats
from harness.errors import UsageError
from harness.exit_codes import Outcome

OPERATIONS = 150  # of a seed in calm


def seed(
    number: int, ok: float, failures: float = 0.02, outcome: Outcome = Outcome.VALID
) -> CellResult:
    """A seed of which these shares of operations succeeded, and failed without a conflict."""
    draw = random.Random(f"{number} {ok} {failures}")
    shift = draw.gauss(0.0, 0.04)  # seeds differ in more than chance: their faults leave traces
    drawn = [draw.random() + shift for _ in range(OPERATIONS)]
    good = sum(x < ok for x in drawn)
    bad = sum(x > 1 - failures for x in drawn)
    calm = CalmCounts(ok=good, failures=bad, conflicts=OPERATIONS - good - bad)
    workload = ("list-append", "bank")[number % 2]
    stats = RunStats(calm=calm)
    return CellResult(
        key=str(number), seed=number, name="n", workload=workload, outcome=outcome, stats=stats
    )


def campaign(first: int, count: int, ok: float, failures: float = 0.02) -> list[CellResult]:
    return [seed(number, ok, failures) for number in range(first, first + count)]


BEFORE = served(campaign(0, 60, 0.71))


def test_a_sound_store_is_no_worse_over_any_other_seeds() -> None:
    for first in range(1000, 10_000, 30):
        assert worse(served(campaign(first, 30, 0.71)), BEFORE) == []


def test_a_store_that_refuses_more_is_worse_over_thirty_seeds() -> None:
    for first in range(1000, 4000, 30):
        found = worse(served(campaign(first, 30, 0.52)), BEFORE)
        assert [(row.workload, row.share) for row in found] == [
            ("bank", "succeeded"),
            ("list-append", "succeeded"),
        ]
    assert found[0].text.startswith("bank: in calm 5")
    assert "of the operations succeeded, 7" in found[0].text


def test_failures_that_take_the_place_of_conflicts_are_worse_though_as_much_succeeds() -> None:
    found = worse(served(campaign(1000, 30, 0.71, failures=0.20)), BEFORE)

    assert {row.share for row in found} == {"failed without a conflict"}
    assert worse(served(campaign(1000, 30, 0.71, failures=0.0)), BEFORE) == []


def test_a_store_that_serves_more_is_not_worse() -> None:
    assert worse(served(campaign(1000, 30, 0.95)), BEFORE) == []


def test_what_no_user_would_feel_is_not_worse_however_sure_it_is() -> None:
    def exactly(ok: int) -> list[CellResult]:
        stats = RunStats(calm=CalmCounts(ok=ok, conflicts=1000 - ok))
        return [msgspec.structs.replace(seed(0, 0.9), stats=stats)] * 5000

    little = round(1000 * CHANGE_LEAST)
    assert worse(served(exactly(900 - little // 2)), served(exactly(900))) == []
    assert worse(served(exactly(900 - 2 * little)), served(exactly(900)))


def test_few_seeds_and_seeds_without_a_verdict_compare_nothing() -> None:
    few = campaign(1000, 2 * SEEDS_MIN - 2, 0.10)
    assert worse(served(few), BEFORE) == []
    assert worse(served(campaign(1000, 2 * SEEDS_MIN, 0.10)), BEFORE)

    broken = [seed(n, 0.10, outcome=Outcome.HARNESS_ERROR) for n in range(60)]
    empty = CellResult(key="k", seed=1, name="n", workload="bank", outcome=Outcome.VALID)
    assert served([*broken, empty]) == {}


def test_the_figures_are_told_by_workload() -> None:
    bank, lists = described(BEFORE)

    assert bank.startswith("in calm, bank: ok 7")
    assert lists.endswith("(means of 30 seeds)")


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write(path, Baseline(setting="s", workloads=BEFORE))

    assert read(path) == Baseline(setting="s", workloads=BEFORE)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"setting": "s", "workloads": {}, "x": 1}'])
def test_a_file_that_is_no_baseline_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=r"baseline\.json: expected a recorded baseline"):
        read(path)
    with pytest.raises(UsageError, match="no baseline can be read"):
        read(tmp_path / "none.json")
