"""Nodes that join and leave a simulated cluster, as its metastorage tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from zoned_lab import LIMIT_S, Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.admin import ask
from clusters.reference.node.events import TOPOLOGY_CHANGED
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.topology import logical
from clusters.reference.node.wire.reports import AskChanges, ChangeReport, ChangeRow
from harness.protocols.hardware import DiskTrouble

QUERY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
PHYSICAL = "SELECT NODE_NAME FROM SYSTEM.PHYSICAL_TOPOLOGY"


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


def test_the_physical_topology_is_whom_the_leader_is_connected_to() -> None:
    async def scenario() -> None:
        lab = await whole()
        assert await lab.done(PHYSICAL) == tuple((name,) for name in "abcdef")
        killed_s = now_s()
        await lab.provider.kill("d")
        await lab.until_rows(PHYSICAL, columns("a b c e f"))
        assert 1.7 < now_s() - killed_s < 3.0
        await lab.start("d")
        assert await lab.until_rows(PHYSICAL, columns("a b c d e f")) < killed_s + 5.0
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


@pytest.mark.parametrize("slow", [False, True], ids=["paused", "slow disk"])
def test_a_stall_of_metastorage_itself_puts_no_other_node_out(slow: bool) -> None:
    async def scenario() -> None:
        lab = Lab(nodes=("a", "b", "c", "d"))
        await lab.provision({"system_nodes": ("a",)})
        await lab.start(*lab.nodes)
        await lab.until_rows(QUERY, columns("a b c d"))
        await asyncio.sleep(1.0)
        before = await lab.events("a", TOPOLOGY_CHANGED)
        if slow:
            await lab.provider.set_disk("a", DiskTrouble(slow_s=4.0))
            await asyncio.sleep(2.5)
            await lab.provider.set_disk("a", DiskTrouble())
        else:
            await lab.provider.pause("a")
            await asyncio.sleep(3.0)
            await lab.provider.resume("a")
        await asyncio.sleep(6.0)
        assert await lab.events("a", TOPOLOGY_CHANGED) == before
        await lab.provider.kill("d")
        killed_s = now_s()
        assert await lab.until_rows(QUERY, columns("a b c")) - killed_s < 2.3
        await lab.provider.teardown()

    simulate(scenario())


def test_a_node_that_leaves_does_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(host: RaftHost, groups: Iterable[Group]) -> None:
        await asyncio.sleep(10.0)  # until it is given up

    async def scenario() -> None:
        lab = await whole()
        monkeypatch.setattr(RaftHost, "hand_over", slow)
        await lab.provider.stop("d")
        await lab.until_rows(QUERY, columns("a b c e f"))
        texts = [e.text for n in ("a", "b", "c") for e in await lab.events(n, TOPOLOGY_CHANGED)]
        assert "logical topology: joined none, left d" in texts
        assert "logical topology: joined d, left none" not in texts
        await lab.provider.teardown()

    monkeypatch.setattr(logical, "JOIN_EVERY_S", 0.1)
    simulate(scenario())


def test_the_restart_of_an_only_voter_is_no_restart_of_the_cluster() -> None:
    async def scenario() -> None:
        lab = Lab(nodes=("a", "b", "c", "d"))
        await lab.provision({"system_nodes": ("a",)})
        await lab.start(*lab.nodes)
        await lab.until_rows(QUERY, columns("a b c d"))
        await asyncio.sleep(1.0)
        await lab.provider.kill("a")
        await lab.start("a")
        await lab.until_rows(QUERY, columns("a b c d"))
        await asyncio.sleep(3.0)
        assert not [row for row in await changes(lab, "a") if row.kind == "restart"]
        await lab.provider.teardown()

    simulate(scenario())


async def changes(lab: Lab, node: str) -> tuple[ChangeRow, ...]:
    address, network = lab.cluster.client[node]["client"], lab.provider.client_network
    answer = await ask(network, address.host, address.port, AskChanges("", 0), LIMIT_S)
    assert isinstance(answer, ChangeReport)
    return answer.rows
