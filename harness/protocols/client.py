"""How operations reach a store: interactive transactions. ``fail_or_info`` says what their errors
mean.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol, cast, runtime_checkable

import attrs

from harness.errors import FiredrillError

READ_WRITE = "read-write"


class StoreError(FiredrillError):
    """The store, or the way to it, answered with an error. ``code`` is a name in the system's error
    table.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


@attrs.frozen(kw_only=True)
class Committed:
    """The store's answer to a commit; ``commit_ts`` is ``None`` where the store reports none."""

    commit_ts: int | None = None


class Tx(Protocol):
    """An open interactive transaction. Every call may raise ``StoreError``.

    No call retries. The driver cancels a call at the deadline; a cancelled transaction is never
    used again.
    """

    @property
    def server_txn(self) -> str | None:
        """The store's own identifier of the transaction, once the client knows it."""

    async def read(self, key: int) -> int | tuple[int, ...] | None:
        """Return the value of ``key`` as this transaction sees it; ``None`` where the key has
        none.
        """

    async def write(self, key: int, value: int) -> None:
        """Set ``key`` to ``value``."""

    async def append(self, key: int, element: int) -> None:
        """Append ``element`` to the list at ``key`` (a read and a write where the store has no
        append).
        """

    async def commit(self) -> Committed:
        """Make the transaction durable and visible. Returning is the acknowledgement."""

    async def rollback(self) -> None:
        """Abort the transaction. Best effort: a store also aborts it when its connection closes."""


@runtime_checkable
class ReadsTogether(Protocol):
    """A ``Tx`` that reads several keys in one request. Outside of a transaction a store answers
    separate requests as of separate moments; one request reads all keys as of one moment.
    """

    async def read_together(
        self, keys: tuple[int, ...]
    ) -> tuple[int | tuple[int, ...] | None, ...]:
        """Return the values of ``keys``, in their order."""


@runtime_checkable
class MovesBetweenNodes(Protocol):
    """A ``Client`` that goes on at another node where the one that it is connected to has told it,
    in order, that it stops, or is gone. What was sent is sent nowhere else: a transaction that was
    open there ended with it, as its error says, and the next one begins elsewhere, once it was
    rolled back. It may return to its own node between two. A transaction is recorded with the node
    that its client was connected to as it was invoked.
    """

    @property
    def node(self) -> str:
        """The node that it is connected to."""


def node_of(client: Client) -> str | None:
    """The node that ``client`` is connected to, where it may have moved."""
    return cast(MovesBetweenNodes, client).node or None if _moves(type(client)) else None


@cache
def _moves(kind: type) -> bool:
    return hasattr(kind, "node")


async def read_all(tx: Tx, keys: tuple[int, ...]) -> tuple[int | tuple[int, ...] | None, ...]:
    """Return the values of ``keys``: in one request where ``tx`` supports it, else one after the
    other.
    """
    if _reads_together(type(tx)):
        return await cast(ReadsTogether, tx).read_together(keys)
    return tuple([await tx.read(key) for key in keys])


@cache
def _reads_together(kind: type) -> bool:
    """Cached per type: the check on each transaction would cost as much as driving it."""
    return issubclass(kind, ReadsTogether)


class Client(Protocol):
    """The connection of one logical process to one node; one operation uses it at a time."""

    async def begin(self, kind: str, deadline_s: float) -> Tx:
        """Open a transaction of ``kind``, which the store may abort at loop time ``deadline_s``."""

    async def close(self) -> None:
        """Close the connection; never raises, never waits for the store."""
