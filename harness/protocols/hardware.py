"""Disks and clocks of machines, as values and as the protocol of a provider that can spoil them.

A provider that offers ``Capability.DISK`` or ``Capability.CLOCK`` is also a ``Hardware``.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from harness.protocols.cluster import Cluster


class DiskTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """What a disk does from now on: every call takes ``slow_s`` longer; with ``full`` nothing more
    can be written (ENOSPC), with ``failing`` nothing written, synced or read (EIO).
    """

    slow_s: float = 0.0
    full: bool = False
    failing: bool = False


class DiskLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a try of the disk shows: how long a synced write of a few bytes took, or the error that
    it ended with; what the node has on it; and how many bits there are not what was written.
    """

    took_s: float
    error: str = ""
    size_bytes: int = 0
    flipped_bits: int = 0


class ClockTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """The clocks of a machine: the wall clock jumps by ``jump_s`` now; both clocks gain ``rate``
    seconds a second from now on.
    """

    jump_s: float = 0.0
    rate: float = 1.0


class ClockLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at a machine's clocks shows: how far the wall clock is ahead of the controller's,
    and how many seconds the monotonic one gains a second.
    """

    ahead_s: float
    rate: float


@runtime_checkable
class Hardware(Protocol):
    """Disks and clocks of the nodes. All verbs are idempotent but ``flip`` and a clock's jump."""

    async def set_disk(self, node: str, trouble: DiskTrouble) -> None:
        """Make ``trouble`` all that is wrong with the disk; ``DiskTrouble()`` mends it."""

    async def try_disk(self, node: str) -> DiskLook:
        """Write, sync and look."""

    async def flip(self, node: str, draw: int) -> str:
        """Flip one bit of what was synced some writes ago, chosen by ``draw``; which one, in words,
        empty where there is nothing to flip.
        """

    async def wipe(self, node: str) -> None:
        """An empty disk, while nothing runs on the node."""

    async def set_clock(self, node: str, trouble: ClockTrouble) -> None:
        """Spoil the clocks; ``rate`` 1 ends a drift, a jump is undone by its opposite."""

    async def look_at_clock(self, node: str) -> ClockLook:
        """Read the node's clocks twice, beside the controller's."""


@runtime_checkable
class Replicas(Protocol):
    """A system that tells whether every node has everything that it should have."""

    async def lacking(self, cluster: Cluster, limit_s: float) -> list[str]:
        """What after ``limit_s`` still keeps nodes from having all that there was at the call, in
        words; empty as soon as nothing does.
        """
