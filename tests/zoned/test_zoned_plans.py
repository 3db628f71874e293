"""Plans that ask for distribution zones: what they may say, and a drill of one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from checkers.engine.analyze import analyze
from cli.wiring import run_plan
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.client import encode_key
from clusters.reference.node.wire.reports import SqlProblem, SqlReport
from clusters.reference.system import ReferenceSystem, build
from clusters.reference.zones import Zones
from harness.clock import RunClock
from harness.errors import HarnessError, PlanError
from harness.exit_codes import Outcome
from harness.history.records import EventKind
from harness.plan.plan import loads
from harness.protocols.client import READ_WRITE
from harness.run.progress import Silent
from harness.run.stop import Stop

NODES = ("n1", "n2", "n3", "n4", "n5")
TWO_TABLES = (
    "CREATE ZONE a WITH PARTITIONS = 2, REPLICAS = 3",
    "CREATE ZONE b WITH PARTITIONS = 3, REPLICAS = 1",
    "CREATE TABLE first WITH PRIMARY_ZONE = b",
    "CREATE TABLE second WITH PRIMARY_ZONE = a",
)
DROPPED = (
    *TWO_TABLES[:3],
    "DROP TABLE first",
    TWO_TABLES[3],
    "CREATE TABLE third WITH PRIMARY_ZONE = b",
)
TOO_MANY = (
    "CREATE ZONE z WITH PARTITIONS = 1000",
    "CREATE TABLE one WITH PRIMARY_ZONE = z",
    "CREATE TABLE two WITH PRIMARY_ZONE = z",
)
LIMIT_S = 30.0


def zones(**options: object) -> Zones | None:
    return build(options, NODES, 1)._zones


def test_a_plan_that_says_nothing_of_zones_has_none() -> None:
    assert zones() is None
    assert zones(partitions=3, replicas=1) is None


def test_a_plan_that_says_one_thing_has_the_defaults_of_the_others() -> None:
    found = zones(partitions=4, detection_s=3)

    assert found is not None
    assert found.system_nodes == ("n1", "n2", "n3")
    assert found.ddl == (
        "CREATE ZONE DRILL WITH PARTITIONS = 4, REPLICAS = 3",
        "CREATE TABLE ITEMS WITH PRIMARY_ZONE = DRILL",
    )
    assert (found.partitions, found.detection_s, found.rebalance) == (4, 3.0, "base")
    assert found.of("n4").profiles == ("default",)


def test_what_nodes_announce() -> None:
    found = zones(
        system_nodes=2,
        system_apart=True,
        attributes={"n4": ["EU", "SSD"], "n5": {"region": "US", "disks": 2}},
        profiles={"n5": ["default", "fast"]},
    )

    assert found is not None
    assert found.of("n1").profiles == found.of("n2").profiles == ()
    assert found.of("n3").profiles == ("default",)
    assert found.of("n4").attributes == {"EU": None, "SSD": None}
    assert found.of("n5").attributes == {"region": "US", "disks": 2}
    assert found.of("n5").profiles == ("default", "fast")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system_nodes": 6}, "system.system_nodes: expected 1 to 5, which is cluster.nodes"),
        ({"system_nodes": 0}, "system.system_nodes"),
        ({"rebalance": "fast"}, "system.rebalance"),
        ({"detection_s": 0.1}, "system.detection_s"),
        ({"attributes": {"n9": ["EU"]}}, "system.attributes: expected nodes among n1, n2, n3"),
        ({"profiles": {"x": ["fast"]}}, "system.profiles: expected nodes among n1, n2, n3"),
        ({"system_apart": True}, "system.replicas: expected 1 to 2, the nodes that hold data"),
        ({"ddl": ["CREATE ZONE z WITH REPLICAS = 0"]}, "system.ddl: statement 1: line 1, column"),
        ({"ddl": ["CREATE ZONE z"]}, "system.ddl: expected a table at least (got none)"),
        ({"ddl": TOO_MANY}, "system.ddl: statement 3: a cluster has at most 1024 partitions"),
        (
            {"ddl": ["SELECT * FROM SYSTEM.ZONES"]},
            "system.ddl: statement 1: expected CREATE, ALTER or DROP",
        ),
        ({"ddl": TWO_TABLES, "partitions": 3}, "system.partitions: expected none"),
        ({"ddl": TWO_TABLES, "replicas": 3}, "system.replicas: expected none"),
    ],
)
def test_what_a_plan_asks_of_zones_is_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError) as refused:
        zones(**options)

    assert str(refused.value).startswith(f"plan: {message}")


def test_a_plan_with_tables_of_its_own_spreads_keys_over_all_of_them() -> None:
    async def scenario() -> None:
        provider = SimProvider(seed=1)
        network = provider.client_network
        system: ReferenceSystem = build({"ddl": TWO_TABLES}, NODES, 1, network=network)
        cluster = await provider.provision(NODES, system.ports)
        for node in NODES:
            await provider.install(node, system.program(node, cluster))
        await system.set_up(cluster, provider, asyncio.get_running_loop().time() + LIMIT_S)
        assert system.partitions == 5
        # By the tables' ids: three of the first, with one replica each, then two of the second.
        voters = (await system.roles(cluster)).voters
        assert [len(voters[number]) for number in range(5)] == [1, 1, 1, 3, 3]
        keys = {system.partition_of(key): key for key in range(40)}
        assert sorted(keys) == [0, 1, 2, 3, 4]
        client = await system.connect(cluster, "n5", 0)
        tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + 2.0)
        for key in keys.values():
            await tx.append(key, 7)
        await tx.commit()
        await provider.teardown()

    simulate(scenario())


def test_a_plan_that_drops_tables_numbers_those_that_it_leaves() -> None:
    found = zones(ddl=DROPPED)

    assert found is not None
    # SECOND has 3 and 4 in the store, THIRD 5, 6 and 7.
    assert [(t.name, t.flat, t.base, t.count) for t in found.tables] == [
        ("SECOND", 0, 3, 2),
        ("THIRD", 2, 5, 3),
    ]
    assert [found.flat(number) for number in (3, 4, 5, 7, 8, None)] == [0, 1, 2, 4, 8, None]
    assert {found.flat(number) for number in range(3)}.isdisjoint(range(100))
    placed = [found.partition_of(encode_key(key)) for key in range(5000)]
    assert set(placed) == set(range(5))
    assert max(map(placed.count, range(5))) < 1.15 * min(map(placed.count, range(5)))


def test_roles_and_events_of_a_plan_that_drops_tables_have_the_numbers_of_the_run() -> None:
    async def scenario() -> None:
        provider = SimProvider(seed=2)
        network = provider.client_network
        system: ReferenceSystem = build({"ddl": DROPPED}, NODES, 1, network=network)
        cluster = await provider.provision(NODES, system.ports)
        for node in NODES:
            await provider.install(node, system.program(node, cluster))
        await system.set_up(cluster, provider, asyncio.get_running_loop().time() + LIMIT_S)
        roles = await system.roles(cluster)
        assert {p: len(names) for p, names in roles.voters.items()} == {
            0: 3,
            1: 3,
            2: 1,
            3: 1,
            4: 1,
        }
        assert sorted(roles.leaders) == sorted(roles.primaries or ()) == [0, 1, 2, 3, 4]
        clock = RunClock(asyncio.get_running_loop())
        told = await system.events(cluster, clock)
        granted = {e.partition for e in told if e.kind == EventKind.LEASE_GRANTED}
        assert granted & set(range(100)) == {0, 1, 2, 3, 4}
        states = await system.states(cluster, roles.leaders[0], whole=False) or ()
        assert {s.partition for s in states if s.leading and s.partition is not None} <= set(
            range(5)
        )
        client = await system.connect(cluster, "n4", 0)
        tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + 2.0)
        for key in {system.partition_of(key): key for key in range(40)}.values():
            await tx.append(key, 7)
        await tx.commit()
        await provider.teardown()

    simulate(scenario())


PLAN = """
seed = 3
[cluster]
provider = "sim"
nodes = 5
[system]
partitions = 2
system_nodes = 3
[drive]
duration_s = 12
concurrency = 4
rate_per_s = 60
[[nemesis.schedule]]
kind = "kill"
target = "leader of partition 0"
at_s = 2.0
hold_s = 3.0
[[nemesis.schedule]]
kind = "kill"
target = "metastorage leader"
at_s = 7.0
hold_s = 3.0
"""


def test_a_drill_with_zones_is_judged_like_any_other(tmp_path: Path) -> None:
    run = run_plan(loads(PLAN), tmp_path, Silent(), Stop())

    assert analyze(run, executor="local").outcome is Outcome.VALID


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([], 1),
        (["PEER-LOST"], 2),
        (["PEER-LOST", "ObjectExists"], 2),
        (["NOT-LEADER", "NOT-LEADER"], 3),
    ],
)
def test_a_statement_of_the_set_up_is_asked_again_where_its_answer_was_lost(
    answers: list[str], asked: int
) -> None:
    assert carried_out(answers) == asked


@pytest.mark.parametrize("answers", [["ObjectExists"], ["NOT-LEADER", "ObjectExists"]])
def test_a_statement_of_the_set_up_that_is_refused_ends_it(answers: list[str]) -> None:
    with pytest.raises(HarnessError, match="CREATE ZONE"):
        carried_out(answers)


def carried_out(answers: list[str]) -> int:
    """How often a statement is asked that gets ``answers``, and is carried out then."""
    system: Any = build({"partitions": 4}, NODES, 1)
    left, times = iter(answers), 0

    async def sql(cluster: Any, node: str, statement: str, limit_s: float) -> SqlReport:
        nonlocal times
        times += 1
        kind = next(left, None)
        if kind is None:
            return SqlReport()
        return SqlReport(problem=SqlProblem(kind=kind, message="", doubtful=kind == "PEER-LOST"))

    system.sql = sql

    async def scenario() -> None:
        deadline_s = asyncio.get_running_loop().time() + 5.0
        await system._carried_out(None, "n1", "CREATE ZONE z", deadline_s)

    simulate(scenario())
    return times
