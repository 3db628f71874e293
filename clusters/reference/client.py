"""The harness's client of the reference store, over the ``Network`` that it is handed.

The store knows keys and values as bytes. A key is its int64, big-endian; a value is msgpack: an
integer, or the list that appends made. An append is a read and a put here, so that a store that
loses updates shows it. A value may be padded, so that small ones and large ones are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NoReturn, TypeVar

import attrs
import msgspec

from clusters.reference.node.runtime import Connection, ConnectionLost, Network
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.frames import FrameError
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    BadMessage,
    Begin,
    ClientBody,
    ClientRequest,
    Codec,
    Commit,
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
from clusters.reference.node.wire.messages import Committed as CommittedReply
from harness.errors import HarnessBug
from harness.protocols.client import READ_WRITE, Committed, StoreError
from harness.protocols.fail_or_info import ErrorMeaning, error_table

MAX_MOVES = 3  # of one transaction, before anything of it was done
# Until a client looks whether the node that it has left is back: else a node that was once down
# would be without clients, whatever befalls it next.
RETURN_S = 2.0
CONNECT_FAILED = "CONNECT-FAILED"
CONNECTION_LOST = "CONNECTION-LOST"
BAD_ANSWER = "BAD-ANSWER"
_OWN_REASONS = {
    CONNECT_FAILED: "the node could not be dialed",
    CONNECTION_LOST: "the connection ended before the answer",
    BAD_ANSWER: "the node's answer could not be read",
}
# The client sends nothing before it is connected.
ERRORS: dict[str, ErrorMeaning] = error_table(
    codes.REASONS | _OWN_REASONS, codes.DEFINITE | {CONNECT_FAILED}
)

Stored = int | tuple[int, ...]
T = TypeVar("T", bound=ReplyBody)
R = TypeVar("R")
ONE_SHOT = "one-shot"  # the kind of a transaction that is a single request
_value: msgspec.msgpack.Decoder[Stored] = msgspec.msgpack.Decoder(Stored)
KEY_BYTES = 8
# A padded value: a byte that no msgpack begins with, the length of the value, the value, zeros.
_PADDED = b"\xc1"
_LENGTH_BYTES = 4
# Puts that were sent and are not waited for; beyond it the next one waits for its answer, so that a
# transaction that is too large hears it, and its connection's queue does not run over.
UNANSWERED_BYTES = 64 * 1024


# Dials another node than the one with that name, the first that can be reached; its name comes with
# it. Raises ``StoreError``.
Elsewhere = Callable[[str], Awaitable[tuple[str, Connection]]]
# Dials one node. Raises ``StoreError``.
Dial = Callable[[], Awaitable[Connection]]
# The full name of the table that a key is in.
TableOf = Callable[[int], str]


def one_table(key: int) -> str:
    """Where the cluster has no distribution zones: the one table, which has no name."""
    return ""


def encode_key(key: int) -> bytes:
    """The store's form of ``key``, an int64."""
    return key.to_bytes(KEY_BYTES, "big", signed=True)


@attrs.frozen(kw_only=True)
class OneShotDone:
    """The result of a one-shot that committed: the values of its gets, in order."""

    values: tuple[Stored | None, ...]
    commit_ts: int


async def connect(
    network: Network,
    host: str,
    port: int,
    limit_s: float,
    source: str = "",
    *,
    padding_bytes: int = 0,
    table_of: TableOf = one_table,
    node: str = "",
    elsewhere: Elsewhere | None = None,
) -> ReferenceClient:
    """Dial a node's client port, from ``source`` where it is given. Values are written with up to
    ``padding_bytes`` beside them. ``elsewhere``: where to go on once ``node`` stops in order or is
    gone. Raises ``StoreError``.
    """
    home = partial(dial, network, host, port, limit_s, source)
    return ReferenceClient(
        await home(), padding_bytes, table_of, node=node, elsewhere=elsewhere, home=home
    )


