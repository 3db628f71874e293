"""What the primary of a partition does: locks, reads, commits, under its lease and epoch.

A primary is *open* from the moment its takeover is applied until it stops leading or another is
granted. Open, it keeps locks and open transactions; it acknowledges, reads and grants only
while the lease of its node holds. Losing the lease for a moment loses nothing: nobody else was
granted meanwhile, or this primary would be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from clusters.reference.node.bugs import planted
from clusters.reference.node.placement.lease_table import LeaseTable
from clusters.reference.node.runtime.clock import Hlc
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import Command
from clusters.reference.node.tx.execute import execute
from clusters.reference.node.tx.group_commit import LazyProposals
from clusters.reference.node.tx.limits import (
    INTERNAL_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    NETWORK_ALLOWANCE_S,
)
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.tx.open_transactions import OpenTransaction, OpenTransactions
from clusters.reference.node.tx.partition import Partition
from clusters.reference.node.tx.promises import Promises
from clusters.reference.node.tx.read_at import read_at
from clusters.reference.node.tx.resolve import resolve
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import (
    Ack,
    CommitReply,
    CommitTx,
    Execute,
    Failed,
    Finish,
    Lock,
    LockReply,
    LockToken,
    PeerAnswer,
    Prepare,
    PrepareReply,
    PrimaryBody,
    ReadAt,
    Resolve,
    TxnId,
    Validate,
)

T = TypeVar("T", CommitReply, PrepareReply)
Propose = Callable[[Command, float], Awaitable[object]]


class Group(Protocol):
    """The raft group of the partition."""

    @property
    def serving(self) -> bool:
        """This member leads and has applied everything of earlier terms."""


class Primary:
    """The primary role of one partition on one node, whether it has it now or not."""

    def __init__(
        self,
        *,
        number: int,
        partition: Partition,
        group: Group,
        propose: Propose,
        clock: Hlc,
        leases: LeaseTable,
    ) -> None:
        """``propose`` returns what ``Partition.apply`` returned, or ``Failed``."""
        self.number, self.partition, self._group = number, partition, group
        self._propose, self.clock, self._leases, self.epoch = propose, clock, leases, 0
        self.lazy = LazyProposals()
        self.last_closed_epoch = 0  # the last one that was open here: it never opens again
        self.promises = Promises(clock, leases)
        self.locks = LockTable()
        self.transactions = OpenTransactions()
        self.on_commit: Callable[[TxnId], None] = lambda txn: None
        self.counters = dict.fromkeys(
            ("commits", "reads", "snapshots", "died", "lock-timeouts", "expired", "recovered"), 0
        )
        partition.on_end = self._ended
        partition.on_leadership_lost = self.close

    @property
    def open(self) -> bool:
        """Whether this node is the primary, lease or not."""
        grant = self._leases.mine(self.number)
        granted = grant is not None and grant.epoch == self.epoch
        return granted and self.epoch > 0 and self._group.serving

    @property
    def serving(self) -> bool:
        """Whether it may acknowledge now."""
        return self.open and self._leases.holds()

    async def propose(self, command: Command, limit_s: float) -> object:
        """What ``Partition.apply`` returned, or ``Failed``. Who waits for company goes along."""
        self.lazy.leave()
        return await self._propose(command, limit_s)

    async def take_over(self, epoch: int) -> bool:
        """Open under ``epoch``, which was granted; whether it worked."""
        floor = max(self.clock.now(), self.partition.max_ts)
        done = await self.propose(commands.Takeover(epoch, floor), INTERNAL_TIMEOUT_S)
        if not isinstance(done, Ack) or not self._group.serving:
            self.last_closed_epoch = epoch  # it may have been applied: it can't be opened again
            return False
        self.clock.observe(self.partition.max_ts)
        self.epoch = epoch
        self.promises.opened(self.partition.written_ts)
        self.locks = LockTable()
        self.transactions.clear()
        if not planted("locks-not-rebuilt"):
            for prepared in self.partition.prepared.values():
                self._restore(prepared)
        return True

    def close(self) -> None:
        """Be primary no more. Who waits here is told, and whoever holds something lost it."""
        if self.epoch:
            self.last_closed_epoch, self.epoch = self.epoch, 0
            self.locks = LockTable()
            self.transactions.clear()

    def try_fast_path(self, body: PrimaryBody) -> PeerAnswer | None:
        """The answer to a request for a lock that is free, or why it is refused; ``None``: what
        ``serve`` answers takes time. Locks are most of what is asked, and this needs no task.
        """
        if not self.serving:
            return self.refusal()
        if not isinstance(body, Lock):
            return None
        tx = self.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        if body.exclusive or not planted("read-lock-skipped"):
            answer = self._ask(tx, body.key, exclusive=body.exclusive)
            if answer is not Answer.GRANTED:
                return None if answer is Answer.WAITING else self._died(body.key)
        return self._locked(tx, body)

    async def serve(self, body: PrimaryBody) -> PeerAnswer:
        """The answer to one request."""
        if not self.serving:
            return self.refusal()
        match body:
            case Lock():
                return await self._lock(body)
            case Execute():
                return await execute(self, body)
            case Validate():
                return await self._validate(body)
            case Prepare():
                return await self._prepare(body)
            case CommitTx():
                return await self._commit_step(body)
            case Finish():
                return await self._finish(body)
            case Resolve():
                return await resolve(self, body)
            case ReadAt():
                return await read_at(self, body)

    # -- steps of a transaction

    async def _lock(self, body: Lock) -> LockReply | Failed:
        tx = self.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        failed = None
        if body.exclusive or not planted("read-lock-skipped"):
            failed = await self.acquire(tx, body.key, exclusive=body.exclusive)
        return self._locked(tx, body) if failed is None else failed

    def _locked(self, tx: OpenTransaction, body: Lock) -> LockReply:
        self.counters["reads"] += 1
        value = self.partition.versions.newest(body.key).value if body.read else None
        return LockReply(LockToken(self.epoch, tx.number), value)

    async def _validate(self, body: Validate) -> Ack | Failed:
        tx = self.open_or_resume(body.txn, body.token, 0)
        if isinstance(tx, Failed):
            return tx
        if not await self.promised(body.ts) or tx.over:
            return Failed(codes.LOST, f"{body.txn}: the lease ended before its reads were valid")
        self.drop(body.txn)
        return Ack()

    async def _prepare(self, body: Prepare) -> PrepareReply | Failed:
        tx = self.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        failed = await self._lock_writes(tx, body.writes, body.limit_ms / 1000)
        if failed is not None:
            return failed
        written = {key for key, _ in body.writes}
        reads = tuple(key for key in self.locks.held(body.txn) if key not in written)
        tx.propose(self.clock.now())
        if body.settled:
            self.locks.settle(body.txn)
        command = commands.Prepare(self.epoch, body.txn, tx.ts, reads, body.writes, body.home)
        return self._interpret_outcome(
            body.txn, await self.propose(command, body.limit_ms / 1000), PrepareReply
        )

    async def _commit_step(self, body: CommitTx) -> CommitReply | Failed:
        tx = self.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        failed = await self._lock_writes(tx, body.writes, body.limit_ms / 1000)
        if failed is not None:
            return failed
        return await self.commit(tx, body.ts, body.writes, body.participants)

    async def _lock_writes(
        self, tx: OpenTransaction, writes: commands.Writes, limit_s: float
    ) -> Failed | None:
        """Get every exclusive lock that ``tx`` lacks, well within ``limit_s``, or end it."""
        give_up_s = _now_s() + min(LOCK_TIMEOUT_S, limit_s - NETWORK_ALLOWANCE_S)
        for key, _ in writes:
            failed = await self.acquire(tx, key, exclusive=True, limit_s=give_up_s - _now_s())
            if failed is not None:
                self.drop(tx.txn)
                return failed
        return None

    async def commit(
        self, tx: OpenTransaction, ts: int, writes: commands.Writes, participants: tuple[int, ...]
    ) -> CommitReply | Failed:
        """One command, and the acknowledgement if the lease still holds once it is applied."""
        txn, limit_s = tx.txn, tx.deadline_s - _now_s()
        if limit_s <= 0:
            self.drop(txn)
            return Failed(codes.EXPIRED, f"{txn} is over its deadline")
        self.clock.observe(ts)
        tx.propose(self.clock.now())
        self.locks.settle(txn)
        command = commands.Commit(self.epoch, txn, tx.ts, writes, participants)
        if planted("released-before-durable"):
            self.drop(txn)
        done = self._interpret_outcome(txn, await self.propose(command, limit_s), CommitReply)
        if isinstance(done, CommitReply):
            self.counters["commits"] += 1
            if participants:
                self.on_commit(txn)
            if not self.serving:
                return Failed(codes.LEASE_LOST, f"{txn}: the lease ended before the answer")
        return done

    async def _finish(self, body: Finish) -> Ack | Failed:
        """What is prepared, or on its way to the log, ends by command; another transaction has only
        locks to lose.
        """
        tx = self.transactions.get(body.txn)
        proposed = tx is not None and tx.proposed
        if proposed or body.txn in self.partition.prepared:
            if tx is not None:
                self.locks.settle(body.txn)  # it is decided: it waits for nobody, wherever
            self.clock.observe(body.ts)
            command = commands.Finish(self.epoch, body.txn, body.ts)
            if tx is None or not (tx.awaited or self.locks.waited_for(body.txn)):
                await self.lazy.join()
            done = await self._propose(command, INTERNAL_TIMEOUT_S)
            return done if isinstance(done, Ack | Failed) else self.refusal()
        self.drop(body.txn)
        return Ack()

    async def promised(self, ts: int) -> bool:
        """From now on no version here is at or below ``ts``, whoever is primary."""
        return await self.promises.made(ts) and self.serving

    # -- open transactions and locks

    def open_or_resume(
        self, txn: TxnId, token: LockToken, limit_ms: int
    ) -> OpenTransaction | Failed:
        """``txn`` as it is open here, opened now where it is not."""
        tx = self.transactions.get(txn)
        shown = 0 if planted("lost-hold-ignored") else token.number
        if shown and (tx is None or tx.proposed or token != LockToken(self.epoch, tx.number)):
            return Failed(codes.LOST, f"{txn} has lost its locks in partition {self.number}")
        if tx is None:
            tx = self.transactions.add(txn, limit_ms / 1000)
            if tx is None:
                return Failed(codes.OVERLOADED, f"partition {self.number}: too many transactions")
        return tx

    async def acquire(
        self, tx: OpenTransaction, key: bytes, *, exclusive: bool, limit_s: float = LOCK_TIMEOUT_S
    ) -> Failed | None:
        """Get the lock within ``limit_s``, or why not."""
        answer, request = self._ask(tx, key, exclusive=exclusive), tx.asked
        if answer is Answer.WAITING:
            self.lazy.leave()
            granted = await tx.wait(min(limit_s, tx.deadline_s - _now_s()))
            if tx.over or not self.serving or tx.asked != request:
                return Failed(codes.LOST, f"{tx.txn} has lost its locks while it waited")
            if not granted:
                self._grant(self.locks.withdraw(tx.txn))
                self.counters["lock-timeouts"] += 1
                if planted("lock-timeout-ignored"):
                    return None
                return Failed(codes.LOCK_TIMEOUT, f"key {key.hex()} is locked for too long")
        return self._died(key) if answer is Answer.DIED else None

    def _ask(self, tx: OpenTransaction, key: bytes, *, exclusive: bool) -> Answer:
        """Ask for the lock. Of several requests of one transaction the last counts: it waits for
        one key at a time.
        """
        tx.ask()
        self._grant(self.locks.withdraw(tx.txn))
        answer = self.locks.acquire(tx.txn, key, exclusive=exclusive)
        if answer is Answer.DIED and planted("conflict-ignored"):
            return Answer.GRANTED
        return answer

    def _died(self, key: bytes) -> Failed:
        self.counters["died"] += 1
        return Failed(codes.CONFLICT, f"key {key.hex()} is locked by an older transaction")

    def _grant(self, txns: list[TxnId]) -> None:
        for txn in txns:
            tx = self.transactions.get(txn)
            if tx is not None:
                tx.granted()

    def drop(self, txn: TxnId) -> None:
        """``txn`` is over here: its locks go to those who wait."""
        tx = self.transactions.remove(txn)
        if tx is not None:
            tx.end()
            self._grant(self.locks.release(txn))

    def _ended(self, txn: TxnId) -> None:
        """The log says that ``txn`` is over."""
        if self.epoch:
            self.drop(txn)

    def _interpret_outcome(self, txn: TxnId, done: object, wanted: type[T]) -> T | Failed:
        """What a proposal of ``txn`` came to. What was never in the log is over; what may be in it
        stays, until it is applied or this primary is closed.
        """
        if isinstance(done, wanted):
            return done
        failed = done if isinstance(done, Failed) else self.refusal()
        if failed.code in (codes.NOT_LEADER, codes.OVERLOADED, codes.TOO_LARGE):
            self.drop(txn)
        elif planted("doubt-called-abort"):
            return Failed(codes.ABORTED, failed.message)
        return failed

    def refusal(self) -> Failed:
        """Why it may not act now."""
        why = "its lease has run out" if self.open else "another node, or nobody, is"
        return Failed(codes.NOT_PRIMARY, f"not primary of partition {self.number}: {why}")

    def _restore(self, prepared: commands.Prepare) -> None:
        tx = self.transactions.add(prepared.txn, 0.0, forced=True)
        if tx is not None:
            tx.found(prepared.ts)
        for key in prepared.reads:
            self.locks.restore(prepared.txn, key, exclusive=False)
        for key, _ in prepared.writes:
            self.locks.restore(prepared.txn, key, exclusive=True)
        self.locks.settle(prepared.txn)

    # -- for whoever looks after it

    def sweep(self, coordinator_dead: Callable[[OpenTransaction], bool]) -> None:
        """Drop every transaction that has proposed nothing and is past its deadline, or whose
        coordinator is dead.
        """
        if planted("dead-coordinator-kept"):
            return
        now_s = _now_s()
        for tx in self.transactions.all():
            bound = tx.proposed and not planted("prepared-times-out")
            if not bound and (now_s > tx.deadline_s or coordinator_dead(tx)):
                self.counters["expired"] += 1
                self.drop(tx.txn)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
