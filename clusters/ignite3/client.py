"""The harness's client of Apache Ignite 3: one connection of the official thin client, through the
process of clients.

A key is a BIGINT, a value a VARCHAR: JSON, an integer or the list that appends made. An append is
a read and a put, so that a store that loses updates shows it.
"""

from __future__ import annotations

import asyncio

import msgspec

from clusters.ignite3 import errors
from clusters.ignite3.bridge import Bridge
from harness.client import READ_WRITE, Committed, StoreError
from harness.cluster import Address
from harness.errors import HarnessBug

_ENDS = (errors.CONNECTION_LOST, errors.DRIVER_GONE, errors.MISUSE)  # of a connection
Stored = int | tuple[int, ...]
_value: msgspec.json.Decoder[Stored] = msgspec.json.Decoder(Stored)


async def connect(bridge: Bridge, address: Address, table: str, limit_s: float) -> IgniteClient:
    """Dial a node and look the table up. Raises ``StoreError``."""
    client = await dial(bridge, address, limit_s)
    try:
        await client.ask("open", table=table)
    except BaseException:
        await client.close()
        raise
    return client


async def dial(bridge: Bridge, address: Address, limit_s: float) -> IgniteClient:
    """Dial a node. Raises ``StoreError``."""
    client = IgniteClient(bridge, bridge.connection())
    limit_ms = max(1, int(limit_s * 1000))
    try:
        await client.ask("connect", host=address.host, port=address.port, limit_ms=limit_ms)
    except BaseException:  # also a dial that was given up may still come through
        await client.close()
        raise
    return client


class IgniteClient:
    """One connection. A call that was cancelled leaves an answer on its way, so it ends the
    connection: the next ``begin`` says so.
    """

    def __init__(self, bridge: Bridge, number: int) -> None:
        self._bridge, self._number = bridge, number
        self._broken: str | None = None

    async def begin(self, kind: str, deadline_s: float) -> IgniteTx:
        """Open an explicit read-write transaction."""
        if kind != READ_WRITE:
            raise HarnessBug(f"ignite3: no transactions of kind {kind!r} were promised")
        left_s = deadline_s - asyncio.get_running_loop().time()
        await self.ask("begin", limit_ms=max(1, int(left_s * 1000)))
        return IgniteTx(self)

    async def sql(self, text: str) -> None:
        """Execute one statement outside of transactions."""
        await self.ask("sql", text=text)

    async def close(self) -> None:
        """Drop the connection; what is open on it is rolled back."""
        self._broken = self._broken or "closed by the client"
        self._bridge.tell("close", self._number)

    async def ask(self, op: str, **fields: str | int) -> str | None:
        """The result of ``op`` on this connection. Raises ``StoreError``."""
        if self._broken is not None:
            raise StoreError(errors.BROKEN, self._broken)
        self._broken = "a call did not come to its end"
        try:
            result = await self._bridge.ask(op, self._number, **fields)
        except StoreError as error:
            self._broken = str(error) if error.code in _ENDS else None
            raise
        self._broken = None
        return result


class IgniteTx:
    """An open transaction. The store does not tell its clients the transaction's identifier."""

    def __init__(self, client: IgniteClient) -> None:
        self._client = client

    @property
    def server_txn(self) -> str | None:
        """Not told."""
        return None

    async def read(self, key: int) -> Stored | None:
        """The value of ``key``: an integer, a list, or ``None``."""
        return decode(key, await self._client.ask("get", key=key))

    async def write(self, key: int, value: int) -> None:
        """Set ``key``."""
        await self._client.ask("put", key=key, value=encode(value))

    async def append(self, key: int, element: int) -> None:
        """Read the list, put it back with ``element`` at its end."""
        held = await self.read(key)
        if isinstance(held, int):
            raise StoreError(errors.BAD_VALUE, f"key {key} holds {held}, not a list")
        await self._client.ask("put", key=key, value=encode((*(held or ()), element)))

    async def commit(self) -> Committed:
        """Durable on a quorum on return; the store tells no timestamp."""
        await self._client.ask("commit")
        return Committed()

    async def rollback(self) -> None:
        """Give it up."""
        await self._client.ask("rollback")


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
        raise StoreError(errors.BAD_VALUE, f"key {key} holds {text[:64]!r}: {error}") from error
