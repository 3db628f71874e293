"""Zones that a simulated cluster drives: events, timers, restarts."""

from __future__ import annotations

import asyncio

import pytest
from zoned_lab import NODES, Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import DATA_NODES_CHANGED, TOPOLOGY_CHANGED, EventLog
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.data_nodes import Topology
from clusters.reference.node.zones.driver import ZoneDriver

TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
DATA = "SELECT NODE_NAME FROM SYSTEM.DATA_NODES"
STABLE = "SELECT PARTITION_ID, NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'stable'"
PENDING = "SELECT PARTITION_ID, NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'pending'"
NS_PER_S = 1_000_000_000


async def begun(lab: Lab, zone: str) -> None:
    await lab.start("a", "b", "c")
    await lab.until_rows(TOPOLOGY, columns("a b c"))
    await lab.done(f"CREATE ZONE zone1 WITH PARTITIONS = 4, REPLICAS = 2, {zone}")
    await lab.done("CREATE TABLE accounts WITH PRIMARY_ZONE = zone1")
    await lab.until_rows(DATA, columns("a b c"))


async def switches(lab: Lab, node: str) -> list[tuple[str, int]]:
    """Topology and data nodes events of a node, each as its text and wall time."""
    found = []
    for kind in (TOPOLOGY_CHANGED, DATA_NODES_CHANGED):
        found += [(event.text, event.wall_ns) for event in await lab.events(node, kind)]
    return sorted(found, key=lambda each: each[1])


def test_the_seeds_timeline_with_both_timers_to_a_tenth_of_a_second() -> None:
    async def scenario() -> None:
        lab = Lab()
        await lab.provision()
        await begun(
            lab, "DATA_NODES_AUTO_ADJUST_SCALE_UP = 3, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 30"
        )
        await lab.start("d")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        await asyncio.sleep(0.5)
        await lab.provider.stop("d")
        await lab.until_rows(TOPOLOGY, columns("a b c"))
        await lab.start("e")
        await lab.until_rows(TOPOLOGY, columns("a b c e"))
        await lab.until_rows(DATA, columns("a b c e"))
        by = await lab.metastorage_leader()
        lost = next(node for node in ("a", "b", "c") if node != by)
        await lab.provider.stop(lost)
        asked = by
        left = columns(" ".join({"a", "b", "c", "e"} - {lost}))
        await lab.until_rows(TOPOLOGY, left, asked)
        await asyncio.sleep(25)
        assert set(await lab.done(DATA, asked)) == columns("a b c e")
        await lab.until_rows(DATA, left, asked)

        events = await switches(lab, by)
        at = dict(events)
        joined = at["logical topology: joined e, left none"]
        up = at["zone ZONE1: data nodes a b c e"]
        gone = at[f"logical topology: joined none, left {lost}"]
        names = " ".join(sorted({"a", "b", "c", "e"} - {lost}))
        down = at[f"zone ZONE1: data nodes {names}"]
        assert abs((up - joined) / NS_PER_S - 3) < 0.1
        assert abs((down - gone) / NS_PER_S - 30) < 0.1
        # One entry of the history each, and one as the zone was created.
        assert sum(text.startswith("zone") for text, _ in events) == 3
        await lab.provider.teardown()

    simulate(scenario())


@pytest.mark.parametrize("lost", ["leader", "follower"])
def test_a_timer_goes_on_when_the_node_that_drives_it_is_lost(lost: str) -> None:
    async def scenario() -> None:
        lab = Lab()
        await lab.provision()
        await begun(lab, "DATA_NODES_AUTO_ADJUST_SCALE_UP = 10")
        await lab.start("d")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        begun_s = now_s()
        by = await lab.metastorage_leader()
        victim = by if lost == "leader" else next(n for n in ("a", "b", "c") if n != by)
        await asyncio.sleep(2.0)
        await lab.provider.kill(victim)
        await asyncio.sleep(0.5)
        await lab.start(victim)
        await lab.until_rows(TOPOLOGY, columns("a b c d"), "d")
        fired_s = await lab.until_rows(DATA, columns("a b c d"), "d")
        assert abs(fired_s - begun_s - 10) < 0.2
        await lab.provider.teardown()

    simulate(scenario())


@pytest.mark.parametrize("ending", ["kill", "stop"])
@pytest.mark.parametrize("pause_s", [5.0, 300.0])
def test_a_restart_of_the_whole_cluster_moves_nothing(ending: str, pause_s: float) -> None:
    async def scenario() -> None:
        lab = Lab(3, NODES[:5])
        await lab.provision()
        await begun(lab, "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 60")
        await lab.start("d", "e")
        await lab.until_rows(DATA, columns("a b c d e"))
        await asyncio.sleep(1.0)
        await lab.until_rows(PENDING, set())
        before = set(await lab.done(STABLE))
        await lab.provider.kill("e")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        out_s = now_s()
        await asyncio.sleep(20.0)
        down_s = now_s()
        for node in ("d", "a", "b", "c"):
            await (lab.provider.kill(node) if ending == "kill" else lab.provider.stop(node))
        await asyncio.sleep(pause_s)
        up_s = now_s()
        await lab.start("a", "b", "c")
        await asyncio.sleep(0.5)
        await lab.start("d")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        assert set(await lab.done(STABLE)) == before
        assert set(await lab.done(DATA)) == columns("a b c d e")
        fired_s = await lab.until_rows(DATA, columns("a b c d"), limit_s=90)
        # 20 of the 60 s were over, however long the cluster was down; a node that leaves in order
        # starts the timer anew.
        left_s = 60 - (down_s - out_s if ending == "kill" else 0)
        assert left_s - 2 < fired_s - up_s < left_s + 2
        await lab.provider.teardown()

    simulate(scenario())


def test_a_timer_that_is_due_when_leadership_is_lost_is_left_to_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deposed:
        """A group whose leader is deposed between two ticks."""

        serving = True

        async def propose(self, data: bytes, limit_s: float) -> object:
            raise AssertionError("a node that does not lead proposes")

    async def scenario() -> None:
        loop, looked = asyncio.get_running_loop(), list[float]()
        clock = Hlc(wall_ns=lambda: NS_PER_S, monotonic_s=loop.time)
        due = clock.physical() + span(0.5)

        def next_due(view: object) -> int:
            looked.append(loop.time())
            assert len(looked) < 100, "it spins"
            return due

        monkeypatch.setattr(manager, "next_due", next_due)
        group = Deposed()
        driver = ZoneDriver(
            view=Metastorage(),
            group=group,
            clock=clock,
            topology=lambda: Topology(revision=0, nodes=()),
            settled=lambda: True,
            event_log=EventLog(boot="boot", wall_ns=lambda: 0),
        )
        driver.tick()
        running = asyncio.ensure_future(driver.run())
        await asyncio.sleep(0.1)
        group.serving = False
        await asyncio.sleep(2.0)
        assert not running.done()
        running.cancel()

    simulate(scenario())
