"""What is bounded, and what is said when a bound is reached."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import NoReturn

import attrs
import pytest

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node.groups import host as groups
from clusters.reference.node.groups.group import ChunkQueue
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.rpc import sessions
from clusters.reference.node.rpc.sessions import Sessions
from clusters.reference.node.runtime import ConnectionLost
from clusters.reference.node.runtime.concurrency import Failure
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import FixedRoutes
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, PeerAnswer, PeerBody
from clusters.reference.node.wire.reports import AdminBody, AdminQuestion
from harness.history.records import EventKind
from harness.plan.plan import MAX_CONCURRENCY

INVOKE = b"never applied"


class Stuck(SimDisk):
    """A disk whose syncs do not come back, once it is stuck."""

    stuck = False

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        await super().append(name, data, sync=sync)


def event_log() -> events.EventLog:
    return events.EventLog(boot="boot", wall_ns=lambda: 7)


def test_a_disk_that_does_not_keep_up_makes_a_leader_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "MAX_UNWRITTEN", 5)

    async def scenario() -> list[object]:
        disk = Stuck(Platter(random.Random(1)))
        host = RaftHost(
            member="n1@1",
            log=SharedLog(disk),
            event_log=event_log(),
            rng=random.Random(1),
            tick_s=0.1,
            election_ticks=4,
            send=lambda member, messages: None,
            batch=nullcontext(),
            chunks=ChunkQueue(),
            failure=Failure(),
        )
        running = asyncio.ensure_future(host.run(lambda: None))
        group = host.open(
            "g", partition=0, founders=("n1@1",), machine=Metastorage(), restoring=None
        )
        while not group.leading:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        disk.stuck = True
        answers = list[object]()
        for _ in range(20):
            host.propose(group, INVOKE, 1000.0, answers.append)
            await asyncio.sleep(0.1)
        running.cancel()
        return answers

    answers = simulate(scenario())
    refused = [a for a in answers if isinstance(a, Failed) and a.code == codes.OVERLOADED]
    assert 10 <= len(refused) == len(answers) < 20
    assert "5 writes wait for the disk" in refused[0].message


def test_events_that_nobody_fetched_in_time_are_told_of_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 10)
    log = event_log()
    for number in range(25):
        log.add(events.LEADER_LOST, str(number))

    first = log.since("", 0)
    assert [e.text for e in first.events[1:]] == [str(number) for number in range(15, 25)]
    assert (first.events[0].kind, first.events[0].seq) == (EventKind.EVENTS_LOST, 15)
    assert first.events[0].text.startswith("15 events were dropped")
    assert log.since("boot", 15).events == first.events[1:]
    assert log.since("boot", first.cursor).events == ()

    log.add(events.LEADER_LOST, "26")
    assert [e.kind for e in log.since("boot", first.cursor).events] == [EventKind.LEADER_LOST]


@attrs.define
class Silent:
    """A client that says nothing until it is dropped."""

    peer: str = "client"
    dropped: asyncio.Event = attrs.field(factory=asyncio.Event)

    def send(self, payload: bytes) -> None:
        raise AssertionError("nobody was asked anything")

    async def recv(self) -> bytes:
        await self.dropped.wait()
        raise ConnectionLost(self.peer)

    async def each(self, take: Callable[[bytes], None]) -> NoReturn:
        raise ConnectionLost(self.peer)

    def close(self) -> None:
        self.dropped.set()


def sessions_of_a_node() -> Sessions:
    async def nothing(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        return Failed(codes.UNREACHABLE)

    async def no_answer(question: AdminQuestion) -> AdminBody:
        raise AssertionError(question)

    return Sessions(
        origin="n1~1",
        routes=FixedRoutes(1),
        primaries=PrimaryClient(route=lambda _: None, ask=nothing, notify=lambda node, body: None),
        clock=Hlc(wall_ns=lambda: 10**9, monotonic_s=lambda: 0.0),
        admin=no_answer,
    )


def test_one_client_more_than_a_node_takes_is_dropped_until_another_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sessions.MAX_CLIENTS > MAX_CONCURRENCY, "a plan may send all its clients to one node"
    monkeypatch.setattr(sessions, "MAX_CLIENTS", 2)

    async def served(node: Sessions, client: Silent) -> None:
        with contextlib.suppress(ConnectionLost):
            await node.serve(client)

    async def scenario() -> None:
        node = sessions_of_a_node()
        clients = [Silent() for _ in range(2)]
        work = [asyncio.ensure_future(served(node, client)) for client in clients]
        await asyncio.sleep(1.0)
        await served(node, Silent())  # it returns although nobody closed the connection
        assert not any(task.done() for task in work)
        clients[0].close()
        await work[0]
        third = asyncio.ensure_future(served(node, Silent()))
        await asyncio.sleep(1.0)
        assert not third.done()

    simulate(scenario())


def test_a_client_that_says_nothing_is_dropped_in_time() -> None:
    async def scenario() -> float:
        before_s = asyncio.get_running_loop().time()
        with contextlib.suppress(ConnectionLost):
            await sessions_of_a_node().serve(Silent())
        return asyncio.get_running_loop().time() - before_s

    assert simulate(scenario(), horizon_s=1000.0) == pytest.approx(sessions.IDLE_LIMIT_S)
