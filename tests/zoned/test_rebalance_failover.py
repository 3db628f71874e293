"""Leaders that die in each stage of a rebalance, in a simulated cluster under load."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from test_partition_driver import KEYS, PARTITIONS, Load, begun, settled
from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.client import encode_key
from clusters.reference.node.admin import ask
from clusters.reference.node.config import loads
from clusters.reference.node.events import REBALANCE_STAGE
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.rebalance.partition_driver import PartitionDriver
from clusters.reference.node.runtime import Runtime
from clusters.reference.node.runtime.concurrency import together
from clusters.reference.node.server import Life, Node
from clusters.reference.node.wire.reports import AskStates, StateReport
from harness.protocols.cluster import Program
from harness.protocols.moments import Happening, Moment

SILENT_S = 2.0  # without an acknowledgement: a failover takes 1.3 s
POLL_S = 0.002
RETARGET_S = 2.0  # for a stalled catch-up to be aimed elsewhere; as long again to get there


class Timed(Load):
    """A load that remembers when something was acknowledged."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.at_s: dict[int, list[float]] = {number: [] for number in range(PARTITIONS)}

    async def watch(self) -> None:
        known = dict.fromkeys(range(KEYS), 0)
        while not self.over:
            for key, elements in self.acknowledged.items():
                if len(elements) != known[key]:
                    known[key] = len(elements)
                    self.at_s[partition_of(encode_key(key), PARTITIONS)].append(now_s())
            await asyncio.sleep(POLL_S)

    def longest_silence_s(self) -> float:
        """Of any partition that has keys."""
        written = [times for times in self.at_s.values() if times]
        return max(later - sooner for times in written for sooner, later in pairwise(times))


class Assassin:
    """Kills the first node that comes to ``moment`` in a partition, or ``victim`` at that moment;
    ``down_s`` later it starts again, unless that is ``None``.
    """

    def __init__(
        self, lab: Lab, moment: Moment, victim: str | None = None, down_s: float | None = 1.5
    ) -> None:
        self.lab, self.moment, self.victim, self.down_s = lab, moment, victim, down_s
        self.victims: list[str] = []
        self.armed = False
        lab.provider.watch(self._happened)

    def _happened(self, happening: Happening) -> None:
        wanted = happening.moment is self.moment and happening.partition is not None
        if self.armed and wanted and not self.victims:
            self.victims.append(self.victim or happening.node)

    async def kill(self) -> None:
        for _ in range(int(LIMIT_S / POLL_S)):
            if self.victims:
                break
            await asyncio.sleep(POLL_S)
        await self.lab.provider.kill(self.victims[0])
        if self.down_s is not None:
            await asyncio.sleep(self.down_s)
            await self.lab.provider.start(self.victims[0])


async def checked(lab: Lab, load: Load) -> None:
    """Nothing that was acknowledged is lost, nothing is there twice, and no promise of a disk, a
    lease or a majority was broken on the way.
    """
    assert sum(map(len, load.acknowledged.values())) > 100
    for key in range(KEYS):
        final = await load.read("e", key)
        assert len(frozenset(final)) == len(final)
        assert frozenset(load.acknowledged[key]) <= frozenset(final)
    claims = lab.provider.claims()
    assert claims is not None
    assert not claims.broken, claims.examples[:3]


@pytest.mark.parametrize("variant", ["base", "lock", "cancel"])
@pytest.mark.parametrize(
    "moment", [Moment.MEMBERS_CATCHING_UP, Moment.MEMBERS_JOINT, Moment.MEMBERS_STABLE]
)
def test_the_next_leader_completes_what_one_that_died_had_begun(
    variant: str, moment: Moment
) -> None:
    async def scenario() -> None:
        lab = Lab(8)
        lab.provider = SimProvider(seed=8, claims=ReferenceClaims())
        await begun(lab, 3, rebalance=variant)
        load, assassin = Timed(lab, 8), Assassin(lab, moment)
        nodes = ("a", "b", "d", "e", "f")
        work = [asyncio.ensure_future(load.client(node)) for node in nodes]
        work += [asyncio.ensure_future(load.watch()), asyncio.ensure_future(assassin.kill())]
        await asyncio.sleep(1.0)
        assassin.armed = True
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"c", "d", "e"\'', "f")
        await asyncio.sleep(0.5)
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'', "f")
        await asyncio.sleep(4.0)
        moved = await settled(lab, "f")
        assert assassin.victims
        assert set().union(*moved.values()) == {"d", "e", "f"}
        await asyncio.sleep(0.5)
        load.over = True
        await asyncio.gather(*work)
        await checked(lab, load)
        assert load.longest_silence_s() < SILENT_S
        await lab.provider.teardown()

    simulate(scenario())


