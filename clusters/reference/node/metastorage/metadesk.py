"""The way from every node to the leader of metastorage, and what that leader does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from clusters.reference.node.metastorage import store
from clusters.reference.node.metastorage.store import Operation, Versioned, encode_invoke
from clusters.reference.node.placement.lease_table import LEASE, Lease, decode_lease
from clusters.reference.node.tx.primary_client import Ask, Notify
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import (
    Failed,
    InvokeReply,
    MetaInvoke,
    PeerAnswer,
    Renew,
)

INVOKE_LIMIT_S = 1.0
BATCH_S = 0.08  # renewals of all nodes that come within it are one command

Propose = Callable[[bytes, float], Coroutine[None, None, object]]


class Group(Protocol):
    """The raft group of metastorage."""

    @property
    def serving(self) -> bool:
        """This member leads and has applied everything of earlier terms."""

    @property
    def leader(self) -> str | None:
        """Who leads, where it is known."""


class MetaDesk:
    """Both sides of it on one node."""

    def __init__(
        self,
        *,
        node: str,
        group: Group,
        propose: Propose,
        ask: Ask,
        notify: Notify,
        spawn: Callable[[Coroutine[None, None, None]], None],
        held: Callable[[str], Versioned | None],
    ) -> None:
        """``held`` is metastorage's ``get``."""
        self._held = held
        self._node, self._group, self._propose = node, group, propose
        self._ask, self._notify, self._spawn = ask, notify, spawn
        self._renewals: dict[str, bytes] = {}
        self._taken: dict[str, Lease] = {}  # the last renewal of each node that was taken here

    async def invoke(self, body: MetaInvoke) -> InvokeReply | Failed:
        """Do it at the leader; a failure says nothing about whether it was done."""
        leader = self._group.leader
        if leader is None:
            return Failed(codes.NOT_LEADER, "metastorage has no leader")
        answer = await self._ask(leader, body, INVOKE_LIMIT_S)
        return answer if isinstance(answer, InvokeReply | Failed) else Failed(codes.LOST)

    def renew(self, body: Renew) -> None:
        """Hand a renewal to the leader; lost if there is none, the next one comes soon."""
        leader = self._group.leader
        if leader is not None:
            self._notify(leader, body)

    async def serve(self, body: MetaInvoke | Renew) -> PeerAnswer:
        """Answer as the leader."""
        if not self._group.serving:
            return Failed(codes.NOT_LEADER, f"{self._node} does not lead metastorage")
        if isinstance(body, Renew):
            lease = decode_lease(body.lease)
            if not self._joined(body.node, lease):
                return Failed(codes.LOST, f"another start of {body.node} has its lease")
            taken = self._taken.get(body.node)
            if taken is not None and taken.origin == lease.origin and taken.number >= lease.number:
                return Failed(codes.LOST, f"a later renewal of {body.node} came before")
            self._taken[body.node] = lease
            if not self._renewals:
                self._spawn(self._renew_all())
            self._renewals[body.node] = body.lease
            return InvokeReply(True)
        done = await self._propose(body.data, INVOKE_LIMIT_S)
        if isinstance(done, store.InvokeResult):
            return InvokeReply(done.success)
        return done if isinstance(done, Failed) else Failed(codes.LOST)

    async def _renew_all(self) -> None:
        await asyncio.sleep(BATCH_S)
        renewals, self._renewals = self._renewals, {}
        operations = tuple(
            Operation(f"{LEASE}{node}", lease)
            for node, lease in renewals.items()
            if self._joined(node, decode_lease(lease))
        )
        await self._propose(encode_invoke(store.Invoke((), operations)), INVOKE_LIMIT_S)

    def _joined(self, node: str, lease: Lease) -> bool:
        """Whether the start of ``node`` that renews is the one that has the lease: what an earlier
        one sent may come after it has ended, and must not end the lease of the later. Nor may a
        renewal that comes late, or twice, take back the ceiling of one behind which it was sent.
        """
        entry = self._held(f"{LEASE}{node}")
        if entry is None:
            return False
        held = decode_lease(entry.value)
        return held.origin == lease.origin and held.number < lease.number
