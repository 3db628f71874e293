"""Snapshots that are received by groups which come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import nullcontext

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node.groups.group import ChunkQueue, Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.groups.snapshot_manager import SnapshotManager
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.raft import Chunk, Mark, Ready
from clusters.reference.node.runtime.concurrency import Failure
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.storage.snapshot_files import PREFIX, SnapshotFiles

SYNC_S = 0.5  # of a large snapshot


class Slow(SimDisk):
    """A disk on which a snapshot takes its time to be written, and to be deleted."""

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        if name.startswith(PREFIX) and sync:
            await asyncio.sleep(SYNC_S)
        await super().append(name, data, sync=sync)

    async def delete(self, name: str) -> None:
        if name.startswith(PREFIX):
            await asyncio.sleep(SYNC_S)
        await super().delete(name)


class Receiver:
    """A node that receives the snapshot of group p0, which knows nothing yet."""

    def __init__(self) -> None:
        self.disk, self.chunks = Slow(Platter(random.Random(1))), ChunkQueue()
        self.host = RaftHost(
            member="n1@1",
            log=SharedLog(self.disk),
            event_log=events.EventLog(boot="boot", wall_ns=lambda: 7),
            rng=random.Random(1),
            tick_s=0.1,
            election_ticks=4,
            send=lambda member, messages: None,
            batch=nullcontext(),
            chunks=self.chunks,
            failure=Failure(),
        )
        self.snapshots = SnapshotManager(
            host=self.host,
            chunks=self.chunks,
            files=SnapshotFiles(self.disk),
            snapshot_bytes=1_000_000,
            send=lambda member, messages: None,
        )
        self._running = [
            asyncio.ensure_future(self.host.run(lambda: None)),
            asyncio.ensure_future(self.snapshots.run()),
        ]
        self.group = self.open()

    def open(self) -> Group:
        return self.host.open("p0", partition=0, founders=(), machine=Metastorage(), restoring=None)

    def receive(self, index: int, *, last: bool) -> None:
        chunk = Chunk(
            sender="n2@1", term=1, context=0, mark=Mark(index, 1), offset=0, data=b"x", last=last
        )
        ready = Ready(
            hard_state=None,
            entries=(),
            send_now=(),
            send_durable=(),
            committed=(),
            chunks=(chunk,),
        )
        self.chunks.put(self.group, ready)

    async def files(self) -> list[str]:
        return [name for name in await self.disk.names() if name.startswith(PREFIX)]

    async def end(self) -> None:
        assert [task for task in self._running if task.done()] == []
        for task in self._running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def test_a_group_may_be_erased_while_the_end_of_its_snapshot_is_synced() -> None:
    async def scenario() -> None:
        node = Receiver()
        node.receive(5, last=True)
        await asyncio.sleep(SYNC_S / 2)
        node.host.close(node.group)
        await node.snapshots.erase("p0")
        await asyncio.sleep(4 * SYNC_S)
        assert await node.files() == []
        await node.end()

    simulate(scenario())


def test_a_group_may_be_erased_while_pieces_of_another_snapshot_are_deleted() -> None:
    async def scenario() -> None:
        node = Receiver()
        node.receive(5, last=False)
        await asyncio.sleep(SYNC_S)
        node.receive(9, last=False)
        await asyncio.sleep(SYNC_S / 2)
        node.host.close(node.group)
        await node.snapshots.erase("p0")
        await asyncio.sleep(4 * SYNC_S)
        assert await node.files() == []
        await node.end()

    simulate(scenario())
