"""A node that starts with its clock ahead orders its writes after what comes later elsewhere: a
snapshot may show it, and breaks no promise by that.
"""

from __future__ import annotations

import asyncio

import attrs
from checker_histories import Txn, a, ok, r, verdict

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.system import ReferenceSystem
from clusters.reference.system import build as build_system
from harness.clock import NS_PER_S
from harness.protocols.client import READ_WRITE
from harness.protocols.cluster import Cluster
from harness.protocols.consistency_models import CAUSAL_REVERSE
from harness.protocols.hardware import ClockTrouble

NAMES = ("n1", "n2", "n3")
AHEAD_S = 3.0  # of the 5 s that other nodes follow
TRIES = 60
SETTLED_S = 5.0


@attrs.frozen
class Scene:
    """A cluster of which each partition has one replica, and the history so far."""

    provider: SimProvider
    system: ReferenceSystem
    cluster: Cluster
    keys: dict[str, int]  # one of a partition that the node leads
    history: list[Txn] = attrs.field(factory=list)

    async def append(self, node: str, element: int) -> None:
        key = self.keys[node]
        await self._transaction(node, READ_WRITE, append=(key, element))

    async def snapshot(self, node: str, *keys: int) -> None:
        await self._transaction(node, "snapshot", keys=keys)

    async def _transaction(
        self,
        node: str,
        kind: str,
        *,
        append: tuple[int, int] | None = None,
        keys: tuple[int, ...] = (),
    ) -> None:
        loop = asyncio.get_running_loop()
        process = len(self.history)
        client = await self.system.connect(self.cluster, node, process)
        start_ns = int(loop.time() * NS_PER_S)
        tx = await client.begin(kind, loop.time() + 2.0)
        ops = []
        if append is not None:
            await tx.append(*append)
            ops.append(a(*append))
        for key in keys:
            seen = await tx.read(key)
            ops.append(r(key, *(seen if isinstance(seen, tuple) else ())))
        await tx.commit()
        times = {"start": start_ns, "finish": int(loop.time() * NS_PER_S)}
        self.history.append(ok(*ops, kind=kind, process=process, **times))
        await client.close()


async def made() -> Scene:
    loop = asyncio.get_running_loop()
    provider = SimProvider(seed=1)
    system = build_system(
        {"partitions": 9, "replicas": 1}, NAMES, 1, network=provider.client_network
    )
    cluster = await provider.provision(NAMES, system.ports)
    for name in NAMES:
        await provider.install(name, system.program(name, cluster))
    await system.set_up(cluster, provider, loop.time() + 30.0)
    primaries = (await system.roles(cluster)).primaries or {}
    held = {node: partition for partition, node in sorted(primaries.items())}
    assert set(held) == set(NAMES)
    keys = {
        node: next(key for key in range(1000) if system.partition_of(key) == partition)
        for node, partition in held.items()
    }
    return Scene(provider=provider, system=system, cluster=cluster, keys=keys)


async def ahead_after_a_restart(scene: Scene, ahead_s: float) -> None:
    await scene.provider.set_clock("n2", ClockTrouble(jump_s=ahead_s))
    await scene.provider.kill("n2")
    await asyncio.sleep(SETTLED_S)
    await scene.provider.start("n2")
    await asyncio.sleep(SETTLED_S)


async def appends_and_looks(ahead_s: float) -> list[Txn]:
    """Through n2 and then n1 each of a key of its own, and at once a look at both through n3."""
    scene = await made()
    await ahead_after_a_restart(scene, ahead_s)
    for element in range(TRIES):
        await scene.append("n2", element)
        await scene.append("n1", element)
        await scene.snapshot("n3", scene.keys["n1"], scene.keys["n2"])
        await asyncio.sleep(0.137)  # no multiple of a heartbeat
    await scene.provider.teardown()
    return scene.history


def test_a_snapshot_after_a_restart_with_the_clock_ahead_is_reversed_and_keeps_its_promise() -> (
    None
):
    declared = build_system({}, NAMES, 1).declaration
    history = simulate(appends_and_looks(AHEAD_S), horizon_s=500.0)

    found = verdict(history, declaration=declared)
    as_if_in_time = [attrs.evolve(txn, kind=READ_WRITE) for txn in history]
    refused = verdict(as_if_in_time, declaration=declared)

    assert found.outcome == "valid"
    assert set(found.anomalies) == set()
    assert found.observed[CAUSAL_REVERSE].count >= 1
    assert refused.outcome == "violation"
    assert "G-single-item-realtime" in refused.anomalies


def test_clocks_that_agree_reverse_nothing() -> None:
    declared = build_system({}, NAMES, 1).declaration
    history = simulate(appends_and_looks(0.0), horizon_s=500.0)

    found = verdict([attrs.evolve(txn, kind=READ_WRITE) for txn in history], declaration=declared)

    assert found.outcome == "valid"
