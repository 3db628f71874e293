"""Requests between nodes: what peers ask of this one, and whom its own questions go to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping

from clusters.reference.node.metastorage.metadesk import MetaDesk
from clusters.reference.node.rpc.link import Link
from clusters.reference.node.rpc.peers import Reply
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import (
    Failed,
    MetaInvoke,
    PeerAnswer,
    PeerBody,
    Renew,
)

MAX_UNDER_WAY = 16_384  # requests of peers and work of our own that wait for logs or locks


class RequestRouter:
    """``links`` and ``desk`` are set once they are there."""

    def __init__(
        self,
        *,
        node: str,
        primaries: Callable[[int], Primary | None],
        spawn: Callable[[Coroutine[None, None, None]], None],
        under_way: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        """``primaries``: of the partitions that this node has a replica of. ``under_way``: how much
        was spawned and has not ended. ``fail`` ends the node: a primary refuses by its answer, so
        what it raises is a mistake of ours, whichever way the request came.
        """
        self._node, self._primaries = node, primaries
        self._spawn, self._under_way, self._fail = spawn, under_way, fail
        self.links: Mapping[str, Link] = {}
        self.desk: MetaDesk | None = None

    def request(self, body: PeerBody, reply: Reply) -> None:
        """A request of a peer. ``MAX_UNDER_WAY`` bounds what waits here: who asks may have given
        up, and have asked again.
        """
        try:
            answer = self._try_fast_path(body)
        except Exception as error:
            self._fail(error)
            raise
        if answer is None:
            self._spawn(self._reply(body, reply))
        else:
            reply(answer)

    async def ask(self, node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        """Ask ``node``, which may be this one."""
        if node != self._node:
            return await self.links[node].request(body, limit_s)
        # Everything that is waited for in there has a limit of its own.
        return await self._answer(body)

    def notify(self, node: str, body: PeerBody) -> None:
        """The same, where nobody wants the answer."""
        if node == self._node:
            self._spawn(self._forget_answer(body))
        else:
            self.links[node].notify(body)

    def _try_fast_path(self, body: PeerBody) -> PeerAnswer | None:
        """The answer where it takes no time to find it."""
        if isinstance(body, Renew | MetaInvoke):
            return None
        if self._under_way() >= MAX_UNDER_WAY:
            return Failed(codes.OVERLOADED, f"{self._node}: {MAX_UNDER_WAY} requests wait already")
        primary = self._primaries(body.partition)
        return None if primary is None else primary.try_fast_path(body)

    async def _reply(self, body: PeerBody, reply: Reply) -> None:
        reply(await self._answer(body))

    async def _forget_answer(self, body: PeerBody) -> None:
        await self._answer(body)

    async def _answer(self, body: PeerBody) -> PeerAnswer:
        try:
            return await self._find_answer(body)
        except Exception as error:
            self._fail(error)
            raise

    async def _find_answer(self, body: PeerBody) -> PeerAnswer:
        if isinstance(body, Renew | MetaInvoke):
            if self.desk is None:
                return Failed(codes.NOT_LEADER, f"{self._node} is not that far yet")
            return await self.desk.serve(body)
        primary = self._primaries(body.partition)
        if primary is None:
            text = f"{self._node} has no replica of partition {body.partition}"
            return Failed(codes.NOT_PRIMARY, text)
        return await primary.serve(body)
