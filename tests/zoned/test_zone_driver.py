"""Zones that a simulated cluster drives: events, timers, restarts."""

from __future__ import annotations

import asyncio

import pytest
from zoned_lab import NODES, Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import WALL_EPOCH_NS
from clusters.reference.node.config import Tuning
from clusters.reference.node.events import DATA_NODES_CHANGED, TOPOLOGY_CHANGED, EventLog
from clusters.reference.node.metastorage.metastorage import METASTORAGE, Metastorage
from clusters.reference.node.raft.types import Append, Chunk, Message
from clusters.reference.node.rpc.link import Links
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.topology.logical import TopologyService
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.data_nodes import Topology
from clusters.reference.node.zones.driver import ZoneDriver
from harness.protocols.client import READ_WRITE

TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
DATA = "SELECT NODE_NAME FROM SYSTEM.DATA_NODES"
STABLE = "SELECT PARTITION_ID, NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'stable'"
PENDING = "SELECT PARTITION_ID, NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'pending'"
NS_PER_S = 1_000_000_000
WORD = b"keydata!"  # a value, as it is in a log


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


async def one_partition(lab: Lab, zone: str) -> None:
    """The zone of the seed's timelines, of one partition: three nodes that were there before."""
    await lab.provision()
    await lab.start("a", "b", "c")
    await lab.until_rows(TOPOLOGY, columns("a b c"))
    await lab.done(f"CREATE ZONE zone1 WITH PARTITIONS = 1, REPLICAS = 1, {zone}")
    await lab.done("CREATE TABLE accounts WITH PRIMARY_ZONE = zone1")
    await lab.until_rows(DATA, columns("a b c"))


async def comes(lab: Lab, node: str, then: str, by: str = "a") -> None:
    await lab.start(node)
    await lab.until_rows(TOPOLOGY, columns(then), by)


def test_the_seeds_timeline_with_both_timers_to_a_tenth_of_a_second() -> None:
    async def scenario() -> None:
        lab = Lab()
        await one_partition(
            lab, "DATA_NODES_AUTO_ADJUST_SCALE_UP = 3, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300"
        )
        # The seed's seconds 0, 100, 250, 550, 600 and 300_100, a hundredth each but the last.
        await comes(lab, "d", "a b c d")
        by = await lab.metastorage_leader()
        lost = next(node for node in "abc" if node != by)
        rest = " ".join(sorted({*"abcd"} - {lost}))
        await lab.provider.kill(lost)
        await lab.until_rows(TOPOLOGY, columns(rest), by)
        await comes(lab, "e", f"{rest} e", by)
        await lab.until_rows(DATA, columns("a b c d e"), by)
        await asyncio.sleep(0.5)
        await comes(lab, "f", f"{rest} e f", by)
        await lab.until_rows(DATA, columns("a b c d e f"), by)
        await asyncio.sleep(290)
        assert set(await lab.done(DATA, by)) == columns("a b c d e f")
        await lab.until_rows(DATA, columns(f"{rest} e f"), by)

        at = dict(await switches(lab, by))
        zone, topology = "zone ZONE1: data nodes", "logical topology: joined"
        waits = (
            (f"{topology} e, left none", f"{zone} a b c d e", 3),
            (f"{topology} f, left none", f"{zone} a b c d e f", 3),
            (f"{topology} none, left {lost}", f"{zone} {rest} e f", 300),
        )
        for began, switched, wait_s in waits:
            assert abs((at[switched] - at[began]) / NS_PER_S - wait_s) < 0.1
        # One entry of the history each, and one as the zone was created.
        assert sum(text.startswith(zone) for text in at) == 4
        await lab.provider.teardown()

    simulate(scenario())


def test_the_joint_timeline_switches_once_to_a_tenth_of_a_second() -> None:
    async def scenario() -> None:
        lab = Lab(2)
        await one_partition(lab, "DATA_NODES_AUTO_ADJUST = 4")
        await comes(lab, "d", "a b c d")
        by = await lab.metastorage_leader()
        lost = next(node for node in "abc" if node != by)
        rest = " ".join(sorted({*"abcd"} - {lost}))
        await lab.provider.kill(lost)
        await lab.until_rows(TOPOLOGY, columns(rest), by)
        await asyncio.sleep(1.5)
        await comes(lab, "e", f"{rest} e", by)
        await lab.until_rows(DATA, columns(f"{rest} e"), by)

        events = await switches(lab, by)
        at = dict(events)
        switched = at[f"zone ZONE1: data nodes {rest} e"]
        joined = at["logical topology: joined e, left none"]
        assert abs((switched - joined) / NS_PER_S - 4) < 0.1
        assert sum(text.startswith("zone") for text, _ in events) == 2
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


