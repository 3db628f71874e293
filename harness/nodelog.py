"""A node's log while its program runs: for systems whose nodes tell nobody else what they do."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What a log holds from some byte on, and the node's wall clock when it was read."""

    content: bytes
    wall_ns: int


@runtime_checkable
class ReadsLogs(Protocol):
    """A ``Provider`` that can read a program's log without ending anything."""

    async def read_log(self, node: str, offset: int, limit_bytes: int) -> LogPiece:
        """Up to ``limit_bytes`` of the log of ``node`` from byte ``offset`` on. Raises
        ``HarnessError`` where the machine can't be asked now.
        """
