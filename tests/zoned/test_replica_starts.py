"""Which replicas a node starts: after a restart, and on a disk that can't be read for a while."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from test_partition_driver import PARTITIONS, Load, begun, settled
from test_rebalance_failover import Timed, ended
from zoned_lab import Lab, now_s

from clusters.providers.sim.disk import SimDisk
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.node.composition import Components
from clusters.reference.node.config import loads
from clusters.reference.node.events import REBALANCE_STAGE, START_DECISION, STARTS, STORAGE_ERROR
from clusters.reference.node.rebalance.failover import ReconfigurationError
from clusters.reference.node.replicas.manager import group_of
from clusters.reference.node.runtime import DiskError, Runtime
from clusters.reference.node.server import Life, Node
from clusters.reference.node.storage.snapshot_files import PREFIX
from harness.protocols.cluster import Program
from harness.protocols.hardware import DiskTrouble

BROKEN_S = 8.0


def test_a_node_that_starts_again_starts_what_is_assigned_now_and_nothing_of_the_past() -> None:
    async def scenario() -> None:
        lab = Lab(17)
        await begun(lab, 3)
        for nodes in ('"d", "e", "f"', '"a", "b", "c"', '"b", "c", "d"'):
            await lab.done(f"ALTER ZONE z SET DATA_NODES_FILTER = '{nodes}'")
            await asyncio.sleep(1.0)
            await settled(lab)
        for node, started in (("a", 0), ("e", 0), ("d", PARTITIONS)):
            await lab.provider.kill(node)
            await asyncio.sleep(0.5)
            await lab.provider.start(node)
            await asyncio.sleep(3.0)
            told = await lab.events(node, START_DECISION)
            assert sorted(event.partition for event in told) == list(range(started))
            assert all(event.decision == STARTS for event in told)
            assert await lab.events(node, REBALANCE_STAGE) == []
        await lab.provider.teardown()

    simulate(scenario())


def test_a_pending_node_whose_disk_fails_is_retried_and_comes_once_it_is_healed() -> None:
    async def scenario() -> None:
        lab = Lab(19)
        lab.provider = SimProvider(seed=19, claims=ReferenceClaims())
        await begun(lab, 3)
        load = Timed(lab, 19)
        work = [asyncio.ensure_future(load.client(node)) for node in ("a", "b", "e")]
        work.append(asyncio.ensure_future(load.watch()))
        await asyncio.sleep(1.0)
        await lab.provider.set_disk("f", DiskTrouble(failing=True))
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'')
        broken_until_s = now_s() + BROKEN_S
        while now_s() < broken_until_s:
            await asyncio.sleep(1.0)
            if not (await lab.provider.probe("f")).running:
                await lab.provider.start("f")
        told = [e.text for node in "abc" for e in await lab.events(node, REBALANCE_STAGE)]
        assert any(ReconfigurationError.UNREACHABLE in text for text in told)
        await lab.provider.set_disk("f", DiskTrouble())
        if not (await lab.provider.probe("f")).running:
            await lab.provider.start("f")
        moved = await settled(lab)
        assert set().union(*moved.values()) == {"d", "e", "f"}
        await ended(lab, load, work)

    simulate(scenario())


class Sectors:
    """Reads of snapshots fail on the disks that are ``bad``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: list[object] = []
        read = SimDisk.read_at

        async def failing(disk: SimDisk, name: str, offset: int, size: int) -> bytes:
            if disk in self.bad and name.startswith(PREFIX):
                raise DiskError(f"cannot read {name}: input/output error (EIO)")
            return await read(disk, name, offset, size)

        monkeypatch.setattr(SimDisk, "read_at", failing)


def test_a_replica_whose_snapshot_can_not_be_read_is_tried_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes: dict[str, Components] = {}
    disks: dict[str, object] = {}
    sectors = Sectors(monkeypatch)

    async def body(program: Program, runtime: Runtime) -> None:
        config = loads(program.files[program.argv[program.argv.index("--config") + 1]])
        disks[config.node] = runtime.disk
        nodes[config.node] = await Node(config, runtime).recover()
        await Life(nodes[config.node]).run()

    async def scenario() -> None:
        lab = Lab(23)
        lab.provider = SimProvider(seed=23, body=body)
        await begun(lab, 3, {"snapshot_bytes": 2_000})
        load = Load(lab, 23)
        clients = [asyncio.ensure_future(load.client(node)) for node in ("a", "b", "e")]
        number = 0
        held = nodes["a"].log.groups
        while held[group_of(number)].saved is None:
            number = (number + 1) % PARTITIONS
            await asyncio.sleep(0.1)
        sectors.bad.append(disks["a"])
        await asyncio.create_task(nodes["a"].replicas.stop(number))
        await asyncio.sleep(BROKEN_S)
        failures = await lab.events("a", STORAGE_ERROR)
        waits_s = [(b.wall_ns - a.wall_ns) / 1e9 for a, b in pairwise(failures)]
        assert len(waits_s) >= 4
        assert waits_s == sorted(waits_s)
        assert 2.0 <= waits_s[-1] < 2.5
        sectors.bad.clear()
        await settled(lab)
        load.over = True
        await asyncio.gather(*clients)
        await lab.provider.teardown()

    simulate(scenario())