@pytest.mark.parametrize("restarted", ["leader", "follower"])
def test_a_restart_that_brings_timestamps_forward_shortens_and_lengthens_no_wait(
    restarted: str,
) -> None:
    async def scenario() -> None:
        lab = Lab(5)
        await one_partition(
            lab, "DATA_NODES_AUTO_ADJUST_SCALE_UP = 2, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 1"
        )
        await comes(lab, "d", "a b c d")
        await lab.until_rows(DATA, columns("a b c d"))
        by = await lab.metastorage_leader()
        victim = by if restarted == "leader" else next(n for n in ("a", "b", "c") if n != by)
        await lab.provider.stop("d")
        # In order: the node leaves at once, and starts the wait anew. The next start's timestamps
        # begin above what the earlier start may have promised, 1.5 s after its last renewal.
        await lab.provider.stop(victim)
        left_s = now_s()
        await lab.start(victim, "e")
        await lab.until_rows(DATA, columns("a b c e"), "e")
        at_s = {
            text: (wall_ns - WALL_EPOCH_NS) / NS_PER_S
            for node in "abc"
            for text, wall_ns in await switches(lab, node)
        }
        joined_s = max(at_s[text] for text in at_s if " e, left" in text)
        zone = "zone ZONE1: data nodes"
        assert abs(at_s[f"{zone} a b c"] - left_s - 1) < 0.1
        # A new leader of metastorage may take a tick to look at what has just joined.
        assert abs(at_s[f"{zone} a b c e"] - joined_s - 2) < 0.2
        await lab.provider.teardown()

    simulate(scenario())


def moved(messages: tuple[tuple[str, Message], ...]) -> int:
    """How many bytes of clients' values are in what one node sends to another one."""
    found = 0
    for group, message in messages:
        if group != METASTORAGE and isinstance(message, Append):
            found += sum(len(entry.data) for entry in message.entries if WORD in entry.data)
        elif group != METASTORAGE and isinstance(message, Chunk):
            found += len(message.data)
    return found


@pytest.mark.parametrize(("ending", "pause_s"), [("kill", 300.0), ("stop", 5.0)])
def test_a_restart_of_the_whole_cluster_moves_nothing(
    ending: str, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send_raft = Links.send_raft

    def counted(links: Links, member: str, messages: tuple[tuple[str, Message], ...]) -> None:
        sent.append(moved(messages))
        send_raft(links, member, messages)

    monkeypatch.setattr(Links, "send_raft", counted)

    async def scenario() -> None:
        lab = Lab(3, NODES[:5])
        await lab.provision()
        await begun(lab, "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 60")
        await lab.start("d", "e")
        await lab.until_rows(DATA, columns("a b c d e"))
        await asyncio.sleep(1.0)
        await lab.until_rows(PENDING, set())
        client = await lab.dial("d", "ACCOUNTS")
        tx = await client.begin(READ_WRITE, now_s() + 5.0)
        for key in range(40):
            await tx.write(key, int.from_bytes(WORD, "big"))
        await tx.commit()
        await asyncio.sleep(1.0)
        assert sum(sent) > 40 * len(WORD)  # replicated, so it is counted
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
        sent.clear()
        await lab.start("a", "b", "c")
        await asyncio.sleep(0.5)
        await lab.start("d")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        await asyncio.sleep(10.0)
        assert set(await lab.done(STABLE)) == before
        assert set(await lab.done(DATA)) == columns("a b c d e")
        assert sum(sent) == 0
        fired_s = await lab.until_rows(DATA, columns("a b c d"), limit_s=90)
        # 20 of the 60 s were over, however long the cluster was down; a node that leaves in order
        # starts the timer anew.
        left_s = 60 - (down_s - out_s if ending == "kill" else 0)
        assert left_s - 2 < fired_s - up_s < left_s + 2
        await lab.provider.teardown()

    simulate(scenario())


def test_a_restart_that_is_broken_off_before_it_is_known_counts_for_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resumed = TopologyService._resumed

    async def lost(*_: object) -> bool:
        return False  # each leader of the first restart dies before it can write that it was one

    async def scenario() -> None:
        lab = Lab(4, NODES[:4])
        # Of metastorage nothing is left but its last state: no earlier renewal is in the log.
        await lab.provision(settings={"snapshot_bytes": 1, "tuning": Tuning(max_history=1)})
        await begun(lab, "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 60")
        await lab.start("d")
        await lab.until_rows(DATA, columns("a b c d"))
        await lab.provider.kill("d")
        await lab.until_rows(TOPOLOGY, columns("a b c"))
        await asyncio.sleep(20.0)
        for node in "abc":
            await lab.provider.kill(node)
        await asyncio.sleep(100.0)
        monkeypatch.setattr(TopologyService, "_resumed", lost)
        await lab.start("a", "b", "c")
        await asyncio.sleep(5.0)
        for node in "abc":
            await lab.provider.kill(node)
        monkeypatch.setattr(TopologyService, "_resumed", resumed)
        await asyncio.sleep(100.0)
        up_s = now_s()
        await lab.start("a", "b", "c")
        await lab.until_rows(TOPOLOGY, columns("a b c"))
        assert set(await lab.done(DATA)) == columns("a b c d")
        fired_s = await lab.until_rows(DATA, columns("a b c"), limit_s=90)
        assert 38 < fired_s - up_s < 44  # 20 of the 60 s were over, and the cluster starts
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
