"""The client protocol: a connection is one logical process, with at most one open transaction."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from clusters.reference.node.config import Tuning
from clusters.reference.node.markers import reached
from clusters.reference.node.runtime import Connection, ConnectionLost
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.tx.coordinator import (
    MAX_OPEN_S,
    ReadOnlyTransaction,
    Transaction,
    TransactionIds,
    one_shot,
)
from clusters.reference.node.tx.limits import TxError
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import Routes
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.frames import FrameError
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    AdminReply,
    BadMessage,
    Begin,
    ClientReply,
    ClientRequest,
    Codec,
    Commit,
    Committed,
    Failed,
    Get,
    Ok,
    OneShot,
    OneShotReply,
    Put,
    ReplyBody,
    Rollback,
    Started,
    Value,
    decode,
    encode,
)
from clusters.reference.node.wire.reports import AdminBody, AdminQuestion

READ_WRITE, SNAPSHOT = "read-write", "snapshot"
# Connections a node; one more is dropped. A plan may have 10,000 clients, and all of them on one
# node; the others are for admin questions meanwhile.
MAX_CLIENTS = 10_240
DRAIN_POLL_S = 0.005  # most transactions take some round trips
STOPPING = Failed(codes.NODE_STOPPING, "this node stops: ask another one")
IDLE_LIMIT_S = 600.0  # a client that says nothing for so long is dropped
MAX_TX_S = 60.0  # the longest limit that a client can ask for

log = logging.getLogger("node.sessions")


class Sessions:
    """Serves clients. ``admin`` answers questions about the node itself."""

    def __init__(
        self,
        *,
        origin: str,
        routes: Routes,
        primaries: PrimaryClient,
        clock: Hlc,
        tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
        admin: Callable[[AdminQuestion], Awaitable[AdminBody]],
    ) -> None:
        """``origin`` names this start of this node in the ids of its transactions."""
        self._ids, self._routes = TransactionIds(origin, clock), routes
        self._primaries, self._clock, self._admin = primaries, clock, admin
        # An outcome must be there for as long as a transaction can ask for it, and versions for as
        # long as a snapshot can read them.
        outcome_s, version_s = tuning.outcome_retention_s, tuning.version_retention_s
        self._max_tx_s = MAX_TX_S if outcome_s is None else outcome_s / 2
        self._max_open_s = MAX_OPEN_S if version_s is None else version_s / 2
        self._clients = 0
        self._open: dict[_Session, Connection] = {}
        self.stopping = False

    async def serve(self, connection: Connection) -> None:
        """Serve one connection until it ends; its open transaction is rolled back then."""
        if self._clients >= MAX_CLIENTS:
            log.warning("refused %s: %d clients already", connection.peer, MAX_CLIENTS)
            return
        self._clients += 1
        session = _Session(self)
        self._open[session] = connection
        idle = _Idle(connection)
        try:
            while True:
                idle.begin()
                payload = await connection.recv()
                idle.end()
                answer = await session.answer(decode(Codec.request, payload))
                if answer is not None:
                    connection.send(encode(answer))
                if self.stopping:
                    self._dismiss(session)
        except (BadMessage, FrameError) as error:
            log.warning("dropping client %s: %s", connection.peer, error)
        finally:
            idle.stop()
            del self._open[session]
            session.end()
            self._clients -= 1

    async def drain(self, limit_s: float) -> None:
        """Begin nothing more: every client that has no transaction open is told that this node
        stops, the others once theirs is over. Returns once all were told; after ``limit_s`` what is
        still open is rolled back, unless its commit is under way.
        """
        self.stopping = True
        for session in list(self._open):
            self._dismiss(session)
        give_up_s = asyncio.get_running_loop().time() + limit_s
        while any(session.open for session in self._open):
            if asyncio.get_running_loop().time() >= give_up_s:
                reached("transactions of a node that stops rolled back")
                break
            await asyncio.sleep(DRAIN_POLL_S)
        for session in list(self._open):
            session.stop()
            self._dismiss(session)

    def _dismiss(self, session: _Session) -> None:
        """Tell the client that this node stops, if it may go on at another one: nothing is open,
        and what it sends from here on is refused.
        """
        if session.is_client and not (session.open or session.dismissed):
            session.dismissed = True
            with contextlib.suppress(ConnectionLost):
                self._open[session].send(encode(ClientReply(NO_ANSWER, STOPPING)))

    async def admin(self, question: AdminQuestion) -> AdminBody:
        """The answer to an admin question."""
        return await self._admin(question)

    def begin(self, request: Begin) -> Transaction | ReadOnlyTransaction:
        """A new transaction. Raises ``TxError`` on a kind that there is not."""
        if not self._clock.receive(request.after):
            text = "the client has seen a timestamp that is too far ahead of this node's clock"
            raise TxError(Failed(codes.CLOCK_DRIFT, text))
        limit_s = min(request.limit_ms / 1000, self._max_tx_s)
        if request.kind == READ_WRITE:
            return Transaction(
                txn=self._ids.next(),
                limit_s=limit_s,
                routes=self._routes,
                primaries=self._primaries,
                clock=self._clock,
            )
        if request.kind == SNAPSHOT:
            return ReadOnlyTransaction(
                txn=self._ids.next(),
                limit_s=min(limit_s, self._max_open_s),
                routes=self._routes,
                primaries=self._primaries,
            )
        text = f"kind {request.kind!r}: only {READ_WRITE!r} and {SNAPSHOT!r} are offered"
        raise TxError(Failed(codes.KIND, text))

    async def one_shot(self, request: OneShot) -> OneShotReply:
        """A whole transaction. Raises ``TxError``."""
        done = await one_shot(
            txn=self._ids.next(),
            limit_s=min(request.limit_ms / 1000, self._max_tx_s),
            steps=request.steps,
            tables=request.tables,
            routes=self._routes,
            primaries=self._primaries,
            clock=self._clock,
        )
        return OneShotReply(done.values, done.ts)


class _Idle:
    """Drops a client that sends nothing for ``IDLE_LIMIT_S``. One timer lasts for many requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._timer = self._loop.call_later(IDLE_LIMIT_S, self._look)

    def begin(self) -> None:
        """The client owes a request: start its time limit."""
        self._since_s = self._loop.time()

    def end(self) -> None:
        """The client has sent a request."""
        self._since_s = None

    def stop(self) -> None:
        """The client is gone."""
        self._timer.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        since_s = now_s if self._since_s is None else self._since_s
        if now_s < since_s + IDLE_LIMIT_S:
            self._timer = self._loop.call_at(since_s + IDLE_LIMIT_S, self._look)
            return
        log.warning("dropping client %s: idle", self._connection.peer)
        self._connection.close()