async def dial(network: Network, host: str, port: int, limit_s: float, source: str) -> Connection:
    """A connection to a node's client port. Raises ``StoreError``."""
    try:
        return await network.dial(host, port, limit_s, source)
    except ConnectionLost as error:
        raise StoreError(CONNECT_FAILED, str(error)) from error


class ReferenceClient:
    """One connection. A cancelled call leaves an answer on its way, so it ends the connection: the
    next ``begin`` raises for that. A node that stops in order says so, and one that was killed
    leaves a connection that is gone: the client goes on at another one, with the next transaction,
    or with one of which nothing was sent yet or that was refused whole. A transaction that was
    open at the node ends with it, and is tried nowhere else. Between two transactions the client
    returns to its own node once that is back.
    """

    def __init__(
        self,
        connection: Connection,
        padding_bytes: int = 0,
        table_of: TableOf = one_table,
        *,
        node: str = "",
        elsewhere: Elsewhere | None = None,
        home: Dial | None = None,
    ) -> None:
        """``home`` dials ``node``, its own one."""
        self._connection, self.padding_bytes = connection, padding_bytes
        self._node, self._own, self._elsewhere, self._home = node, node, elsewhere, home
        self._return: asyncio.Task[None] | None = None  # dials its own node until that is back
        self._back: Connection | None = None  # to its own node, for the next transaction
        self._away: StoreError | None = None  # the node stops, as it has said, or is gone
        self._unsent = False  # the first request of a transaction: its connection was gone
        self._seen_ts = self._after = 0  # the last timestamp of a commit; and that before a move
        self.table_of = table_of
        self._next_id = 0
        self._unanswered_bytes = 0
        self._broken: str | None = None

    @property
    def node(self) -> str:
        """The node that the next transaction begins at; empty where it was not told."""
        return self._node if self._back is None else self._own

    @property
    def away(self) -> bool:
        """Whether the node stops or is gone: a transaction that was open there is over."""
        return self._away is not None

    def committed(self, ts: int) -> None:
        """A transaction has committed at ``ts``: no later one goes back behind it."""
        self._seen_ts = max(self._seen_ts, ts)

    async def begin(self, kind: str, deadline_s: float) -> ReferenceTx | OneShotTx:
        """Open a transaction. The request for a read-write transaction travels with its first step,
        which raises the failure of either: no promise depends on when the transaction begins, and
        it needs a round trip less.
        """
        await self.leave()
        if self._broken is not None:
            raise StoreError(CONNECTION_LOST, self._broken)
        if self._back is not None:
            self._connection.close()
            self._go_on(self._own, self._back)
        if kind == READ_WRITE:
            return ReferenceTx(self, deadline_s)
        if kind == ONE_SHOT:
            return OneShotTx(self, deadline_s)
        tx = ReferenceTx(self, None, writes=False)

        async def begun() -> Started:
            return await self.call(Begin(kind, _left_ms(deadline_s), self._after), Started)

        tx.server_txn = (await self._where_it_begins(begun)).txn
        return tx

    async def one_shot(
        self, steps: Sequence[tuple[int, Stored | None]], deadline_s: float
    ) -> OneShotDone:
        """A whole read-write transaction in one round trip: (key, value) puts, (key, ``None``)
        gets. Raises ``StoreError``: its phase is that of a commit.
        """
        bodies = tuple(
            (encode_key(k), None if v is None else encode_value(v, self.padding_bytes))
            for k, v in steps
        )
        tables = () if self.table_of is one_table else tuple(self.table_of(key) for key, _ in steps)

        async def asked() -> OneShotReply:
            return await self.call(OneShot(bodies, _left_ms(deadline_s), tables), OneShotReply)

        done = await self._where_it_begins(asked)
        self.committed(done.ts)
        gets = [key for key, value in steps if value is None]
        values = tuple(_decode(k, data) for k, data in zip(gets, done.values, strict=True))
        return OneShotDone(values=values, commit_ts=done.ts)

    async def close(self) -> None:
        """Drop the connection; its open transaction is rolled back."""
        self._broken = self._broken or "closed by the client"
        self._connection.close()
        self._end_return()

    async def call(self, body: ClientBody, expected: type[T]) -> T:
        """The answer to ``body``. Raises ``StoreError`` for an error of the store or of the
        connection.
        """
        asked = self._ask(body)
        return _told(await self._answer(asked, body, expected))

    async def call_first(
        self, deadline_s: float, body: ClientBody, expected: type[T]
    ) -> tuple[Started, T | Failed]:
        """The answers to the begin of a read-write transaction and, in it, to ``body``, which leave
        together. Raises ``StoreError`` as ``call`` does, except for a failure of ``body``, which is
        returned.
        """

        async def asked() -> tuple[Started, T | Failed]:
            begin = Begin(READ_WRITE, _left_ms(deadline_s), self._after)
            first, second = self._ask(begin), self._ask(body, behind=True)
            begun = await self._answer(first, begin, Started)
            answer = await self._answer(second, body, expected)
            return _told(begun), answer

        return await self._where_it_begins(asked)

    async def _where_it_begins(self, ask: Callable[[], Awaitable[R]]) -> R:
        """The answer to the first request of a transaction, by the first node that it reaches and
        that does not refuse it because it stops. Such a refusal says that nothing was done, and a
        connection that was gone before the request has taken nothing of it along.
        """
        for _ in range(MAX_MOVES):
            self._unsent = False
            try:
                return await ask()
            except StoreError as error:
                if error.code != codes.NODE_STOPPING and not self._unsent:
                    raise
                await self._move(error)
        return await ask()

    async def leave(self) -> None:
        """Go on at another node, where this one stops or is gone: the next transaction is known to
        begin there. Raises ``StoreError``.
        """
        if self._away is not None:
            await self._move(self._away)

    async def _move(self, why: StoreError) -> None:
        """Go on at another node. Raises ``why`` where the client was given none."""
        if self._elsewhere is None:
            raise why
        self._connection.close()
        self._broken = "it is connected to no node"
        if self._back is not None:
            self._go_on(self._own, self._back)
        else:
            self._go_on(*await self._elsewhere(self._node))

    def _go_on(self, node: str, connection: Connection) -> None:
        """Use ``connection`` to ``node`` from now on; return from there, unless it is its own."""
        if connection is self._back:
            self._back = None
        self._end_return()
        self._node, self._connection = node, connection
        self._broken = self._away = None
        self._unanswered_bytes = 0
        self._after = self._seen_ts
        if node != self._own and self._home is not None:
            self._return = asyncio.get_running_loop().create_task(self._come_back(self._home))

    async def _come_back(self, home: Dial) -> None:
        while self._back is None:
            await asyncio.sleep(RETURN_S)
            with contextlib.suppress(StoreError):
                self._back = await home()

    def _end_return(self) -> None:
        if self._return is not None:
            self._return.cancel()
            self._return = None
        if self._back is not None:
            self._back.close()
            self._back = None

    async def put(self, body: Put) -> None:
        """Send ``body`` without waiting for an answer: the next request is answered with its
        failure. Raises ``StoreError`` as ``call`` does.
        """
        self._unanswered_bytes += len(body.value)
        if self._unanswered_bytes > UNANSWERED_BYTES:
            await self.call(body, Ok)
        elif self._broken is not None:
            raise StoreError(CONNECTION_LOST, self._broken)
        else:
            try:
                self._send(ClientRequest(NO_ANSWER, body))
            except ConnectionLost as error:
                self._fail(CONNECTION_LOST, str(error), error)

    def _ask(self, body: ClientBody, *, behind: bool = False) -> int:
        """Send ``body``, ``behind`` another request or not; return the request's number."""
        if self._broken is not None and not behind:
            raise StoreError(CONNECTION_LOST, self._broken)
        self._next_id += 1
        # Until the answer is read: a call that is cancelled leaves it in the stream.
        self._broken = "a call did not come to its end"
        # Where the connection is gone, the last that the node said is there to be read yet.
        try:
            self._send(ClientRequest(self._next_id, body))
        except ConnectionLost:
            self._unsent |= not behind
        return self._next_id

    def _send(self, request: ClientRequest) -> None:
        try:
            self._connection.send(encode(request))
        except (
            FrameError
        ) as error:  # it was not sent, and the open transaction ends with the connection
            self._fail(codes.TOO_LARGE, str(error), error)

    async def _answer(self, number: int, body: ClientBody, expected: type[T]) -> T | Failed:
        """The answer to request ``number``, which was ``body``."""
        try:
            reply = decode(Codec.reply, await self._connection.recv())
        except ConnectionLost as error:
            self._fail(CONNECTION_LOST, str(error), error)
        except BadMessage as error:
            self._fail(BAD_ANSWER, str(error), error)
        answer = reply.body
        if reply.id == NO_ANSWER and isinstance(answer, Failed):
            # Said by the node itself: it has done nothing that was asked since.
            self._away = StoreError(answer.code, answer.message)
            self._broken = answer.message
            self._connection.close()
            raise self._away
        # Answers come in the order of requests: another number means a stream out of step.
        if reply.id != number or not isinstance(answer, expected | Failed):
            self._fail(BAD_ANSWER, f"asked {number} {body!r}, got {reply!r}", None)
        # Of two requests that left together only the second answer completes the call.
        if number == self._next_id:
            self._broken = None
            # An answer comes behind all puts before its request: none is under way any more.
            self._unanswered_bytes = 0
        return answer

    def _fail(self, code: str, text: str, cause: Exception | None) -> NoReturn:
        self._broken = text
        self._connection.close()
        error = StoreError(code, text)
        if code == CONNECTION_LOST:
            self._away = error
        raise error from cause


