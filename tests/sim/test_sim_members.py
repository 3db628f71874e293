"""Drills in which nodes join, leave, take each other's place and change what they announce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sim_lab import digest, drill

from checkers.engine.analyze import analyze
from cli.plan_schedule import schedule_of
from clusters.reference.options import Options as SystemOptions
from clusters.reference.zones import Table, zones_of
from clusters.reference.zones import unsettled as unsettled_in
from harness.errors import MissingCapability, PlanError
from harness.exit_codes import Outcome
from harness.history.load import load as load_run
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, loads
from harness.protocols.cluster import Cluster, Roles
from harness.protocols.faults import PlannedFault, resolved
from nemesis import member_faults
from nemesis.member_faults import join, leave
from nemesis.member_faults import replace as replacing
from nemesis.role_cut_faults import cut

ZONE = (
    "CREATE ZONE moving WITH PARTITIONS = 2, REPLICAS = 3, DATA_NODES_AUTO_ADJUST_SCALE_UP = 0,"
    " DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 1, DATA_NODES_FILTER = '!\\\"gone\\\"'"
)
PLAN = f"""
seed = 4
[cluster]
provider = "sim"
nodes = 4
spares = 2
[system]
system_nodes = 1
system_apart = true
ddl = ["{ZONE}", "CREATE TABLE items WITH PRIMARY_ZONE = moving"]
[workload]
key_count = 30
key_choice = "uniform"
[drive]
duration_s = 24
concurrency = 6
rate_per_s = 15
[check]
min_ok = 100
"""


def plan_with(*faults: PlannedFault, text: str = PLAN, duration_s: float | None = None) -> Plan:
    plan = loads(text)
    if duration_s is not None:
        plan = replace(plan, drive=replace(plan.drive, duration_s=duration_s))
    return replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=faults))


def fault(at_s: float, kind: str, target: str, hold_s: float = 1.5, **options: Any) -> PlannedFault:
    return PlannedFault(at_s=at_s, kind=kind, target=target, hold_s=hold_s, options=options or None)


def judged(run: RunDirectory) -> list[dict[str, Any]]:
    """The faults of a run that kept every promise, all of them proven and healed."""
    result = analyze(run, executor="local")
    assert result.outcome is Outcome.VALID, result
    faults = load_run(run).faults().to_pylist()
    assert [row["state"] for row in faults] == ["healed"] * len(faults)
    return faults


def holders(run: RunDirectory) -> dict[int, set[str]]:
    """The nodes that have each partition at the end, as they tell themselves."""
    import pyarrow.parquet as pq

    rows = pq.read_table(run.root / "states.parquet").to_pylist()
    found: dict[int, set[str]] = {}
    for row in rows:
        if row["final"] and row["partition"] is not None:
            found.setdefault(row["partition"], set()).add(row["node"])
    return found


def test_members_change_for_good_and_lose_nothing(tmp_path: Path) -> None:
    plan = plan_with(
        fault(1.5, "join", "n5", stays=True),
        fault(8.0, "replace", "n2", stays=True),
        fault(14.0, "leave", "n3", stays=True),
        # A spare that has joined is a target as any member.
        fault(20.0, "kill", "n6", 1.0),
    )
    run, manifest = drill(plan, tmp_path / "run")

    assert manifest.trouble == ()
    faults = judged(run)
    assert [row["nodes"] for row in faults[:3]] == [["n5"], ["n2", "n6"], ["n3"]]
    for row in faults[:3]:
        assert row["heal_proof"].endswith("all data is where it should be, nothing is pending")
    assert holders(run) == {0: {"n4", "n5", "n6"}, 1: {"n4", "n5", "n6"}}
    clients = load_run(run).transactions().to_pylist()
    healed_ns = faults[2]["healed_ns"]
    assert {row["node"] for row in clients if row["invoke_ns"] > healed_ns} <= {
        *("n1", "n4", "n5", "n6")
    }


def test_without_staying_each_change_is_undone(tmp_path: Path) -> None:
    plan = plan_with(
        fault(1.5, "leave", "leader of partition 0"),
        fault(6.0, "attributes", "n4", attributes=["gone"]),
        fault(13.0, "join", "spare"),
        fault(20.0, "cut", "leader of partition 0<>metastorage leader", 1.0),
    )
    run, manifest = drill(plan, tmp_path / "run")

    assert manifest.trouble == ()
    left, announced, joined, one_link = judged(run)
    assert "leader of partition 0" in left["roles"]
    assert announced["proof"] == "announced by n4 (gone)"
    assert announced["heal_proof"].startswith("announced by n4 (no attributes); all data")
    assert joined["nodes"][0] in ("n5", "n6")
    assert joined["heal_proof"].startswith(f"{joined['nodes'][0]} left; members are n1, n2, n3, n4")
    assert set(one_link["roles"]) >= {"leader of partition 0", "metastorage leader"}
    assert holders(run) == {0: {"n2", "n3", "n4"}, 1: {"n2", "n3", "n4"}}

    again, _ = drill(loads(run.plan.read_text()), tmp_path / "again")
    assert digest(again) == digest(run)


def test_a_killed_node_is_back_with_other_attributes_before_it_is_missed(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    plan = plan_with(fault(2.0, "attributes", "n4", attributes=["hot"], by="kill"), duration_s=12)
    run, manifest = drill(plan, tmp_path / "run")

    assert manifest.trouble == ()
    (announced,) = judged(run)
    assert announced["proof"] == "announced by n4 (hot)"
    since_ns = announced["injecting_ns"]
    rows = pq.read_table(run.root / "topology.parquet").to_pylist()
    later = [row for row in rows if row["at_ns"] > since_ns]
    # It was there all the while, and is another node for its zone both times.
    assert all("n4" in row["nodes"] for row in later if row["kind"] == "logical")
    others = [row for row in later if row["kind"] == "eligible" and row["text"] == "n4"]
    assert len({row["revision"] for row in others}) == 2


ONLY_NEW = {"statements": ['ALTER ZONE moving SET DATA_NODES_FILTER = \'"n4" || "n5" || "n6"\'']}


def test_a_step_for_good_waits_until_the_one_before_it_is_over(tmp_path: Path) -> None:
    plan = plan_with(
        fault(1.5, "join", "spares", stays=True),
        fault(1.7, "ddl", "all", 0.2, **ONLY_NEW),
        fault(1.8, "ddl", "all", 0.2, statements=["ALTER ZONE moving SET REPLICAS = 2"]),
    )
    run, manifest = drill(plan, tmp_path / "run")

    assert manifest.trouble == ()
    first, second, third = judged(run)
    assert first["healed_ns"] <= second["injecting_ns"]
    assert second["healed_ns"] <= third["injecting_ns"]
    assert set().union(*holders(run).values()) <= {"n4", "n5", "n6"}


def test_after_a_step_that_did_not_come_about_no_other_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_faults, "JOIN_LIMIT_S", 0.01)
    plan = plan_with(
        fault(1.5, "join", "spares", stays=True), fault(6.0, "ddl", "all", 0.2, **ONLY_NEW)
    )
    run, manifest = drill(plan, tmp_path / "run")

    result = analyze(run, executor="local")
    assert (result.outcome, result.anomalies) == (Outcome.UNKNOWN, {})
    taken_back, skipped = load_run(run).faults().to_pylist()
    assert (taken_back["state"], skipped["state"]) == ("healed", "skipped")
    assert "did not join" in manifest.trouble[0]
    assert "the step before it, join n5,n6, did not come about" in manifest.trouble[1]
    # Else no node would pass the filter.
    assert set().union(*holders(run).values()) == {"n2", "n3", "n4"}


@pytest.mark.parametrize(
    ("faults", "text", "error", "says"),
    [
        ([fault(1, "join", "n1,n2")], PLAN, None, ""),
        ([fault(1, "join", "one")], PLAN, PlanError, "must be spare, spares or names of nodes"),
        ([fault(1, "kill", "spare")], PLAN, PlanError, "must be members of the cluster"),
        ([fault(1, "leave", "majority")], PLAN, PlanError, "leave a majority of the nodes"),
        ([fault(1, "leave", "n2", forever=True)], PLAN, PlanError, "options.forever: unknown key"),
        ([fault(1, "attributes", "n2")], PLAN, PlanError, "options.attributes: required"),
        ([fault(1, "leave", "n2", stays=True)], PLAN.replace("SCALE_DOWN = 1", "SCALE_DOWN = OFF"),
         PlanError, "zone MOVING keeps nodes that are gone: DATA_NODES_AUTO_ADJUST_SCALE_DOWN is"),
        ([fault(1, "leave", "n2")], PLAN.replace("SCALE_DOWN = 1", "SCALE_DOWN = OFF"), None, ""),
        ([fault(1, "leave", "n2")], 'seed = 1\n[cluster]\nprovider = "sim"\n', MissingCapability,
         "its plan names none of system_nodes"),
        ([fault(1, "leave", "n2")], 'seed = 1\n[system]\nname = "ignite3"\n', MissingCapability,
         "members of system 'ignite3' stay"),
        ([fault(1, "cut", "n1")], PLAN, PlanError, "must be the two ends of a link"),
        ([fault(1, "cut", "n1>n9")], PLAN, PlanError, "must name nodes of this cluster"),
        ([fault(1, "cut", "n1<>learner of partition 1")], PLAN, None, ""),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_before_the_run(
    faults: list[PlannedFault], text: str, error: type[Exception] | None, says: str
) -> None:
    plan = plan_with(*faults, text=text)
    if error is None:
        assert schedule_of(plan)
        return
    with pytest.raises(error, match=says):
        schedule_of(plan)


CLUSTER = Cluster(
    nodes=("n1", "n2", "n3"), spares=("n4", "n5"), bind={}, peer={}, client={}, work_dir={}
)
ROLES = Roles(leaders={0: "n2"}, voters={0: ("n2", "n3")}, metastorage_voters=("n1",))


def test_victims_of_a_join_are_spares_and_of_a_replacement_a_member_and_a_spare() -> None:
    stays = {"stays": True}
    joining = join().with_options(stays, None, "")
    found = resolved(joining, "spares", ROLES, CLUSTER, 1)
    assert found is not None
    assert found.nodes == ("n4", "n5")
    assert resolved(joining, "n2", ROLES, CLUSTER, 1) is None

    exchanged = resolved(
        replacing().with_options(stays, None, ""), "leader of partition 0", ROLES, CLUSTER, 1
    )
    assert exchanged is not None
    assert exchanged.nodes == ("n2", "n4")
    assert [str(role) for role in exchanged.roles] == ["leader of partition 0"]


@pytest.mark.parametrize(
    ("voters", "stays", "expected"),
    [(CLUSTER.nodes, False, ("n1",)), (CLUSTER.nodes, True, None), (("n1",), False, None),
     (("n2",), True, ("n1",))],
)  # fmt: skip
def test_a_voter_of_metastorage_leaves_only_to_come_back_and_never_a_majority(
    voters: tuple[str, ...], stays: bool, expected: tuple[str, ...] | None
) -> None:
    roles = replace(ROLES, metastorage_voters=voters)
    found = resolved(leave().with_options({"stays": stays}, None, ""), "n1", roles, CLUSTER, 1)
    assert (found and found.nodes) == expected


@pytest.mark.parametrize(
    ("target", "grudge"),
    [
        ("leader of partition 0>n3", (("n2", "n3"),)),
        ("n3<>leader of partition 0", (("n2", "n3"), ("n3", "n2"))),
        ("leader of any partition>follower of any partition", (("n2", "n3"),)),
        ("n1>minority of partition 7", None),
        ("n1,n2>n2,n3", (("n1", "n2"), ("n1", "n3"), ("n2", "n3"))),
        ("n1>n1", None),
        ("learner of partition 0>n1", None),
    ],
)
def test_a_cut_is_of_the_links_between_its_two_ends(
    target: str, grudge: tuple[tuple[str, str], ...] | None
) -> None:
    found = cut().resolve(target, ROLES, CLUSTER.nodes, 3)
    assert (found and found.grudge) == grudge
    if found is not None:
        assert set(found.nodes) == {node for link in found.grudge for node in link}


def views(data_nodes: str, joined: str, up: str = "0", down: str = "1") -> dict[str, Table]:
    zone = {
        **{"ZONE_NAME": "DRILL", "PARTITIONS": 1, "REPLICAS": 1},
        **{"AFFINITY_FUNCTION": "rendezvous", "DATA_NODES_AUTO_ADJUST": None},
        **{"DATA_NODES_AUTO_ADJUST_SCALE_UP": up, "DATA_NODES_AUTO_ADJUST_SCALE_DOWN": down},
        "DATA_NODES_FILTER": '!"gone"',
    }
    rows = tuple(tuple(told.partition(":")[::2]) for told in joined.split())
    return {
        "ZONES": Table(tuple(zone), (tuple(zone.values()),)),
        "LOGICAL_TOPOLOGY": Table(("NODE_NAME", "ATTRIBUTES"), rows),
        "TABLES": Table(
            ("TABLE_NAME", "PRIMARY_ZONE", "STORAGE_PROFILE", "DATA_NODES"),
            (("ITEMS", "DRILL", "default", data_nodes),),
        ),
        "ASSIGNMENTS": Table(
            ("TABLE_NAME", "PARTITION_ID", "KIND", "NODES"), (("ITEMS", 0, "stable", "n1"),)
        ),
    }


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (views("n1", "n1"), []),
        (views("n1", "n1 n2", up="60"), ["table ITEMS: n2 waits to be among its data nodes"]),
        (views("n1", "n1 n2", up="OFF"), []),
        (views("n1,n2", "n1"), ["table ITEMS: n2 waits to be out of its data nodes"]),
        (views("n1,n2", "n1", down="OFF"), []),
        (views("n1", "n1 n2:gone"), []),
    ],
)
def test_a_change_is_not_over_while_a_timer_runs_for_it(
    told: dict[str, Table], says: list[str]
) -> None:
    nodes = ("n1", "n2", "n3")
    zones = zones_of(SystemOptions(partitions=1, replicas=1), {"system_nodes": 1}, nodes)
    assert zones is not None
    found = [text for text in unsettled_in(zones, told, ("n2",)) if "waits" in text]
    assert found == says


def test_messages_that_are_chosen_while_a_member_joins_pass_again_at_the_heal(
    tmp_path: Path,
) -> None:
    chosen = fault(1.0, "drop-messages", "n2", 4.0, messages="votes", way="both")
    joins = fault(1.5, "join", "n5", 0.5, stays=True)

    run, _ = drill(plan_with(chosen, joins, duration_s=9.0), tmp_path / "run")

    first, second = judged(run)
    assert second["healed_ns"] < first["healing_ns"]  # by then the cluster has other members
