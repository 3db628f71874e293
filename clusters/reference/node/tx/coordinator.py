"""Interactive transactions on the node that the client talks to: the coordinator.

Every get locks its key at the primary of its partition before it answers, exclusively where the
client announces a write of the key; so does a put of a key that was not read. Writes wait here
until the commit, which makes the locks of the read and written keys exclusive, together with its
own commands: a transaction that reads the keys that it writes asks every primary half as often.

* Keys of one partition: one command there.
* Several partitions, one of them written at least: the written one with the lowest number is
  *home*. All others prepare, those that were only read too, since a prepared lock outlives its
  primary. Then home commits with one command, which holds its own writes and is the outcome of the
  transaction; home's primary finishes the others. Until home has decided, any participant may
  abort there.
* Nothing written: every primary validates that the locks still hold, at one timestamp.

A commit is never sent twice: the client has to find out whether the first one happened.

A read-only transaction reads at one timestamp and takes no lock, so no writer waits for it. The
timestamp is the contacted node's clock at the beginning: one session never goes back. Each primary
refuses a timestamp that may lack commits that it acknowledged longer than ``STALENESS_S`` ago; that
promise rests on its monotonic clock, not on wall clocks that agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.runtime.concurrency import all_of
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.tx.limits import (
    ROUTING_TIMEOUT_S,
    Limits,
    Row,
    Step,
    TxError,
    answer_too_large,
    check_steps,
    error,
)
from clusters.reference.node.tx.partition_state_machine import SNAPSHOT_S
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import Routes, located
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    NO_TOKEN,
    Ack,
    CommitReply,
    CommitTx,
    Execute,
    ExecuteReply,
    Failed,
    Finish,
    Lock,
    LockReply,
    LockToken,
    PeerAnswer,
    Prepare,
    PrepareReply,
    ReadAt,
    TxnId,
    Validate,
    Version,
)


class TransactionIds:
    """Makes the ids of the transactions that this start of this node coordinates. The timestamp of
    an id is this node's clock at the beginning: the age of a read-write transaction, and what a
    read-only one reads at.
    """

    def __init__(self, origin: str, clock: Hlc) -> None:
        """``origin`` names this start of this node."""
        self._origin, self._clock = origin, clock
        self._made = 0

    def next(self) -> TxnId:
        """The id of a transaction that begins now."""
        self._made += 1
        return TxnId(self._clock.now(), self._origin, self._made)


class Transaction:
    """One open read-write transaction. After a ``TxError`` the only legal call is ``rollback``."""

    def __init__(
        self, *, txn: TxnId, limit_s: float, routes: Routes, primaries: PrimaryClient, clock: Hlc
    ) -> None:
        """``limit_s`` from now on the store may give it up."""
        self.txn = txn
        self._limits = Limits(txn, limit_s)
        self._routes, self._primaries, self._clock = routes, primaries, clock
        self._tokens: dict[int, LockToken] = {}
        self._reads: dict[Row, bytes | None] = {}
        self._writes: dict[Row, bytes] = {}
        self._locked: dict[Row, None] = {}  # exclusively

    async def get(self, key: bytes, *, table: str = "", for_update: bool = False) -> bytes | None:
        """The value as this transaction sees it: its own write, its earlier read, or the primary's
        value. ``for_update`` locks the key exclusively now: of two transactions that read and then
        write a key, one can only die, and the sooner it dies the less of its work is lost.
        """
        row = await self._located(table, key)
        self._limits.count_key(row)
        # Writes stay here until commit, so no primary could answer this.
        if row in self._writes and not planted("own-write-unseen"):
            reached("transaction reads its own write")
            return self._writes[row]
        # Its lock keeps the value as it was read: to ask again would only cost a round trip.
        if row not in self._reads:
            self._reads[row] = await self._lock(row, exclusive=for_update, read=True)
            if for_update:
                self._locked[row] = None
            self._limits.read(self._reads[row])
        return self._reads[row]

    async def put(self, key: bytes, value: bytes, *, table: str = "") -> None:
        """Keep the write; its key is locked now, at least against other writers."""
        row = await self._located(table, key)
        self._limits.count_key(row, value)
        # A key that was read has a lock; it is made exclusive when its write is prepared.
        if row not in self._locked and row not in self._reads:
            await self._lock(row, exclusive=True, read=False)
            self._locked[row] = None
        self._writes[row] = value

    async def commit(self) -> int:
        """Durable and visible on return, at the timestamp returned."""
        # Before anything is sent: a definite refusal instead of a doubtful one.
        self._limits.left_s()
        if not self._writes:
            return await self._validate()
        # Any partition that is written would do; the least, so that it follows from the writes.
        home = min(partition for partition, _ in self._writes)
        # Also those only read: their locks must hold until the outcome (strict two-phase locking).
        others = tuple(sorted(p for p in self._tokens if p != home))
        ts, generations = await self._prepare(home, others) if others else (0, ())
        limit_s = self._limits.left_s()
        command = CommitTx(
            partition=home,
            txn=self.txn,
            token=self._tokens[home],
            ts=ts,
            writes=self._writes_in(home),
            participants=others,
            limit_ms=self._limits.left_ms(),
            generations=generations,
        )
        # From here on home decides; only if it certainly did not is there anything to give up.
        tokens, self._tokens = self._tokens, {}
        # Never sent twice: the first may have committed and its answer been lost.
        answer = await self._primaries.ask(home, command, 0, limit_s)
        if planted("commit-retried") and not isinstance(answer, CommitReply):
            answer = await self._primaries.ask(home, command, ROUTING_TIMEOUT_S, limit_s)
        if isinstance(answer, CommitReply):
            return answer.ts
        failed = _failed(answer)
        if failed.code in codes.DEFINITE:
            reached("home certainly did not commit")
            # ``rollback`` may now tell the participants: home has decided against it, or never
            # will.
            self._tokens = tokens
        raise TxError(failed)

    def rollback(self) -> None:
        """Release every lock. A prepared participant is told too; where that message does not
        arrive, the participant asks home, where there is no outcome.
        """
        tokens, self._tokens = self._tokens, {}
        for partition in tokens:
            # Without waiting: a client that gives up is not held by nodes that don't answer.
            self._primaries.notify(partition, Finish(partition, self.txn, 0))

    async def _validate(self) -> int:
        """Validate at every primary. Nothing was written, so no failure here leaves any doubt."""
        # One timestamp for all partitions: it is the place of these reads in the order of commits.
        ts = self._clock.now()
        answers = await self._ask_all(
            Ack, (Validate(p, self.txn, token, ts) for p, token in self._tokens.items())
        )
        self._must(answers, Ack, "its reads could not be validated")
        # The primaries have released its locks: nothing is left to roll back.
        self._tokens.clear()
        return ts

    async def _prepare(self, home: int, others: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Prepare all but home; the timestamp below which the transaction can't commit, and the
        generation in which each is prepared.
        """
        limit_ms = self._limits.left_ms()
        # Where a lock is missing it may have to wait, and must die for an older one meanwhile.
        wanting = {row[0] for row in self._writes if row not in self._locked}
        bodies = (
            Prepare(
                partition=p,
                txn=self.txn,
                token=self._tokens[p],
                writes=self._writes_in(p),
                home=home,
                limit_ms=limit_ms,
                settled=wanting <= {p},
            )
            for p in others
        )
        answers = await self._ask_all(PrepareReply, bodies)
        if not planted("refusal-ignored"):
            self._must(answers, PrepareReply, "it could not be prepared everywhere")
        # Above every participant's, or a snapshot there could miss what it should see.
        prepared = [answer for answer in answers if isinstance(answer, PrepareReply)]
        # For each participant one, also where a planted bug goes on without its answer.
        told = [a.generation if isinstance(a, PrepareReply) else 0 for a in answers]
        generations = (*told, *(0,) * (len(others) - len(told)))
        return max((answer.ts for answer in prepared), default=0), generations

    async def _ask_all(
        self, wanted: type[object], bodies: Iterable[Validate | Prepare]
    ) -> list[PeerAnswer]:
        """The answers to all ``bodies``; or, once an answer is not ``wanted``, those so far: the
        rest is no longer waited for, and ``rollback`` ends their transactions at the other
        participants.
        """
        limit_s = self._limits.left_s()
        return await all_of(
            (self._primaries.ask(body.partition, body, 0, limit_s) for body in bodies),
            enough=lambda answer: not isinstance(answer, wanted),
        )

    def _must(self, answers: list[PeerAnswer], wanted: type[object], text: str) -> None:
        """Raise the error that the first failure means here: no outcome was asked for, so none will
        be.
        """
        for answer in answers:
            if not isinstance(answer, wanted):
                failed = _failed(answer)
                # Reports tell contention, and what can't serve, from failures by their codes.
                if failed.code in (*codes.CONFLICTS, *codes.UNAVAILABLE):
                    raise TxError(failed)
                reached("not prepared everywhere")
                raise error(codes.ABORTED, f"{text}: {failed.code}: {failed.message}")

    async def _located(self, table: str, key: bytes) -> Row:
        return await located(self._routes, table, key, self._limits.left_s())

    async def _lock(self, row: Row, *, exclusive: bool, read: bool) -> bytes | None:
        partition, key = row
        body = Lock(
            partition=partition,
            txn=self.txn,
            token=self._tokens.get(partition, NO_TOKEN),
            key=key,
            exclusive=exclusive,
            read=read,
            limit_ms=self._limits.left_ms(),
        )
        # Known from now on, answered or not: ``rollback`` must reach a primary that may hold the
        # lock.
        self._tokens.setdefault(partition, NO_TOKEN)
        timeout_s = min(ROUTING_TIMEOUT_S, self._limits.left_s())
        answer = await self._primaries.ask(partition, body, timeout_s)
        if not isinstance(answer, LockReply):
            raise TxError(_failed(answer))
        self._tokens[partition] = answer.token
        return answer.value

    def _writes_in(self, partition: int) -> tuple[tuple[bytes, bytes], ...]:
        writes = self._writes.items()
        return tuple((key, value) for (number, key), value in writes if number == partition)


