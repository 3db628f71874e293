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
