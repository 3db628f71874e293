"""What a session says of a put that nobody waited for, once it has failed, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NoReturn

import attrs
import pytest
from primary_scene import KEY, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.rpc.sessions import READ_WRITE, SNAPSHOT, Sessions
from clusters.reference.node.runtime import ConnectionLost
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import FixedRoutes
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Begin,
    ClientBody,
    ClientReply,
    ClientRequest,
    Codec,
    Commit,
    Execute,
    ExecuteReply,
    Failed,
    Get,
    Ok,
    OneShot,
    OneShotReply,
    PeerAnswer,
    PeerBody,
    Put,
    ReplyBody,
    Rollback,
    Started,
    decode,
    encode,
)
from clusters.reference.node.wire.reports import AdminBody, AdminQuestion


@attrs.define
class Script:
    """A connection on which a client says ``requests``, whatever it hears, and goes."""

    requests: deque[ClientRequest]
    peer: str = "a client"
    said: list[ClientReply] = attrs.field(factory=list)

    def send(self, payload: bytes) -> None:
        self.said.append(decode(Codec.reply, payload))

    async def recv(self) -> bytes:
        if not self.requests:
            raise ConnectionLost("the client is gone")
        return encode(self.requests.popleft())

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        raise AssertionError("a session takes one request at a time")

    def close(self) -> None:
        """Nothing is held."""


def heard_after(body: ClientBody, lock_fails_with: str) -> ReplyBody:
    """What ``body`` is answered behind a put that asked for no answer and did not get its lock."""

    async def ask(node: str, asked: PeerBody, limit_s: float) -> PeerAnswer:
        if isinstance(asked, Execute):
            return ExecuteReply((None,), 5)
        return Failed(lock_fails_with, "the put")

    async def admin(question: AdminQuestion) -> AdminBody:
        raise AssertionError(f"nobody asks {question}")

    async def scenario() -> list[ClientReply]:
        script = Script(
            deque(
                (
                    ClientRequest(1, Begin(READ_WRITE, 60_000)),
                    ClientRequest(NO_ANSWER, Put(KEY, b"x")),
                    ClientRequest(2, body),
                )
            )
        )
        sessions = Sessions(
            origin="n1~1",
            routes=FixedRoutes(1),
            primaries=PrimaryClient(route=lambda _: "n2", ask=ask, notify=lambda node, body: None),
            clock=Hlc(wall_ns=lambda: 10**9, monotonic_s=now_s),
            admin=admin,
        )
        with pytest.raises(ConnectionLost):
            await sessions.serve(script)
        return script.said

    begun, heard = simulate(scenario())
    assert isinstance(begun.body, Started)
    assert heard.id == 2
    return heard.body


@pytest.mark.parametrize("body", [Commit(), Get(KEY)])
def test_who_asks_next_in_that_transaction_hears_it(body: ClientBody) -> None:
    heard = heard_after(body, codes.CONFLICT)

    assert heard == Failed(codes.CONFLICT, "the put")


def test_a_peer_that_was_lost_before_the_commit_leaves_no_doubt_about_the_commit() -> None:
    heard = heard_after(Commit(), codes.PEER_LOST)

    assert heard == Failed(codes.ABORTED, "before its commit: PEER-LOST: the put")


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (Rollback(), Ok),
        (Begin(SNAPSHOT, 60_000), Started),
        (OneShot(((KEY, None),), 60_000), OneShotReply),
    ],
)
def test_what_ends_that_transaction_does_not_hear_it(
    body: ClientBody, answer: type[ReplyBody]
) -> None:
    assert isinstance(heard_after(body, codes.CONFLICT), answer)
