"""The client protocol: a connection is one logical process, with at most one open transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from clusters.reference.node import codes
from clusters.reference.node.runtime import Connection
from clusters.reference.node.tx.coordinator import Ask, Routes, Transaction, TxError
from clusters.reference.node.wire.messages import (
    AdminBody,
    AdminReply,
    AskEvents,
    AskStatus,
    BadMessage,
    Begin,
    Begun,
    ClientReply,
    ClientRequest,
    Codec,
    Commit,
    Done,
    Failed,
    Get,
    Put,
    ReplyBody,
    Value,
    decode,
    encode,
)

READ_WRITE = "read-write"
MAX_CLIENTS = 1024  # connections a node; one more is dropped
IDLE_LIMIT_S = 600.0  # a client that says nothing for so long is dropped
MAX_TX_S = 60.0  # a transaction is given up then, whatever its client asked for

log = logging.getLogger("node.sessions")


class Sessions:
    """Serves clients. ``admin`` answers questions about the node itself."""

    def __init__(
        self,
        *,
        node: str,
        boot: str,
        routes: Routes,
        ask: Ask,
        admin: Callable[[AskStatus | AskEvents], AdminBody],
    ) -> None:
        self._prefix = f"{node}-{boot[:6]}"
        self._routes, self._ask, self._admin = routes, ask, admin
        self._transactions = 0
        self._clients = 0

    async def serve(self, connection: Connection) -> None:
        """Serve one connection until it ends; what is open then is rolled back."""
        if self._clients >= MAX_CLIENTS:
            log.warning("refused %s: %d clients already", connection.peer, MAX_CLIENTS)
            return
        self._clients += 1
        session = _Session(self)
        try:
            while True:
                async with asyncio.timeout(IDLE_LIMIT_S):
                    payload = await connection.recv()
                request = decode(Codec.request, payload)
                connection.send(encode(await session.answer(request)))
        except (BadMessage, TimeoutError) as error:
            log.warning("dropping client %s: %s", connection.peer, error or "idle")
        finally:
            self._clients -= 1

    def admin(self, question: AskStatus | AskEvents) -> AdminBody:
        """The answer to an admin question."""
        return self._admin(question)

    def begin(self, request: Begin) -> Transaction:
        """A new transaction. Raises ``TxError`` on a kind that there is not."""
        if request.kind != READ_WRITE:
            text = f"kind {request.kind!r}: only {READ_WRITE!r} is offered"
            raise TxError(Failed(codes.KIND, text))
        self._transactions += 1
        return Transaction(
            txn=f"{self._prefix}-{self._transactions}",
            limit_s=min(request.limit_ms / 1000, MAX_TX_S),
            routes=self._routes,
            ask=self._ask,
        )


class _Session:
    """The state of one connection."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._tx: Transaction | None = None

    async def answer(self, request: ClientRequest) -> ClientReply | AdminReply:
        body = request.body
        if isinstance(body, AskStatus | AskEvents):
            return AdminReply(request.id, self._sessions.admin(body))
        try:
            return ClientReply(request.id, await self._step(request))
        except TxError as error:
            self._tx = None  # nothing was proposed, or its outcome is out of our hands
            return ClientReply(request.id, error.failed)

    async def _step(self, request: ClientRequest) -> ReplyBody:
        body = request.body
        if isinstance(body, Begin):
            self._tx = self._sessions.begin(body)
            return Begun(self._tx.txn)
        if isinstance(body, Get):
            return Value(await self._open().get(body.key))
        if isinstance(body, Put):
            self._open().put(body.key, body.value)
        elif isinstance(body, Commit):
            tx, self._tx = self._open(), None
            await tx.commit()
        else:
            self._tx = None
        return Done()

    def _open(self) -> Transaction:
        if self._tx is None:
            raise TxError(Failed(codes.NO_TRANSACTION, "no transaction is open here"))
        return self._tx
