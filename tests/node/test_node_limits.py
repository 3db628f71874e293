"""What is bounded, and what is said when a bound is reached."""

from __future__ import annotations

import asyncio
import random

import pytest

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node import codes, events, groups
from clusters.reference.node.groups import Host
from clusters.reference.node.metastorage.store import Metastorage
from clusters.reference.node.sessions import MAX_CLIENTS
from clusters.reference.node.storage.log import SharedLog
from clusters.reference.node.wire.messages import Failed
from harness.plan import MAX_CONCURRENCY
from harness.records import EventKind

INVOKE = b"never applied"


class Stuck(SimDisk):
    """A disk whose syncs do not come back."""

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        await asyncio.Event().wait()


def event_log() -> events.EventLog:
    return events.EventLog(boot="boot", wall_ns=lambda: 7)


def test_a_disk_that_does_not_keep_up_makes_a_leader_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "MAX_UNWRITTEN", 5)

    async def scenario() -> list[object]:
        host = Host(
            member="n1@1",
            log=SharedLog(Stuck(Platter(random.Random(1)))),
            event_log=event_log(),
            rng=random.Random(1),
            tick_s=0.1,
            election_ticks=4,
        )
        running = asyncio.ensure_future(host.run())
        group = host.open(
            "g", partition=0, founders=("n1@1",), machine=Metastorage(), restoring=None
        )
        while not group.leading:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
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


def test_a_node_takes_as_many_clients_as_a_plan_may_have() -> None:
    assert MAX_CLIENTS > MAX_CONCURRENCY
