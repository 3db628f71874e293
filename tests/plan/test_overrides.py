"""Overrides have no order: every two of them are both applied, or refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from cli.campaign_plans import seed_plans
from cli.main import execute
from cli.run import overrides
from harness.errors import PlanError
from harness.plan.overrides import merged
from harness.plan.plan import Plan, dumps, loads

KILL = {"at_s": 1.0, "kind": "kill", "target": "n1", "hold_s": 2.0}
PAUSE = {"at_s": 2.0, "kind": "pause", "target": "n2", "hold_s": 3.0}
FILES = (
    "seed = 1",
    "seed = 1\n[nemesis]\nmix = ['kill']\nhold_s = 3.0",
    "seed = 1\n[[nemesis.schedule]]\nat_s = 1\nkind = 'kill'\ntarget = 'n1'",
    "seed = 1\n[system]\npartitions = 4\n[workload]\nname = 'bank'\naccounts = 9",
    "seed = 1\n[system]\nname = 'other'\nown = 4\n[cluster]\nnodes = 7\noptions = {rare = 1}",
)
OVERRIDES: tuple[tuple[str, Any], ...] = (
    ("seed", 5),
    ("seed", 6),
    ("drive.duration_s", 9.0),
    ("drive", {"rate_per_s": 4.0}),
    ("drive", {"duration_s": 8.0}),
    ("cluster.nodes", 3),
    ("cluster", {"provider": "process"}),
    ("cluster.options", {"weather": {"loss": 0.5}}),
    ("cluster.options.weather.loss", 0.25),
    ("cluster.options.weather.slow", 0.5),
    ("nemesis.mix", []),
    ("nemesis.mix", ["pause"]),
    ("nemesis.schedule", []),
    ("nemesis.schedule", [PAUSE]),
    ("nemesis.hold_s", 7.0),
    ("nemesis", {"mix": ["kill", "pause"]}),
    ("nemesis", {"schedule": [KILL], "overlap": 2}),
    ("system.name", "other"),
    ("system.name", "reference"),
    ("system.partitions", 2),
    ("system", {"name": "other", "more": 1}),
    ("system", {"partitions": 3}),
    ("workload.name", "list-append"),
    ("workload.key_count", 4),
)


def outcome(text: str, given: Mapping[str, object]) -> str:
    """The plan of ``text`` and overrides, or why there is none."""
    try:
        return dumps(loads(text, given))
    except PlanError as refused:
        return f"refused: {refused.path}"


def shows(found: object, value: object) -> bool:
    """Whether ``found`` is ``value``, or a table that says all that it says."""
    if isinstance(value, Mapping) and isinstance(found, Mapping):
        return all(shows(found.get(key), part) for key, part in value.items())
    return found == value


def at(plan: Plan, path: str) -> object:
    """What stands in ``plan`` at ``path``, as its file writes it."""
    table = msgspec.toml.decode(dumps(plan))
    for step in path.split("."):
        table = table.get(step) if isinstance(table, dict) else None
    return table


@pytest.mark.parametrize("text", FILES)
def test_of_every_two_both_are_applied_in_whatever_order_or_refused_by_name(text: str) -> None:
    refused = []
    for one, other in itertools.combinations(OVERRIDES, 2):
        if one[0] == other[0]:
            continue
        given, turned = dict((one, other)), dict((other, one))
        came = outcome(text, given)
        assert came == outcome(text, turned), (one, other)
        if came.startswith("refused: "):
            refused.append((one, other))
            assert came.removeprefix("refused: ") in (one[0], other[0], "nemesis.mix")
            continue
        for path, value in (one, other):
            assert shows(at(loads(text, given), path), value), (one, other)
    assert (("drive.duration_s", 9.0), ("drive", {"duration_s": 8.0})) in refused
    assert (("nemesis.mix", ["pause"]), ("nemesis.schedule", [PAUSE])) in refused
    assert len(refused) < 20  # most go together


def test_a_name_takes_the_options_of_another_plugin_away_and_none_of_its_own() -> None:
    named = loads(FILES[3], {"system.name": "reference", "workload.name": "register"})

    assert named.system.options == {"partitions": 4}
    assert named.workload.options == {}


def test_what_a_flag_and_a_set_say_differently_is_refused() -> None:
    schedule = {"nemesis.schedule": [KILL]}

    with pytest.raises(PlanError, match=r"nemesis.schedule: expected one value \(got "):
        merged(schedule, ["nemesis.schedule=[]"])
    with pytest.raises(PlanError, match=r"seed: expected one value \(got 5 and 6\)"):
        merged({"seed": 5}, ["seed=6"])
    assert merged({"seed": 5, "name": None}, ["seed=5"]) == {"seed": 5}
    assert merged({}, ["seed=5", "seed=6"]) == {"seed": 6}  # of two the later counts


def test_a_schedule_that_a_set_would_drop_is_refused_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--provider", "sim", "--schedule", "1:kill:n1:1", "--set", "nemesis.schedule=[]")

    assert execute(["run", *flags]) == 254
    assert "flags: nemesis.schedule: expected one value" in capsys.readouterr().err


def test_the_usual_drill_of_a_campaign_lies_beneath_what_is_given() -> None:
    table = {"nemesis": {"mix": ["kill"]}, "cluster.options.weather.loss": 0.5}
    (plan,) = seed_plans(None, table, (), range(1))

    assert (plan.nemesis.mix, plan.nemesis.hold_s) == (("kill",), 5.0)
    assert plan.cluster.options["weather"]["loss"] == 0.5
    assert plan.cluster.options["weather"]["slow"] == 0.05


def test_a_workload_that_is_set_is_that_of_every_seed(capsys: pytest.CaptureFixture[str]) -> None:
    plans = seed_plans(None, {"workload.name": "bank"}, (), range(3))

    assert {plan.workload.name for plan in plans} == {"bank"}
    assert execute(["sim", "--workload", "bank", "--set", "workload.name=register"]) == 254
    assert "expected --workload or --set, not both" in capsys.readouterr().err


def test_flags_of_a_run_and_its_sets_are_merged() -> None:
    flags = dict.fromkeys(
        ("name", "seed", "provider", "nodes", "duration", "concurrency", "system", "workload"),
    )
    more = {"executor": None, "faults": ("kill",), "schedule": (), "sets": ("drive.drivers=2",)}

    assert overrides({**flags, **more}) == {"nemesis.mix": ["kill"], "drive.drivers": 2}