class ReferenceTx:
    """A transaction; ``server_txn``, its coordinator's id of it, is there from the first step."""

    def __init__(
        self, client: ReferenceClient, unasked_deadline_s: float | None, *, writes: bool = True
    ) -> None:
        """``unasked_deadline_s``: the deadline of a transaction that the store was not asked for
        yet; ``writes``: whether it may write; if not, its writes are refused.
        """
        self._client, self._unasked_deadline_s = client, unasked_deadline_s
        self._writes = writes
        self.server_txn: str | None = None

    async def read(self, key: int) -> Stored | None:
        """The value of ``key``: an integer, a list, or ``None``."""
        return await self._get(key, for_update=False)

    async def write(self, key: int, value: int) -> None:
        """Set ``key``. The put leaves together with the next step, which raises its failure: a
        write is kept until the commit, so no promise depends on when the store receives it.
        """
        await self._put(key, value)

    async def append(self, key: int, element: int) -> None:
        """Read the list, put it back with ``element`` at its end."""
        # Of two appends that both had shared locks, one could only die.
        held = await self._get(key, for_update=True)
        if isinstance(held, int):
            raise StoreError(BAD_ANSWER, f"key {key} holds {held}, not a list")
        await self._put(key, (*(held or ()), element))

    async def commit(self) -> Committed:
        """Durable on a quorum and applied by the primary on return."""
        ts = (await self._call(Commit(), CommittedReply)).ts
        self._client.committed(ts)
        return Committed(commit_ts=ts)

    async def rollback(self) -> None:
        """Give it up. The client is ready for the next one then, at another node where this one
        stops or is gone: the transaction is over with it.
        """
        if self._client.away:
            await self._client.leave()
        elif self._unasked_deadline_s is None:  # else the store never heard of the transaction
            await self._client.call(Rollback(), Ok)

    async def _get(self, key: int, *, for_update: bool) -> Stored | None:
        body = Get(encode_key(key), for_update, self._client.table_of(key))
        return _decode(key, (await self._call(body, Value)).value)

    async def _put(self, key: int, value: Stored) -> None:
        data = encode_value(value, self._client.padding_bytes)
        body = Put(encode_key(key), data, self._client.table_of(key))
        if self._writes and self._unasked_deadline_s is None:
            await self._client.put(body)
        else:
            await self._call(body, Ok)

    async def _call(self, body: ClientBody, expected: type[T]) -> T:
        deadline_s, self._unasked_deadline_s = self._unasked_deadline_s, None
        if deadline_s is None:
            return await self._client.call(body, expected)
        begun, answer = await self._client.call_first(deadline_s, body, expected)
        self.server_txn = begun.txn
        return _told(answer)


