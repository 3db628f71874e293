"""Snapshots of a node's groups: taken so that the log stays short, sent, received, installed.

The raft cores decide which snapshots are sent and installed; this module moves the bytes. Saving
and moving are two tasks, so that saving a large snapshot does not delay a follower that waits for
another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from clusters.reference.node import moments
from clusters.reference.node.groups.group import ChunkQueue, Group, Restorable, SnapshotRestore
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.markers import reached
from clusters.reference.node.raft import Chunk, Mark, Message
from clusters.reference.node.runtime import Rare, never
from clusters.reference.node.runtime.concurrency import together
from clusters.reference.node.storage.log_records import Compaction, CorruptLog, SnapshotFile, Update
from clusters.reference.node.storage.snapshot_files import SnapshotFiles

LOOK_EVERY_S = 0.25  # for groups whose log has grown
SLACK = 4  # this part of what a snapshot covers stays in the log, for followers that lag a little

log = logging.getLogger("node.saving")


class _Incoming:
    """A snapshot that is being received into ``file``."""

    def __init__(self, mark: Mark, file: str) -> None:
        self.mark, self.file, self.size_bytes = mark, file, 0


class SnapshotManager:
    """Moves the snapshots of all groups of one ``host``."""

    def __init__(
        self,
        *,
        host: RaftHost,
        chunks: ChunkQueue,
        files: SnapshotFiles,
        snapshot_bytes: int,
        send: Callable[[str, tuple[tuple[str, Message], ...]], None],
        rare: Rare = never,
    ) -> None:
        """A group is saved when it has applied ``snapshot_bytes`` since the last time, or as much
        as its last snapshot takes, if that is more: so saving costs about what logging does.
        """
        self._host, self._files, self._send = host, files, send
        self._snapshot_bytes, self._rare = snapshot_bytes, rare
        self._chunks = chunks
        self._incoming: dict[str, _Incoming] = {}
        self._loaded: dict[str, SnapshotRestore] = {}

    async def load(self, machine: Callable[[str], Restorable]) -> None:
        """Read every snapshot that the log names, each beside the ``machine`` of its group, and
        delete all other files. Raises ``DiskError`` and ``CorruptLog``.
        """
        saved = {
            group: state.saved
            for group, state in self._host.log.groups.items()
            if state.saved is not None
        }
        await self._files.sweep([held.file for held in saved.values()])
        for group, held in saved.items():
            self._loaded[group] = await self._read(held, machine(group))

    def loaded(self, group: str) -> SnapshotRestore | None:
        """The restore that ``load`` made for ``group``; it can be taken once."""
        return self._loaded.pop(group, None)

    async def _read(self, saved: SnapshotFile, machine: Restorable) -> SnapshotRestore:
        """Feed it to ``machine``; the loop turns between chunks, so that no group waits for all."""
        restoring = machine.restoring()
        async for chunk in self._files.chunks(saved):
            restoring.feed(chunk)
            await asyncio.sleep(0)
        return restoring

    async def reload(self, group: str, machine: Restorable) -> None:
        """Read the snapshot of a closed ``group`` again, if it has one, for ``loaded``. Raises
        ``DiskError`` and ``CorruptLog``.
        """
        state = self._host.log.groups.get(group)
        if state is not None and state.saved is not None:
            self._loaded[group] = await self._read(state.saved, machine)

    async def erase(self, group: str) -> None:
        """Remove the snapshot of the closed ``group`` from the log and the disk. A file that a
        crash leaves behind is named nowhere, and goes at the next start.
        """
        self._loaded.pop(group, None)
        state = self._host.log.groups.get(group)
        saved = None if state is None else state.saved
        # The log first: a file that it names must never be missing at a start.
        await self._host.erase(group)
        if saved is not None:
            await self._files.delete(saved.file)
        incoming = self._incoming.pop(group, None)
        if incoming is not None:
            await self._files.delete(incoming.file)

    async def run(self) -> None:
        """Save and move until cancelled. Raises ``DiskError``."""
        await together(self._save_forever(), self._move_forever())

    # Saving.

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for group in list(self._host.groups.values()):
                if self._grown(group):
                    await self._save(group)

    def _grown(self, group: Group) -> bool:
        saved = self._saved(group)
        limit = max(self._snapshot_bytes, saved.size_bytes if saved else 0)
        if group.fresh_bytes and self._rare("early-snapshot"):
            reached("snapshot taken early")
            limit = 1
        # A follower that is half-way through a snapshot would have to begin again.
        return group.fresh_bytes >= limit and not group.raft.sending_snapshot

    async def _save(self, group: Group) -> None:
        raft, applied = group.raft, group.applied_index
        # Mark, base and content are taken before the first await, so that they are of one moment.
        mark = raft.mark(applied)
        base = raft.mark(applied - (applied - raft.base_index) // SLACK)
        # Before the file is written: entries that are applied meanwhile count for the next one.
        group.fresh_bytes = 0
        saved = await self._files.write(group.name, mark, group.machine.snapshot())
        reached("snapshot saved")
        before = self._saved(group)
        cut = Update(group.name, None, (), Compaction(base, saved))
        # Closed while the file was written: an erased log must not name it.
        if self._host.groups.get(group.name) is not group:
            await self._files.delete(saved.file)
            return
        await self._host.commits.made_durable(cut)
        moments.tell(moments.SNAPSHOT_SAVED, group.partition)
        if self._saved(group) is not saved:  # another one was installed meanwhile
            reached("snapshot installed while one was saved")
            await self._files.delete(saved.file)
            return
        # Not before the log names the snapshot durably: a crash would lose the entries.
        raft.compacted(base.index, mark)
        # Last: recovery needs the old file until the log durably names the new one.
        if before is not None:
            await self._files.delete(before.file)

    def _saved(self, group: Group) -> SnapshotFile | None:
        state = self._host.log.groups.get(group.name)
        return None if state is None else state.saved

    # Moving.

    async def _move_forever(self) -> None:
        while True:
            group, to, chunk = await self._chunks.get()
            # Closed while the chunk waited in the queue.
            if self._host.groups.get(group.name) is not group:
                continue
            if to is None:
                await self._receive(group, chunk)
                self._host.mark_ready(group)
            else:
                await self._send_piece(group, to, chunk)

    async def _send_piece(self, group: Group, to: str, chunk: Chunk) -> None:
        saved = self._saved(group)
        if saved is None or saved.mark != chunk.mark:
            reached("chunk asked of a snapshot that is gone")
            return  # a newer one is there; the core begins with it in its time
        data = await self._files.piece(saved, chunk.offset)
        last = chunk.offset + len(data) >= saved.size_bytes
        filled = msgspec.structs.replace(chunk, data=data, last=last)
        self._send(to, ((group.name, filled),))

    async def _receive(self, group: Group, chunk: Chunk) -> None:
        incoming = self._incoming.get(group.name)
        if incoming is None or incoming.mark != chunk.mark:
            if incoming is not None:
                reached("received pieces dropped for another snapshot")
                del self._incoming[group.name]
                await self._files.delete(incoming.file)
                if self._host.groups.get(group.name) is not group:
                    reached("replica stopped while pieces of its snapshot are dropped")
                    return
            incoming = _Incoming(chunk.mark, self._files.new_file(group.name))
            self._incoming[group.name] = incoming
        # Any other offset is a repetition or a gap: the answer below names where to go on.
        if chunk.offset == incoming.size_bytes:
            await self._files.keep(incoming.file, chunk.data, last=chunk.last)
            incoming.size_bytes += len(chunk.data)
            if self._incoming.get(group.name) is not incoming:
                reached("replica erased while pieces of its snapshot are written")
                await self._files.delete(incoming.file)
                return
            if chunk.last:
                del self._incoming[group.name]
                await self._install(group, chunk, incoming)
                return
        reached("snapshot received in pieces")
        group.raft.chunk_stored(chunk, incoming.size_bytes)

    async def _install(self, group: Group, chunk: Chunk, incoming: _Incoming) -> None:
        saved = SnapshotFile(incoming.mark, incoming.file, incoming.size_bytes)
        before = self._saved(group)
        moments.tell(moments.SNAPSHOT_INSTALLING, group.partition)
        try:
            restoring = await self._read(saved, group.machine)
        except CorruptLog as error:
            log.warning("%s: what was received is damaged, again: %s", group.name, error)
            await self._files.delete(saved.file)
            # The leader begins again at 0: which of the bytes are damaged is not known.
            group.raft.chunk_stored(chunk, 0)
            return
        closed = self._host.groups.get(group.name) is not group
        if closed or not group.raft.install(chunk):
            reached("received snapshot not installed")
            await self._files.delete(saved.file)
            return
        # From here to the drain of the group nothing is awaited: log and state change together.
        restoring.done()
        reached("snapshot installed")
        self._host.installed(group, saved)
        moments.tell(moments.SNAPSHOT_INSTALLED, group.partition)
        if before is not None:
            reached("snapshot installed over an older one")
            # Until the cut is durable, a restart would look for the older file.
            await self._host.commits.made_durable()
            await self._files.delete(before.file)