async def one_shot(
    *,
    txn: TxnId,
    limit_s: float,
    steps: tuple[Step, ...],
    routes: Routes,
    primaries: PrimaryClient,
    clock: Hlc,
    tables: tuple[str, ...] = (),
) -> ExecuteReply:
    """A whole transaction: one request where all its keys are in one partition. ``tables``: that of
    each step; none where all are in the table without a name. Raises ``TxError``.
    """
    limits = Limits(txn, limit_s)
    check_steps(steps)
    tables = tables or ("",) * len(steps)
    if len(tables) != len(steps):
        text = f"expected a table for each of {len(steps)} steps (got {len(tables)})"
        raise error(codes.NO_TABLE, text)
    rows = []
    for (key, value), table in zip(steps, tables, strict=True):
        rows.append(await located(routes, table, key, limits.left_s()))
        limits.count_key(rows[-1], value)
    # A transaction without steps has no partition of its own.
    where = sorted({partition for partition, _ in rows}) or [0]
    if len(where) == 1:
        body = Execute(where[0], txn, steps, limits.left_ms())
        timeout_s = min(ROUTING_TIMEOUT_S, limits.left_s())
        reached("one-shot of one partition")
        answer = await primaries.ask(where[0], body, timeout_s, limits.left_s())
        if not isinstance(answer, ExecuteReply):
            raise TxError(_failed(answer))
        return answer
    reached("one-shot of several partitions")
    tx = Transaction(txn=txn, limit_s=limit_s, routes=routes, primaries=primaries, clock=clock)
    try:
        values = await _take_steps(tx, steps, tables)
        if (failed := answer_too_large(values)) is not None:
            raise TxError(failed)
        return ExecuteReply(values, await tx.commit())
    # Also when cancelled: its locks would hold others up until its deadline.
    except BaseException:
        tx.rollback()
        raise


