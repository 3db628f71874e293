"""Nodes that join and leave a simulated cluster, as its metastorage tells it."""

from __future__ import annotations

import asyncio

from zoned_lab import Lab, columns, now_s

from clusters.providers.sim.loop import simulate

QUERY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"


async def whole() -> Lab:
    """Every node is in the logical topology, and time enough has passed to renew its lease."""
    lab = Lab()
    await lab.provision()
    await lab.start(*lab.nodes)
    await lab.until_rows(QUERY, columns("a b c d e f"))
    await asyncio.sleep(1.0)
    return lab


def test_nodes_that_start_later_follow_metastorage_and_join() -> None:
    async def scenario() -> None:
        lab = Lab()
        await lab.provision()
        await lab.start("a", "b", "c")
        await lab.until_rows(QUERY, columns("a b c"))
        await lab.start("e", "d")
        await lab.until_rows(QUERY, columns("a b c d e"))
        await asyncio.sleep(1.0)
        report = await lab.report("d")
        (group,) = report.groups
        assert group.voters == ("a", "b", "c")
        assert report.lease_s > 0
        await lab.provider.teardown()

    simulate(scenario())


def test_a_node_is_out_two_seconds_after_its_lease_or_as_it_stops_in_order() -> None:
    async def scenario() -> None:
        lab = await whole()
        killed_s = now_s()
        await lab.provider.kill("d")
        assert 1.7 < await lab.until_rows(QUERY, columns("a b c e f")) - killed_s < 2.3
        stopped_s = now_s()
        await lab.provider.stop("e")
        assert await lab.until_rows(QUERY, columns("a b c f")) - stopped_s < 0.5
        await lab.start("d", "e")
        await lab.until_rows(QUERY, columns("a b c d e f"))
        await lab.provider.teardown()

    simulate(scenario())


def test_a_node_that_was_cut_off_finds_the_leader_that_it_has_not_heard_of() -> None:
    async def scenario() -> None:
        lab = await whole()
        (group,) = (await lab.report("d")).groups
        before = str(group.leader)
        away = [(n, "d") for n in lab.nodes if n != "d"] + [("d", n) for n in lab.nodes if n != "d"]
        await lab.provider.cut(tuple(sorted(away)))
        await lab.provider.kill(before)
        asked = next(node for node in ("a", "b", "c") if node != before)
        left = columns(" ".join(n for n in lab.nodes if n not in ("d", before)))
        await lab.until_rows(QUERY, left, asked)
        await lab.start(before)
        await lab.until_rows(QUERY, columns("a b c e f"), asked)
        (group,) = (await lab.report("d")).groups
        assert group.leader == before
        await lab.provider.cut(())
        await lab.until_rows(QUERY, columns("a b c d e f"), asked, limit_s=5.0)
        await lab.provider.teardown()

    simulate(scenario())


def test_a_node_of_another_cluster_or_version_is_refused_and_says_why() -> None:
    async def scenario() -> None:
        lab = Lab()
        own = {"d": {"tag": "orders"}, "e": {"version": "2"}}
        await lab.provision(own=own)
        await lab.start(*lab.nodes)
        await lab.until_rows(QUERY, columns("a b c f"))
        for node, why in (
            ("d", "node 'd': the cluster's tag is 'firedrill' (got 'orders')"),
            ("e", "node 'e': the cluster's version is '1' (got '2')"),
        ):
            status = await lab.provider.probe(node)
            assert not status.running
            assert why in status.exit_text
        await lab.provider.teardown()

    simulate(scenario())
