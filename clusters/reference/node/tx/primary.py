"""What the primary of a partition does: locks, reads, commits, under its lease and epoch.

A primary is *open* from the moment its takeover is applied until it stops leading or another is
granted. Open, it keeps locks and footings of transactions; it acknowledges, reads and grants only
while the lease of its node holds. Losing the lease for a moment loses nothing: nobody else was
granted meanwhile, or this primary would be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from clusters.reference.node.bugs import planted
from clusters.reference.node.placement.lease_table import Leases
from clusters.reference.node.runtime.clock import Hlc
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import Command
from clusters.reference.node.tx.execute import execute
from clusters.reference.node.tx.group_commit import Company
from clusters.reference.node.tx.limits import LOCK_WAIT_S, OWN_LIMIT_S, WAY_S
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.tx.open_transactions import Footing, Footings
from clusters.reference.node.tx.partition import Partition
from clusters.reference.node.tx.promises import Promises
from clusters.reference.node.tx.read_at import read_at
from clusters.reference.node.tx.resolve import resolve
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import (
    Committed,
    CommitTx,
    Execute,
    Failed,
    Fine,
    Finish,
    Hold,
    Lock,
    Locked,
    PeerAnswer,
    Prepare,
    Prepared,
    PrimaryBody,
    ReadAt,
    Resolve,
    TxnId,
    Validate,
)

T = TypeVar("T", Committed, Prepared)
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
        leases: Leases,
    ) -> None:
        """``propose`` returns what ``Partition.apply`` returned, or ``Failed``."""
        self.number, self.partition, self._group = number, partition, group
        self._propose, self.clock, self._leases, self.epoch = propose, clock, leases, 0
        self.company = Company()
        self.spent_epoch = 0  # the last one that was open here: it never opens again
        self.promises = Promises(clock, leases)
        self.locks = LockTable()
        self.footings = Footings()
        self.on_commit: Callable[[TxnId], None] = lambda txn: None
        self.counters = dict.fromkeys(
            ("commits", "reads", "snapshots", "died", "lock-timeouts", "expired", "recovered"), 0
        )
        partition.on_end = self._ended
        partition.on_lead_lost = self.close

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
        self.company.leave()
        return await self._propose(command, limit_s)

    async def take_over(self, epoch: int) -> bool:
        """Open under ``epoch``, which was granted; whether it worked."""
        floor = max(self.clock.now(), self.partition.max_ts)
        done = await self.propose(commands.Takeover(epoch, floor), OWN_LIMIT_S)
        if not isinstance(done, Fine) or not self._group.serving:
            self.spent_epoch = epoch  # it may have been applied: it can't be opened again
            return False
        self.clock.observe(self.partition.max_ts)
        self.epoch = epoch
        self.promises.opened(self.partition.written_ts)
        self.locks = LockTable()
        self.footings.clear()
        if not planted("locks-not-rebuilt"):
            for prepared in self.partition.prepared.values():
                self._restore(prepared)
        return True

    def close(self) -> None:
        """Be primary no more. Who waits here is told, and whoever holds something lost it."""
        if self.epoch:
            self.spent_epoch, self.epoch = self.epoch, 0
            self.locks = LockTable()
            self.footings.clear()

    def at_once(self, body: PrimaryBody) -> PeerAnswer | None:
        """The answer to a request for a lock that is free, or why it is refused; ``None``: what
        ``serve`` answers takes time. Locks are most of what is asked, and this needs no task.
        """
        if not self.serving:
            return self.refusal()
        if not isinstance(body, Lock):
            return None
        footing = self.stand(body.txn, body.hold, body.limit_ms)
        if isinstance(footing, Failed):
            return footing
        if body.exclusive or not planted("read-lock-skipped"):
            answer = self._ask(footing, body.key, exclusive=body.exclusive)
            if answer is not Answer.GRANTED:
                return None if answer is Answer.WAITING else self._died(body.key)
        return self._locked(footing, body)

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

    async def _lock(self, body: Lock) -> Locked | Failed:
        footing = self.stand(body.txn, body.hold, body.limit_ms)
        if isinstance(footing, Failed):
            return footing
        failed = None
        if body.exclusive or not planted("read-lock-skipped"):
            failed = await self.acquire(footing, body.key, exclusive=body.exclusive)
        return self._locked(footing, body) if failed is None else failed

    def _locked(self, footing: Footing, body: Lock) -> Locked:
        self.counters["reads"] += 1
        value = self.partition.versions.newest(body.key).value if body.read else None
        return Locked(Hold(self.epoch, footing.number), value)

    async def _validate(self, body: Validate) -> Fine | Failed:
        footing = self.stand(body.txn, body.hold, 0)
        if isinstance(footing, Failed):
            return footing
        if not await self.promised(body.ts) or footing.over:
            return Failed(codes.LOST, f"{body.txn}: the lease ended before its reads were valid")
        self.drop(body.txn)
        return Fine()

    async def _prepare(self, body: Prepare) -> Prepared | Failed:
        footing = self.stand(body.txn, body.hold, body.limit_ms)
        if isinstance(footing, Failed):
            return footing
        failed = await self._lock_writes(footing, body.writes, body.limit_ms / 1000)
        if failed is not None:
            return failed
        written = {key for key, _ in body.writes}
        reads = tuple(key for key in self.locks.held(body.txn) if key not in written)
        footing.propose(self.clock.now())
        if body.settled:
            self.locks.settle(body.txn)
        command = commands.Prepare(self.epoch, body.txn, footing.ts, reads, body.writes, body.home)
        return self._came_to(body.txn, await self.propose(command, body.limit_ms / 1000), Prepared)

    async def _commit_step(self, body: CommitTx) -> Committed | Failed:
        footing = self.stand(body.txn, body.hold, body.limit_ms)
        if isinstance(footing, Failed):
            return footing
        failed = await self._lock_writes(footing, body.writes, body.limit_ms / 1000)
        if failed is not None:
            return failed
        return await self.commit(footing, body.ts, body.writes, body.participants)

    async def _lock_writes(
        self, footing: Footing, writes: commands.Writes, limit_s: float
    ) -> Failed | None:
        """Get every exclusive lock that ``footing`` lacks, well within ``limit_s``, or end it."""
        give_up_s = _now_s() + min(LOCK_WAIT_S, limit_s - WAY_S)
        for key, _ in writes:
            failed = await self.acquire(footing, key, exclusive=True, limit_s=give_up_s - _now_s())
            if failed is not None:
                self.drop(footing.txn)
                return failed
        return None

    async def commit(
        self, footing: Footing, ts: int, writes: commands.Writes, participants: tuple[int, ...]
    ) -> Committed | Failed:
        """One command, and the acknowledgement if the lease still holds once it is applied."""
        txn, limit_s = footing.txn, footing.deadline_s - _now_s()
        if limit_s <= 0:
            self.drop(txn)
            return Failed(codes.EXPIRED, f"{txn} is over its deadline")
        self.clock.observe(ts)
        footing.propose(self.clock.now())
        self.locks.settle(txn)
        command = commands.Commit(self.epoch, txn, footing.ts, writes, participants)
        if planted("released-before-durable"):
            self.drop(txn)
        done = self._came_to(txn, await self.propose(command, limit_s), Committed)
        if isinstance(done, Committed):
            self.counters["commits"] += 1
            if participants:
                self.on_commit(txn)
            if not self.serving:
                return Failed(codes.LEASE_LOST, f"{txn}: the lease ended before the answer")
        return done

    async def _finish(self, body: Finish) -> Fine | Failed:
        """What is prepared, or on its way to the log, ends by command; another transaction has only
        locks to lose.
        """
        footing = self.footings.get(body.txn)
        proposed = footing is not None and footing.proposed
        if proposed or body.txn in self.partition.prepared:
            if footing is not None:
                self.locks.settle(body.txn)  # it is decided: it waits for nobody, wherever
            self.clock.observe(body.ts)
            command = commands.Finish(self.epoch, body.txn, body.ts)
            if footing is None or not (footing.awaited or self.locks.waited_for(body.txn)):
                await self.company.join()
            done = await self._propose(command, OWN_LIMIT_S)
            return done if isinstance(done, Fine | Failed) else self.refusal()
        self.drop(body.txn)
        return Fine()

    async def promised(self, ts: int) -> bool:
        """From now on no version here is at or below ``ts``, whoever is primary."""
        return await self.promises.made(ts) and self.serving

    # -- footings and locks

    def stand(self, txn: TxnId, hold: Hold, limit_ms: int) -> Footing | Failed:
        """The footing of ``txn`` here, a new one where it has none yet."""
        footing = self.footings.get(txn)
        shown = 0 if planted("lost-hold-ignored") else hold.number
        if shown and (
            footing is None or footing.proposed or hold != Hold(self.epoch, footing.number)
        ):
            return Failed(codes.LOST, f"{txn} has lost its locks in partition {self.number}")
        if footing is None:
            footing = self.footings.add(txn, limit_ms / 1000)
            if footing is None:
                return Failed(codes.OVERLOADED, f"partition {self.number}: too many transactions")
        return footing

    async def acquire(
        self, footing: Footing, key: bytes, *, exclusive: bool, limit_s: float = LOCK_WAIT_S
    ) -> Failed | None:
        """Get the lock within ``limit_s``, or why not."""
        answer, request = self._ask(footing, key, exclusive=exclusive), footing.asked
        if answer is Answer.WAITING:
            self.company.leave()
            granted = await footing.wait(min(limit_s, footing.deadline_s - _now_s()))
            if footing.over or not self.serving or footing.asked != request:
                return Failed(codes.LOST, f"{footing.txn} has lost its locks while it waited")
            if not granted:
                self._grant(self.locks.withdraw(footing.txn))
                self.counters["lock-timeouts"] += 1
                if planted("lock-timeout-ignored"):
                    return None
                return Failed(codes.LOCK_TIMEOUT, f"key {key.hex()} is locked for too long")
        return self._died(key) if answer is Answer.DIED else None

    def _ask(self, footing: Footing, key: bytes, *, exclusive: bool) -> Answer:
        """Ask for the lock. Of several requests of one transaction the last counts: it waits for
        one key at a time.
        """
        footing.ask()
        self._grant(self.locks.withdraw(footing.txn))
        answer = self.locks.acquire(footing.txn, key, exclusive=exclusive)
        if answer is Answer.DIED and planted("conflict-ignored"):
            return Answer.GRANTED
        return answer

    def _died(self, key: bytes) -> Failed:
        self.counters["died"] += 1
        return Failed(codes.CONFLICT, f"key {key.hex()} is locked by an older transaction")

    def _grant(self, txns: list[TxnId]) -> None:
        for txn in txns:
            footing = self.footings.get(txn)
            if footing is not None:
                footing.granted()

    def drop(self, txn: TxnId) -> None:
        """``txn`` is over here: its locks go to those who wait."""
        footing = self.footings.remove(txn)
        if footing is not None:
            footing.end()
            self._grant(self.locks.release(txn))

    def _ended(self, txn: TxnId) -> None:
        """The log says that ``txn`` is over."""
        if self.epoch:
            self.drop(txn)

    def _came_to(self, txn: TxnId, done: object, wanted: type[T]) -> T | Failed:
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
        footing = self.footings.add(prepared.txn, 0.0, forced=True)
        if footing is not None:
            footing.found(prepared.ts)
        for key in prepared.reads:
            self.locks.restore(prepared.txn, key, exclusive=False)
        for key, _ in prepared.writes:
            self.locks.restore(prepared.txn, key, exclusive=True)
        self.locks.settle(prepared.txn)

    # -- for whoever looks after it

    def sweep(self, silent: Callable[[Footing], bool]) -> None:
        """Drop who is over its deadline, or whose coordinator is ``silent``, and has proposed
        nothing.
        """
        if planted("dead-coordinator-kept"):
            return
        now_s = _now_s()
        for footing in self.footings.all():
            bound = footing.proposed and not planted("prepared-times-out")
            if not bound and (now_s > footing.deadline_s or silent(footing)):
                self.counters["expired"] += 1
                self.drop(footing.txn)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
