"""Nodes lose their directories in virtual time, one after the other, and come back as voters."""

from __future__ import annotations

import asyncio
import random

import pytest

from clusters.providers.sim.disk import Platter
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.system import ReferenceSystem, build
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import Cluster

NODES = ("n1", "n2", "n3", "n4")
LIMIT_S = 30.0


class Store:
    """A simulated cluster with clients that append."""

    def __init__(self, seed: int, **options: object) -> None:
        self.provider = SimProvider(seed=seed)
        self.random = random.Random(seed)
        settings = {"partitions": 2, "snapshot_bytes": 3000, **options}
        self.system: ReferenceSystem = build(
            settings, NODES, seed, network=self.provider.client_network
        )
        self.acknowledged: dict[int, list[int]] = {}
        self.next_element = 0
        self.over = False

    async def begin(self) -> None:
        self.cluster: Cluster = await self.provider.provision(NODES, self.system.ports)
        for node in NODES:
            await self.provider.install(node, self.system.program(node, self.cluster))
        await self.system.set_up(self.cluster, self.provider, now_s() + LIMIT_S)

    async def whole(self) -> None:
        await self.system.recover(self.cluster, self.provider, now_s() + LIMIT_S)

    async def wipe(self, node: str) -> None:
        await self.provider.kill(node)
        machine = self.provider._machines[node]
        machine.platter = Platter(random.Random(self.random.getrandbits(32)))

    async def client(self, slot: int) -> None:
        while not self.over:
            self.next_element += 1
            element, key = self.next_element, self.random.randrange(6)
            try:
                node = NODES[(slot + element) % len(NODES)]
                client = await self.system.connect(self.cluster, node, slot)
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                await tx.append(key, element)
                await tx.commit()
                self.acknowledged.setdefault(key, []).append(element)
                await client.close()
            except StoreError:
                await asyncio.sleep(0.05)

    async def read(self, key: int) -> tuple[int, ...]:
        """What ``key`` has at the end: a lock that a client left behind runs out."""
        client = await self.system.connect(self.cluster, "n1", 99)
        deadline_s = now_s() + 10.0
        while True:
            tx = await client.begin(READ_WRITE, now_s() + 2.0)
            try:
                found = await tx.read(key)
            except StoreError as error:
                if error.code != "TX-CONFLICT" or now_s() > deadline_s:
                    raise
                await asyncio.sleep(0.2)
                continue
            await client.close()
            return found if isinstance(found, tuple) else ()


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("seed", range(8))
def test_wiping_each_node_in_turn_under_load_loses_nothing(seed: int) -> None:
    async def scenario() -> None:
        store = Store(seed, power_loss=bool(seed % 2))
        await store.begin()
        clients = [asyncio.ensure_future(store.client(slot)) for slot in range(3)]
        order = list(NODES)
        store.random.shuffle(order)
        for node in order:
            await asyncio.sleep(store.random.uniform(0.2, 2.0))
            await store.wipe(node)
            await asyncio.sleep(store.random.uniform(0.0, 2.0))
            if store.random.random() < 0.5:
                other = store.random.choice([n for n in NODES if n != node])
                await store.provider.start(node)
                await asyncio.sleep(store.random.uniform(0.0, 1.0))
                await store.provider.kill(other)  # a plain crash in the middle of the return
            await store.whole()
        store.over = True
        await asyncio.gather(*clients)
        await store.whole()
        reports = await store.system._reports(store.cluster)
        cut = [g.base_index for report in reports.values() for g in report.groups if g.base_index]
        assert cut, "snapshots were taken"
        assert sum(map(len, store.acknowledged.values())) > 100
        for key, elements in store.acknowledged.items():
            final = await store.read(key)
            assert len(frozenset(final)) == len(final)
            assert frozenset(elements) <= frozenset(final)
        await store.provider.teardown()

    simulate(scenario())


def test_a_node_that_is_wiped_again_while_it_comes_back_comes_back() -> None:
    async def scenario() -> None:
        store = Store(1)
        await store.begin()
        clients = [asyncio.ensure_future(store.client(slot)) for slot in range(3)]
        await asyncio.sleep(2.0)
        for span_s in (0.3, 0.6, 1.0, 1.5):
            await store.wipe("n2")
            await store.provider.start("n2")
            await asyncio.sleep(span_s)
        await store.whole()
        store.over = True
        await asyncio.gather(*clients)
        assert sum(map(len, store.acknowledged.values())) > 20
        for key, elements in store.acknowledged.items():
            assert frozenset(elements) <= frozenset(await store.read(key))
        await store.provider.teardown()

    simulate(scenario())
