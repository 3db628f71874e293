"""How long a partition is silent while the node that leads it stops in order."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import groupby, pairwise

import pytest
from test_partition_resets import Writer, cluster
from zoned_lab import Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.client import ERRORS, ReferenceClient, connect, dial
from clusters.reference.node.rpc.sessions import SNAPSHOT
from clusters.reference.node.runtime import Connection
from clusters.reference.node.runtime.concurrency import all_of
from harness.protocols.client import READ_WRITE, StoreError

SILENT_S = 0.3


@pytest.mark.parametrize("seed", [1, 4])
def test_a_leader_that_stops_in_order_is_silent_for_a_moment_only(seed: int) -> None:
    async def story() -> None:
        lab = Lab(seed, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = OFF", 3)
        writer = Writer(lab)
        work = asyncio.ensure_future(writer.run())
        await asyncio.sleep(3.0)
        primaries = (await lab.report("b")).primaries
        primary = next(status.primary for status in primaries if status.partition == 0)
        assert primary is not None
        began_s = now_s()
        await lab.provider.stop(primary)
        await asyncio.sleep(3.0)
        writer.over = True
        await work
        acks = [a.ended_s for a in writer.attempts if not a.code and a.ended_s > began_s - 1]
        assert max(later - sooner for sooner, later in pairwise(acks)) <= SILENT_S

    simulate(story())


async def elsewhere(lab: Lab, node: str) -> tuple[str, Connection]:
    """A connection to the node behind ``node``."""
    other = "bcd"[("bcd".index(node) + 1) % 3]
    address = lab.cluster.client[other]["client"]
    connection = await dial(lab.provider.client_network, address.host, address.port, 1.0, "")
    return other, connection


async def client_of(lab: Lab, node: str) -> ReferenceClient:
    address, network = lab.cluster.client[node]["client"], lab.provider.client_network
    return await connect(
        network,
        address.host,
        address.port,
        1.0,
        table_of=lambda _: "T",
        node=node,
        elsewhere=partial(elsewhere, lab),
    )


async def count_up(client: ReferenceClient, key: int, times: int, pause_s: float) -> list[str]:
    """The nodes that the client was at, by transaction, none of which may fail."""
    nodes = []
    for number in range(times):
        tx = await client.begin(READ_WRITE, now_s() + 5.0)
        await tx.append(key, number)
        await asyncio.sleep(pause_s)
        await tx.commit()
        nodes.append(client.node)
        snapshot = await client.begin(SNAPSHOT, now_s() + 5.0)
        assert await snapshot.read(key) == tuple(range(number + 1))
        await snapshot.commit()
        await asyncio.sleep(pause_s)
    return nodes


@pytest.mark.parametrize("pause_s", [0.01, 0.2])
def test_clients_of_a_node_that_stops_in_order_go_on_at_another_one(pause_s: float) -> None:
    async def story() -> None:
        lab = Lab(5, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = OFF", 3)
        clients = [await client_of(lab, "b") for _ in range(6)]
        times = int(3.0 / pause_s / 2)
        work = [count_up(client, key, times, pause_s) for key, client in enumerate(clients)]
        done = asyncio.ensure_future(all_of(work))
        await asyncio.sleep(1.0)
        await lab.provider.stop("b")
        await asyncio.sleep(0.5)
        await lab.start("b")
        for nodes in await done:
            # It is back at its own node soon after that has started again.
            assert [node for node, _ in groupby(nodes)] == ["b", "c", "b"]

    simulate(story())


def test_what_is_open_for_longer_than_a_node_waits_is_rolled_back_and_the_client_goes_on() -> None:
    async def story() -> None:
        lab = Lab(6, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = OFF", 3)
        client = await client_of(lab, "b")
        tx = await client.begin(READ_WRITE, now_s() + 10.0)
        await tx.append(1, 7)
        await lab.provider.stop("b")
        with pytest.raises(StoreError) as found:
            await tx.commit()
        assert found.value.code == "NODE-STOPPING"
        assert ERRORS["NODE-STOPPING"].at_commit == "definite"
        await tx.rollback()
        tx = await client.begin(READ_WRITE, now_s() + 10.0)
        assert await tx.read(1) is None
        assert client.node == "c"

    simulate(story())
