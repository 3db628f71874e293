"""What drivers at the leader of metastorage need of it: a state to read, and its raft group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from clusters.reference.node.metastorage.metastorage import Versioned


class View(Protocol):
    """What is read of metastorage: one state of it."""

    def get(self, key: str) -> Versioned | None:
        """The value of ``key``."""

    def prefixed(self, prefix: str) -> Mapping[str, Versioned]:
        """All keys that begin with ``prefix``."""


class Group(Protocol):
    """The raft group of metastorage."""

    @property
    def serving(self) -> bool:
        """Whether this node leads it, and has applied everything of earlier terms."""

    async def propose(self, data: bytes, limit_s: float) -> object:
        """The result of ``Metastorage.apply``, or ``Failed``."""
