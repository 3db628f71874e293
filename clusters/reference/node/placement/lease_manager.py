"""Acquires, renews and releases the lease of a node and its grants, through metastorage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from clusters.reference.node import events, moments
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import Condition, Invoke, Operation
from clusters.reference.node.placement.lease_expiry import (
    LEASE,
    PRIMARY,
    RENEW_S,
    Grant,
    LeaseTable,
    encode,
    superseding,
)
from clusters.reference.node.runtime.concurrency import Spawn, all_of
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.wire.messages import (
    Failed,
    InvokeReply,
    Renew,
)

DRAIN_POLL_S = 0.005


class Metastorage(Protocol):
    """The way to the leader of metastorage."""

    async def invoke(self, invoke: Invoke) -> InvokeReply | Failed:
        """Invoke at the leader; a failure leaves open whether it was done."""

    def renew(self, body: Renew) -> None:
        """Send a renewal if the way is open; the next one comes soon."""


class Raft(Protocol):
    """The raft group of a partition."""

    @property
    def serving(self) -> bool:
        """Leads, and has applied everything of earlier terms."""

    @property
    def leading(self) -> bool:
        """Leads."""

    @property
    def generation(self) -> int:
        """The generation of the partition that this member is in."""


# What must be so in metastorage for a grant of a partition in that generation; ``None``: it can't
# be granted now.
Fence = Callable[[int, int], tuple[Condition, ...] | None]


def unfenced(_: int, generation: int) -> tuple[Condition, ...] | None:
    """Of a cluster whose partitions are never reset."""
    return () if generation == 0 else None


class LeaseManager:
    """One node's lease and the grants of the partitions that it has replicas of."""

    def __init__(
        self,
        *,
        node: str,
        origin: str,
        leases: LeaseTable,
        metastorage: Metastorage,
        event_log: events.EventLog,
        spawn: Spawn,
        removed: Callable[[int], bool] = lambda partition: False,
        fence: Fence = unfenced,
        opened: Callable[[int], None] = lambda partition: None,
    ) -> None:
        """``removed``: see ``Routes``; the grant went with the partition. ``fence``: of grants.
        ``opened`` is called for each primary role that this node has taken up.
        """
        self._opened = opened
        self._removed, self._fence = removed, fence
        self._node, self._origin, self._leases = node, origin, leases
        self._metastorage, self._events, self._spawn = metastorage, event_log, spawn
        self._busy: dict[int, None] = {}
        self._joining = False
        self._held = self._stopping = self._ending = False

    def renew(self) -> None:
        """Send the next renewal. The first of a start takes the lease over from the one before."""
        # A renewal after ``release_all`` would prolong the lease that it ended.
        if self._stopping:
            return
        lease = self._leases.next_renewal()
        seen = self._leases.seen.get(self._node)
        if seen is not None and seen.lease.origin == self._origin:
            self._metastorage.renew(Renew(self._node, encode(lease)))
        elif not self._joining:
            key = f"{LEASE}{self._node}"
            # A late invoke of an earlier start must not take the lease back from a later one.
            condition = (
                Condition(key, "absent")
                if seen is None
                else Condition(key, "revision", revision=seen.revision)
            )
            self._joining = True
            if seen is not None:
                reached("lease of an earlier start taken over")
            self._spawn(self._join(Invoke((condition,), (Operation(key, encode(lease)),))))

    async def _join(self, invoke: Invoke) -> None:
        try:
            await self._metastorage.invoke(invoke)
        finally:
            self._joining = False

    def release(self, partition: int) -> None:
        """Release the grant of a partition that has no replica here any more. Called every tick: a
        release that failed is tried again.
        """
        mine = self._leases.mine(partition)
        if mine is not None and partition not in self._busy and not self._stopping:
            reached("grant of a stopped replica released")
            self._begin(partition, self._write(partition, mine, self._leases.given_up(mine)))

    def reconcile(self, primary: Primary, group: Raft) -> None:
        """Reconcile one partition: release, acquire or activate its primary role. Called every
        tick; at most one step is in flight.
        """
        partition = primary.number
        mine = self._leases.mine(partition)
        # Before the look at steps in flight: to close must never wait for one.
        if not group.leading or (mine is None and primary.epoch):
            primary.close()
        if partition in self._busy or self._stopping or self._removed(partition):
            return
        step: Awaitable[object] | None = None
        if not group.leading and mine is not None:
            reached("grant released by a follower")
            step = self._write(partition, mine, self._leases.given_up(mine))
        elif group.serving and (mine is None or mine.epoch <= primary.last_closed_epoch):
            primary.close()
            held = self._leases.grants.get(partition)
            fence = self._fence(partition, group.generation)
            if fence is not None and (held is None or held.released or self._may_take(held)):
                if held is not None and held.node == self._node:
                    reached("own grant of an earlier epoch taken again")
                # Each grant has an epoch of its own, by which the log
                # refuses commands of earlier ones.
                epoch = 1 if held is None else held.epoch + 1
                grant = Grant(self._node, self._origin, epoch, generation=group.generation)
                written = self._write(partition, held, grant, fence)
                step = self._acquire(primary, group, grant, written)
        elif group.serving and mine is not None and primary.epoch != mine.epoch:
            step = self._open(primary, mine.epoch)
        if step is not None:
            self._begin(partition, step)

    def watch_lease(self) -> None:
        """Record an event when our lease has expired, and when it holds again."""
        holds = self._leases.holds()
        if holds != self._held:
            self._held = holds
            kind = events.LEASE_GRANTED if holds else events.LEASE_LOST
            self._events.add(kind, f"the lease of {self._node} {'holds' if holds else 'ran out'}")
        # Less is left than to the next renewal, which no round trip would beat.
        ending = holds and self._leases.left_s < RENEW_S
        if ending and not self._ending:
            moments.tell(moments.LEASE_ENDING)
        self._ending = ending

    async def drain(self, primaries: tuple[Primary, ...], limit_s: float) -> None:
        """Let no transaction begin at ``primaries``, and those that are open end everywhere within
        ``limit_s``.
        """
        for primary in primaries:
            primary.drained_with = primaries
        give_up_s = asyncio.get_running_loop().time() + limit_s
        while any(primary.open and not primary.idle for primary in primaries):
            if asyncio.get_running_loop().time() >= give_up_s:
                reached("primary handed over with open transactions")
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def release_all(self, primaries: tuple[Primary, ...]) -> None:
        """Close every primary and release its grant: the node stops. Returns once metastorage has
        answered to each, which its caller has to bound.
        """
        # First: no tick may acquire a grant while the others are released.
        self._stopping = True
        held = []
        for primary in primaries:
            mine = self._leases.mine(primary.number)
            primary.close()
            if mine is not None:
                held.append(self._release(primary.number, mine))
        # Before a release is sent: a successor may act as soon as one is applied.
        self._leases.end()
        await all_of(held)

    async def _release(self, partition: int, mine: Grant) -> None:
        given_up = self._leases.given_up(mine)
        # One that was lost may have been done: then the grant is not ours any more, and the next
        # is refused.
        while isinstance(await self._write(partition, mine, given_up), Failed):
            reached("release of a grant sent again")
            await asyncio.sleep(DRAIN_POLL_S)

    def _may_take(self, held: Grant) -> bool:
        # Our own grant may be of an earlier start, which is certainly over, or of an epoch that
        # was closed: then no primary acts under it any more.
        return held.node == self._node or self._leases.expired(held.node, held.origin)

    def _begin(self, partition: int, step: Awaitable[object]) -> None:
        self._busy[partition] = None
        self._spawn(self._do(partition, step))

    async def _do(self, partition: int, step: Awaitable[object]) -> None:
        try:
            await step
        finally:
            del self._busy[partition]

    async def _acquire(
        self, primary: Primary, group: Raft, grant: Grant, written: Awaitable[object]
    ) -> None:
        await written
        # At once where it is applied here by now: nothing serves the partition meanwhile.
        if self._leases.mine(primary.number) == grant and group.serving and not self._stopping:
            await self._open(primary, grant.epoch)

    async def _open(self, primary: Primary, epoch: int) -> None:
        if await primary.take_over(epoch):
            text = f"{self._node} is primary of partition {primary.number}, epoch {epoch}"
            self._events.add(events.LEASE_GRANTED, text, partition=primary.number)
            moments.tell(moments.PRIMARY_GRANTED, primary.number)
            self._opened(primary.number)

    def _write(
        self,
        partition: int,
        held: Grant | None,
        grant: Grant,
        fence: tuple[Condition, ...] = (),
    ) -> Coroutine[Any, Any, object]:
        """Replace a grant, on condition that it still is ``held``, and of ``fence``. The result
        shows when it is applied. The conditions are of this very moment, in which the lease of
        ``held`` was seen to be over: a renewal that is applied after it must refuse the grant.
        """
        conditions = superseding(self._leases, partition, held, own=self._node)
        if held is not None and held.node != self._node:
            reached("grant taken from another node")
            self._leases.observe_predecessor(held)
            if len(conditions) > 1:
                reached("grant taken on condition of the last renewal")
        operation = Operation(f"{PRIMARY}{partition}", encode(grant))
        return self._metastorage.invoke(Invoke((*conditions, *fence), (operation,)))
