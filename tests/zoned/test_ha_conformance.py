"""What Apache Ignite 3 tests of highly available zones (``ItHighAvailablePartitionsRecovery*Test``,
``ItDisasterRecoveryReconfigurationTest``), each under the name that it has there.

Node a has metastorage; b and those behind it are upstream's node 0 and further ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
from test_partition_resets import (
    STABLE,
    append,
    cluster,
    kill,
    read,
    refused,
    replicas,
    settled_replicas,
)
from zoned_lab import Lab

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import ERASES, PARTITION_RESET, START_DECISION

MODE = "CONSISTENCY_MODE = HIGH_AVAILABILITY"
RESET_S = "PARTITION_DISTRIBUTION_RESET_TIMEOUT"
UP, DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_UP", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
HA = f"{MODE}, {RESET_S} = 1"
LATE = f"{HA}, {UP} = 600"
SEVEN = "bcdefgh"
QUIET_S = 6.0  # longer than detection, a lease and the timer of a reset together
DATA_NODES = "SELECT NODE_NAME FROM SYSTEM.DATA_NODES"


async def a_cluster(nodes: str, options: str, count: int, *, phase2: bool = False) -> Lab:
    lab = Lab(31, ("a", *nodes))
    await cluster(lab, nodes, options, count, phase2=phase2)
    return lab


async def started(lab: Lab, nodes: str) -> None:
    """Start ``nodes``, and wait until all that run are in the topology."""
    await lab.start(*nodes)
    there = {(node,) for node in lab.nodes if (await lab.provider.probe(node)).running}
    await lab.until_rows("SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY", there)


async def resets(lab: Lab, nodes: str) -> list[int]:
    """The generations that were begun on ``nodes``, each by a reset."""
    told = [e for node in nodes for e in await lab.events(node, PARTITION_RESET)]
    return sorted(e.generation or 0 for e in told)


def runs(story: Coroutine[None, None, None]) -> None:
    simulate(story)


def test_ha_recovery_when_majority_loss() -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", HA, 3)
        await kill(lab, "cd")
        await lab.until_rows(STABLE, {("b",)})
        assert await resets(lab, "b") == [1]

    runs(story())


def test_ha_recovery_of_two_zones() -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", HA, 3)
        await lab.done("CREATE TABLE T2 WITH PRIMARY_ZONE = Z")
        await lab.done(f"CREATE ZONE Y WITH PARTITIONS = 2, REPLICAS = 3, {HA}")
        await lab.done("CREATE TABLE T3 WITH PRIMARY_ZONE = Y")
        query = f"SELECT TABLE_NAME, PARTITION_ID, NODES {STABLE[STABLE.index('FROM') :]}"
        named = {("T", 0), ("T2", 0), ("T3", 0), ("T3", 1)}
        await lab.until_rows(query, {(*each, "b,c,d") for each in named})
        await kill(lab, "cd")
        await lab.until_rows(query, {(*each, "b") for each in named})

    runs(story())


def test_invalid_partition_reset_timeout_update() -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", HA, 3)
        answer = await lab.sql(f"ALTER ZONE Z SET {RESET_S} = -1")
        assert answer.problem is not None
        assert RESET_S in answer.problem.message

    runs(story())


def test_ha_recovery_when_partition_reset_timeout_updated() -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", f"{MODE}, {RESET_S} = 100000", 3)
        await kill(lab, "cd")
        await asyncio.sleep(QUIET_S)
        assert await resets(lab, "b") == []
        await lab.done(f"ALTER ZONE Z SET {RESET_S} = 1")
        await lab.until_rows(STABLE, {("b",)})
        await asyncio.sleep(QUIET_S)
        assert await resets(lab, "b") == [1]

    runs(story())


def test_scale_up_after_reset() -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", HA, 3)
        await kill(lab, "cd")
        await lab.until_rows(STABLE, {("b",)})
        await lab.start("c", "d")
        await lab.until_rows(STABLE, {("b,c,d",)})

    runs(story())


@pytest.mark.parametrize(
    ("options", "gone"), [(HA, "d"), ("CONSISTENCY_MODE = STRONG_CONSISTENCY", "cd")]
)
def test_no_ha_recovery_when_majority_available_or_for_sc_zone(options: str, gone: str) -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", options, 3)
        await kill(lab, gone)
        await asyncio.sleep(QUIET_S)
        assert await resets(lab, "b") == []
        await lab.until_rows(STABLE, {("b,c,d",)})

    runs(story())


def test_scale_up_after_ha_recovery_when_majority_loss() -> None:
    async def story() -> None:
        lab = await a_cluster("bcdef", f"{HA}, {UP} = 1", 5)
        await kill(lab, "cdef")
        await lab.until_rows(STABLE, {("b",)})
        for number in (1, 2, 3):
            await append(lab, number)
        await lab.start("c")
        await lab.until_rows(STABLE, {("b,c",)})
        await lab.start("d")
        await lab.until_rows(STABLE, {("b,c,d",)})
        told = await settled_replicas(lab, "bcd")
        assert len({replica.content for replica in told.values()}) == 1
        assert await read(lab) == (1, 2, 3)

    runs(story())


def test_ha_zone_scale_down_nodes_do_not_removed_from_stable() -> None:
    async def story() -> None:
        lab = await a_cluster("bcdef", HA, 5)
        await kill(lab, "ef")
        await asyncio.sleep(QUIET_S)
        await lab.start("e")
        await asyncio.sleep(QUIET_S)
        await lab.until_rows(STABLE, {("b,c,d,e,f",)})
        assert await resets(lab, "bcde") == []

    runs(story())


def test_rebalance_in_ha_zone() -> None:
    async def story() -> None:
        lab = await a_cluster("bcde", HA, 4)
        await lab.done("ALTER ZONE Z SET REPLICAS = 3")
        await asyncio.sleep(QUIET_S)
        ((stable,),) = await lab.done(STABLE)
        assert len(str(stable).split(",")) == 3
        await append(lab, 1)
        await lab.done("ALTER ZONE Z SET REPLICAS = 4")
        await lab.until_rows(STABLE, {("b,c,d,e",)})
        told = await settled_replicas(lab, "bcde")
        assert len({replica.content for replica in told.values()}) == 1
        await lab.done(f"ALTER ZONE Z SET {DOWN} = 1")
        await kill(lab, "e")
        await lab.until_rows(STABLE, {("b,c,d",)})
        assert await read(lab) == (1,)

    runs(story())


@pytest.mark.parametrize("phase2", [False, True])
def test_restart_nodes_one_by_one(phase2: bool) -> None:
    async def story() -> None:
        lab = await a_cluster("bcdef", HA, 5, phase2=phase2)
        for number, node in enumerate("bcdef", 1):
            await append(lab, number)
            await lab.provider.stop(node)
            await started(lab, node)
            await settled_replicas(lab, "bcdef")
        assert await read(lab) == (1, 2, 3, 4, 5)
        await lab.until_rows(STABLE, {("b,c,d,e,f",)})
        assert await resets(lab, "bcdef") == []
        erased = [e for n in "bcdef" for e in await lab.events(n, START_DECISION)]
        assert erased
        assert not [e for e in erased if e.decision == ERASES]

    runs(story())


def test_manual_recovery() -> None:
    async def story() -> None:
        lab = await a_cluster(SEVEN, f"{MODE}, {RESET_S} = 300", 7)
        await append(lab, 1)
        await settled_replicas(lab, SEVEN)
        await kill(lab, "efgh")
        states = "SELECT STATE FROM SYSTEM.PARTITION_STATES"
        await lab.until_rows(states, {("MINORITY",)})
        await lab.done("RESET PARTITIONS OF ZONE Z")
        await lab.until_rows(STABLE, {("b,c,d",)})
        await append(lab, 2)
        await settled_replicas(lab, "bcd")
        await lab.done(f"ALTER ZONE Z SET {RESET_S} = 1")
        await kill(lab, "cd")
        await lab.until_rows(STABLE, {("b",)})
        assert await resets(lab, "b") == [1, 2]
        assert await read(lab) == (1, 2)

    runs(story())


def test_scale_down_timer_is_working_for_ha_zone() -> None:
    async def story() -> None:
        lab = await a_cluster("bcd", f"{HA}, {DOWN} = 0", 3)
        await lab.until_rows(DATA_NODES, {("b",), ("c",), ("d",)})
        await kill(lab, "d")
        await lab.until_rows(DATA_NODES, {("b",), ("c",)}, limit_s=QUIET_S)

    runs(story())


def test_node_state_cleanup_after_restart_in_ha_mode() -> None:
    async def story() -> None:
        lab = await a_cluster(SEVEN, LATE, 7)
        await append(lab, 1)
        await settled_replicas(lab, SEVEN)
        await kill(lab, "efgh")
        await lab.until_rows(STABLE, {("b,c,d",)})
        await lab.start("e")
        await asyncio.sleep(QUIET_S)
        assert set(await replicas(lab, "bcde")) == set("bcd")
        await lab.until_rows(STABLE, {("b,c,d",)})
        assert await read(lab) == (1,)

    runs(story())


def test_that_partition_reset_zone_filter_aware_and_storage_profile_filter_aware() -> None:
    async def story() -> None:
        lab = Lab(31, tuple("abcdef"))
        common = {"system_nodes": ("a",)}
        own = {"a": {"profiles": ()}, "f": {"profiles": ()}}
        await lab.provision(common, own)
        await started(lab, "abcdef")
        inside = '"b" || "c" || "d" || "f"'
        await lab.done(
            f"CREATE ZONE Z WITH PARTITIONS = 1, REPLICAS = 3, DATA_NODES_FILTER = '{inside}', "
            f"{MODE}, {RESET_S} = 300"
        )
        await lab.done("CREATE TABLE T WITH PRIMARY_ZONE = Z")
        await lab.until_rows(STABLE, {("b,c,d",)})
        await append(lab, 1)
        await settled_replicas(lab, "bcd")
        await kill(lab, "cd")
        await lab.until_rows("SELECT STATE FROM SYSTEM.PARTITION_STATES", {("MINORITY",)})
        # It would take in data nodes up to the number of replicas: e is outside, f has no profile.
        await lab.done("RESET PARTITIONS OF ZONE Z")
        await lab.until_rows(STABLE, {("b",)})
        await asyncio.sleep(QUIET_S)
        await lab.until_rows(STABLE, {("b",)})
        assert await read(lab) == (1,)

    runs(story())


async def down_to_one(lab: Lab, *, last: int | None) -> None:
    """A to D go, then E and F, then G, which may have been written to; A is b, and G is h."""
    await append(lab, 1)
    await settled_replicas(lab, SEVEN)
    await kill(lab, "bcde")
    await lab.until_rows(STABLE, {("f,g,h",)})
    await append(lab, 2)
    await settled_replicas(lab, "fgh")
    await kill(lab, "fg")
    await lab.until_rows(STABLE, {("h",)})
    if last is not None:
        await append(lab, last)
    await lab.provider.kill("h")
    await lab.until_rows("SELECT STATE FROM SYSTEM.PARTITION_STATES", {("LOST",)})


@pytest.mark.parametrize("phase2", [False, True])
def test_several_ha_resets_and_some_node_restart(phase2: bool) -> None:
    async def story() -> None:
        lab = await a_cluster(SEVEN, f"{HA}, {UP} = 1", 7, phase2=phase2)
        await down_to_one(lab, last=3)
        await lab.start("b", "h", "f")
        await lab.until_rows(STABLE, {("b,f,h",)})
        told = await settled_replicas(lab, "bfh")
        assert len({replica.content for replica in told.values()}) == 1
        assert await read(lab) == (1, 2, 3)

    runs(story())


@pytest.mark.parametrize("phase2", [False, True])
def test_nodes_wait_for_last_node_from_chain_to_come_back_online(phase2: bool) -> None:
    async def story() -> None:
        lab = await a_cluster(SEVEN, f"{HA}, {UP} = 1", 7, phase2=phase2)
        await down_to_one(lab, last=3)
        await lab.start("f", "g")
        await asyncio.sleep(2 * QUIET_S)
        await refused(lab, "PARTITION-LOST")
        await lab.start("h")
        await lab.until_rows(STABLE, {("f,g,h",)})
        assert await read(lab) == (1, 2, 3)

    runs(story())


def test_nodes_wait_for_nodes_from_graceful_chain_to_come_back_online() -> None:
    async def story() -> None:
        lab = await a_cluster(SEVEN, f"{HA}, {UP} = 1", 7, phase2=True)
        await append(lab, 1)
        await settled_replicas(lab, SEVEN)
        await kill(lab, "bcde")
        await lab.until_rows(STABLE, {("f,g,h",)})
        await kill(lab, "fg")
        await lab.until_rows(STABLE, {("h",)})
        await lab.provider.kill("h")
        await lab.until_rows("SELECT STATE FROM SYSTEM.PARTITION_STATES", {("LOST",)})
        # Nobody wrote since: the graceful set begins, of which f, g and h are no copies any more.
        await lab.start("f", "g", "h")
        await asyncio.sleep(2 * QUIET_S)
        assert not await replicas(lab, "fgh")
        await lab.start("b", "c", "d", "e")
        await lab.until_rows(STABLE, {(",".join(SEVEN),)})
        assert await read(lab) == (1,)

    runs(story())


def test_manual_reset_of_only_requested_partitions() -> None:
    async def story() -> None:
        lab = Lab(31, tuple("abcd"))
        await lab.provision({"system_nodes": ("a",)}, {"a": {"profiles": ()}})
        await started(lab, "abcd")
        await lab.done(f"CREATE ZONE Z WITH PARTITIONS = 3, REPLICAS = 3, {MODE}, {RESET_S} = 300")
        await lab.done("CREATE TABLE T WITH PRIMARY_ZONE = Z")
        await lab.until_rows(STABLE, {("b,c,d",)})
        await kill(lab, "cd")
        await lab.until_rows("SELECT STATE FROM SYSTEM.PARTITION_STATES", {("MINORITY",)})
        await lab.done("RESET PARTITIONS (0, 2) OF TABLE T")
        query = "SELECT PARTITION_ID, GENERATION FROM SYSTEM.PARTITION_STATES"
        await lab.until_rows(query, {(0, 1), (1, 0), (2, 1)})
        await asyncio.sleep(QUIET_S)
        await lab.until_rows(query, {(0, 1), (1, 0), (2, 1)})

    runs(story())


def test_automatic_reset_does_not_restore_the_replica_factor() -> None:
    async def story() -> None:
        lab = await a_cluster("bcdef", LATE, 5)
        await lab.done("ALTER ZONE Z SET REPLICAS = 3")
        await asyncio.sleep(QUIET_S)
        ((stable,),) = await lab.done(STABLE)
        held = str(stable).split(",")
        assert len(held) == 3
        await append(lab, 1)
        await kill(lab, held[1:])
        await lab.until_rows(STABLE, {(held[0],)})
        await asyncio.sleep(QUIET_S)
        await lab.until_rows(STABLE, {(held[0],)})  # though two data nodes without it are there

    runs(story())


def test_reset_of_a_partition_that_was_never_written_to() -> None:
    async def story() -> None:
        lab = await a_cluster(SEVEN, HA, 7)
        await kill(lab, "efgh")
        await lab.until_rows(STABLE, {("b,c,d",)})
        assert await read(lab) == ()
        await append(lab, 1)
        assert await read(lab) == (1,)

    runs(story())
