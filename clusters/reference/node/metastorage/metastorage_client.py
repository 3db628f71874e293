"""The rest of a node's access to metastorage: through its leader, on whichever node that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Versioned,
    Watch,
    Watcher,
    encode_invoke,
)
from clusters.reference.node.tx.primary_client import Ask, Notify
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Failed,
    InvokeReply,
    MetaInvoke,
    PeerAnswer,
    Renew,
)

INVOKE_TIMEOUT_S = 1.0
REFUSED = (codes.NOT_LEADER, codes.UNREACHABLE)  # certainly not done
LEADER_POLL_S = 0.01  # a leader that hands over leads no more for a few round trips


class Led(Protocol):
    """The raft group of metastorage."""

    @property
    def leader(self) -> str | None:
        """The node that leads, where it is known."""


class LeaderHint:
    """The node to ask next as the leader of metastorage: the one that a refusal has named, or the
    one that this node follows.
    """

    def __init__(self, leader: Callable[[], str | None]) -> None:
        self._leader = leader
        self._hint: str | None = None

    def next(self) -> str | None:
        """The node to ask, if any may lead."""
        return self._hint or self._leader()

    def failed(self, answer: Failed) -> None:
        """Take in the answer of a node that was asked."""
        # Not twice: a node that was lost can't say that it leads no more.
        self._hint = answer.leader if answer.leader != self._hint else None


class MetastorageClient:
    """Sends invokes to the leader of metastorage; reads and watches the replica on this node."""

    def __init__(self, *, store: Metastorage, group: Led, ask: Ask, notify: Notify) -> None:
        self._store = store
        self._group, self._ask, self._notify = group, ask, notify

    def get(self, key: str) -> Versioned | None:
        """The value of ``key`` as it is applied here, which may be behind the leader."""
        return self._store.get(key)

    def prefixed(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with ``prefix`` as they are applied here, sorted."""
        return self._store.prefixed(prefix)

    def watch(self, prefix: str, after: int, watcher: Watcher) -> Watch:
        """Every revision above ``after`` that touches ``prefix``: see ``Metastorage.watch``."""
        return self._store.watch(prefix, after, watcher)

    def unwatch(self, watch: Watch) -> None:
        """End a watch."""
        self._store.unwatch(watch)

    async def invoke(self, invoke: Invoke) -> InvokeReply | Failed:
        """The leader's result of ``invoke``. A failure leaves open whether it was done.

        While it certainly was not, since no leader is known or the one that was asked leads no
        more, it is sent again for ``INVOKE_TIMEOUT_S``.
        """
        body = MetaInvoke(encode_invoke(invoke))
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + INVOKE_TIMEOUT_S
        while True:
            leader = self._group.leader
            answer: PeerAnswer = Failed(codes.NOT_LEADER, "metastorage has no leader")
            if leader is not None:
                answer = await self._ask(leader, body, INVOKE_TIMEOUT_S)
            if not isinstance(answer, Failed):
                return answer if isinstance(answer, InvokeReply) else Failed(codes.LOST)
            if answer.code not in REFUSED or loop.time() + LEADER_POLL_S >= give_up_s:
                return answer
            reached("invoke sent again to a leader of metastorage")
            await asyncio.sleep(LEADER_POLL_S)

    def renew(self, body: Renew) -> None:
        """Send a renewal to the leader; it is lost where there is none, and the next comes soon."""
        leader = self._group.leader
        if leader is not None:
            self._notify(leader, body)