async def stalled(variant: str) -> tuple[Lab, Timed, list[asyncio.Future[None]]]:
    """A rebalance whose new node f has died as its group began to catch up, and that is aimed at c
    instead of f.
    """
    lab = Lab(11)
    lab.provider = SimProvider(seed=11, claims=ReferenceClaims())
    await begun(lab, 3, rebalance=variant)
    load = Timed(lab, 11)
    assassin = Assassin(lab, Moment.MEMBERS_CATCHING_UP, "f", down_s=None)
    work = [asyncio.ensure_future(load.client(node)) for node in ("a", "b", "c", "d", "e")]
    work += [asyncio.ensure_future(load.watch()), asyncio.ensure_future(assassin.kill())]
    await asyncio.sleep(1.0)
    assassin.armed = True
    await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'')
    await asyncio.sleep(1.5)
    assert assassin.victims == ["f"]
    await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"c", "d", "e"\'')
    return lab, load, work


async def ended(lab: Lab, load: Timed, work: list[asyncio.Future[None]]) -> None:
    load.over = True
    await asyncio.gather(*work)
    await checked(lab, load)
    assert load.longest_silence_s() < SILENT_S
    await lab.provider.teardown()


@pytest.mark.parametrize("variant", ["lock", "cancel"])
def test_a_catch_up_that_stalls_is_aimed_elsewhere_at_once(variant: str) -> None:
    async def scenario() -> None:
        lab, load, work = await stalled(variant)
        asked_s = now_s()
        moved = await settled(lab)
        took_s = now_s() - asked_s
        assert set().union(*moved.values()) == {"c", "d", "e"}
        assert took_s < 2 * RETARGET_S, took_s
        await ended(lab, load, work)

    simulate(scenario())


def test_the_base_aims_elsewhere_once_the_node_that_it_waits_for_has_left() -> None:
    async def scenario() -> None:
        lab, load, work = await stalled("base")
        moved = await settled(lab)
        assert set().union(*moved.values()) == {"c", "d", "e"}
        failures = [e for n in ("a", "b", "c") for e in await lab.events(n, REBALANCE_STAGE)]
        assert [e for e in failures if "unreachable" in e.text or "timed-out" in e.text]
        await ended(lab, load, work)

    simulate(scenario())


def test_the_base_waits_for_a_catch_up_that_stalls_and_tries_it_again() -> None:
    async def scenario() -> None:
        lab = Lab(11)
        lab.provider = SimProvider(seed=11, claims=ReferenceClaims())
        await begun(lab, 3, rebalance="base")
        load = Timed(lab, 11)
        work = [asyncio.ensure_future(load.client(node)) for node in ("a", "b", "c", "d", "e")]
        work.append(asyncio.ensure_future(load.watch()))
        await asyncio.sleep(1.0)
        # f goes on as a node of the cluster, and follows none but the leader of metastorage.
        leader = await lab.metastorage_leader()
        others = sorted({"a", "b", "c"} - {leader})
        await lab.provider.cut(tuple(sorted(x for n in others for x in ((n, "f"), ("f", n)))))
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'')
        await asyncio.sleep(1.5)
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"c", "d", "e"\'')
        with pytest.raises(AssertionError):
            await settled(lab, limit_s=6.0)
        failures = [e for n in ("a", "b", "c") for e in await lab.events(n, REBALANCE_STAGE)]
        assert [e for e in failures if "unreachable" in e.text or "timed-out" in e.text]
        await lab.provider.cut(())
        moved = await settled(lab)
        assert set().union(*moved.values()) == {"c", "d", "e"}
        await ended(lab, load, work)

    simulate(scenario())


