"""Drills that move data while clients append and nodes are killed, by statements of their plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sim_lab import digest, drill

from checkers.engine.analyze import analyze
from cli.plan_schedule import schedule_of
from cli.wiring import run_plan
from clusters.reference.system import build
from clusters.reference.zones import Table, Zones, alteration, differing, unplaced
from harness.campaigns.run_stats import run_stats
from harness.errors import MissingCapability, PlanError, UsageError
from harness.exit_codes import Outcome
from harness.history.load import load as load_run
from harness.plan.plan import Plan, load, loads
from harness.protocols.faults import PlannedFault
from harness.protocols.statement_language import of_system
from harness.run.progress import Silent
from harness.run.stop import Stop

SCENARIO = Path(__file__).parents[2] / "scenarios" / "reference" / "rebalance.toml"
PARTITIONS = 4
SHORT = """
seed = 5
[cluster]
provider = "sim"
nodes = 4
[system]
partitions = 2
system_nodes = 3
[drive]
duration_s = 8
concurrency = 4
rate_per_s = 30
"""
FEWER = "ALTER ZONE drill SET REPLICAS = 1"
AGAIN = "ALTER ZONE drill SET REPLICAS = 3"
NODES = ("n1", "n2", "n3", "n4")


def plan_with(text: str = SHORT, target: str = "all", **options: Any) -> Plan:
    fault = PlannedFault(at_s=1.0, kind="ddl", target=target, hold_s=1.5, options=options)
    plan = loads(text)
    return replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=(fault,)))


def stages(events: list[dict[str, Any]], text: str | tuple[str, ...]) -> list[dict[str, Any]]:
    """What nodes told of rebalances, in order, that begins with ``text``, or one of them."""
    told = [row for row in events if row["kind"] == "rebalance-stage"]
    told.sort(key=lambda row: row["at_ns"])
    return [row for row in told if row["text"].startswith(text)]


def test_a_drill_moves_every_partition_there_and_back_and_loses_nothing(tmp_path: Path) -> None:
    run = run_plan(load(SCENARIO), tmp_path, Silent(), Stop())
    result = analyze(run, executor="local")

    assert result.outcome is Outcome.VALID, result
    recorded = load_run(run)
    faults = recorded.faults().to_pylist()
    assert [row["state"] for row in faults] == ["healed"] * 7
    changes = [row for row in faults if row["kind"] == "ddl"]
    assert {row["heal_proof"] for row in changes} == {
        "all data is where it should be, nothing is pending"
    }
    events = recorded.events().to_pylist()
    # Other nodes, and more replicas before these are there; fewer, the new nodes, the first again.
    aims: dict[int, list[frozenset[str]]] = {number: [] for number in range(PARTITIONS)}
    for row in stages(events, ("pending-updated: ", "planned-updated: ")):
        aims[row["partition"]].append(frozenset(row["text"].partition(": ")[2].split()))
    for sets in aims.values():
        assert [len(nodes) for nodes in sets] == [3, 5, 3, 3, 3]
        assert sets[3:] == [{"n4", "n5", "n6"}, {"n1", "n2", "n3"}]
    for number in range(PARTITIONS):
        ended = [row for row in stages(events, "completed") if row["partition"] == number]
        assert len(ended) == 4
    # Each node held something that it was made to stop and erase.
    erased = stages(events, "replica erased")
    assert {row["node"] for row in erased} == {f"n{number}" for number in range(1, 7)}
    # The last move is over with the heal of its change, and not before it began.
    last = max(row["at_ns"] for row in stages(events, "completed"))
    assert changes[2]["healing_ns"] < last < changes[2]["healed_ns"]


def test_a_change_stays_unless_its_plan_leads_back_and_comes_again_the_same(
    tmp_path: Path,
) -> None:
    for name, options, sizes in (
        ("stays", {"statements": [FEWER]}, {1}),
        ("back", {"statements": [FEWER], "back": [AGAIN]}, {1, 3}),
    ):
        run, manifest = drill(plan_with(**options), tmp_path / name)
        assert manifest.trouble == ()
        (row,) = load_run(run).faults().to_pylist()
        assert (row["state"], row["proof"]) == ("healed", FEWER)
        events = load_run(run).events().to_pylist()
        aims = [row["text"] for row in stages(events, "pending-updated: ")]
        assert {len(text.split()) - 1 for text in aims} == sizes
        again, _ = drill(loads(run.plan.read_text()), tmp_path / f"{name}-again")
        assert digest(again) == digest(run)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "options.statements"),
        ({"statements": []}, r"options.statements: expected an array of length >= 1 \(got \[\]\)"),
        ({"statements": [FEWER], "bck": []}, "options"),
        ({"statements": ["ALTER ZONE other SET REPLICAS = 1"]}, r"statements\[0\]: .*no zone"),
        ({"statements": [FEWER, "DROP TABLE items"]}, r"statements\[1\]: expected ALTER ZONE"),
        ({"statements": [FEWER, "ALTER ZONE drill SET"]}, r"statements\[1\]: line 1"),
        ({"statements": [FEWER], "back": ["ALTER ZONE drill SET PARTITIONS = 1"]},
         r"back\[0\]: .*PARTITIONS can't be altered"),
        ({"statements": [FEWER], "target": "n1"}, r"target of ddl must be all \(got 'n1'\)"),
    ],
)  # fmt: skip
def test_what_is_no_change_of_this_cluster_is_refused_before_the_run(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError, match=says) as refused:
        schedule_of(plan_with(**options))
    assert str(refused.value).startswith("plan: nemesis.schedule[0].")


def test_a_cluster_without_zones_and_another_system_are_refused_before_the_run() -> None:
    without = SHORT.replace("system_nodes = 3\n", "")
    with pytest.raises(MissingCapability, match="its plan names none of system_nodes") as refused:
        schedule_of(plan_with(without, statements=[FEWER]))
    assert isinstance(refused.value, UsageError)
    assert refused.value.capability == "statements"
    other = 'seed = 1\n[cluster]\nnodes = 3\n[system]\nname = "ignite3"\n'
    with pytest.raises(MissingCapability, match="no statement moves data of system 'ignite3'"):
        schedule_of(plan_with(other, statements=[FEWER]))


def zones() -> Zones:
    found = build({"partitions": 1, "replicas": 2, "system_nodes": 3}, NODES, 1)
    assert of_system(found)
    assert found._zones is not None
    return found._zones


def views(
    *assignments: tuple[str, str], data_nodes: str = "n1,n2", **zone: object
) -> Mapping[str, Table]:
    """What a cluster tells whose only partition has ``assignments``: (kind, nodes)."""
    properties: dict[str, Any] = {
        "ZONE_NAME": "DRILL",
        "PARTITIONS": 1,
        "REPLICAS": 2,
        "AFFINITY_FUNCTION": "rendezvous",
        "DATA_NODES_AUTO_ADJUST": None,
        "DATA_NODES_AUTO_ADJUST_SCALE_UP": "0",
        "DATA_NODES_AUTO_ADJUST_SCALE_DOWN": "OFF",
        "DATA_NODES_FILTER": '"n1", "n2"',
        **zone,
    }
    table = ("ITEMS", "DRILL", "default", data_nodes or None)
    return {
        "ZONES": Table(tuple(properties), (tuple(properties.values()),)),
        "LOGICAL_TOPOLOGY": Table(("NODE_NAME",), tuple((node,) for node in NODES)),
        "TABLES": Table(("TABLE_NAME", "PRIMARY_ZONE", "STORAGE_PROFILE", "DATA_NODES"), (table,)),
        "ASSIGNMENTS": Table(
            ("TABLE_NAME", "PARTITION_ID", "KIND", "NODES"),
            tuple(("ITEMS", 0, kind, nodes) for kind, nodes in assignments),
        ),
    }


STABLE = ("stable", "n1,n2")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (views(STABLE), []),
        (views(STABLE, data_nodes=""), ["table ITEMS: n1 is not yet among its data nodes",
                                        "table ITEMS: n2 is not yet among its data nodes"]),
        (views(STABLE, ("pending", "n1")), ["partition 0 of ITEMS: pending is n1"]),
        (views(STABLE, ("planned", "n1")), ["partition 0 of ITEMS: planned is n1"]),
        # The trigger has yet to be handled.
        (views(("stable", "n1")), ["partition 0 of ITEMS: stable is n1, not n1,n2"]),
        (views(), ["partition 0 of ITEMS: stable is None, not n1,n2"]),
        # The filter was altered, and data nodes have yet to be switched.
        (views(STABLE, DATA_NODES_FILTER='"n1"'),
         ["table ITEMS: n2 is still among its data nodes"]),
        (views(STABLE, DATA_NODES_FILTER='"n1", "n2", "n4"'),
         ["table ITEMS: n4 is not yet among its data nodes"]),
        # A timer is what the fourth node waits for, and no rebalance.
        (views(STABLE, DATA_NODES_FILTER='"n1", "n2", "n4"', DATA_NODES_AUTO_ADJUST_SCALE_UP="60"),
         []),
    ],
)  # fmt: skip
def test_what_is_not_yet_where_it_should_be_is_named(
    told: Mapping[str, Table], says: list[str]
) -> None:
    assert unplaced(zones(), told) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ALTER ZONE drill SET REPLICAS = 2, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = OFF", []),
        ("ALTER TABLE GROUP drill SET REPLICAS = 3", ["zone DRILL: REPLICAS is 2, not 3"]),
        ("ALTER ZONE drill SET DATA_NODES_AUTO_ADJUST = 5",
         ["zone DRILL: DATA_NODES_AUTO_ADJUST is None, not 5"]),
        ("ALTER ZONE drill SET DATA_NODES_AUTO_ADJUST_SCALE_UP = 0", []),
        ("ALTER TABLE items SET PRIMARY_ZONE = drill", []),
        ("ALTER TABLE items WITH PRIMARY_ZONE = 'drill'", []),
    ],
)  # fmt: skip
def test_a_change_is_in_force_once_every_option_is_told(text: str, says: list[str]) -> None:
    assert differing(zones(), alteration(zones(), text), views(STABLE)) == says


def test_changes_of_members_and_zones_in_the_drive_are_counted_by_revision(tmp_path: Path) -> None:
    plan = plan_with(statements=[FEWER], back=[AGAIN])
    join = PlannedFault(at_s=4.0, kind="join", target="spare", hold_s=0.5, options={"stays": True})
    schedule = (*plan.nemesis.schedule, join)
    plan = replace(
        plan,
        cluster=replace(plan.cluster, spares=1),
        nemesis=replace(plan.nemesis, schedule=schedule),
    )

    run, _ = drill(plan, tmp_path / "run")

    # Both statements, and the spare that joins, with which it passes the filter.
    assert run_stats(run).topology_changes == 3
