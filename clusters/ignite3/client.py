"""The harness's client of Apache Ignite 3: one connection of the official thin client, through the
process of clients.

A key is a BIGINT, a value a VARCHAR: JSON, an integer or the list that appends made. An append is
a read and a put, so that a store that loses updates shows it. Read-write transactions use rows by
key or SQL text, as the plan says. Reads of the past are kinds of their own: explicit read-only
transactions, and single statements outside of any.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Literal

import attrs
import msgspec

from clusters.ignite3 import error_table
from clusters.ignite3.bridge import Answer, Bridge, Field
from harness.errors import HarnessBug
from harness.protocols.client import READ_WRITE, Committed, StoreError, Tx
from harness.protocols.cluster import Address

READ_ONLY, AUTOCOMMIT = "read-only", "autocommit"
# A snapshot's time is now - 1.5 s (idle safe time propagation and clock skew, both at their
# defaults), or what the session has seen, whichever is later.
STALENESS_S = 1.5

Access = Literal["key-value", "sql"]
Stored = int | tuple[int, ...]
# Codes that end a connection: its state is unknown after them.
_ENDS = (
    error_table.CONNECTION_LOST,
    error_table.DRIVER_GONE,
    error_table.MISUSE,
    error_table.UNKNOWN,
)
_VERBS = {"key-value": ("get", "put"), "sql": ("sql-get", "sql-put")}
_value: msgspec.json.Decoder[Stored] = msgspec.json.Decoder(Stored)


@attrs.frozen(kw_only=True)
class Session:
    """The state of a logical process that outlives its connections. ``not_before_s``: a snapshot
    that is begun earlier (on the loop's clock) could be older than the data that the process has
    seen on the connection before; ``heard`` is called with the loop's time after each answer that
    shows data.
    """

    access: Access = "key-value"
    not_before_s: float = 0.0
    heard: Callable[[float], None] = lambda _: None


async def connect(
    bridge: Bridge, address: Address, table: str, limit_s: float, session: Session | None = None
) -> IgniteClient:
    """Dial a node and look the table up. Raises ``StoreError``."""
    client = await dial(bridge, address, limit_s, session)
    try:
        await client.ask("open", table=table)
    except BaseException:
        await client.close()
        raise
    return client


async def dial(
    bridge: Bridge, address: Address, limit_s: float, session: Session | None = None
) -> IgniteClient:
    """Dial a node. Raises ``StoreError``, without dialling where its network is gone: Java's client
    can't be told which address to dial from.
    """
    if gone := unroutable(address):
        raise StoreError(error_table.CONNECTION_LOST, gone)
    client = IgniteClient(bridge, bridge.connection(), session or Session())
    limit_ms = max(1, int(limit_s * 1000))
    try:
        await client.ask("connect", host=address.host, port=address.port, limit_ms=limit_ms)
    except BaseException:  # also a dial that was given up may still come through
        await client.close()
        raise
    return client


def unroutable(address: Address) -> str:
    """Why ``address`` must not be dialled: this machine is not on its network any more. Empty where
    it is, or where any way there will do.
    """
    if not address.source:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address.source, 0))
        except OSError as error:
            return f"{address}: its network is gone ({address.source}: {error.strerror})"
    return ""


class IgniteClient:
    """One connection. A cancelled call leaves an answer on its way, so it ends the connection: the
    next ``begin`` raises for that.
    """

    def __init__(self, bridge: Bridge, number: int, session: Session) -> None:
        self._bridge, self._number = bridge, number
        self.session = session
        self._broken: str | None = None

    async def begin(self, kind: str, deadline_s: float) -> Tx:
        """Open a transaction; a single statement is none, and only shows what it read."""
        if kind == READ_WRITE:
            await self._begin(deadline_s, read_only=0)
            return IgniteTx(self)
        if kind not in (READ_ONLY, AUTOCOMMIT):
            raise HarnessBug(f"ignite3: no transactions of kind {kind!r} were promised")
        await self._wait_for_session()
        if kind == AUTOCOMMIT:
            return Statement(self)
        await self._begin(deadline_s, read_only=1)
        return Snapshot(self)

    async def _begin(self, deadline_s: float, read_only: int) -> None:
        left_s = deadline_s - asyncio.get_running_loop().time()
        await self.ask("begin", limit_ms=max(1, int(left_s * 1000)), read_only=read_only)

    async def _wait_for_session(self) -> None:
        """A new connection is a new session to the store, in which a process could go back."""
        late_s = self.session.not_before_s - asyncio.get_running_loop().time()
        if late_s > 0:
            await asyncio.sleep(late_s)

    async def sql(self, text: str) -> None:
        """Execute one statement outside of transactions."""
        await self.ask("sql", text=text)

    async def query(self, text: str) -> tuple[tuple[int | str | None, ...], ...]:
        """Execute one statement outside of transactions. Return the names of its columns and its
        rows; nothing where it has none. Raises ``StoreError``.
        """
        return (await self.ask("query", text=text)).rows

    async def close(self) -> None:
        """Drop the connection; its open transaction is rolled back."""
        self._broken = self._broken or "closed by the client"
        self._bridge.tell("close", self._number)

    async def ask(self, op: str, **fields: Field) -> Answer:
        """The result of ``op`` on this connection. Raises ``StoreError``."""
        if self._broken is not None:
            raise StoreError(error_table.BROKEN, self._broken)
        # Set before the await: a cancelled call leaves its answer on the way, and this behind.
        self._broken = "a call did not come to its end"
        try:
            answer = await self._bridge.ask(op, self._number, **fields)
        except StoreError as error:
            self._broken = str(error) if error.code in _ENDS else None
            raise
        self._broken = None
        return answer

    def heard(self) -> None:
        """The process has seen data just now."""
        self.session.heard(asyncio.get_running_loop().time())


class IgniteTx:
    """An open transaction. The store gives its clients no identifier of it."""

    def __init__(self, client: IgniteClient) -> None:
        self._client = client
        self._get, self._put = _VERBS[client.session.access]

    @property
    def server_txn(self) -> str | None:
        """Unknown: see the class."""
        return None

    async def read(self, key: int) -> Stored | None:
        """The value of ``key``: an integer, a list, or ``None``."""
        return decode(key, (await self._client.ask(self._get, key=key)).value)

    async def write(self, key: int, value: int) -> None:
        """Set ``key``."""
        await self._client.ask(self._put, key=key, value=encode(value))

    async def append(self, key: int, element: int) -> None:
        """Read the list, put it back with ``element`` at its end."""
        held = await self.read(key)
        if isinstance(held, int):
            raise StoreError(error_table.BAD_VALUE, f"key {key} holds {held}, not a list")
        await self._client.ask(self._put, key=key, value=encode((*(held or ()), element)))

    async def commit(self) -> Committed:
        """Durable on a quorum on return; the store returns no timestamp."""
        try:
            await self._client.ask("commit")
        except StoreError as error:
            raise error_table.refined(error) from error
        self._client.heard()
        return Committed()

    async def rollback(self) -> None:
        """Give it up."""
        await self._client.ask("rollback")


class Snapshot(IgniteTx):
    """A read-only transaction: all it reads is of one moment, ``STALENESS_S`` ago at most."""

    async def write(self, key: int, value: int) -> None:
        """Not offered."""
        raise HarnessBug(f"ignite3: a read-only transaction was asked to write key {key}")

    async def append(self, key: int, element: int) -> None:
        """Not offered."""
        raise HarnessBug(f"ignite3: a read-only transaction was asked to append to key {key}")


class Statement(Snapshot):
    """No transaction: each read is a SELECT outside of any, several keys are one SELECT."""

    async def read(self, key: int) -> Stored | None:
        """The value of ``key``, of a moment of its own."""
        return (await self.read_together((key,)))[0]

    async def read_together(self, keys: tuple[int, ...]) -> tuple[Stored | None, ...]:
        """See ``harness.protocols.client.ReadsTogether``."""
        values = (await self._client.ask("select", keys=keys)).values
        return tuple([decode(key, text) for key, text in zip(keys, values, strict=True)])

    async def commit(self) -> Committed:
        """Nothing is left to do."""
        self._client.heard()
        return Committed()

    async def rollback(self) -> None:
        """Nothing is left to do."""


def encode(value: Stored) -> str:
    """The stored text of ``value``."""
    return msgspec.json.encode(value).decode("ascii")


def decode(key: int, text: str | None) -> Stored | None:
    """The value of stored ``text``. Raises ``StoreError``."""
    if text is None:
        return None
    try:
        return _value.decode(text)
    except msgspec.DecodeError as error:
        raise StoreError(
            error_table.BAD_VALUE, f"key {key} holds {text[:64]!r}: {error}"
        ) from error
