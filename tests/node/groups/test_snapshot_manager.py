"""Snapshots that are received by groups which come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextlib import nullcontext

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node.groups.group import ChunkQueue
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.groups.snapshot_manager import SnapshotManager
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.raft import Chunk, Mark, Ready
from clusters.reference.node.runtime.tasks import Failure
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.storage.snapshot_files import PREFIX, SnapshotFiles

SYNC_S = 0.5  # of a large snapshot


class Slow(SimDisk):
    """A disk on which a snapshot takes its time."""

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        if name.startswith(PREFIX) and sync:
            await asyncio.sleep(SYNC_S)
        await super().append(name, data, sync=sync)


def test_a_group_may_be_erased_while_the_end_of_its_snapshot_is_synced() -> None:
    async def scenario() -> None:
        disk, chunks = Slow(Platter(random.Random(1))), ChunkQueue()
        log = SharedLog(disk)
        host = RaftHost(
            member="n1@1",
            log=log,
            event_log=events.EventLog(boot="boot", wall_ns=lambda: 7),
            rng=random.Random(1),
            tick_s=0.1,
            election_ticks=4,
            send=lambda member, messages: None,
            batch=nullcontext(),
            chunks=chunks,
            failure=Failure(),
        )
        snapshots = SnapshotManager(
            host=host,
            chunks=chunks,
            files=SnapshotFiles(disk),
            snapshot_bytes=1_000_000,
            send=lambda member, messages: None,
        )
        running = [
            asyncio.ensure_future(host.run(lambda: None)),
            asyncio.ensure_future(snapshots.run()),
        ]
        group = host.open("p0", partition=0, founders=(), machine=Metastorage(), restoring=None)
        last = Chunk(
            sender="n2@1", term=1, context=0, mark=Mark(5, 1), offset=0, data=b"x", last=True
        )
        received = Ready(
            hard_state=None,
            entries=(),
            send_now=(),
            send_durable=(),
            committed=(),
            chunks=(last,),
        )
        chunks.put(group, received)
        await asyncio.sleep(SYNC_S / 2)
        host.close(group)
        await snapshots.erase("p0")
        await asyncio.sleep(2 * SYNC_S)

        assert [task for task in running if task.done()] == []
        assert [name for name in await disk.names() if name.startswith(PREFIX)] == []
        for task in running:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    simulate(scenario())
