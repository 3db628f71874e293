"""``firedrill run --modes``: one seed and schedule in each mode of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import execute
from cli.run_modes import in_modes, modes_of
from harness.errors import PlanError
from harness.plan.plan import load

DRILL = Path(__file__).parents[2] / "scenarios" / "ignite3" / "drill.toml"


def test_every_mode_has_the_same_seed_and_schedule_and_a_mode_and_name_of_its_own() -> None:
    overrides = {"nemesis.schedule": None, "nemesis.mix": None, "drive.duration_s": 60}
    plan = load(None, {"system.name": "ignite3", "seed": 3, **overrides})
    plans = in_modes(plan, ("SC", "HA"))

    assert [given.system.options["mode"] for given in plans.values()] == ["SC", "HA"]
    assert plans["SC"].nemesis == plans["HA"].nemesis
    assert plans["SC"].nemesis.schedule
    assert {given.seed for given in plans.values()} == {3}
    assert {given.name for given in plans.values()} == {"drill-sc", "drill-ha"}


@pytest.mark.parametrize(
    ("text", "modes"), [("sc,ha", ("SC", "HA")), (" HA , sc,ha", ("HA", "SC"))]
)
def test_modes_are_named_once_each_in_their_order(text: str, modes: tuple[str, ...]) -> None:
    assert modes_of(text) == modes


@pytest.mark.parametrize("text", ["", "sc", "sc,", "sc,sc"])
def test_less_than_two_modes_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="two modes or more"):
        modes_of(text)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--modes", "sc,xx"), "system.mode"),
        (("--modes", "sc"), "two modes or more"),
        (("--modes", "sc,ha", "--repeat", "2"), "leave --repeat"),
    ],
)
def test_what_can_not_be_compared_is_refused_before_anything_starts(
    flags: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(["run", str(DRILL), *flags, "--runs-dir", str(tmp_path)])

    assert code == 254
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


LIMITED = """
seed = 1
[cluster]
nodes = 5
provider = "sim"
[system]
name = "reference"
[drive]
duration_s = 30
rate_per_s = 20.0
[[nemesis.schedule]]
at_s = 5.0
hold_s = 20.0
kind = "kill"
target = "majority of partition 0"
"""


@pytest.mark.parametrize("key", ["serves_within_s", "refused_within_s"])
def test_a_limit_that_one_of_the_modes_can_break_is_judged_in_that_mode(
    key: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"{LIMITED}\n[promise]\n{key} = 5.0\nlongest_gap_s = 25.0\n")
    plans = in_modes(load(path, {}), ("SC", "HA"))

    assert [mode for mode, plan in plans.items() if key in plan.promise.given] == [
        "HA" if key == "serves_within_s" else "SC"
    ]
    assert all("longest_gap_s" in plan.promise.given for plan in plans.values())


def test_a_limit_that_no_mode_can_break_is_refused_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, store = tmp_path / "plan.toml", tmp_path / "runs"
    path.write_text(f"{LIMITED}\n[promise]\nserves_within_s = 25.0\n")
    store.mkdir()
    code = execute(["run", str(path), "--modes", "sc,ha", "--runs-dir", str(store)])

    assert code == 254
    assert "promise.serves_within_s: expected less than 20" in capsys.readouterr().err
    assert list(store.iterdir()) == []
