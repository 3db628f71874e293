"""Faults that wait for a moment, in the simulation: they strike at that instant, and replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from sim_lab import digest, drill

from checkers.engine.analyze import analyze
from harness.exit_codes import Outcome
from harness.history.load import load
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, loads
from harness.protocols.faults import PlannedFault
from harness.protocols.moments import Moment

PLAN = """
seed = 3
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 2
snapshot_bytes = 3000
[workload]
min_length = 2
max_length = 3
key_count = 12
[drive]
duration_s = 6.5
concurrency = 6
rate_per_s = 40
[check]
min_ok = 1
"""


def planned(*faults: PlannedFault) -> Plan:
    plan = loads(PLAN)
    return replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=faults))


def aimed(on: Moment, kind: str = "kill", target: str = "its node") -> PlannedFault:
    return PlannedFault(at_s=1.0, kind=kind, target=target, hold_s=1.0, on=on)


def rows(run: RunDirectory) -> list[dict[str, object]]:
    found: list[dict[str, object]] = load(run).faults().to_pylist()
    return found


@pytest.mark.parametrize(
    "on",
    [Moment.PREPARE_LOGGED, Moment.OUTCOME_LOGGED, Moment.SNAPSHOT_SAVED],
    ids=lambda moment: str(moment),
)
def test_a_fault_strikes_at_its_moment_and_its_plan_is_the_same_run_again(
    on: Moment, tmp_path: Path
) -> None:
    run, manifest = drill(planned(aimed(on)), tmp_path / "first")

    assert manifest.trouble == ()
    (row,) = rows(run)
    assert row["state"] == "healed"
    assert str(row["proof"]).startswith(f"{on} (")
    kept = loads(run.plan.read_text())
    (fault,) = kept.nemesis.schedule
    assert fault.on is None
    assert fault.aimed is not None
    assert row["target"] == fault.target
    assert fault.target in ("n1", "n2", "n3")

    again, _ = drill(kept, tmp_path / "again")
    assert digest(again) == digest(run)
    assert again.plan.read_bytes() == run.plan.read_bytes()


def test_one_moment_leads_to_the_next_and_all_of_it_is_replayed(tmp_path: Path) -> None:
    faults = (
        PlannedFault(at_s=1.2, kind="partition", target="leader of partition 0", hold_s=2.0),
        aimed(Moment.LEADER_ELECTED, kind="pause"),
        aimed(Moment.MEMBERS_JOINT),
    )
    run, manifest = drill(planned(*faults), tmp_path / "first")

    assert manifest.trouble == ()
    cut, paused, never = rows(run)
    assert (cut["state"], paused["state"], never["state"]) == ("healed", "healed", "missed")
    kept = loads(run.plan.read_text())
    assert kept.nemesis.schedule[0] == faults[0]
    assert kept.nemesis.schedule[1].on is None
    assert kept.nemesis.schedule[2] == faults[2]
    again, _ = drill(kept, tmp_path / "again")
    assert digest(again) == digest(run)


def test_nothing_that_a_killed_node_sent_behind_its_moment_arrives(tmp_path: Path) -> None:
    """Home dies at the very instant at which its commit is durable: its client never hears of it,
    and the participants have to ask.
    """
    run, _ = drill(planned(aimed(Moment.OUTCOME_LOGGED)), tmp_path / "run")

    history = load(run)
    (fault,) = history.faults().to_pylist()
    at_ns, (node,) = fault["injecting_ns"], fault["nodes"]
    answered = [
        row
        for row in history.transactions().to_pylist()
        if row["node"] == node and row["type"] == "ok" and row["complete_ns"] >= at_ns - 1_000
    ]
    # Until it is back: what left before the moment may still arrive within a packet's latency.
    assert [row for row in answered if row["complete_ns"] < fault["healing_ns"]] == []


def test_a_fault_whose_moment_never_came_is_none_unless_no_other_came(tmp_path: Path) -> None:
    other = PlannedFault(at_s=1.0, kind="pause", target="n1", hold_s=1.0)
    never = aimed(Moment.MEMBERS_JOINT)
    both, _ = drill(planned(other, never), tmp_path / "both")
    alone, _ = drill(planned(never), tmp_path / "alone")

    assert analyze(both, executor="local").reasons == ()
    found = analyze(alone, executor="local")
    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons == (
        "no fault came: fault 0: too few members-joint while it could still come",
    )
