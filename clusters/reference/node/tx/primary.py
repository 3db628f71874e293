"""The work of the primary of a partition: locks, reads, commits, under its lease and epoch.

A primary is *open* from the moment its takeover is applied until it stops leading or another is
granted. Open, it keeps locks and open transactions; it acknowledges, reads and grants only while
the lease of its node holds. Losing the lease for a moment loses nothing: no other node was granted
meanwhile, or this primary would be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from clusters.reference.node import declarations, moments
from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import Command
from clusters.reference.node.tx.lazy_proposals import LazyProposals
from clusters.reference.node.tx.limits import (
    INTERNAL_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    NETWORK_ALLOWANCE_S,
    OUTCOME_TIMEOUT_S,
    answer_too_large,
)
from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.tx.open_transactions import OpenTransaction, OpenTransactions
from clusters.reference.node.tx.outcome_sender import OutcomeSender
from clusters.reference.node.tx.partition_state_machine import Partition, Replication
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
    PrimaryBody,
    ReadAt,
    Resolve,
    ResolveReply,
    TxnId,
    Validate,
    Version,
)

T = TypeVar("T", CommitReply, PrepareReply)

STALENESS_S = 1.5  # a snapshot that may lack commits acknowledged so long before it is refused
CEILING_WAIT_S = 1.0  # for the lease to be renewed: it is, four times
CEILING_POLL_S = 0.05


class Promises:
    """The promises of a primary about timestamps, so that read-only transactions need no locks."""

    def __init__(self, clock: Hlc, leases: LeaseTable) -> None:
        self._clock, self._leases = clock, leases
        self._found_ts, self._opened_s = 0, 0.0

    def opened(self, written_ts: int) -> None:
        """The primary has taken over; ``written_ts`` is the last version that it found."""
        self._found_ts, self._opened_s = written_ts, asyncio.get_running_loop().time()

    def fresh(self, at_s: float) -> int:
        """A timestamp above which nothing was acknowledged here before ``at_s``."""
        # Before this primary opened, its predecessor acknowledged: only the log tells how far.
        if at_s < self._opened_s:
            return self._found_ts
        return self._leases.clock_at(at_s)

    async def made(self, ts: int) -> bool:
        """Promise that from now on, as long as the lease holds, no version is written at or below
        ``ts``; whether that worked. A successor knows only the lease's ceiling, so ``ts`` must not
        be above it; it rises with each renewal.
        """
        # First: a commit that is numbered while this waits must be above ``ts``, too.
        self._clock.observe(ts)
        now_s = asyncio.get_running_loop().time
        give_up_s = now_s() + CEILING_WAIT_S
        # The ceiling rises only with a renewal, which has no event to wait for and comes soon.
        while ts > self._leases.ceiling and now_s() < give_up_s:
            reached("promise waits for the ceiling of the lease")
            await asyncio.sleep(CEILING_POLL_S)
        return ts <= self._leases.ceiling


class Primary:
    """The primary role of one partition on one node, whether the node has it now or not."""

    def __init__(
        self,
        *,
        number: int,
        partition: Partition,
        replication: Replication,
        outcomes: OutcomeSender,
        clock: Hlc,
        leases: LeaseTable,
        dropped: Callable[[int], bool] = lambda number: False,
        may_be_reset: Callable[[int], bool] = lambda number: False,
        resets_itself: Callable[[int], bool] = lambda number: False,
    ) -> None:
        """``outcomes`` sends the outcomes of transactions that committed here to the other
        participants. ``dropped``: see ``Routes``; ``may_be_reset``: whether a partition may be
        reset, by an operator in any mode; ``resets_itself``: whether it is highly available.
        """
        self._dropped = dropped
        self.number, self.partition, self.clock = number, partition, clock
        self._replication, self._outcomes, self._leases = replication, outcomes, leases
        self._may_be_reset, self._resets_itself = may_be_reset, resets_itself
        self.last_closed_epoch = 0  # it never opens again
        # While this node hands them over: what is open in one of them goes on, in any of them, and
        # nothing more begins.
        self.drained_with: tuple[Primary, ...] = ()
        self.promises = Promises(clock, leases)
        self.transactions = OpenTransactions(number)
        self.lazy = LazyProposals()
        self.counters = dict.fromkeys(
            ("commits", "reads", "snapshots", "died", "lock-timeouts", "expired", "recovered"), 0
        )

    @property
    def epoch(self) -> int:
        """The epoch under which it is open; 0 while it is closed."""
        return self.transactions.epoch

    @property
    def locks(self) -> LockTable:
        """The locks of the transactions that are open here."""
        return self.transactions.locks

    @property
    def open(self) -> bool:
        """Whether this node is the primary, whether its lease holds or not."""
        grant = self._leases.mine(self.number)
        # A grant of another epoch does not open it: the takeover of that epoch is not applied yet.
        granted = grant is not None and grant.epoch == self.epoch
        # Epochs begin at 1: 0 is a primary that is closed or was never opened.
        return granted and self.epoch > 0 and self._replication.serving

    @property
    def serving(self) -> bool:
        """Whether it may acknowledge now."""
        return self.open and self._leases.holds()

    @property
    def dropped(self) -> bool:
        """Whether the table of this partition was dropped, as far as this node knows."""
        return self._dropped(self.number)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open, and every participant has the outcomes of those that
        committed here.
        """
        return not len(self.transactions) and not self._outcomes.unsent

    @property
    def drained(self) -> bool:
        """Whether no transaction needs this partition, of a dropped table, any more: none is open,
        none prepared, and every participant has the outcome of each that committed here.
        """
        if not (self.serving and self.dropped) or self.transactions.all():
            return False
        partition = self.partition
        # An abort needs no row once there is no home that could commit.
        return not partition.prepared and not any(o.ts for o in partition.outcomes.rows.values())

    async def propose(self, command: Command, limit_s: float) -> object:
        """The result of ``Partition.apply``, or ``Failed``. Lazy proposals leave with it."""
        # First: the delayed ones then wake ahead of the host's
        # flush, and share its append and sync.
        self.lazy.flush()
        return await self._replication.propose(command, limit_s)

    async def take_over(self, epoch: int) -> bool:
        """Open under ``epoch``, which was granted; whether it worked."""
        # Above every version and every promise that this node knows of.
        floor = max(self.clock.now(), self.partition.max_ts)
        done = await self.propose(commands.Takeover(epoch, floor), INTERNAL_TIMEOUT_S)
        # Applied is not enough: leadership may have gone meanwhile, and with it the right to open.
        if not isinstance(done, Ack) or not self._replication.serving:
            reached("takeover failed")
            self.last_closed_epoch = epoch  # it may have been applied: it can't be opened again
            return False
        # Commands of this node's last epoch may stand before the takeover, above its floor.
        self.clock.observe(self.partition.max_ts)
        self.drained_with = ()
        self.promises.opened(self.partition.written_ts)
        self.transactions.begin(epoch)
        if not planted("locks-not-rebuilt"):
            # The log is the only witness: a prepared transaction must find its locks whoever leads.
            for prepared in self.partition.prepared.values():
                reached("prepared transaction found at a takeover")
                self.transactions.restore(prepared)
        # At once: what it found may be finished before any state is asked for.
        name = f"partition {self.number}"
        declarations.inspected(lambda: declarations.Inspection(name, self.broken()))
        return True

    def close(self) -> None:
        """Stop being primary: every request that waits here is refused, every lock is gone."""
        if self.epoch:
            reached("primary closed")
            # Closed for good: its locks are gone, and with them the
            # protection of reads under that epoch.
            self.last_closed_epoch = self.epoch
            self.transactions.begin(0)

    def try_fast_path(self, body: PrimaryBody) -> PeerAnswer | None:
        """The answer to a request for a lock that is free, or its refusal; ``None`` where ``serve``
        needs time for the answer. Most requests are for locks, and this needs no task.
        """
        if (refused := self._refused(body)) is not None:
            return refused
        if not isinstance(body, Lock):
            return None
        tx = self.transactions.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        if body.exclusive or not planted("read-lock-skipped"):
            answer = self.transactions.ask(tx, body.key, exclusive=body.exclusive)
            if answer is not Answer.GRANTED:
                # ``serve`` asks again and waits: of several requests of a
                # transaction the last one counts.
                return None if answer is Answer.WAITING else self._died(body.key)
        return self._locked(tx, body)

    async def serve(self, body: PrimaryBody) -> PeerAnswer:
        """The answer to one request."""
        if (refused := self._refused(body)) is not None:
            return refused
        match body:
            case Lock():
                return await self._lock(body)
            case Execute():
                return await self._execute(body)
            case Validate():
                return await self._validate(body)
            case Prepare():
                return await self._prepare(body)
            case CommitTx():
                return await self._commit_step(body)
            case Finish():
                return await self._finish(body)
            case Resolve():
                return await self._resolve(body)
            case ReadAt():
                return await self._read_at(body)

    # -- steps of a transaction

    async def _lock(self, body: Lock) -> LockReply | Failed:
        tx = self.transactions.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        failed = None
        if body.exclusive or not planted("read-lock-skipped"):
            failed = await self.acquire(tx, body.key, exclusive=body.exclusive)
        return self._locked(tx, body) if failed is None else failed

    def _locked(self, tx: OpenTransaction, body: Lock) -> LockReply:
        self.counters["reads"] += 1
        # A put needs the lock alone; its value would travel for nothing.
        value = self.partition.versions.newest(body.key).value if body.read else None
        return LockReply(LockToken(self.epoch, tx.number), value)

    async def _validate(self, body: Validate) -> Ack | Failed:
        tx = self.transactions.open_or_resume(body.txn, body.token, 0)
        if isinstance(tx, Failed):
            return tx
        # Its locks may have gone while it waited: then another may have written what it read.
        if not await self.promised(body.ts) or tx.over:
            reached("reads not valid any more")
            return Failed(codes.LOST, f"{body.txn}: the lease ended before its reads were valid")
        # From here on the promise at ``ts`` protects its reads, so the locks may go.
        self.transactions.drop(body.txn)
        return Ack()

    async def _prepare(self, body: Prepare) -> PrepareReply | Failed:
        tx = self.transactions.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        failed = await self._lock_writes(tx, body.writes, body.limit_ms / 1000)
        if failed is not None:
            return failed
        written = {key for key, _ in body.writes}
        # In the log, so that a successor holds the read locks too until the outcome is known.
        reads = tuple(key for key in self.locks.held(body.txn) if key not in written)
        # Before the command leaves: once proposed, only the log ends it, and ``sweep`` lets it be.
        tx.propose(self.clock.now())
        # It waits for no lock anywhere, so any other may wait for it without a deadlock.
        if body.settled:
            self.locks.settle(body.txn)
        command = commands.Prepare(self.epoch, body.txn, tx.ts, reads, body.writes, body.home)
        generation = self._replication.generation
        done = self._interpret_outcome(
            body.txn, await self.propose(command, body.limit_ms / 1000), PrepareReply
        )
        if isinstance(done, PrepareReply):
            moments.tell(moments.PREPARE_LOGGED, self.number)
            return PrepareReply(done.ts, generation)
        return done

    async def _commit_step(self, body: CommitTx) -> CommitReply | Failed:
        tx = self.transactions.open_or_resume(body.txn, body.token, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        failed = await self._lock_writes(tx, body.writes, body.limit_ms / 1000)
        if failed is not None:
            return failed
        prepared = tuple(zip(body.participants, body.generations, strict=True))
        return await self.commit(tx, body.ts, body.writes, body.participants, prepared)

    async def _lock_writes(
        self, tx: OpenTransaction, writes: commands.Writes, limit_s: float
    ) -> Failed | None:
        """Acquire every exclusive lock that ``tx`` lacks, well within ``limit_s``, or end it."""
        # The refusal has to reach the coordinator before that gives up: else it is in doubt.
        give_up_s = _now_s() + min(LOCK_TIMEOUT_S, limit_s - NETWORK_ALLOWANCE_S)
        for key, _ in writes:
            failed = await self.acquire(tx, key, exclusive=True, limit_s=give_up_s - _now_s())
            if failed is not None:
                self.transactions.drop(tx.txn)
                return failed
        return None

    async def commit(
        self,
        tx: OpenTransaction,
        ts: int,
        writes: commands.Writes,
        participants: tuple[int, ...],
        prepared: tuple[tuple[int, int], ...] = (),
    ) -> CommitReply | Failed:
        """One command, and the acknowledgement if the lease still holds once it is applied.
        ``prepared``: the generation in which each participant is; one that a reset may have cut
        off by now is worth nothing.
        """
        txn, limit_s = tx.txn, tx.deadline_s - _now_s()
        # Refused while that is still certain: past here the outcome is up to the log.
        if limit_s <= 0:
            self.transactions.drop(txn)
            reached("commit past its deadline")
            return Failed(codes.EXPIRED, f"{txn} is over its deadline")
        if _now_s() >= self._prepared_until_s(prepared):
            self.transactions.drop(txn)
            reached("commit refused, a participant may be reset")
            return Failed(codes.LOST, f"{txn}: a lease ended that it was prepared under")
        # Above every timestamp that a participant prepared at,
        # since it has made promises below that.
        self.clock.observe(ts)
        tx.propose(self.clock.now())
        # All others have prepared: it asks for no lock any more, so younger ones may wait for it.
        self.locks.settle(txn)
        command = commands.Commit(self.epoch, txn, tx.ts, writes, participants)
        if planted("released-before-durable"):
            self.transactions.drop(txn)
        done = self._interpret_outcome(txn, await self.propose(command, limit_s), CommitReply)
        if isinstance(done, CommitReply):
            self.counters["commits"] += 1
            if participants:
                moments.tell(moments.OUTCOME_LOGGED, self.number)
                # Before the answer: participants hold locks until they are told.
                if self._resets_itself(self.number):
                    # A reset here may cut the outcome off, and a participant that asks then would
                    # abort its part of what was acknowledged: all must have it before that.
                    left_s = tx.deadline_s - _now_s() - NETWORK_ALLOWANCE_S
                    if not await self._outcomes.delivered(txn, left_s):
                        reached("outcome not applied everywhere in time")
                        text = f"{txn}: its outcome did not reach every participant in time"
                        return Failed(codes.COMMIT_TIMEOUT, text)
                else:
                    self._outcomes.send(txn)
            if not self.serving or _now_s() >= self._prepared_until_s(prepared):
                reached("lease ended before the answer")
                return Failed(codes.LEASE_LOST, f"{txn}: the lease ended before the answer")
        return done

    def _prepared_until_s(self, prepared: tuple[tuple[int, int], ...]) -> float:
        """Until when no participant of ``prepared`` can have been reset."""
        if planted("prepared-outlives-lease"):
            return float("inf")
        return min(
            (
                self._leases.granted_until_s(partition, generation)
                for partition, generation in prepared
                if self._may_be_reset(partition)
            ),
            default=float("inf"),
        )

    async def _finish(self, body: Finish) -> Ack | Failed:
        """End ``txn``: by a command where it is prepared, or on its way to the log; another
        transaction only loses its locks.
        """
        tx = self.transactions.get(body.txn)
        proposed = tx is not None and tx.proposed
        if proposed or body.txn in self.partition.prepared:
            if tx is not None:
                self.locks.settle(body.txn)  # it is decided: it waits for no lock anywhere
            # Its version gets this timestamp: later commits and promises here must be above it.
            self.clock.observe(body.ts)
            # Of the present epoch: if another primary takes over
            # during the wait, the log refuses it.
            command = commands.Finish(self.epoch, body.txn, body.ts)
            if tx is None or not (tx.awaited or self.locks.waited_for(body.txn)):
                reached("finish delayed for a batch")
                # No transaction waits for these locks: the entry may share its sync with the next.
                await self.lazy.wait_for_batch()
            done = await self._replication.propose(command, INTERNAL_TIMEOUT_S)
            return done if isinstance(done, Ack | Failed) else self.refusal()
        self.transactions.drop(body.txn)
        return Ack()

    async def _execute(self, body: Execute) -> ExecuteReply | Failed:
        """A whole transaction of this partition: all locks, then all gets, then one command; gets
        see the puts before them.
        """
        # One request is the whole transaction: there is no earlier hold to prove.
        tx = self.transactions.open_or_resume(body.txn, NO_TOKEN, body.limit_ms)
        if isinstance(tx, Failed):
            return tx
        writes: dict[bytes, bytes] = {}
        values: list[bytes | None] = []
        for key, value in body.steps:
            failed = await self.acquire(tx, key, exclusive=value is not None)
            if failed is not None:
                self.transactions.drop(body.txn)
                return failed
            if value is not None:
                writes[key] = value
            else:
                # Under its lock the newest version is the one to read: none can come in between.
                values.append(writes.get(key, self.partition.versions.newest(key).value))
        failed = answer_too_large(values)
        if failed is not None:
            self.transactions.drop(body.txn)
            return failed
        if not writes:
            reached("one-shot that only reads")
            ts = self.clock.now()
            # Reads need no entry of the log, but the same proof that this was still the primary.
            promised = await self.promised(ts) and not tx.over
            self.transactions.drop(body.txn)
            if promised:
                return ExecuteReply(tuple(values), ts)
            text = f"{body.txn}: the lease ended before its reads were valid"
            return Failed(codes.LOST, text)
        # No floor and no participants: nothing is prepared elsewhere.
        done = await self.commit(tx, 0, tuple(writes.items()), ())
        return ExecuteReply(tuple(values), done.ts) if isinstance(done, CommitReply) else done

    async def _resolve(self, body: Resolve) -> ResolveReply | Failed:
        """The outcome of a transaction whose home this is; from now on it is *aborted* where it had
        none. A commit that waits for a lock here is waited for: its coordinator lives.
        """
        tx = self.transactions.get(body.txn)
        if tx is not None and tx.waits:
            reached("outcome asked while the commit waits for a lock")
            # To abort it now would fail a commit that is only queueing.
            await tx.ended(LOCK_TIMEOUT_S)
        outcome = self.partition.outcomes.decided(body.txn)
        if outcome is None:
            reached("transaction in doubt aborted at home")
            # Through the log: a commit that is under way there and this abort are decided by order.
            command = commands.Abort(self.epoch, body.txn)
            done = await self.propose(command, INTERNAL_TIMEOUT_S)
            if not isinstance(done, ResolveReply):
                return done if isinstance(done, Failed) else self.refusal()
            outcome = done
        return outcome if self.serving else self.refusal()

    async def _read_at(self, body: ReadAt) -> Version | Failed:
        """The version at a timestamp. Once that is promised, no transaction commits at or below it
        any more; one that may yet do so is waited for. The read takes no lock, so no writer ever
        waits for it.
        """
        # Counted from the snapshot's begin, by the age that its coordinator measured: the clocks
        # of two nodes differ.
        fresh_s = _now_s() - STALENESS_S - body.age_ms / 1000
        if body.ts < self.promises.fresh(fresh_s):
            reached("snapshot too old")
            return Failed(codes.SNAPSHOT_TOO_OLD, f"the snapshot is over {STALENESS_S:g} s old")
        if not await self.promised(body.ts):
            if not self.serving:
                reached("lease ended before a promise to a snapshot")
                return self.refusal()
            reached("snapshot ahead of the lease")
            return Failed(codes.CLOCK_DRIFT, "the snapshot is ahead of this node's lease")
        give_up_s = _now_s() + min(OUTCOME_TIMEOUT_S, body.limit_ms / 1000)
        # One after the other may come to hold the lock: each may still commit below the snapshot.
        while (writer := self.locks.writer(body.key)) is not None:
            tx = self.transactions.get(writer)
            # Not proposed yet, its timestamp will be above what was just promised.
            if tx is None or not tx.proposed or tx.ts > body.ts:
                break
            if planted("pending-ignored"):
                break
            # The finish that this read waits for may itself be delayed.
            self.lazy.flush()
            reached("snapshot waits for a commit under way")
            if not await tx.ended(give_up_s - _now_s()):
                reached("snapshot gave up a commit under way")
                return Failed(codes.SNAPSHOT_BUSY, f"the outcome of {writer} is not known yet")
            late = self.partition.versions.newest(body.key).ts > body.ts
            if late and tx.durable_s < fresh_s:
                reached("snapshot waited for a commit that may be old")
                # It may have been acknowledged, at home, before the snapshot had to see it.
                text = f"{writer} may be over {STALENESS_S:g} s old"
                return Failed(codes.SNAPSHOT_TOO_OLD, text)
        # Closing ends every transaction too, its outcome unknown here: then nothing may be read.
        if not self.serving:
            return self.refusal()
        # Asked last: while this waited, versions may have been collected.
        if body.ts < self.partition.readable_from:
            reached("versions of a snapshot collected")
            return Failed(codes.SNAPSHOT_TOO_OLD, "versions of that time may be gone")
        self.counters["snapshots"] += 1
        if planted("snapshot-reads-newest"):
            return self.partition.versions.newest(body.key)
        return self.partition.versions.at(body.key, body.ts)

    async def promised(self, ts: int) -> bool:
        """From now on no version here is at or below ``ts``, under any primary."""
        return await self.promises.made(ts) and self.serving

    # -- locks, and what the log ends

    async def acquire(
        self, tx: OpenTransaction, key: bytes, *, exclusive: bool, limit_s: float = LOCK_TIMEOUT_S
    ) -> Failed | None:
        """Acquire the lock of ``key`` within ``limit_s``, or return why not."""
        answer, request = self.transactions.ask(tx, key, exclusive=exclusive), tx.asked
        if answer is Answer.WAITING:
            # The finish that would release this lock may be among the delayed ones.
            self.lazy.flush()
            # Anything may have happened in between: epoch, locks, even another request of its own.
            granted = await tx.wait(min(limit_s, tx.deadline_s - _now_s()))
            if tx.over or not self.serving or tx.asked != request:
                reached("locks lost while it waited")
                return Failed(codes.LOST, f"{tx.txn} has lost its locks while it waited")
            if not granted:
                # Its place in the queue may have been all that others waited behind.
                self.transactions.withdraw(tx.txn)
                reached("lock not free in time")
                self.counters["lock-timeouts"] += 1
                if planted("lock-timeout-ignored"):
                    return None
                return Failed(codes.LOCK_TIMEOUT, f"key {key.hex()} is locked for too long")
        return self._died(key) if answer is Answer.DIED else None

    def _died(self, key: bytes) -> Failed:
        reached("transaction died for an older one")
        self.counters["died"] += 1
        return Failed(codes.CONFLICT, f"key {key.hex()} is locked by an older transaction")

    def applied(self, ended: list[TxnId]) -> None:
        """These transactions hold nothing here any more, by the log: end them."""
        # Followers apply as well, and hold nothing that could be ended.
        if self.epoch:
            for txn in ended:
                self.transactions.drop(txn)

    def _interpret_outcome(self, txn: TxnId, done: object, wanted: type[T]) -> T | Failed:
        """The meaning of ``done``, the result of proposing for ``txn``. A command that was never in
        the log ends the transaction; one that may be in it leaves it open, until the command is
        applied or this primary is closed.
        """
        if isinstance(done, wanted):
            return done
        failed = done if isinstance(done, Failed) else self.refusal()
        # Only then is it certain that no entry of it can still be applied.
        if failed.code in codes.NOT_PROPOSED:
            reached("command certainly not proposed")
            self.transactions.drop(txn)
        elif planted("doubt-called-abort"):
            return Failed(codes.ABORTED, failed.message)
        return failed

    def _refused(self, body: PrimaryBody) -> Failed | None:
        """Why ``body`` is not served, if it is not."""
        if not self.serving:
            return self.refusal()
        if (
            self.drained_with
            and isinstance(body, Lock | Execute)
            and not any(primary.transactions.get(body.txn) for primary in self.drained_with)
        ):
            reached("request for a primary that is handed over")
            return Failed(codes.NOT_PRIMARY, f"partition {self.number} is handed over")
        # What has begun is finished: other tables' partitions may have a part in it.
        if self.dropped and not isinstance(body, Finish | Resolve):
            reached("request for a table that was dropped")
            text = f"the table of partition {self.number} was dropped"
            return Failed(codes.NO_TABLE, text)
        return None

    def refusal(self) -> Failed:
        """Why this primary may not act now."""
        if self.open:
            reached("primary refuses, its lease has run out")
        why = "its lease has run out" if self.open else "another node, or nobody, is"
        return Failed(codes.NOT_PRIMARY, f"not primary of partition {self.number}: {why}")

    def broken(self) -> str | None:
        """The text of the first broken invariant, ``None`` when all hold: what is prepared is
        protected as its log says, and only what is open holds locks.
        """
        return self.transactions.broken(self.partition.prepared.values())

    # -- for the finisher

    def sweep(self, coordinator_dead: Callable[[OpenTransaction], bool]) -> None:
        """Drop every transaction that has proposed nothing and is past its deadline, or whose
        coordinator is dead; all such where the table was dropped.
        """
        if planted("dead-coordinator-kept"):
            return
        now_s = _now_s()
        for tx in self.transactions.all():
            # Prepared means promised: only home's outcome may end it, however long that takes.
            bound = tx.proposed and not planted("prepared-times-out")
            late = now_s > tx.deadline_s
            if not bound and (late or self.dropped or coordinator_dead(tx)):
                if not (late or self.dropped):
                    reached("transaction of a dead coordinator dropped")
                self.counters["expired"] += 1
                self.transactions.drop(tx.txn)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
