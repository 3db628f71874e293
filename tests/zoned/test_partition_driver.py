"""Partitions of a simulated cluster that move under load, with their data."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zoned_lab import Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import REBALANCE_STAGE
from clusters.reference.node.groups.group import Group
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Invoke,
    Metastorage,
    Operation,
    Versioned,
    encode_invoke,
)
from clusters.reference.node.raft import Configuration, Entry
from clusters.reference.node.rebalance import partition_driver
from clusters.reference.node.rebalance.decisions import ChangePeers
from clusters.reference.node.rebalance.driver import Numbers
from clusters.reference.node.rebalance.failover import Retries
from clusters.reference.node.rebalance.keys import STABLE, PartitionId, assignments, encode
from clusters.reference.node.rebalance.partition_driver import Led, PartitionDriver
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.concurrency import Failure, Tasks
from clusters.reference.node.topology.logical import LOGICAL
from harness.protocols.client import READ_WRITE, StoreError

TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
KINDS = "SELECT PARTITION_ID, KIND, NODES FROM SYSTEM.ASSIGNMENTS"
PARTITIONS = 4
KEYS = 8


class Load:
    """Clients that append, each acknowledged element kept."""

    @property
    def count(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.random = lab, random.Random(seed)
        self.acknowledged: dict[int, list[int]] = {key: [] for key in range(KEYS)}
        self.next_element = 0
        self.over = False

    async def client(self, node: str) -> None:
        while not self.over:
            self.next_element += 1
            element, key = self.next_element, self.random.randrange(KEYS)
            try:
                client = await self.lab.dial(node)
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                await tx.append(key, element)
                await tx.commit()
                self.acknowledged[key].append(element)
                await client.close()
            except StoreError:
                await asyncio.sleep(0.02)

    async def read(self, node: str, key: int) -> tuple[int, ...]:
        for _ in range(100):
            try:
                client = await self.lab.dial(node)
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                found = await tx.read(key)
                await client.close()
                return found if isinstance(found, tuple) else ()
            except StoreError:
                await asyncio.sleep(0.05)
        raise AssertionError(f"key {key} can't be read")


def alone(view: Metastorage) -> PartitionDriver:
    """The driver of node a, for what it decides by ``view`` alone."""
    nothing = cast(Any, None)
    return PartitionDriver(
        node="a",
        variant=Variant.BASE,
        view=view,
        leader=nothing,
        lives=lambda: {name: f"{name}@1" for name in "abc"},
        numbers=lambda: Numbers(((7, 0, 1),)),
        grants=lambda number: None,
        host=nothing,
        replicas=nothing,
        assignments={},
        ask=nothing,
        event_log=nothing,
        change_log=nothing,
        tasks=Tasks(Failure()),
    )


async def settled(lab: Lab, node: str = "a", limit_s: float = 30.0) -> dict[int, set[str]]:
    """The nodes of each partition, once nothing is pending and groups are as it is stable."""
    deadline_s = now_s() + limit_s
    while True:
        rows = await lab.done(KINDS, node)
        stable = {int(str(p)): set(str(n).split(",")) for p, kind, n in rows if kind == "stable"}
        if len(rows) == len(stable) == PARTITIONS and await running(lab) == stable:
            return stable
        assert now_s() < deadline_s, (rows, await running(lab))
        await asyncio.sleep(0.1)


async def running(lab: Lab) -> dict[int, set[str]]:
    """The nodes that run a raft node of each partition, where all agree on the voters."""
    found: dict[int, set[str]] = {}
    for node in lab.nodes:
        if (await lab.provider.probe(node)).running:
            for group in (await lab.report(node)).groups:
                if group.partition is not None:
                    found.setdefault(group.partition, set()).add(node)
    return found


async def begun(
    lab: Lab, replicas: int, settings: Mapping[str, object] | None = None, **common: object
) -> None:
    await lab.provision(common, settings=settings)
    await lab.start(*lab.nodes)
    await lab.until_rows(TOPOLOGY, columns(" ".join(lab.nodes)))
    await lab.done(
        f"CREATE ZONE z WITH PARTITIONS = {PARTITIONS}, REPLICAS = {replicas}, "
        'DATA_NODES_FILTER = \'"a", "b", "c"\''
    )
    await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
    await settled(lab)


@pytest.mark.parametrize("seed", range(3))
def test_partitions_move_to_other_nodes_under_load_and_lose_nothing(seed: int) -> None:
    async def scenario() -> None:
        lab = Lab(seed)
        await begun(lab, 3)
        load = Load(lab, seed)
        clients = [asyncio.ensure_future(load.client(node)) for node in ("a", "d", "f")]
        await asyncio.sleep(2.0)
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'')
        moved = await settled(lab)
        assert set().union(*moved.values()) == {"d", "e", "f"}
        await lab.done("ALTER ZONE z SET REPLICAS = 1")
        await asyncio.sleep(1.0)
        assert {len(nodes) for nodes in (await settled(lab)).values()} == {1}
        await lab.done('ALTER ZONE z SET REPLICAS = 3, DATA_NODES_FILTER = \'"a", "b", "c"\'')
        await asyncio.sleep(1.0)
        back = await settled(lab)
        assert set().union(*back.values()) == {"a", "b", "c"}
        load.over = True
        await asyncio.gather(*clients)
        assert sum(map(len, load.acknowledged.values())) > 100
        for key, elements in load.acknowledged.items():
            final = await load.read("e", key)
            assert len(frozenset(final)) == len(final)
            assert frozenset(elements) <= frozenset(final)
        assert any([await lab.events(node, REBALANCE_STAGE) for node in lab.nodes])
        await lab.provider.teardown()

    simulate(scenario())


def test_a_calm_cluster_does_not_search_metastorage_every_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched, prefixed = list[str](), Metastorage.prefixed

    def counted(store: Metastorage, prefix: str) -> dict[str, Versioned]:
        searched.append(prefix)
        return prefixed(store, prefix)

    async def scenario() -> None:
        lab = Lab(6)
        await begun(lab, 3)
        await asyncio.sleep(1.0)
        monkeypatch.setattr(Metastorage, "prefixed", counted)
        await asyncio.sleep(2.0)
        assert searched == []
        await lab.provider.teardown()

    simulate(scenario())


def test_a_leader_tidies_by_the_revision_that_made_its_nodes_stable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by that of its last answered invoke: the answer to the last one may have been lost."""
    asked = list[ChangePeers]()

    async def change(
        driver: PartitionDriver, number: int, led: Led, group: Group, act: ChangePeers, **_: bool
    ) -> None:
        asked.append(act)

    monkeypatch.setattr(PartitionDriver, "_change", change)

    async def scenario() -> None:
        view, partition = Metastorage(), PartitionId(7, 0)
        for index, nodes in enumerate(("a b", "a b c"), 1):
            stable = Operation(partition.key(STABLE), encode(assignments(nodes.split())))
            view.apply(Entry(1, index, encode_invoke(Invoke((), (stable,)))))
        driver = alone(view)
        led, raft = Led(1, Retries()), SimpleNamespace(node="a@1", is_there=lambda member: False)
        led.revision = 1
        raft.configuration = Configuration(("a@1", "b@1", "c@1"))
        group = cast(Group, SimpleNamespace(raft=raft))
        driver._tidy(0, partition, led, group)
        await asyncio.sleep(0)
        assert [act.revision for act in asked] == [2]

    simulate(scenario())


