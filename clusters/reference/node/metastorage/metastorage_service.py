"""The metastorage leader's service for all nodes: it proposes their invokes, and renews their
leases, all renewals that come within 80 ms by one command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    InvokeResult,
    Operation,
    Versioned,
    encode_invoke,
)
from clusters.reference.node.placement.lease_expiry import LEASE, Lease, decode_lease
from clusters.reference.node.runtime.concurrency import Spawn
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Failed,
    InvokeReply,
    Join,
    LeaderBody,
    Leave,
    MetaInvoke,
    PeerAnswer,
    Renew,
)
from clusters.reference.node.wire.reports import AskSql, AskVoters

PROPOSE_TIMEOUT_S = 1.0
BATCH_S = 0.08  # renewals of all nodes that come within it are one command


class MetastorageGroup(Protocol):
    """The raft group of metastorage."""

    @property
    def serving(self) -> bool:
        """Whether this node leads it, and has applied everything of earlier terms."""

    async def leads_now(self, limit_s: float) -> bool:
        """Whether what this node reads then is not older than the call."""

    async def propose(self, data: bytes, limit_s: float) -> object:
        """The result of ``Metastorage.apply``, or ``Failed``."""


class ZonedService(Protocol):
    """Topology and catalog, whose state is in metastorage."""

    async def serve(self, body: Join | Leave | AskSql | AskVoters) -> PeerAnswer:
        """Answer as the leader, or refuse."""


class MetastorageService:
    """Answers as the leader of metastorage while this node is the leader."""

    def __init__(
        self,
        *,
        node: str,
        group: MetastorageGroup,
        get: Callable[[str], Versioned | None],
        read: Callable[[bytes], InvokeResult | None],
        spawn: Spawn,
        zoned: ZonedService | None = None,
    ) -> None:
        """``get`` and ``read`` (``Metastorage.read``) read metastorage as it is applied here.
        ``zoned``: in a cluster that has distribution zones.
        """
        self._zoned, self._read = zoned, read
        self._node, self._group, self._get, self._spawn = node, group, get, spawn
        self._batch: dict[str, bytes] = {}
        self._accepted: dict[str, Lease] = {}  # the last renewal of each node

    async def serve(self, body: LeaderBody) -> PeerAnswer:
        """Answer as the leader, or refuse."""
        if not isinstance(body, MetaInvoke | Renew):
            if self._zoned is not None:
                return await self._zoned.serve(body)
            return Failed(codes.KIND, f"the cluster of {self._node} has no distribution zones")
        if not self._group.serving:
            return Failed(codes.NOT_LEADER, f"{self._node} does not lead metastorage")
        if isinstance(body, Renew):
            return self._renew(body)
        if self._read(body.data) is None:
            done = await self._group.propose(body.data, PROPOSE_TIMEOUT_S)
        # A read needs no entry in the log, where many of them would come at once: as a table is
        # dropped, or a node is lost that led many partitions.
        elif await self._group.leads_now(PROPOSE_TIMEOUT_S):
            done = self._read(body.data)
        else:
            done = Failed(codes.NOT_LEADER, f"{self._node} may lead metastorage no more")
        if isinstance(done, InvokeResult):
            return InvokeReply(done.success, done.revision, done.branch)
        return done if isinstance(done, Failed) else Failed(codes.LOST)

    def _renew(self, body: Renew) -> InvokeReply | Failed:
        lease = decode_lease(body.lease)
        if not self._holds_lease(body.node, lease):
            reached("renewal of an earlier start")
            return Failed(codes.LOST, f"another start of {body.node} has its lease")
        last = self._accepted.get(body.node)
        if last is not None and last.origin == lease.origin and last.number >= lease.number:
            reached("renewal overtaken by a later one")
            return Failed(codes.LOST, f"a later renewal of {body.node} came before")
        # Beside the applied lease: renewals that wait in the batch are not applied yet.
        self._accepted[body.node] = lease
        if not self._batch:
            self._spawn(self._renew_batch())
        self._batch[body.node] = body.lease
        return InvokeReply(True)

    async def _renew_batch(self) -> None:
        await asyncio.sleep(BATCH_S)
        renewals, self._batch = self._batch, {}
        # Checked again: another start may have taken the lease over while the batch waited.
        operations = tuple(
            Operation(f"{LEASE}{node}", lease)
            for node, lease in renewals.items()
            if self._holds_lease(node, decode_lease(lease))
        )
        await self._group.propose(encode_invoke(Invoke((), operations)), PROPOSE_TIMEOUT_S)

    def _holds_lease(self, node: str, lease: Lease) -> bool:
        """Whether the start of ``node`` that renews is the one that has the lease: a renewal that
        an earlier start sent may arrive after that start has ended, and must not end the later
        start's lease. Nor may a renewal that arrives late, or twice, take back the ceiling of one
        that was sent after it.
        """
        entry = self._get(f"{LEASE}{node}")
        if entry is None:
            return False
        held = decode_lease(entry.value)
        return held.origin == lease.origin and held.number < lease.number
