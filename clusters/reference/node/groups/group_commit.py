"""Group commit: updates of all groups that are asked for during one sync share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from clusters.reference.node.groups.group import Outgoing
from clusters.reference.node.runtime import Rare, never
from clusters.reference.node.storage.log_records import Update
from clusters.reference.node.storage.shared_log import SharedLog


class Write(msgspec.Struct, frozen=True):
    """Updates for the log, and the callback once they are durable; it gets the dictionary in which
    messages to send are gathered.
    """

    updates: tuple[Update, ...]
    done: Callable[[Outgoing], None]


class GroupCommit:
    """The writes of a node to its one log, in the order in which they were asked for."""

    def __init__(self, log: SharedLog, *, rare: Rare = never, slow_sync_s: float = 0.0) -> None:
        """``slow_sync_s`` is what ``rare`` may add to a sync."""
        self._log, self._rare, self._slow_sync_s = log, rare, slow_sync_s
        self._unwritten: list[Write] = []
        self._wanted = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many writes wait for the disk."""
        return len(self._unwritten)

    def write(self, updates: tuple[Update, ...], done: Callable[[Outgoing], None]) -> None:
        """Make ``updates`` durable behind all that were asked for before, then call ``done``."""
        self._unwritten.append(Write(updates, done))
        self._wanted.set()

    async def made_durable(self, *updates: Update) -> None:
        """Return once ``updates``, and all updates asked for before, are durable: all or none."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: object) -> None:
            if not durable.done():  # the caller may be cancelled by now
                durable.set_result(None)

        self.write(updates, done)
        await durable

    async def run(self, finish: Callable[[list[Write]], None]) -> None:
        """Write until cancelled; ``finish`` gets each batch once it is durable, and calls what its
        writes wait for. Raises ``DiskError``.
        """
        while True:
            await self._wanted.wait()
            # Before the batch is taken: writes that are asked for
            # during the sync wake the loop again.
            self._wanted.clear()
            batch, self._unwritten = self._unwritten, []
            if len(batch) > 1 and self._rare("short-batch"):
                self._unwritten = batch[1:]
                batch = batch[:1]
                self._wanted.set()
            if self._rare("slow-sync"):
                await asyncio.sleep(self._slow_sync_s)
            # An empty batch has no sync: its writers only wanted to stand behind the others.
            updates = [update for write in batch for update in write.updates]
            if updates:
                await self._log.append(updates)
            finish(batch)
