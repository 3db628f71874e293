"""Disks and clocks of machines, as values and as the protocol of a provider that can impair them.

A provider that offers ``Capability.DISK`` or ``Capability.CLOCK`` is also a ``Hardware``; one that
offers ``Capability.WIPE`` alone is a ``Wipes``.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from harness.protocols.cluster import Cluster


class DiskTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """The impairment of a disk from now on: every call takes ``slow_s`` longer; with ``full`` every
    write fails (ENOSPC), with ``failing`` every write, sync and read fails (EIO).
    """

    slow_s: float = 0.0
    full: bool = False
    failing: bool = False


class DiskLook(msgspec.Struct, frozen=True, kw_only=True):
    """The result of probing a disk: the duration of a synced write of a few bytes, or its error;
    the size of the node's data; and the number of bits that differ from what was written.
    """

    took_s: float
    error: str = ""
    size_bytes: int = 0
    flipped_bits: int = 0


class ClockTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """The impairment of a machine's clocks: the wall clock jumps by ``jump_s`` now; both clocks
    gain ``rate`` seconds a second from now on.
    """

    jump_s: float = 0.0
    rate: float = 1.0


class ClockLook(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a machine's clocks: how far the wall clock is ahead of the controller's, and how
    many seconds the monotonic clock gains a second.
    """

    ahead_s: float
    rate: float


@runtime_checkable
class Wipes(Protocol):
    """A provider that can take the data of a program away (``Capability.WIPE``)."""

    async def wipe(self, node: str) -> None:
        """Remove all that the program has written, but for its log; called while no program runs on
        the node. Idempotent.
        """

    async def data_bytes(self, node: str) -> int:
        """Return how much of that there is, found by another way than ``wipe`` removes it."""


@runtime_checkable
class Hardware(Wipes, Protocol):
    """Disks and clocks of the nodes. All verbs are idempotent but ``flip`` and a clock's jump."""

    async def set_disk(self, node: str, trouble: DiskTrouble) -> None:
        """Make ``trouble`` the disk's whole impairment; ``DiskTrouble()`` removes it."""

    async def try_disk(self, node: str) -> DiskLook:
        """Write and sync a few bytes, and return the state of the disk."""

    async def flip(self, node: str, draw: int) -> str:
        """Flip one bit, chosen by ``draw``, of data that was synced some writes ago. Returns a text
        that names the bit, empty where there is none to flip.
        """

    async def set_clock(self, node: str, trouble: ClockTrouble) -> None:
        """Impair the clocks; ``rate`` 1 ends a drift, a jump is undone by its opposite."""

    async def look_at_clock(self, node: str) -> ClockLook:
        """Read the node's clocks twice, and compare them with the controller's."""


@runtime_checkable
class Replicas(Protocol):
    """A system that reports whether every node has all the data that it should have."""

    async def lacking(self, cluster: Cluster, limit_s: float) -> list[str]:
        """Return, as texts, what after ``limit_s`` still keeps nodes from having all data that
        existed at the call; returns an empty list as soon as there is none.
        """
