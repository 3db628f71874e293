"""Faults that no run could bring about are refused before it; such as may come about are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import execute
from cli.run import planned
from cli.wiring import refuse_impossible, resolve
from harness.errors import PlanError
from harness.plan.overrides import merged
from harness.plan.plan import load

DRIVE = {"cluster.provider": "sim", "drive.duration_s": 60, "nemesis.mix": [], "seed": 7}


def refusal(schedule: list[str], *sets: str) -> str:
    """Why a plan is refused; empty where it is not."""
    rows = [planned(text) for text in schedule]
    plan = load(None, merged({**DRIVE, "nemesis.schedule": rows}, sets))
    try:
        refuse_impossible(plan)
        resolve(plan)
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("target", "sets", "why"),
    [
        ("management leader", (), "this store has no group of cluster management"),
        ("follower of partition 0", ("system.replicas=1",), "a partition has 1 voter"),
        ("other voter of any partition", ("system.replicas=1",), "a partition has 1 voter"),
        ("minority of partition 0", ("system.replicas=2",), "a partition has 2 voters"),
        ("all but one of partition 0", ("system.replicas=1",), "a partition has 1 voter"),
        (
            "minority of metastorage",
            ("cluster.nodes=2", "system.replicas=1"),
            "2 nodes vote in metastorage",
        ),
        ("half", ("cluster.nodes=1", "system.replicas=1"), "the cluster has 1 node"),
        ("first half", ("cluster.nodes=1", "system.replicas=1"), "the cluster has 1 node"),
        ("learner of any partition", (), "every replica of a partition votes"),
    ],
    ids=str,
)
def test_a_target_that_is_no_node_is_refused(target: str, sets: tuple[str, ...], why: str) -> None:
    said = refusal([f"5:kill:{target}:4"], *sets)

    expected = "plan: nemesis.schedule[0].target: expected a target that some node is: "
    assert said.startswith(expected + why), said
    assert said.endswith(f"(got {target!r})"), said


def test_an_end_of_a_cut_that_is_no_node_is_refused() -> None:
    assert "no group of cluster management" in refusal(["5:cut:n1<>management leader:4"])
    assert refusal(["5:cut:n1<>metastorage leader:4"]) == ""


@pytest.mark.parametrize(
    ("schedule", "sets"),
    [
        (["5:kill:follower of partition 0:4"], ("system.replicas=2",)),
        (["5:kill:all but one of partition 0:4"], ("system.replicas=2",)),
        # What changes who votes may make one.
        (["5:wipe:n1:4", "20:kill:follower of partition 0:4"], ("system.replicas=1",)),
        (["5:kill:half:4"], ("cluster.nodes=2", "system.replicas=1")),
    ],
    ids=str,
)
def test_a_target_that_some_node_may_be_is_not_refused(
    schedule: list[str], sets: tuple[str, ...]
) -> None:
    assert refusal(schedule, *sets) == ""


@pytest.mark.parametrize(
    ("schedule", "sets", "on"),
    [
        (["5:kill:n1:20", "6:kill:n1:4"], (), "n1 is under kill (nemesis.schedule[0]) until 25 s"),
        (["5:kill:n1:20", "5:pause:n1,n2:9"], (), "n1 is under kill (nemesis.schedule[0])"),
        (["5:kill:all:20", "6:pause:one:4"], (), "any node is under kill (nemesis.schedule[0])"),
        (["5:kill:n1:20", "6:kill:all:4"], (), "n1 is under kill (nemesis.schedule[0])"),
        (["5:partition:n1:20", "6:loss:n1:4"], (), "n1 is under partition"),
    ],
    ids=str,
)
def test_two_faults_of_one_mechanism_at_once_on_one_node_are_refused(
    schedule: list[str], sets: tuple[str, ...], on: str
) -> None:
    said = refusal(schedule, *sets)

    assert "nemesis.schedule[1].target: expected nodes that no fault of the same mechanism" in said
    assert on in said
    assert "is waited for 5 s at most (got " in said


@pytest.mark.parametrize(
    ("schedule", "sets"),
    [
        # The second one waits, and the first is over in time.
        (["5:kill:n1:4", "6:kill:n1:4"], ()),
        (["5:kill:n1:20", "6:kill:n1:4"], ("drive.overtime_s=20",)),
        (["5:kill:n1:20", "6:kill:n2:4"], ()),
        (["5:kill:n1:20", "6:kill:one:4"], ()),
        (["5:kill:leader of partition 0:20", "6:kill:n1:4"], ()),
        # Other mechanisms.
        (["5:kill:n1:20", "6:partition:n1:4"], ()),
        # Steps may be over sooner than their bound.
        (["5:rolling-restart:all:30", "6:kill:n1:4"], ()),
    ],
    ids=str,
)
def test_two_faults_that_may_come_about_are_not_refused(
    schedule: list[str], sets: tuple[str, ...]
) -> None:
    assert refusal(schedule, *sets) == ""


def test_a_fault_that_waits_for_its_moment_is_left_to_the_run() -> None:
    row = {**planned("5:kill:n1:20"), "on": "leader-elected"}
    del row["at_s"]
    rows = [row, planned("6:kill:n1:4")]

    refuse_impossible(load(None, {**DRIVE, "nemesis.schedule": rows}))


def test_a_role_while_all_nodes_are_down_is_refused() -> None:
    down = "nemesis.schedule[1].target: expected a target other than a role: from 6 s on no node"

    for role in ("leader of partition 0", "metastorage leader", "majority of any partition"):
        assert down in refusal(["5:kill:all:20", f"6:partition:{role}:4"]), role
    assert refusal(["5:kill:all:20", "21:partition:leader of partition 0:4"]) == ""
    assert refusal(["5:kill:n1,n2,n3,n4:20", "6:partition:leader of partition 0:4"]) == ""
    # Links alone keep no node from telling its roles.
    assert refusal(["5:loss:all:20", "6:kill:leader of partition 0:4"]) == ""


@pytest.mark.parametrize(
    ("schedule", "sets", "of"),
    [
        (["5:wipe:n1:30", "6:wipe:n2:4"], ("cluster.nodes=3",), "of metastorage only n3 would be"),
        (["5:kill:n1:30", "6:wipe:n2:4"], ("cluster.nodes=3",), "of metastorage only n3 would be"),
        (
            ["5:wipe:n1:30", "6:wipe:n2:20", "7:wipe:n3:4"],
            (),
            "of metastorage only n4, n5 would be",
        ),
    ],
    ids=str,
)
def test_wipes_that_would_take_a_majority_together_are_refused(
    schedule: list[str], sets: tuple[str, ...], of: str
) -> None:
    said = refusal(schedule, *sets)

    assert "target: expected nodes whose data can go, with a majority of every group left" in said
    assert of in said


@pytest.mark.parametrize(
    "schedule",
    [
        ["5:wipe:n1:30", "6:wipe:n2:4"],
        ["5:wipe:n1:10", "6:wipe:n2:4", "7:wipe:n3:4"],
        ["5:wipe:n1:30", "6:wipe:one:4"],
    ],
    ids=str,
)
def test_wipes_that_a_majority_may_survive_are_not_refused(schedule: list[str]) -> None:
    assert refusal(schedule) == ""


def test_service_without_any_voter_is_no_limit_that_could_be_tested() -> None:
    ha = ("system.mode='HA'", "promise.serves_within_s=1")
    # All partitions have the same voters, or there is one alone.
    same = ("cluster.nodes=7", "system.partitions=1", *ha)
    none = "promise.serves_within_s: expected faults that leave a voter of the partition"

    assert none in refusal(["5:kill:all of partition 0:9"], *same)
    assert refusal(["5:kill:all but one of partition 0:9"], *same) == ""
    assert refusal(["5:kill:all of partition 0:9"], "cluster.nodes=7", *ha) == ""


def test_a_crash_takes_no_majority_whatever_its_target() -> None:
    refused = ("cluster.nodes=7", "promise.refused_within_s=1")
    crash = {**planned("5:crash:majority of partition 0:9"), "options": {"at": "sync"}}

    plan = load(None, merged({**DRIVE, "nemesis.schedule": [crash]}, refused))
    with pytest.raises(PlanError, match="at most 1 of 3 voters are down together"):
        resolve(plan)


def test_a_schedule_that_was_drawn_is_left_to_the_run(tmp_path: Path) -> None:
    """Of one replica the leader alone is a voter; a draw that meets none is skipped."""
    plan = load(None, {**DRIVE, "nemesis.mix": ["kill"], "system.replicas": 1})

    refuse_impossible(plan)
    assert resolve(plan).plan.nemesis.schedule


@pytest.mark.parametrize("command", ["run", "plan"])
def test_the_command_refuses_it_before_it_makes_a_directory(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--provider", "sim", "--seed", "1", "--executor", "local", "--duration", "30")
    wrong = ("--schedule", "5:kill:management leader:4", "--runs-dir", str(tmp_path / "runs"))

    assert execute([command, *words, *wrong]) == 254

    said = capsys.readouterr().err
    assert said.startswith("firedrill: flags: nemesis.schedule[0].target: expected a target that")
    assert not list(tmp_path.iterdir())


def test_a_campaign_of_seeds_refuses_it_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("--set", "nemesis.mix=[]", "--set", "drive.duration_s=20")
    row = '[{at_s=5, kind="kill", target="management leader", hold_s=4}]'
    runs = ("--runs-dir", str(tmp_path / "runs"))

    words = ("sim", "--no-swarm", "--seeds", "2", *sets, "--set", f"nemesis.schedule={row}", *runs)
    assert execute(words) == 254
    assert "expected a target that some node is" in capsys.readouterr().err
