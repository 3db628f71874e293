"""Starts, stops, erases and reconfigures the replicas of partitions on a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from clusters.reference.node import events
from clusters.reference.node.bugs import planted
from clusters.reference.node.config import Tuning
from clusters.reference.node.groups.host import GroupHandle, RaftHost
from clusters.reference.node.groups.snapshot_manager import SnapshotManager
from clusters.reference.node.markers import reached
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.placement.rendezvous import Assignment
from clusters.reference.node.replicas.replica import (
    PartitionMachine,
    PartitionReplication,
    Replica,
)
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.runtime.concurrency import Tasks
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.log_records import CorruptLog
from clusters.reference.node.tx.commands import CommandClass, class_of
from clusters.reference.node.tx.finisher import Finisher
from clusters.reference.node.tx.outcome_sender import OutcomeSender
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire.messages import LogReply, StartReply
from clusters.reference.node.wire.reports import GroupStatus

RETRY_S = 0.2  # after a replica could not start; twice as long after each further time
MAX_RETRY_S = 2.0


class _Retry:
    """When a replica that could not start is to be started again."""

    def __init__(self) -> None:
        self._delay_s, self._at_s = RETRY_S, 0.0

    def failed(self, now_s: float) -> None:
        self._at_s = now_s + self._delay_s
        self._delay_s = min(2 * self._delay_s, MAX_RETRY_S)

    def due(self, now_s: float) -> bool:
        return now_s >= self._at_s


class ReplicaManager:
    """``replicas`` are those that run. Calls for one partition are carried out in turn."""

    def __init__(
        self,
        *,
        member: str,
        replicas: dict[int, Replica],
        host: RaftHost,
        snapshots: SnapshotManager,
        primaries: PrimaryClient,
        leases: LeaseTable,
        clock: Hlc,
        event_log: events.EventLog,
        tasks: Tasks,
        tuning: Tuning = Tuning(),  # noqa: B008 (frozen)
        dropped: Callable[[int], bool] = lambda number: False,
        may_be_reset: Callable[[int], bool] = lambda number: False,
        resets_itself: Callable[[int], bool] = lambda number: False,
    ) -> None:
        """``replicas`` is empty, and filled by this manager alone. ``dropped``: see ``Routes``;
        ``may_be_reset`` and ``resets_itself``: see ``Primary``.
        """
        self._dropped = dropped
        self.member, self.replicas = member, replicas
        self._host, self._snapshots, self._primaries = host, snapshots, primaries
        self._leases, self._clock, self._events = leases, clock, event_log
        self._tasks, self._tuning = tasks, tuning
        self._may_be_reset, self._resets_itself = may_be_reset, resets_itself
        # In this life of the node, and not started again: the last user index of each.
        self.stopped: dict[int, int] = {}
        # In this life of the node: where the commits of a copy stood that was stopped.
        self._committed: dict[int, tuple[int, int]] = {}
        self._turns: dict[int, asyncio.Lock] = {}  # by partition
        self._giving_up: dict[int, None] = {}  # that are erased unless they are needed
        self._retries: dict[int, _Retry] = {}  # of those that could not start
        self._restored: dict[str, Partition] = {}  # from snapshots, and not yet started

    def restored(self, group: str) -> Partition:
        """The state machine that the snapshot of ``group`` is read into, for the next start."""
        return self._restored.setdefault(group, self._new_partition())

    async def start(self, number: int, assignment: Assignment) -> Replica:
        """Start the replica of partition ``number``, if it does not run; one that was stopped
        starts from its state on the disk. Raises ``DiskError`` and ``CorruptLog``.
        """
        async with self._turn(number):
            if number in self.stopped:
                await self._snapshots.reload(group_of(number), self.restored(group_of(number)))
            return self._start(number, assignment)

    def assigned(self, number: int, assignment: Assignment) -> None:
        """Metastorage assigned partition ``number`` to this node: start its replica. Its snapshot
        was read when the node started; that of a replica that was stopped since then is read again,
        which takes time. One that can't start is tried again by a later call, ``MAX_RETRY_S`` later
        at most.
        """
        if number in self.stopped:
            reached("stopped replica assigned again")
            retry = self._retries.get(number)
            due = retry is None or retry.due(asyncio.get_running_loop().time())
            # Not beside a stop or start that is under way: the driver asks again soon.
            if due and not self._turn(number).locked():
                self._tasks.spawn(self._start_again(number, assignment))
        else:
            self._start(number, assignment)

    async def _start_again(self, number: int, assignment: Assignment) -> None:
        try:
            await self.start(number, assignment)
        except (CorruptLog, DiskError) as error:
            # The node goes on without this replica, and is asked for it again.
            reached("replica not started")
            retry = self._retries.setdefault(number, _Retry())
            retry.failed(asyncio.get_running_loop().time())
            text = f"can't start its replica: {error}"
            self._events.add(events.STORAGE_ERROR, text, partition=number)

    def _turn(self, number: int) -> asyncio.Lock:
        return self._turns.setdefault(number, asyncio.Lock())

    def _start(self, number: int, assignment: Assignment) -> Replica:
        if number in self.replicas:
            return self.replicas[number]
        name = group_of(number)
        partition = self._restored.pop(name, None) or self._new_partition()
        # Apart, so that stopping this replica cancels its tasks and no others.
        tasks = self._tasks.part()
        outcomes = OutcomeSender(partition=partition, primaries=self._primaries, spawn=tasks.spawn)
        primary = Primary(
            number=number,
            partition=partition,
            replication=PartitionReplication(GroupHandle(self._host, name)),
            outcomes=outcomes,
            clock=self._clock,
            leases=self._leases,
            dropped=self._dropped,
            may_be_reset=self._may_be_reset,
            resets_itself=self._resets_itself,
        )
        group = self._host.open(
            name,
            partition=number,
            # A replica that is no founder begins without a configuration: a leader sends it one.
            founders=assignment.founders if self.member in assignment.founders else (),
            machine=PartitionMachine(partition, primary),
            restoring=self._snapshots.loaded(name),
        )
        finisher = Finisher(
            primary=primary,
            outcomes=outcomes,
            primaries=self._primaries,
            clock=self._clock,
            leases=self._leases,
            spawn=tasks.spawn,
            retention_s=self._tuning.outcome_retention_s,
        )
        replica = Replica(
            group=group, partition=partition, primary=primary, finisher=finisher, tasks=tasks
        )
        self.replicas[number] = replica
        self.stopped.pop(number, None)
        self._retries.pop(number, None)
        text = f"starts its replica, log up to {group.raft.last_index}, {group.raft.configuration}"
        self._events.add(
            events.START_DECISION,
            text,
            partition=number,
            term=group.raft.term,
            decision=events.STARTS,
        )
        return replica

    def _new_partition(self) -> Partition:
        tuning = self._tuning
        return Partition(retention_s=tuning.version_retention_s, chunk_bytes=tuning.chunk_bytes)

    async def stop(self, number: int) -> None:
        """Stop the replica, if it runs: requests that wait at its primary are refused, its tasks
        have ended and its writes are durable on return. Its state on the disk stays; the grant, if
        this node has it, is released with the next ticks.
        """
        async with self._turn(number):
            await self._stop(number)

    async def _stop(self, number: int) -> None:
        replica = self.replicas.pop(number, None)
        if replica is None:
            return
        self.stopped[number] = replica.partition.last_user_index
        raft = replica.group.raft
        self._committed[number] = max(
            self._committed.get(number, (0, 0)), (raft.generation, raft.commit_index)
        )
        replica.primary.close()
        self._host.close(replica.group)
        # Cancellations come back as results here; other errors ``Tasks`` has reported.
        await asyncio.gather(*replica.tasks.cancel(), return_exceptions=True)
        await self._host.commits.made_durable()

    async def erase(self, number: int) -> None:
        """Stop the replica, and remove its entries and its snapshot. It must be no member of its
        group any more: all that it had acknowledged is gone. A replica that starts anew in its
        place keeps its promises on terms and votes, and waits to be taken in.
        """
        async with self._turn(number):
            await self._erase(number)

    async def erase_unless(
        self, number: int, needed: Callable[[LogReply], Awaitable[str | None]]
    ) -> str | None:
        """Stop the replica, and erase it unless it is ``needed``: what for, judged by where its log
        ends. Meanwhile the copy acknowledges nothing, and tells others that it is not whole.
        """
        async with self._turn(number):
            self._giving_up[number] = None
            try:
                await self._stop(number)
                found = await needed(self.log_of(number))
                if found is None:
                    await self._erase(number)
            finally:
                del self._giving_up[number]
            return found

    async def _erase(self, number: int) -> None:
        await self._stop(number)
        self.stopped[number] = 0
        self._committed.pop(number, None)
        self._restored.pop(group_of(number), None)
        await self._snapshots.erase(group_of(number))

    def catches_up(self, number: int) -> bool:
        """Whether the replica, which was stopped and started again, knows less of what is committed
        than before: only its leader tells it, and a log alone says nothing of it.
        """
        replica = self.replicas.get(number)
        if replica is None or number not in self._committed:
            return False
        raft = replica.group.raft
        generation, index = self._committed[number]
        behind = raft.generation == generation and raft.commit_index < index
        if not behind:
            del self._committed[number]
        return behind

    def log_of(self, number: int) -> LogReply:
        """Where the log of the copy here ends, whether its replica runs or not."""
        replica = self.replicas.get(number)
        if replica is not None:
            raft = replica.group.raft
            place = raft.configuration.generation, raft.last_term, raft.last_index
            end = raft.mark(raft.status().durable_index)
            durable = end.configuration.generation, end.term, end.index
        else:
            state = self._host.log.groups.get(group_of(number))
            durable = place = (0, 0, 0) if state is None else state.last_place
        member = self._host.member_of(group_of(number))
        return LogReply(*place, self._whole(number), member, durable)

    def _whole(self, number: int) -> bool:
        """Whether the copy here is one that its group can go on with."""
        if number in self._giving_up:
            return False
        replica = self.replicas.get(number)
        if replica is not None:
            raft = replica.group.raft
            config = raft.configuration
            same = config.generation == raft.generation
            return bool(config.voters) and same and not raft.diverged
        state = self._host.log.groups.get(group_of(number))
        return state is not None and state.is_whole

    def start_of(self, number: int) -> StartReply:
        """What a decision about starts asks of the copy here, by its log as it is on the disk. No
        raft runs for it: it elects and promises nothing.
        """
        name = group_of(number)
        replica, state = self.replicas.get(number), self._host.log.groups.get(name)
        raft = None if replica is None else replica.group.raft
        alive = raft is not None and raft.configuration.decides(raft.node) and not raft.diverged
        whole, member = self._whole(number), self._host.member_of(name)
        if state is None:
            return StartReply(alive, 0, 0, 0, 0, 0, 0, whole, member)
        if replica is not None:
            user_index = replica.partition.last_user_index
        else:
            # Of what the log has no longer: of the snapshot, or of what ran here before.
            read = self._restored.get(name)
            user_index = max(
                0 if read is None else read.read_user_index, self.stopped.get(number, 0)
            )
        for entry in reversed(state.entries):
            if planted("user-index-not-saved") and replica is None:
                break
            if class_of(entry.data, config=entry.config) is CommandClass.USER:
                user_index = max(user_index, entry.index)
                break
        config_index, lineage = state.last_configuration
        begun = [g.number for g in lineage if g.base_index < user_index]
        user = max(begun, default=0), user_index
        return StartReply(alive, *state.last_place, *user, config_index, whole, member)

    def left_behind(self) -> list[int]:
        """Partitions of which the disk holds a replica that does not run."""
        groups = self._host.log.groups
        held = [name for name, state in groups.items() if not state.is_blank]
        stopped = {name for name in held if name not in self._host.groups}
        return [number for number in map(number_of, sorted(stopped)) if number is not None]

    def reconfigure(self, number: int, members: tuple[str, ...]) -> None:
        """Take one step towards ``members`` as the voters of partition ``number``, if this replica
        leads it; to be called again until ``status`` says that they are.
        """
        replica = self.replicas.get(number)
        if replica is not None and replica.group.serving:
            self._host.step_towards(replica.group, members)

    def status(self) -> dict[int, GroupStatus]:
        """Every replica that runs, by partition."""
        return {number: replica.group.status() for number, replica in self.replicas.items()}


def group_of(number: int) -> str:
    """The raft group of partition ``number``."""
    return f"p{number}"


def number_of(group: str) -> int | None:
    """The partition of the raft group; ``None`` for the group of metastorage."""
    return int(group[1:]) if group[0] == "p" and group[1:].isdecimal() else None