class _Session:
    """The state of one connection."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._tx: Transaction | ReadOnlyTransaction | None = None
        self._busy = False  # a request is under way
        self.is_client = False  # it asked for transactions, and not for this node's state alone
        self.dismissed = False  # it was told that this node stops
        self._untold: Failed | None = None  # of a request that wanted no answer

    async def answer(self, request: ClientRequest) -> ClientReply | AdminReply | None:
        """The answer, if one is wanted."""
        body = request.body
        if isinstance(body, AdminQuestion):
            return AdminReply(request.id, await self._sessions.admin(body))
        self.is_client = self._busy = True
        try:
            return await self._answer(request)
        finally:
            self._busy = False

    async def _answer(self, request: ClientRequest) -> ClientReply | None:
        body = request.body
        if isinstance(body, Begin | OneShot | Rollback):
            self._untold = None  # it was of a transaction that ends here
        try:
            reply: ReplyBody = self._untold or await self._step(request)
        # A failed step ends the transaction: its locks go now, not with the client's next request.
        except TxError as error:
            self.end()
            reply = error.failed
        if request.id != NO_ANSWER:
            self._untold = None
            return ClientReply(request.id, reply)
        if isinstance(reply, Failed) and self._untold is None:
            reached("blind put failed")
            self._untold = _before_commit(reply)
        return None

    async def _step(self, request: ClientRequest) -> ReplyBody:
        if self._sessions.stopping and isinstance(request.body, Begin | OneShot):
            reached("transaction refused, the node stops")
            raise TxError(STOPPING)
        match request.body:
            case Begin() as body:
                self.end()
                self._tx = self._sessions.begin(body)
                return Started(str(self._tx.txn))
            case Get(key=key, for_update=for_update, table=table):
                return Value(await self._open().get(key, table=table, for_update=for_update))
            case Put(key=key, value=value, table=table):
                await self._open().put(key, value, table=table)
            case Commit():
                ts = await self._open().commit()
                # Only now: a commit that raises is rolled back by ``end``.
                self._tx = None
                return Committed(ts)
            case OneShot() as body:
                self.end()
                return await self._sessions.one_shot(body)
            case _:
                self.end()
        return Ok()

    @property
    def open(self) -> bool:
        """Whether a transaction is open, or a request under way."""
        return self._tx is not None or self._busy

    def stop(self) -> None:
        """Roll back the open transaction, which the client has not asked to commit yet."""
        if self._tx is not None and not self._busy:
            self.end()
            self._untold = STOPPING

    def end(self) -> None:
        """Roll back the open transaction."""
        tx, self._tx = self._tx, None
        if tx is not None:
            tx.rollback()

    def _open(self) -> Transaction | ReadOnlyTransaction:
        if self._tx is None:
            raise TxError(Failed(codes.NO_TRANSACTION, "no transaction is open here"))
        return self._tx


def _before_commit(failed: Failed) -> Failed:
    """The failure of an earlier step as the answer to a later one: if that is the commit, the
    answer must not read as if any log had been asked.
    """
    if failed.code != codes.PEER_LOST:
        return failed
    return Failed(codes.ABORTED, f"before its commit: {failed.code}: {failed.message}")