class OneShotTx:
    """A transaction of one request: either its reads, of all keys together, or its writes, which
    are sent whole by ``commit``.
    """

    server_txn: str | None = None

    def __init__(self, client: ReferenceClient, deadline_s: float) -> None:
        self._client, self._deadline_s = client, deadline_s
        self._puts: list[tuple[int, Stored | None]] = []
        self._read_ts: int | None = None

    async def read(self, key: int) -> Stored | None:
        """The value of ``key``, the only one that is read."""
        (value,) = await self.read_together((key,))
        return value

    async def read_together(self, keys: tuple[int, ...]) -> tuple[Stored | None, ...]:
        """The values of ``keys`` at one moment. Raises ``StoreError``."""
        if self._puts or self._read_ts is not None:
            raise HarnessBug("a one-shot transaction reads once, or writes")
        done = await self._client.one_shot([(key, None) for key in keys], self._deadline_s)
        self._read_ts = done.commit_ts
        return done.values

    async def write(self, key: int, value: int) -> None:
        """Put ``key`` with the commit."""
        if self._read_ts is not None:
            raise HarnessBug("a one-shot transaction reads once, or writes")
        self._puts.append((key, value))

    async def append(self, key: int, element: int) -> None:
        """Not offered: an append reads before it writes."""
        raise HarnessBug(f"a one-shot transaction can't append {element} to key {key}")

    async def commit(self) -> Committed:
        """Send the writes, which come true together or not at all. Raises ``StoreError``."""
        if not self._puts:
            return Committed(commit_ts=self._read_ts)
        return Committed(
            commit_ts=(await self._client.one_shot(self._puts, self._deadline_s)).commit_ts
        )

    async def rollback(self) -> None:
        """Forget the writes: none was sent. Where the node stops or is gone, the client goes on at
        another one.
        """
        self._puts.clear()
        await self._client.leave()