async def _take_steps(
    tx: Transaction, steps: tuple[Step, ...], tables: tuple[str, ...]
) -> tuple[bytes | None, ...]:
    """All of a one-shot but its commit. If it fails, no outcome was asked for."""
    values: list[bytes | None] = []
    told = tuple(zip(steps, tables, strict=True))
    written = {(table, key) for (key, value), table in told if value is not None}
    try:
        for (key, value), table in told:
            if value is None:
                # All keys are known ahead: to read and upgrade later would only invite deadlocks.
                update = (table, key) in written
                values.append(await tx.get(key, table=table, for_update=update))
            else:
                await tx.put(key, value, table=table)
    except TxError as stopped:
        # In doubt is only a commit; before it nothing can have happened.
        if stopped.failed.code == codes.PEER_LOST:
            reached("one-shot broken off before its commit")
            raise error(codes.ABORTED, f"before its commit: {stopped}") from stopped
        raise
    return tuple(values)


def _failed(answer: PeerAnswer) -> Failed:
    return answer if isinstance(answer, Failed) else Failed(codes.LOST, f"answered {answer!r}")


MAX_OPEN_S = SNAPSHOT_S / 2  # versions are kept for twice as long


class ReadOnlyTransaction:
    """One open snapshot transaction at the timestamp ``txn.ts``."""

    def __init__(
        self, *, txn: TxnId, limit_s: float, routes: Routes, primaries: PrimaryClient
    ) -> None:
        self.txn = txn
        # Older ones would find their versions collected.
        self._limits = Limits(txn, min(limit_s, MAX_OPEN_S))
        self._routes, self._primaries = routes, primaries
        # Monotonic: primaries judge staleness by this age, since wall clocks need not agree.
        self._begun_s = asyncio.get_running_loop().time()
        self._reads: dict[Row, bytes | None] = {}

    async def get(self, key: bytes, *, table: str = "", for_update: bool = False) -> bytes | None:
        """The value at the snapshot's time; refused ``for_update``."""
        if for_update:
            raise error(codes.READ_ONLY, "a snapshot transaction does not write")
        row = await located(self._routes, table, key, self._limits.left_s())
        self._limits.count_key(row)
        if row not in self._reads:
            self._reads[row] = await self._read(row)
            self._limits.read(self._reads[row])
        return self._reads[row]

    async def put(self, key: bytes, value: bytes, *, table: str = "") -> None:
        """Refused."""
        raise error(codes.READ_ONLY, "a snapshot transaction does not write")

    async def commit(self) -> int:
        """Nothing is left to do; the timestamp."""
        self._limits.left_s()
        return self.txn.ts

    def rollback(self) -> None:
        """Nothing is held."""

    async def _read(self, row: Row) -> bytes | None:
        partition, key = row
        age_s = asyncio.get_running_loop().time() - self._begun_s
        body = ReadAt(
            partition=partition,
            key=key,
            ts=self.txn.ts,
            age_ms=int(age_s * 1000),
            limit_ms=self._limits.left_ms(),
        )
        timeout_s = min(ROUTING_TIMEOUT_S, self._limits.left_s())
        answer = await self._primaries.ask(partition, body, timeout_s)
        if not isinstance(answer, Version):
            raise TxError(
                answer if isinstance(answer, Failed) else Failed(codes.LOST, f"got {answer!r}")
            )
        return answer.value
