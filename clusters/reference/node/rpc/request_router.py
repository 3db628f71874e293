"""Requests between nodes: a peer's request goes to the primary or the service here that answers it,
a request of this node to the node that it is for, which may be this one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from clusters.reference.node import declarations
from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import Lineage
from clusters.reference.node.rpc.link import Link
from clusters.reference.node.runtime.concurrency import Failure, Tasks
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    AskLog,
    AskMember,
    AskStart,
    Failed,
    LeaderBody,
    LogReply,
    MemberReply,
    PeerAnswer,
    PeerBody,
    RestartReplica,
    StartReply,
)

MAX_IN_FLIGHT = 16_384  # requests of peers and work of our own that wait for logs or locks

Reply = Callable[[PeerAnswer], None]


class HasPrimary(Protocol):
    """A replica of a partition."""

    @property
    def primary(self) -> Primary:
        """The primary role of this node in the partition."""

    @property
    def member(self) -> str:
        """Its member of the partition's group."""

    def keeps(self, lineage: Lineage) -> bool:
        """Whether what it has applied is of a log with ``lineage``."""


class Service(Protocol):
    """Metastorage's leader, if that is this node."""

    async def serve(self, body: LeaderBody) -> PeerAnswer:
        """Answer as the leader, or refuse."""


class RequestRouter:
    """Routes requests by their type and by partition."""

    def __init__(
        self,
        *,
        node: str,
        links: Mapping[str, Link],
        replicas: Mapping[int, HasPrimary],
        metastorage: Service,
        revision: Callable[[], int],
        log_of: Callable[[int], LogReply],
        start_of: Callable[[int], StartReply] | None = None,
        restart: Callable[[RestartReplica], Awaitable[PeerAnswer]] | None = None,
        tasks: Tasks,
        failure: Failure,
    ) -> None:
        """``replicas`` are those of this node as they are at a request, when it has applied that
        ``revision`` of metastorage; ``log_of`` and ``start_of`` tell of a copy, and ``restart``
        starts its replica again. A primary refuses by its answer, so an error that it raises is a
        mistake of ours and goes to ``failure``, whether the request came from a peer or from here.
        """
        self._node, self._links, self._replicas = node, links, replicas
        self._metastorage, self._tasks, self._failure = metastorage, tasks, failure
        self._revision, self._log_of, self._start_of = revision, log_of, start_of
        self._restart = restart

    def request(self, body: PeerBody, reply: Reply) -> None:
        """Answer a peer by calling ``reply`` once, now or later. ``MAX_IN_FLIGHT`` bounds the
        requests that wait here: a peer may have given one up, and sent it again.
        """
        try:
            answer = self._try_fast_path(body)
        except Exception as error:
            self._failure.report(error)
            raise
        if answer is None:
            self._tasks.spawn(self._reply(body, reply))
        else:
            reply(answer)

    async def ask(self, node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        """The answer of ``node``, which may be this one."""
        if node != self._node:
            return await self._links[node].request(body, limit_s)
        # Everything that is waited for in there has a limit of its own.
        return await self._answer(body)

    def notify(self, node: str, body: PeerBody) -> None:
        """Send ``body`` to ``node`` without an answer."""
        if node == self._node:
            self._tasks.spawn(self._drop_answer(body))
        else:
            self._links[node].notify(body)

    def _try_fast_path(self, body: PeerBody) -> PeerAnswer | None:
        """The answer where it takes no time to find it; ``None`` where it does."""
        if isinstance(body, LeaderBody | RestartReplica):
            return None
        if len(self._tasks) >= MAX_IN_FLIGHT:
            reached("too many requests in flight")
            return Failed(codes.OVERLOADED, f"{self._node}: {MAX_IN_FLIGHT} requests wait already")
        if isinstance(body, AskLog):
            return self._log_of(body.partition)
        if isinstance(body, AskStart):
            return Failed(codes.KIND) if self._start_of is None else self._start_of(body.partition)
        replica = self._replicas.get(body.partition)
        if isinstance(body, AskMember):
            # With an older view this may be a replica that the revision asked about has replaced.
            there = replica is not None and self._revision() >= body.revision
            there = there and replica is not None and replica.keeps(body.lineage)
            return MemberReply(replica.member if replica is not None and there else None)
        answer = None if replica is None else replica.primary.try_fast_path(body)
        if answer is not None:
            declarations.answered(body, answer)
        return answer

    async def _reply(self, body: PeerBody, reply: Reply) -> None:
        reply(await self._answer(body))

    async def _drop_answer(self, body: PeerBody) -> None:
        await self._answer(body)

    async def _answer(self, body: PeerBody) -> PeerAnswer:
        try:
            if isinstance(body, AskMember | AskLog | AskStart):
                return self._try_fast_path(body) or Failed(codes.LOST)
            if isinstance(body, LeaderBody):
                return await self._metastorage.serve(body)
            if isinstance(body, RestartReplica):
                if self._restart is None:
                    return Failed(codes.KIND)
                return await self._restart(body)
            replica = self._replicas.get(body.partition)
            if replica is None:
                text = f"{self._node} has no replica of partition {body.partition}"
                reached("request for a partition without a replica here")
                return Failed(codes.NOT_PRIMARY, text)
            answer = await replica.primary.serve(body)
            declarations.answered(body, answer)
            return answer
        except Exception as error:
            self._failure.report(error)
            raise
