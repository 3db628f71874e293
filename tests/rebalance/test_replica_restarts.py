"""What an operator's restart of a replica does, step by step, and what a copy is needed for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    InvokeResult,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement.rendezvous import Assignment
from clusters.reference.node.raft import Configuration, Entry
from clusters.reference.node.raft.configuration import Generation
from clusters.reference.node.rebalance import keys, replica_restarts
from clusters.reference.node.rebalance.driver import Numbers
from clusters.reference.node.rebalance.keys import (
    GENERATION,
    PENDING,
    STABLE,
    Assignments,
    PartitionId,
    assignments,
)
from clusters.reference.node.rebalance.replica_restarts import ReplicaRestarts
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.topology.logical import LOGICAL, Member
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    Failed,
    InvokeReply,
    LogReply,
    PeerAnswer,
    RestartReplica,
)

NUMBER, PARTITION = 4, PartitionId(7, 0)
ASSIGNMENT = Assignment(members=("a@1", "b@1", "c@1"), founders=())
LINEAGE = (Generation(1, 0, 3, 1), Generation(2, 1, 5, 2))
PLACE = 2, 5, 9  # generation, term and index at which the log of the copy ends


def held(*durable: int, whole: bool = True) -> LogReply:
    return LogReply(0, 0, 0, whole, durable=cast(tuple[int, int, int], durable or PLACE))


def there(nodes: str) -> Operation:
    members = [Member(Node(name=name), f"{name}~1", "1") for name in nodes]
    return Operation(LOGICAL, msgspec.msgpack.encode(members))


class Restarted:
    """A node that restarts its replica, with what is around it. ``acts``: what is done to the
    replica; ``busy``, ``behind``: how often it is busy, and behind what it knew to be committed.
    """

    def __init__(self, *, busy: int = 0, behind: int = 0) -> None:
        self.acts, self.asked, self.busy, self.behind = list[str](), list[str](), busy, behind
        self.logs = [LogReply(*PLACE, member="a@1", durable=PLACE)]
        self.others: dict[str, PeerAnswer] = dict.fromkeys("bcde", held())
        self.config = Configuration(("a@1", "b@1", "c@1"), lineage=LINEAGE)
        self.view, self.metastorage = Metastorage(), Metastorage()
        self.written(there("abc"), Operation(PARTITION.key(STABLE), keys.encode(ABC)))
        self.numbers = Numbers(((7, NUMBER, 1),))
        self.assignment: Assignment | None = ASSIGNMENT
        self.log = events.EventLog(boot="boot", wall_ns=lambda: 7)
        self.lost = False  # the answer of metastorage
        self.broken: Exception | None = None
        self.leads_s = 0.0  # until another one leads
        self.replicas = {NUMBER: SimpleNamespace(group=SimpleNamespace(raft=self._raft()))}
        self.after_stop: Callable[[], None] = lambda: None

    def written(self, *operations: Operation, seen: bool = True) -> None:
        data = encode_invoke(Invoke((), operations))
        for store in (self.view, self.metastorage) if seen else (self.metastorage,):
            store.apply(Entry(1, 1, data))

    async def restart(self, *, cleanup: bool = False) -> PeerAnswer:
        restarts = ReplicaRestarts(
            node="a",
            view=self.view,
            invoke=self._invoke,
            numbers=lambda: self.numbers,
            assigned=lambda number: self.assignment if number == NUMBER else None,
            host=cast(Any, self),
            replicas=cast(Any, self),
            ask=cast(Any, self._ask),
            event_log=self.log,
            begin=self._begin,
        )
        return await restarts.restart(RestartReplica(NUMBER, cleanup))

    # -- as ``RaftHost`` and ``ReplicaManager`` do it

    async def hand_over(self, groups: tuple[object]) -> None:
        self.acts.append("hand over")
        await asyncio.sleep(self.leads_s)

    def log_of(self, number: int) -> LogReply:
        return self.logs[0] if len(self.logs) == 1 else self.logs.pop(0)

    async def stop(self, number: int) -> None:
        self.acts.append("stop")
        self.after_stop()

    async def erase_unless(
        self, number: int, needed: Callable[[LogReply], Awaitable[str | None]]
    ) -> str | None:
        await self.stop(number)
        found = await needed(self.log_of(number))
        if found is None:
            self.acts.append("erase")
        return found

    async def start(self, number: int, assignment: Assignment) -> None:
        assert assignment == ASSIGNMENT
        self.acts.append("start")
        if self.broken is not None:
            raise self.broken

    def catches_up(self, number: int) -> bool:
        self.behind -= 1
        return self.behind >= 0

    # -- what is around them

    def _raft(self) -> object:
        owner = self

        class Raft:
            @property
            def configuration(self) -> Configuration:
                return owner.config

        return Raft()

    async def _ask(self, node: str, body: object, limit_s: float) -> PeerAnswer:
        self.asked.append(node)
        answer = self.others[node]
        named = isinstance(answer, LogReply) and not answer.member
        return msgspec.structs.replace(answer, member=f"{node}@1") if named else answer

    async def _invoke(self, invoke: Invoke) -> InvokeReply | Failed:
        result = self.metastorage.apply(Entry(1, 1, encode_invoke(invoke)))
        assert isinstance(result, InvokeResult)
        lost = Failed(codes.NOT_LEADER, "lost")
        return lost if self.lost else InvokeReply(result.success, result.revision)

    def _begin(self, number: int, act: Callable[[], Coroutine[None, None, object]]) -> bool:
        self.busy -= 1
        if self.busy >= 0:
            return False
        self.acting = asyncio.ensure_future(act())
        return True


ABC = assignments("abc")


def timed(made: Restarted, *, cleanup: bool = False) -> tuple[PeerAnswer, float]:
    """The answer, and after how long."""

    async def scenario() -> tuple[PeerAnswer, float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        answer = await made.restart(cleanup=cleanup)
        took_s = loop.time() - began_s
        return answer, took_s

    return simulate(scenario())


def code_of(answer: PeerAnswer) -> str:
    assert isinstance(answer, Failed)
    return answer.code


def test_a_restart_is_answered_once_the_replica_follows_its_leader() -> None:
    made = Restarted(busy=3, behind=5)
    answer, took_s = timed(made)

    assert (answer, made.acts) == (Ack(), ["hand over", "stop", "start"])
    assert took_s == pytest.approx(8 * replica_restarts.POLL_S)


def test_a_restart_waits_neither_for_a_leader_nor_for_another_one_for_long() -> None:
    made = Restarted(behind=10**6)
    made.leads_s = 60.0
    answer, took_s = timed(made)

    assert (answer, made.acts) == (Ack(), ["hand over", "stop", "start"])
    limit_s = replica_restarts.LEAD_TIMEOUT_S + replica_restarts.FOLLOW_TIMEOUT_S
    assert took_s == pytest.approx(limit_s, abs=0.05)


@pytest.mark.parametrize("runs", [True, False])
def test_a_replica_that_is_busy_or_does_not_run_is_waited_for_and_then_refused(runs: bool) -> None:
    made = Restarted(busy=10**6 if runs else 0)
    if not runs:
        made.replicas.clear()
    answer, took_s = timed(made)

    assert (code_of(answer), made.acts) == (codes.REPLICA_BUSY, [])
    assert took_s == pytest.approx(replica_restarts.BUSY_TIMEOUT_S, abs=0.05)


def test_a_replica_that_this_node_is_not_to_run_is_refused_at_once() -> None:
    made = Restarted()
    made.assignment = None

    answer, took_s = timed(made)
    assert (code_of(answer), made.acts, took_s) == (codes.NO_REPLICA, [], 0.0)


def test_a_replica_that_can_not_start_is_told_of_and_tried_again_later() -> None:
    made = Restarted()
    made.broken = DiskError("torn")

    assert code_of(timed(made)[0]) == codes.REPLICA_BUSY
    (event,) = made.log.since("boot", 0).events
    assert (event.kind, event.partition) == (events.STORAGE_ERROR, NUMBER)


@pytest.mark.parametrize(
    ("others", "outgoing", "asked"),
    [
        ({}, (), "bc"),
        # A log that ends with a later term has all that was committed before.
        ({"b": held(2, 6, 1), "c": held(3, 1, 1)}, (), "bc"),
        ({}, ("a@1", "c@1", "d@1"), "bcd"),
    ],
)
def test_a_copy_that_most_others_hold_is_erased_and_begins_anew(
    others: dict[str, PeerAnswer], outgoing: tuple[str, ...], asked: str
) -> None:
    made = Restarted()
    made.others.update(others)
    made.config = msgspec.structs.replace(made.config, outgoing=outgoing)
    answer, _ = timed(made, cleanup=True)

    assert (answer, made.acts) == (Ack(), ["hand over", "stop", "erase", "start"])
    # Before it is stopped, and after that.
    assert sorted(made.asked) == sorted(asked * 2)
    (event,) = made.log.since("boot", 0).events
    assert (event.kind, event.partition, event.generation) == (events.START_DECISION, NUMBER, 2)
    assert event.decision == events.ERASES


@pytest.mark.parametrize(
    "other",
    [
        held(2, 5, 8),
        held(2, 4, 99),
        held(1, 9, 99),
        held(whole=False),
        msgspec.structs.replace(held(), member="c@2"),  # another copy, which has no vote
        Failed(codes.UNREACHABLE, "silent"),
    ],
)
@pytest.mark.parametrize("outgoing", [(), ("a@1", "b@1", "d@1")])
def test_a_copy_that_the_others_do_not_hold_is_not_even_stopped(
    other: PeerAnswer, outgoing: tuple[str, ...]
) -> None:
    made = Restarted()
    made.others["d" if outgoing else "c"] = other
    made.config = msgspec.structs.replace(made.config, outgoing=outgoing)
    answer, took_s = timed(made, cleanup=True)

    assert (code_of(answer), made.acts) == (codes.COPY_NEEDED, [])
    assert took_s == pytest.approx(replica_restarts.COPIED_TIMEOUT_S, abs=0.05)


def test_a_copy_is_erased_once_the_others_have_copied_it() -> None:
    made = Restarted()
    made.others["c"] = held(2, 5, 8)

    async def scenario() -> None:
        asking = asyncio.ensure_future(made.restart(cleanup=True))
        await asyncio.sleep(1.0)
        assert made.acts == []
        made.others["c"] = held()
        assert await asking == Ack()

    simulate(scenario())


def test_a_copy_that_has_more_when_it_is_stopped_starts_again_as_it_was() -> None:
    made = Restarted()
    made.logs.append(LogReply(2, 5, 10, member="a@1"))
    answer, _ = timed(made, cleanup=True)

    assert (code_of(answer), made.acts) == (codes.COPY_NEEDED, ["hand over", "stop", "start"])
    assert not made.log.since("boot", 0).events


FORCED = Operation(PARTITION.key(PENDING), keys.encode(Assignments(("b",), force=True)))
MOVING = Operation(PARTITION.key(PENDING), keys.encode(assignments("abd")))


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (FORCED, codes.COPY_NEEDED),
        (there("ab"), codes.COPY_NEEDED),
        (there("bc"), None),
        (MOVING, None),
    ],
)
def test_a_copy_goes_only_where_the_partition_stands_without_it(
    written: Operation, code: str | None
) -> None:
    made = Restarted()
    made.written(written)
    answer, _ = timed(made, cleanup=True)

    assert (None if answer == Ack() else code_of(answer)) == code
    assert bool(made.acts) == (code is None)


@pytest.mark.parametrize(
    "written",
    [
        there("abcd"),
        MOVING,
        Operation(PARTITION.key(STABLE), keys.encode(ABC)),
        Operation(PARTITION.key(GENERATION), keys.encode_number(3)),
        None,
    ],
)
def test_a_copy_stays_where_metastorage_has_changed_or_does_not_answer(
    written: Operation | None,
) -> None:
    made = Restarted()
    made.lost = written is None
    if written is not None:
        made.written(written, seen=False)

    assert code_of(timed(made, cleanup=True)[0]) == codes.COPY_NEEDED
    assert made.acts == []


def test_the_copy_of_a_partition_whose_table_is_dropped_is_left_to_that() -> None:
    made = Restarted()
    made.numbers = Numbers()

    assert code_of(timed(made, cleanup=True)[0]) == codes.COPY_NEEDED
    assert made.acts == []
