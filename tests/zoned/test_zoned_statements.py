"""Statements at the nodes of a simulated cluster, and what they make its metastorage say."""

from __future__ import annotations

import asyncio

from zoned_lab import Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.zones.affinity import assigned

TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
DATA = "SELECT NODE_NAME FROM SYSTEM.DATA_NODES"
ZONES = "SELECT ZONE_NAME FROM SYSTEM.ZONES"
KINDS = "SELECT PARTITION_ID, KIND, NODES FROM SYSTEM.ASSIGNMENTS"


async def begun(lab: Lab, nodes: str = "a b c d e f", **own: dict[str, object]) -> None:
    await lab.provision(own=own)
    await lab.start(*nodes.split())
    await lab.until_rows(TOPOLOGY, columns(nodes))


def test_statements_at_any_node_are_carried_out_once() -> None:
    async def scenario() -> None:
        lab = Lab()
        await begun(lab)
        await asyncio.sleep(1.0)
        names = [f"z{number}" for number in range(6)]
        # All at once: each sees what the others did, and none is lost.
        answers = await asyncio.gather(
            *(lab.sql(f"CREATE ZONE {names[at]}", node) for at, node in enumerate(lab.nodes))
        )
        assert [answer.problem for answer in answers] == [None] * 6
        for node in lab.nodes:
            found = await lab.done("SELECT ZONE_NAME FROM SYSTEM.ZONES", node)
            assert set(found) == columns(" ".join(names).upper())
        again = await lab.sql("CREATE ZONE z0", "f")
        assert again.problem is not None
        assert again.problem.kind == "ObjectExists"
        await lab.provider.teardown()

    simulate(scenario())


def test_an_error_travels_with_token_place_and_what_was_expected() -> None:
    async def scenario() -> None:
        lab = Lab()
        await begun(lab, "a b c")
        problem = (await lab.sql("CREATE ZONE z\nWITH REPLICAS = 1_000", "b")).problem
        assert problem is not None
        assert (problem.kind, problem.token, problem.place) == ("OptionValue", "1_000", (2, 17))
        assert problem.expected == ("a number from 1 to 100",)
        warned = await lab.sql("CREATE ZONE z WITH DATA_NODES_FILTER = '\"EU\"'", "c")
        assert warned.warnings == (
            "zone 'Z': no node matches the filter '\"EU\"', its data nodes are empty, "
            "and operations on its tables are refused",
        )
        await lab.provider.teardown()

    simulate(scenario())


def test_a_statement_waits_for_a_leader_and_says_when_there_is_none() -> None:
    async def scenario() -> None:
        lab = Lab()
        await begun(lab, "a b c")
        await lab.provider.kill("b")
        await lab.provider.kill("c")
        await asyncio.sleep(2.0)
        refused = (await lab.sql("CREATE ZONE z", limit_ms=500)).problem
        assert refused is not None
        assert refused.kind in ("NOT-LEADER", "COMMIT-TIMEOUT")
        waiting = asyncio.ensure_future(lab.sql("CREATE ZONE z2"))
        await asyncio.sleep(0.2)
        await lab.start("b")
        answer = await waiting
        assert answer.problem is None
        await lab.provider.teardown()

    simulate(scenario())


def test_a_filter_and_a_profile_choose_by_what_nodes_announce() -> None:
    async def scenario() -> None:
        lab = Lab()
        await begun(
            lab,
            a={"profiles": ["default"], "attributes": {"US": None, "SSD": None}},
            b={"attributes": {"EU": None, "SSD": None}, "profiles": ["default", "fast"]},
            c={"attributes": {"EU": None, "SSD": None}, "profiles": ["fast"]},
            d={"attributes": {"region": "EU", "SSD": None}},
        )
        await lab.done(
            "CREATE ZONE z WITH STORAGE_PROFILES = 'default,fast', "
            'DATA_NODES_FILTER = \'("US" || "EU") && "SSD"\''
        )
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        await lab.until_rows(DATA, columns("a b d"))
        await lab.done("ALTER ZONE z SET DATA_NODES_FILTER = '\"EU\"'")
        await lab.until_rows(DATA, columns("b d"))
        await lab.done("CREATE TABLE t2 WITH PRIMARY_ZONE = z, STORAGE_PROFILE = 'fast'")
        of_second = f"{DATA} WHERE TABLE_NAME = 'T2'"
        await lab.until_rows(of_second, columns("b c"))
        await lab.provider.teardown()

    simulate(scenario())