def _left_ms(deadline_s: float) -> int:
    return max(1, int((deadline_s - asyncio.get_running_loop().time()) * 1000))


def _told(answer: T | Failed) -> T:
    if isinstance(answer, Failed):
        raise StoreError(answer.code, answer.message)
    return answer


def encode_value(value: Stored, padding_bytes: int = 0) -> bytes:
    """The store's form of ``value`` with up to ``padding_bytes`` zeros, how many follows from it:
    equal values are equal bytes.
    """
    data = msgspec.msgpack.encode(value)
    if not padding_bytes:
        return data
    zeros = zlib.crc32(data) % (padding_bytes + 1)
    return _PADDED + len(data).to_bytes(_LENGTH_BYTES, "big") + data + bytes(zeros)


def _unpadded(data: bytes) -> bytes:
    if not data.startswith(_PADDED):
        return data
    begin = len(_PADDED) + _LENGTH_BYTES
    return data[begin : begin + int.from_bytes(data[len(_PADDED) : begin], "big")]


def _decode(key: int, data: bytes | None) -> Stored | None:
    if data is None:
        return None
    try:
        return _value.decode(_unpadded(data))
    except msgspec.DecodeError as error:
        raise StoreError(BAD_ANSWER, f"key {key} holds {data[:64]!r}: {error}") from error
