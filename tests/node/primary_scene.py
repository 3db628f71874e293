"""One primary, its log that commits at once, and who asks it, in virtual time."""

from __future__ import annotations

import asyncio

import attrs

from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.concurrency import Spawn
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.finisher import Finisher
from clusters.reference.node.tx.outcome_sender import OutcomeSender
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    NO_TOKEN,
    CommitTx,
    Failed,
    Lock,
    LockReply,
    LockToken,
    PeerAnswer,
    PeerBody,
    Prepare,
    PrimaryBody,
    Resolve,
    ResolveReply,
    TxnId,
)

OLD, YOUNG = TxnId(1, "n1~1", 1), TxnId(2, "n1~1", 2)
EPOCH = 1
KEY = b"key"


def now_s() -> float:
    return asyncio.get_running_loop().time()


@attrs.define
class LeaseTable:
    """Of a primary that nobody threatens; what it promises reaches ``ceiling``."""

    ceiling: int = span(1_000_000)
    epoch: int = EPOCH
    gone: bool = False  # every coordinator
    granted_s: float = float("inf")  # until then no participant can have been reset

    def mine(self, partition: int) -> LeaseTable:
        return self

    def holds(self) -> bool:
        return True

    def coordinator_dead(self, origin: str) -> bool:
        return self.gone

    def granted_until_s(self, partition: int, generation: int) -> float:
        return self.granted_s

    def clock_at(self, at_s: float) -> int:
        return 0


@attrs.define(slots=False)
class Scene:
    """One primary, its log that commits after ``log_s``, and who finishes its transactions."""

    leases: LeaseTable = attrs.field(factory=LeaseTable)
    partition: Partition = attrs.field(factory=Partition)
    asked: list[PeerBody] = attrs.field(factory=list)
    index: int = 0
    log_s: float = 0.0
    proposed: list[tuple[float, str]] = attrs.field(factory=list)  # when, and what

    serving: bool = True
    dropped: bool = False  # the table
    zoned: bool = True  # an operator may reset its partitions
    resettable: bool = False  # its zone is highly available
    silent: bool = False  # the other participants
    generation: int = 0

    def keeps(self, lineage: object) -> bool:
        return True

    def __attrs_post_init__(self) -> None:
        self.clock = Hlc(wall_ns=lambda: 10**9, monotonic_s=now_s)
        self.outcomes = OutcomeSender(
            partition=self.partition, primaries=self.primaries(), spawn=asyncio.ensure_future
        )
        self.primary = Primary(
            number=0,
            partition=self.partition,
            replication=self,
            outcomes=self.outcomes,
            clock=self.clock,
            leases=self.leases,  # type: ignore[arg-type]  # of the same shape
            dropped=lambda number: self.dropped,
            may_be_reset=lambda number: self.zoned,
            resets_itself=lambda number: self.resettable,
        )
        self.partition.epoch = self.primary.transactions.epoch = EPOCH

    async def propose(self, command: commands.Command, limit_s: float) -> object:
        self.index += 1
        entry = Entry(1, self.index, commands.encode(command))
        self.proposed.append((now_s(), type(command).__name__))
        # Who stops waiting undoes nothing.
        return await asyncio.shield(asyncio.ensure_future(self._apply(entry)))

    async def _apply(self, entry: Entry) -> object:
        await asyncio.sleep(self.log_s)
        done = self.partition.apply(entry)
        self.primary.applied(self.partition.take_ended())
        return done

    def finisher(self, spawn: Spawn) -> Finisher:
        """Who finishes the transactions of the primary, by work that goes to ``spawn``."""
        return Finisher(
            primary=self.primary,
            outcomes=self.outcomes,
            primaries=self.primaries(),
            clock=self.clock,
            leases=self.leases,  # type: ignore[arg-type]  # of the same shape
            spawn=spawn,
        )

    async def ask(self, node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        """As over a link: who gives up knows nothing."""
        self.asked.append(body)
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.sleep(60.0 if self.silent else 0.01)
                if isinstance(body, Resolve):
                    return ResolveReply(0)
                assert isinstance(body, PrimaryBody)
                return await self.primary.serve(body)
        except TimeoutError:
            return Failed(codes.PEER_LOST, f"{node} did not answer")

    def primaries(self) -> PrimaryClient:
        return PrimaryClient(route=lambda _: "n2", ask=self.ask, notify=lambda node, body: None)


def lock(txn: TxnId, *, exclusive: bool, key: bytes = KEY) -> Lock:
    return Lock(0, txn, NO_TOKEN, key, exclusive, not exclusive, 60_000)


async def token_of(scene: Scene, txn: TxnId, key: bytes = KEY) -> LockToken:
    """The hold of ``txn``, which has read ``key``."""
    held = await scene.primary.serve(lock(txn, exclusive=False, key=key))
    assert isinstance(held, LockReply)
    return held.token


def commit(txn: TxnId, token: LockToken) -> CommitTx:
    return CommitTx(0, txn, token, 0, ((KEY, b"x"),), (), 60_000)


def prepare(txn: TxnId, token: LockToken, key: bytes = KEY, *, settled: bool) -> Prepare:
    return Prepare(0, txn, token, ((key, b"x"),), 1, 60_000, settled)
