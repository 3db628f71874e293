"""Restarts of replicas that an operator asks for, from their disks or without what is on them
(Ignite 3: ``recovery partitions restart [--with-cleanup]``).

A copy that is cleaned up begins anew as another member, and its leader takes it in. Until then the
partition has a copy less, so a copy goes only if nothing is lost by it however the others fare
then: with its replica stopped, most voters must hold *on their disks* all that its log has, and
metastorage must say that most nodes of the partition are there without this one. What two nodes
that are cleaned up at once tell each other can't be such a majority: a copy that is about to be
erased counts for none from before it asks the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial

from clusters.reference.node import events
from clusters.reference.node.availability.majority import Standing, standing
from clusters.reference.node.bugs import planted
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import Invoke, View, unchanged
from clusters.reference.node.placement.rendezvous import Assignment
from clusters.reference.node.raft.configuration import Configuration, Vote, tally
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import Numbers
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.runtime.concurrency import all_of, settle
from clusters.reference.node.storage.identity import name_of
from clusters.reference.node.storage.log_records import CorruptLog
from clusters.reference.node.topology.logical import LOGICAL, lives, logical
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    AskLog,
    Failed,
    InvokeReply,
    LogReply,
    PeerAnswer,
    RestartReplica,
)

BUSY_TIMEOUT_S = 1.2  # for what is done for the partition already: most of it asks other nodes once
LEAD_TIMEOUT_S = 0.25  # for another one to lead, before a replica is started again
FOLLOW_TIMEOUT_S, POLL_S = 1.0, 0.02  # for it to hear from its leader after that
COPIED_TIMEOUT_S = 1.5  # for the others to have what a copy has that is to be erased
ASK_TIMEOUT_S = 0.5  # for another node to tell of its log

Begin = Callable[[int, Callable[[], Coroutine[None, None, object]]], bool]


class ReplicaRestarts:
    """Starts replicas of this node again, at most one act for a partition at a time."""

    def __init__(
        self,
        *,
        node: str,
        view: View,
        invoke: Callable[[Invoke], Awaitable[InvokeReply | Failed]],
        numbers: Callable[[], Numbers],
        assigned: Callable[[int], Assignment | None],
        host: RaftHost,
        replicas: ReplicaManager,
        ask: Ask,
        event_log: events.EventLog,
        begin: Begin,
    ) -> None:
        """``invoke`` reaches the leader of metastorage; ``assigned``: what a replica is started
        with, where this node is to run one; ``begin`` starts an act for a partition unless one is
        under way.
        """
        self._node, self._view, self._invoke = node, view, invoke
        self._numbers, self._assigned = numbers, assigned
        self._host, self._replicas, self._ask = host, replicas, ask
        self._events, self._begin = event_log, begin

    async def restart(self, body: RestartReplica) -> PeerAnswer:
        """Stop the replica of a partition here and start it again. The answer comes once it follows
        its leader, so that a majority does when the next node's is restarted; of one that is
        cleaned up as soon as it waits to be taken in. One that can't start is tried again as any
        other.
        """
        number = body.partition
        assignment = self._assigned(number)
        if assignment is None:
            return Failed(codes.NO_REPLICA, f"{self._node} is to run none of partition {number}")
        over: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()
        act = partial(self._restart, body, assignment, over)
        busy_s = 0.0
        while number not in self._replicas.replicas or not self._begin(number, act):
            if busy_s >= BUSY_TIMEOUT_S:
                reached("manual restart of a replica that is busy")
                return Failed(codes.REPLICA_BUSY, f"partition {number} is busy on {self._node}")
            await asyncio.sleep(POLL_S)
            busy_s += POLL_S
        return await over

    async def _restart(
        self, body: RestartReplica, assignment: Assignment, over: asyncio.Future[PeerAnswer]
    ) -> None:
        number = body.partition
        answer: PeerAnswer = Failed(codes.REPLICA_BUSY, f"{self._node} could not start it")
        try:
            group = self._replicas.replicas[number].group
            if body.cleanup:
                answer = await self._clean_up(number, group, assignment)
            else:
                reached("replica restarted by an operator")
                await self._hand_over(group)
                await self._replicas.stop(number)
                await self._start(number, assignment)
                answer = Ack()
        except (CorruptLog, DiskError) as error:
            text = f"can't start its replica: {error}"
            self._events.add(events.STORAGE_ERROR, text, partition=number)
        finally:
            settle(over, answer)

    async def _hand_over(self, group: Group) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAD_TIMEOUT_S):
                await self._host.hand_over((group,))

    async def _start(self, number: int, assignment: Assignment) -> None:
        """Start the replica, and wait until it hears from its leader."""
        await self._replicas.start(number, assignment)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                while self._replicas.catches_up(number):  # noqa: ASYNC110 (a few ticks)
                    await asyncio.sleep(POLL_S)

    # -- without what is on the disk

    async def _clean_up(self, number: int, group: Group, assignment: Assignment) -> PeerAnswer:
        """Erase the copy and let it begin anew, or say what it is needed for."""
        kept = partial(self._kept_by_others, number, group)
        # Before it is stopped, too: where copies lag, or are gone, that would cost service alone.
        refused = await kept(self._replicas.log_of(number))
        if refused is None:
            await self._hand_over(group)
            refused = await self._replicas.erase_unless(number, kept)
            if refused is None:
                self._tell_erasure(number, group)
            await self._start(number, assignment)
        if refused is not None:
            reached("cleanup of a copy that is needed refused")
            return Failed(codes.COPY_NEEDED, refused)
        return Ack()

    def _tell_erasure(self, number: int, group: Group) -> None:
        # Before the next replica starts: a reader that sees it asks why.
        reached("replica cleaned up by an operator")
        text = "erases its replica: an operator asked for it, and most others hold all of it"
        generation = group.raft.configuration.generation
        self._events.add(
            events.START_DECISION,
            text,
            partition=number,
            generation=generation,
            decision=events.ERASES,
        )

    async def _kept_by_others(self, number: int, group: Group, ours: LogReply) -> str | None:
        """``None`` where most voters hold all that the copy has, whose log is ``ours``, and the
        partition stands without it; else what is missing.
        """
        if planted("needed-copy-erased"):
            return None
        config = group.raft.configuration
        try:
            async with asyncio.timeout(COPIED_TIMEOUT_S):
                while not await self._copied(number, config, ours):  # noqa: ASYNC110 (a few)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return "the others do not hold, by a majority, all that its log has"
        return await self._stands_without(number)

    async def _copied(self, number: int, config: Configuration, ours: LogReply) -> bool:
        others = [m for m in (*config.voters, *config.outgoing) if m != ours.member]
        nodes = tuple(dict.fromkeys(map(name_of, others)))

        async def one(node: str) -> PeerAnswer:
            return await self._ask(node, AskLog(number), ASK_TIMEOUT_S)

        answers = await all_of(map(one, nodes))
        place = ours.generation, ours.term, ours.index
        # A log that ends with a later term has, before it, all that was committed in earlier ones.
        holding = {
            answer.member: True
            for answer in answers
            if isinstance(answer, LogReply) and answer.whole and answer.durable >= place
        }
        return tally(config, holding) is Vote.WON

    async def _stands_without(self, number: int) -> str | None:
        """What keeps the partition from going on without the copy here, by metastorage itself: no
        reset that is under way may have chosen it, and none may come that was decided before.
        """
        partition = self._numbers().partition(number)
        if partition is None:
            return "its table is dropped"
        state = keys.read(self._view, partition)
        if state.pending is not None and state.pending.force:
            return "a reset of the partition is under way"
        others = [member.name for member in logical(self._view) if member.name != self._node]
        if standing(state, others, lives(self._view)) is not Standing.MAJORITY:
            return "too few of the other nodes of the partition are there"
        # A reset is decided by a topology without a majority, and refused by another one: with this
        # one none can be on its way that has asked for the log here before.
        read = [LOGICAL, *map(partition.key, (keys.STABLE, keys.PENDING, keys.GENERATION))]
        newest = tuple(unchanged(key, self._view.get(key)) for key in read)
        done = await self._invoke(Invoke(newest, ()))
        same = isinstance(done, InvokeReply) and done.success
        return None if same else "topology or assignments change just now"
