"""A disk in memory that keeps synced data, and a part of the rest, as a power loss does.

That is harsher than ``kill -9``, which leaves the operating system's cache alone: a node that
acknowledges before it syncs is found out here, not only by pulling a plug.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Protocol

from clusters.providers.sim.loop import true_loop
from clusters.providers.sim.trace import Row, Trace, Verb
from clusters.reference.node.runtime import DiskError
from harness.protocols.crash_points import Operation, When
from harness.protocols.hardware import DiskLook, DiskTrouble

CALL_S = (0.00002, 0.0001)  # a call that needs no sync
SYNC_S = (0.0003, 0.003)  # a sync: a good drive, now and then a busy one
SECTOR_BYTES = 512  # is written whole or not at all
PROBE_FILE = ".probe"


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable_bytes = len(data)
        self.last_write_at = len(data)

    @property
    def cold_bytes(self) -> int:
        """The synced bytes without the last write: a flip in that looks like a tear."""
        return min(self.durable_bytes, self.last_write_at)


class DiskWatcher(Protocol):
    """Is told of everything that changes what a crash would leave."""

    def changed(self, platter: Platter, name: str) -> None:
        """More of file ``name`` is synced, or less of it is there."""

    def replaced(self, platter: Platter, name: str) -> None:
        """The whole file ``name`` is another one."""

    def deleted(self, platter: Platter, name: str) -> None:
        """File ``name`` is no more."""

    def wiped(self, platter: Platter) -> None:
        """The disk is empty."""


# Is told the operation, the place in it, and what happens first where the program ends there.
Gate = Callable[[Operation, When, Callable[[], None]], None]


def _nothing() -> None:
    """The effect of an operation that a crash comes before or behind."""


class Platter:
    """The contents of a machine's disk; outlives the processes on it."""

    def __init__(self, stream: random.Random, node: str = "", trace: Trace | None = None) -> None:
        """``stream`` decides durations and the data that a crash leaves."""
        self.files: dict[str, _File] = {}
        self.stream, self.node, self.trace = stream, node, trace
        self.trouble = DiskTrouble()
        self.turn = asyncio.Lock()
        self.watcher: DiskWatcher | None = None
        self.gate: Gate | None = None
        self._flips: list[tuple[str, int, int]] = []  # file, byte, what was written there

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(len(file.data) for file in self.files.values())

    def crash(self) -> None:
        """Lose unsynced data, all or in part: of a file's tail a prefix stays, or some of its
        sectors, with nothing where the others would be.

        The turn is replaced as well: the process that held it is gone, and can't release it.
        """
        for name, file in sorted(self.files.items()):
            # What is synced stays whole: no crash reaches it.
            if len(file.data) > file.durable_bytes:
                self._tear(file)
            file.durable_bytes = len(file.data)
            if self.watcher is not None:
                self.watcher.changed(self, name)
            if not file.data:
                del self.files[name]
        self.turn = asyncio.Lock()

    def _tear(self, file: _File) -> None:
        durable, stream = file.durable_bytes, self.stream
        # A kernel writes dirty pages back when it likes: any prefix may be there.
        del file.data[durable + stream.randint(0, len(file.data) - durable) :]
        if stream.random() < 0.5:  # the size was written, but not every sector
            # The sector that holds the last synced byte was written whole with it.
            first = -(-durable // SECTOR_BYTES)
            for start in range(first * SECTOR_BYTES, len(file.data), SECTOR_BYTES):
                if stream.random() < 0.5:
                    end = min(start + SECTOR_BYTES, len(file.data))
                    file.data[start:end] = bytes(end - start)

    def wipe(self) -> None:
        """Begin anew with an empty disk."""
        self.files.clear()
        self._flips.clear()
        self.turn = asyncio.Lock()
        if self.watcher is not None:
            self.watcher.wiped(self)

    def flip(self, draw: int) -> str:
        """Flip a bit of the data before the last write to its file; return which, in words."""
        # Of its own: a flip must not shift what later calls and crashes draw.
        stream = random.Random(draw)
        cold = [(name, file) for name, file in sorted(self.files.items()) if file.cold_bytes]
        if not cold:
            return ""
        # Each byte alike: the largest files are hit the most, as by a failing platter.
        weights = [file.cold_bytes for _, file in cold]
        name, file = stream.choices(cold, weights)[0]
        at, bit = stream.randrange(file.cold_bytes), stream.randrange(8)
        self._flips.append((name, at, file.data[at]))
        file.data[at] ^= 1 << bit
        return f"bit {bit} of byte {at} of {name}"

    def flipped_bits(self) -> int:
        """How many of the flipped bits are still there."""
        found = 0
        for name, at, written in self._flips:
            file = self.files.get(name)
            found += file is not None and at < len(file.data) and file.data[at] != written
        return found


class SimDisk:
    """A process's access to its machine's disk: ``clusters.reference.node.runtime.Disk``."""

    def __init__(self, platter: Platter) -> None:
        self._platter = platter
        self._dead = False

    def die(self) -> None:
        """The process is gone; nothing more of it reaches the disk."""
        self._dead = True

    async def names(self) -> tuple[str, ...]:
        """Every file, sorted."""
        await self._do("read", "", CALL_S)
        return tuple(sorted(self._platter.files))

    async def read(self, name: str) -> bytes:
        """The whole file; empty if absent."""
        await self._do("read", name, CALL_S)
        file = self._platter.files.get(name)
        return bytes(file.data) if file else b""

    async def read_at(self, name: str, offset: int, size_bytes: int) -> bytes:
        """A part of the file."""
        await self._do("read", name, CALL_S, size_bytes)
        file = self._platter.files.get(name)
        return bytes(file.data[offset : offset + size_bytes]) if file else b""

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        """Append; durable on return with ``sync``."""
        async with self._platter.turn:
            self._check_alive()
            if sync:
                self._at(Operation.SYNC, When.BEFORE)
            file = self._platter.files.setdefault(name, _File())
            # Bits before it are old data, which a store should have checked long ago.
            file.last_write_at = len(file.data) if data else file.last_write_at
            if self._platter.trouble.full and data:
                # A full disk takes a part: a store that trusts the error alone finds a torn record
                # later.
                file.data += data[: self._platter.stream.randint(0, len(data))]
            else:
                file.data += data
            if sync:
                self._at(Operation.SYNC, When.INSTEAD)
            verb: Verb = "sync" if sync else "append"
            # After the data: a crash during the sync may find all of it, or a part, or nothing.
            await self._pass(verb, name, SYNC_S if sync else CALL_S, len(data))
            if sync:
                file.durable_bytes = len(file.data)
                if self._platter.watcher is not None:
                    self._platter.watcher.changed(self._platter, name)
                self._at(Operation.SYNC, When.AFTER)

    async def replace(self, name: str, data: bytes) -> None:
        """Write atomically and durably."""
        self._check_alive()
        self._at(Operation.RENAME, When.BEFORE)
        await self._do("replace", name, SYNC_S, len(data))
        self._at(Operation.RENAME, When.INSTEAD, partial(self._maybe_renamed, name, data))
        self._renamed(name, data)
        self._at(Operation.RENAME, When.AFTER)

    async def truncate(self, name: str, size_bytes: int) -> None:
        """Cut, durably. Raises ``DiskError`` where there is no such file."""
        await self._do("truncate", name, SYNC_S, size_bytes)
        if name not in self._platter.files:
            raise DiskError(f"cannot truncate {name}: no such file")
        file = self._platter.files[name]
        del file.data[size_bytes:]
        file.durable_bytes = len(file.data)
        if self._platter.watcher is not None:
            self._platter.watcher.changed(self._platter, name)

    async def delete(self, name: str) -> None:
        """Remove if present, durably."""
        await self._do("delete", name, SYNC_S)
        held = self._platter.files.pop(name, None)
        if held is not None and self._platter.watcher is not None:
            self._platter.watcher.deleted(self._platter, name)

    async def look(self) -> DiskLook:
        """Try the disk as a person would: write a few bytes and sync."""
        began_s, error = true_loop().true_time(), ""
        try:
            async with self._platter.turn:
                await self._pass("sync", PROBE_FILE, SYNC_S, 1)
        except DiskError as refused:
            error = str(refused)
        return DiskLook(
            took_s=true_loop().true_time() - began_s,
            error=error,
            size_bytes=self._platter.size_bytes,
            flipped_bits=self._platter.flipped_bits(),
        )

    def _at(self, operation: Operation, when: When, effect: Callable[[], None] = _nothing) -> None:
        """Raises ``DiskError`` where the program ends here."""
        if self._platter.gate is not None:
            self._platter.gate(operation, when, effect)
            self._check_alive()

    def _maybe_renamed(self, name: str, data: bytes) -> None:
        # The directory was not synced yet: its old content may be there as well.
        if self._platter.stream.random() < 0.5:
            self._renamed(name, data)

    def _renamed(self, name: str, data: bytes) -> None:
        self._platter.files[name] = _File(data)
        if self._platter.watcher is not None:
            self._platter.watcher.replaced(self._platter, name)

    async def _do(self, verb: Verb, name: str, span_s: tuple[float, float], size: int = 0) -> None:
        """Take a turn at the disk and the time that a call needs. Raises ``DiskError``."""
        async with self._platter.turn:
            self._check_alive()
            await self._pass(verb, name, span_s, size)

    async def _pass(
        self, verb: Verb, name: str, span_s: tuple[float, float], size_bytes: int
    ) -> None:
        platter = self._platter
        began_s = true_loop().true_time()
        await asyncio.sleep(platter.stream.uniform(*span_s) + platter.trouble.slow_s)
        # As it is when the call ends: trouble may have begun meanwhile.
        error = "" if self._dead else _refusal(platter.trouble, verb, name, size_bytes)
        if platter.trace is not None:
            row = Row(
                at_s=true_loop().true_time(),
                from_s=began_s,
                node=platter.node,
                did=verb,
                what=name,
                size_bytes=size_bytes,
                error="the process was killed" if self._dead else error,
            )
            platter.trace.add(row)
        self._check_alive()
        if error:
            raise DiskError(error)

    def _check_alive(self) -> None:
        if self._dead:
            raise DiskError("the process was killed")


def _refusal(trouble: DiskTrouble, verb: Verb, name: str, size_bytes: int) -> str:
    """Why the disk refuses the call; empty where it does not."""
    if trouble.failing:
        return f"cannot {verb} {name}: input/output error (EIO)"
    if trouble.full and verb in ("append", "sync", "replace") and size_bytes:
        return f"cannot {verb} {name}: no space left on device (ENOSPC)"
    return ""
