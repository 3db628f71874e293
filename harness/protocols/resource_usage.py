"""What a node's machine used: asked of a provider that can tell it cheaply."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of a node so far, since some moment that does not change: ``cpu_s`` seconds of
    CPU, bytes read from and written to disks, received from and sent to the network.
    ``memory_bytes`` are in use now. ``None`` is what can't be told.
    """

    cpu_s: float | None = None
    memory_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None


@runtime_checkable
class TellsUsage(Protocol):
    """A provider that knows what its nodes use."""

    async def usage(self, node: str) -> NodeUsage | None:
        """Return what the node has used; ``None`` where nothing runs. It may wait, but
        takes little CPU, and nothing that a fault may need. Raises ``HarnessError``.
        """
