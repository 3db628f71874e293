"""The seam between the node and the machine: time, network, disk and randomness come through here.

Node code reads monotonic time as ``asyncio.get_running_loop().time()`` and sleeps with
``asyncio.sleep``; it starts tasks on the running loop. Everything else that is not computation it
gets from a ``Runtime``. The real one is ``runtime.real``; a simulated one gives the same node
virtual time, a network and a disk that fail on order.

``POINTS`` are the rare legal paths: a choice that a simulation makes there could happen on any
machine at any time, but a test would wait for it in vain. A real runtime never makes it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol


class ConnectionLost(Exception):
    """The connection is gone: refused, reset, closed, timed out or over its queue limit."""


class DiskError(Exception):
    """The disk refused a write, a sync or a read; a node that sees one on its log must stop."""


class Connection(Protocol):
    """A two-way stream of whole frames (``wire`` frames; the payload is opaque here)."""

    @property
    def peer(self) -> str:
        """The address of the other end, for messages to a person."""

    def send(self, payload: bytes) -> None:
        """Queue one frame. Raises ``ConnectionLost`` if closed or if its send queue is full, and
        ``wire.frames.FrameError`` if it is too large for a frame: then nothing was sent.
        """

    async def recv(self) -> bytes:
        """The next frame's payload. Raises ``ConnectionLost``; a corrupt frame ends the
        connection.
        """

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        """Call ``take`` with every frame as it comes. Raises what ``take`` raises, and
        ``ConnectionLost``. In place of ``recv``: it spares the loop a turn for each frame.
        """

    def close(self) -> None:
        """Drop it now. Idempotent."""


class Listener(Protocol):
    """An open port."""

    def close(self) -> None:
        """Stop accepting and drop every accepted connection."""


class Network(Protocol):
    """Dial and listen. Frames sent inside ``batch`` leave together at its end, and not only with
    the next turn of the loop.
    """

    batch: AbstractContextManager[None]

    async def listen(
        self, host: str, port: int, serve: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Accept on (host, port); each connection gets a task running ``serve``, closed when it
        returns.
        """

    async def dial(self, host: str, port: int, limit_s: float, source: str = "") -> Connection:
        """Connect within ``limit_s``, from the address ``source`` where one is given. Raises
        ``ConnectionLost``.
        """


class Disk(Protocol):
    """The node's own directory: flat names, no paths. All calls are coroutines; one disk thread
    serves them.
    """

    async def names(self) -> tuple[str, ...]:
        """Every file, sorted."""

    async def read(self, name: str) -> bytes:
        """The whole file; empty if absent."""

    async def read_at(self, name: str, offset: int, size_bytes: int) -> bytes:
        """Up to ``size_bytes`` from ``offset`` on; fewer at the end, none if absent."""

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        """Append; with ``sync`` return only when it is durable (file data, and the name when
        new).
        """

    async def replace(self, name: str, data: bytes) -> None:
        """Write atomically and durably: temporary name, sync, rename, sync of the directory."""

    async def truncate(self, name: str, size_bytes: int) -> None:
        """Cut to ``size_bytes``, durably."""

    async def delete(self, name: str) -> None:
        """Remove if present, durably."""


class Runtime(Protocol):
    """The machine as a node sees it. ``boot`` is unlike for every start of the process; ``rare``
    chooses the rare legal paths (``rare.POINTS``), on real machines none.
    """

    boot: str
    network: Network
    disk: Disk
    random: random.Random
    rare: Rare

    def wall_ns(self) -> int:
        """Wall clock in ns: for people and event logs, never for leases or order."""


# Whether the rare path is taken at the named point, now.
Rare = Callable[[str], bool]

POINTS = {
    "early-snapshot": "a group is saved long before its log is large (groups/snapshot_manager.py)",
    "early-timeout": "a question to a peer is given up almost at once (rpc/link.py)",
    "full-queue": "a link's send queue is full, which drops the connection (rpc/link.py)",
    "late-tick": "the process does not get the CPU for some ticks (groups/host.py)",
    "short-batch": "only a part of what waits for the log goes into the next write "
    "(groups/host.py)",
    "slow-sync": "a write to the log takes as long as an election's patience (groups/host.py)",
}


def never(_point: str) -> bool:
    """The choice of a real machine at every point: the usual path."""
    return False
