"""Metastorage as the rest of a node uses it: through its leader, on whichever node that is."""

from __future__ import annotations

from typing import Protocol

from clusters.reference.node.tx.primary_client import Ask, Notify
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import Failed, InvokeReply, MetaInvoke, Renew

INVOKE_TIMEOUT_S = 1.0


class Led(Protocol):
    """The raft group of metastorage."""

    @property
    def leader(self) -> str | None:
        """The node that leads, where it is known."""


class MetastorageClient:
    """Sends to the leader of metastorage. Reads are of the replica that every node has."""

    def __init__(self, *, group: Led, ask: Ask, notify: Notify) -> None:
        self._group, self._ask, self._notify = group, ask, notify

    async def invoke(self, body: MetaInvoke) -> InvokeReply | Failed:
        """What the invoke did. A failure leaves open whether it was done."""
        leader = self._group.leader
        if leader is None:
            return Failed(codes.NOT_LEADER, "metastorage has no leader")
        answer = await self._ask(leader, body, INVOKE_TIMEOUT_S)
        return answer if isinstance(answer, InvokeReply | Failed) else Failed(codes.LOST)

    def renew(self, body: Renew) -> None:
        """Send a renewal to the leader; it is lost where there is none, and the next comes soon."""
        leader = self._group.leader
        if leader is not None:
            self._notify(leader, body)