@pytest.mark.parametrize("variant", ["base", "lock", "cancel"])
def test_a_node_whose_disk_was_wiped_is_taken_in_as_another_member(variant: str) -> None:
    async def scenario() -> None:
        lab = Lab(13)
        lab.provider = SimProvider(seed=13, claims=ReferenceClaims())
        await begun(lab, 3, rebalance=variant)
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'')
        await asyncio.sleep(1.0)
        await settled(lab)
        load = Timed(lab, 13)
        work = [asyncio.ensure_future(load.client(node)) for node in ("a", "b", "e")]
        work.append(asyncio.ensure_future(load.watch()))
        await asyncio.sleep(1.0)
        before = (await lab.report("d")).incarnation
        await lab.provider.kill("d")
        await lab.provider.wipe("d")
        await asyncio.sleep(1.0)
        await lab.provider.start("d")

        deadline_s = now_s() + LIMIT_S
        while True:
            groups = [g for n in "ef" for g in (await lab.report(n)).groups if g.serving]
            data = [g for g in groups if g.partition is not None]
            now = [m for g in data for m in g.members if m.startswith("d@")]
            if len(now) >= len(data) > 0 and all(before not in m for m in now):
                break
            assert now_s() < deadline_s, now
            await asyncio.sleep(0.1)
        await ended(lab, load, work)

    simulate(scenario())


async def until_taken_in(lab: Lab, limit_s: float = LIMIT_S) -> None:
    """Return once the voters of every partition are the replicas that its nodes run."""
    network, deadline_s = lab.provider.client_network, now_s() + limit_s
    while True:
        voters: dict[int, set[str]] = {}
        run: dict[int, set[str]] = {}
        for node in lab.nodes:
            for group in (await lab.report(node)).groups:
                if group.partition is not None and group.serving:
                    voters[group.partition] = set(group.members)
            address = lab.cluster.client[node]["client"]
            states = await ask(network, address.host, address.port, AskStates(), LIMIT_S)
            assert isinstance(states, StateReport)
            for replica in states.replicas:
                if replica.partition is not None:
                    run.setdefault(replica.partition, set()).add(replica.member)
        if voters and voters == run:
            return
        assert now_s() < deadline_s, (voters, run)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("variant", ["base", "lock", "cancel"])
@pytest.mark.parametrize("targets", [("abc", "def"), ("abe", "abd")])
def test_a_target_that_comes_back_leads_to_the_replicas_that_its_nodes_run_by_then(
    variant: str, targets: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed: list[int] = []
    lock = PartitionDriver._lock

    async def lose_the_first(driver: PartitionDriver, number: int, *rest: Any) -> None:
        if number not in delayed:  # a leader that does not hear of metastorage for a second
            delayed.append(number)
            await asyncio.sleep(1.0)
            return
        await lock(driver, number, *rest)

    monkeypatch.setattr(PartitionDriver, "_lock", lose_the_first)

    async def scenario() -> None:
        lab = Lab(13)
        lab.provider = SimProvider(seed=13, claims=ReferenceClaims())
        await begun(lab, 3, rebalance=variant)
        load = Timed(lab, 13)
        work = [asyncio.ensure_future(load.client(node)) for node in ("a", "b", "e")]
        work.append(asyncio.ensure_future(load.watch()))
        await asyncio.sleep(0.5)
        away, back = targets
        for nodes in (back, away, back):
            names = ", ".join(f'"{node}"' for node in nodes)
            await lab.done(f"ALTER ZONE z SET DATA_NODES_FILTER = '{names}'")
            await asyncio.sleep(0.35)
        await asyncio.sleep(1.0)
        moved = await settled(lab)
        assert set().union(*moved.values()) == set(back)
        assert (variant == "lock") == bool(delayed)
        await until_taken_in(lab)
        await asyncio.sleep(1.0)
        await ended(lab, load, work)

    simulate(scenario())


def test_a_replica_that_was_lost_alone_is_taken_in_as_another_member() -> None:
    orders: dict[str, asyncio.Queue[int]] = {}

    async def body(program: Program, runtime: Runtime) -> None:
        config = loads(program.files[program.argv[program.argv.index("--config") + 1]])
        components = await Node(config, runtime).recover()
        queue = orders[config.node] = asyncio.Queue()

        async def erase() -> None:
            while True:
                await components.replicas.erase(await queue.get())

        await together(Life(components).run(), erase())

    async def scenario() -> None:
        lab = Lab(13)
        lab.provider = SimProvider(seed=13, body=body)
        await begun(lab, 3)
        await until_taken_in(lab)
        led = [g.partition for g in (await lab.report("a")).groups if g.serving]
        number = next(n for n in range(PARTITIONS) if n not in led)
        orders["a"].put_nowait(number)
        await asyncio.sleep(0.5)
        await until_taken_in(lab, 10.0)
        groups = {g.partition: g for n in "bc" for g in (await lab.report(n)).groups if g.serving}
        assert any(m.startswith("a@") and m.endswith(".2") for m in groups[number].members)
        await lab.provider.teardown()

    simulate(scenario())