def test_a_replica_that_was_wiped_is_a_voter_again_as_another_member() -> None:
    async def scenario() -> None:
        lab = Lab(8, ("a", "b", "c", "d", "e"))
        await lab.provision({"system_nodes": ("a", "d", "e")})
        await lab.start(*lab.nodes)
        await lab.until_rows(TOPOLOGY, columns(" ".join(lab.nodes)))
        zone = f'PARTITIONS = {PARTITIONS}, REPLICAS = 3, DATA_NODES_FILTER = \'"a", "b", "c"\''
        await lab.done(f"CREATE ZONE z WITH {zone}")
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        await settled(lab)
        load = Load(lab, 8)
        work = asyncio.ensure_future(load.client("a"))
        await asyncio.sleep(1.0)
        await lab.provider.kill("c")
        await lab.provider.wipe("c")
        await lab.start("c")
        await asyncio.sleep(6.0)
        # The life of its directory that voted is gone for good: it is needed in its new one now.
        await lab.provider.kill("b")
        await asyncio.sleep(4.0)
        before = load.count
        await asyncio.sleep(2.0)
        assert load.count > before
        load.over = True
        await work
        for key, elements in load.acknowledged.items():
            assert frozenset(elements) <= frozenset(await load.read("a", key))
        await lab.provider.teardown()

    simulate(scenario())


def test_retries_are_resumed_as_nodes_come_and_go() -> None:
    async def scenario() -> None:
        driver = alone(Metastorage())
        given_up = Retries(revision=4, failures=11, given_up=True)
        led = driver._led[0] = Led(1, Retries())
        led.retries, led.wait_until_s = given_up, 1e9
        driver.observed(Change(revision=5, entries={"topology/physical": b""}))
        assert (led.retries, led.wait_until_s) == (given_up, 1e9)
        driver.observed(Change(revision=6, entries={LOGICAL: b""}))
        assert led.wait_until_s == 0.0
        assert led.may_try(4)
        assert not led.retries.given_up

    simulate(scenario())


def test_the_replicas_of_a_dropped_table_are_erased_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_driver, "MAX_REMOVALS", 2)
    remove, at_once, most = PartitionDriver._remove, dict[int, int](), list[int]()

    async def counted(driver: PartitionDriver, *rest: Any) -> None:
        at_once[id(driver)] = at_once.get(id(driver), 0) + 1
        most.append(at_once[id(driver)])
        await remove(driver, *rest)
        at_once[id(driver)] -= 1

    monkeypatch.setattr(PartitionDriver, "_remove", counted)

    async def scenario() -> None:
        lab = Lab(5)
        await begun(lab, 3)
        await lab.done("DROP TABLE t")
        deadline_s = now_s() + 30.0
        while await running(lab):
            assert now_s() < deadline_s
            await asyncio.sleep(0.1)
        await lab.provider.teardown()

    simulate(scenario())
    assert len(most) >= 3 * PARTITIONS
    assert max(most) == 2