def targets(replicas: int, *nodes: str) -> dict[int, str]:
    found = assigned(function="rendezvous", partitions=2, replicas=replicas, nodes=nodes)
    return {number: ",".join(names) for number, names in enumerate(found)}


async def aims(lab: Lab) -> dict[int, str]:
    """Where each partition was last asked to be."""
    last: dict[tuple[int, str], str] = {}
    for number, kind, nodes in await lab.done(KINDS):
        last[int(str(number)), str(kind)] = str(nodes)
    order = ("planned", "pending", "stable")
    return {p: next((last[p, k] for k in order if (p, k) in last), "") for p in range(2)}


async def until_aims(lab: Lab, wanted: dict[int, str]) -> None:
    deadline_s = now_s() + 5.0
    while (found := await aims(lab)) != wanted:
        assert now_s() < deadline_s, found
        await asyncio.sleep(0.02)


def test_each_trigger_writes_where_partitions_should_move() -> None:
    async def scenario() -> None:
        lab = Lab()
        await begun(lab, "a b c")
        await lab.done("CREATE ZONE z WITH PARTITIONS = 2, REPLICAS = 3")
        await lab.done("CREATE ZONE other WITH PARTITIONS = 2, REPLICAS = 1")
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        await until_aims(lab, targets(3, "a", "b", "c"))
        await lab.start("d")
        await until_aims(lab, targets(3, "a", "b", "c", "d"))
        await lab.done("ALTER ZONE z SET REPLICAS = 2")
        await until_aims(lab, targets(2, "a", "b", "c", "d"))
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"a" || "d"\'')
        await until_aims(lab, targets(2, "a", "d"))
        await lab.done("ALTER TABLE t SET PRIMARY_ZONE = other")
        await until_aims(lab, targets(1, "a", "b", "c", "d"))
        await lab.done("DROP TABLE t")
        await lab.until_rows(KINDS, set())
        await lab.provider.teardown()

    simulate(scenario())


def test_a_leader_that_was_cut_off_answers_no_query_with_what_was_so_before() -> None:
    async def scenario() -> None:
        lab = Lab(4)
        await begun(lab, "a b c d")
        await lab.done("CREATE ZONE before")
        old = await lab.metastorage_leader()
        rest = tuple(node for node in "abcd" if node != old)
        await lab.provider.cut(tuple(sorted(link for n in rest for link in ((old, n), (n, old)))))
        others = [node for node in rest if node != "d"]
        # Until its followers' patience ends it goes on to think that it leads.
        answers = [asyncio.ensure_future(lab.sql(ZONES, old, 300)) for _ in range(3)]
        created = await lab.sql("CREATE ZONE IF NOT EXISTS after", others[0])
        while created.problem is not None:
            assert created.problem.kind == "PEER-LOST"  # it was sent to the leader of before
            created = await lab.sql("CREATE ZONE IF NOT EXISTS after", others[0])
        answers.append(asyncio.ensure_future(lab.sql(ZONES, old, 300)))
        for answer in await asyncio.gather(*answers):
            assert answer.problem is not None, answer.rows
            assert answer.problem.kind == "NOT-LEADER"
        assert set(await lab.done(ZONES, others[1])) == columns("BEFORE AFTER")
        await lab.provider.teardown()

    simulate(scenario())
