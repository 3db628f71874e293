"""The host of a node's raft groups: one tick loop, one flush, one group commit for all of them.

Steps only mark a group dirty. Once a turn of the loop everything dirty is drained: messages leave
as one frame a peer, and what must be durable goes to the one log together with what other groups
want durable. So heartbeats of all groups to one peer travel together, and a sync is shared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from clusters.reference.node import codes, events
from clusters.reference.node.members import name_of
from clusters.reference.node.raft import (
    Configuration,
    Entry,
    InvariantBroken,
    Mark,
    Message,
    NotLeader,
    Raft,
    RaftConfig,
    Ready,
    Role,
)
from clusters.reference.node.storage.log import SharedLog
from clusters.reference.node.storage.records import Cut, Saved, Update
from clusters.reference.node.storage.state import GroupState
from clusters.reference.node.tasks import together
from clusters.reference.node.wire.messages import Failed, GroupStatus

# What may be on its way to one follower of one group: small enough that the catch-up of a dozen
# groups together stays below a connection's send queue.
MAX_APPEND_BYTES = 128 * 1024
MAX_INFLIGHT = 16
ENTRY_OVERHEAD_BYTES = 200  # of an entry in memory beside its data
MAX_PROPOSALS = 1024  # waiting in one group; beyond it a leader says so instead of queueing

log = logging.getLogger("node.groups")

Done = Callable[[object], None]
Send = Callable[[str, tuple[tuple[str, Message], ...]], None]


class Machine(Protocol):
    """A group's state machine: deterministic, in memory, fed committed entries in order."""

    def apply(self, entry: Entry) -> object:
        """Take one committed entry; the result goes to who proposed it here."""

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment in chunks, which are taken while later entries are applied."""

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become what ``snapshot`` saw, whatever was before."""

    def foresee(self, entry: Entry) -> object:
        """What ``apply`` will most likely say: only for the planted bug ``ack-before-quorum``."""

    def lead_lost(self) -> None:
        """This member leads no more: forget what only a leader keeps."""


class Write(msgspec.Struct, frozen=True):
    """Something for the log, and what to do once it is durable."""

    group: Group
    update: Update | None
    done: Callable[[dict[str, list[tuple[str, Message]]]], None]


class Waiter(msgspec.Struct, frozen=True):
    """Someone waits for the entry of ``term``; ``done`` is called exactly once."""

    term: int
    deadline_s: float
    done: Done


class Group:
    """One member of one raft group on this node."""

    def __init__(self, *, name: str, partition: int | None, raft: Raft, machine: Machine) -> None:
        self.name, self.partition, self.raft, self.machine = name, partition, raft, machine
        self.applied_index, self.applied_term = raft.applied_index, 0
        self.fresh_bytes = 0  # applied since the last snapshot
        self.incoming: Saved | None = None  # installed, and not yet in the log
        self.waiters: dict[int, Waiter] = {}
        self.unwritten = 0
        self.written_index = raft.last_index
        self.led_term: int | None = None

    @property
    def serving(self) -> bool:
        """Leader, and everything of earlier terms is applied here."""
        return self.raft.role is Role.LEADER and self.applied_term == self.raft.term

    @property
    def leading(self) -> bool:
        """Leader, whatever it has applied."""
        return self.raft.role is Role.LEADER

    def status(self) -> GroupStatus:
        """For admin."""
        raft = self.raft
        return GroupStatus(
            group=self.name,
            partition=self.partition,
            role=str(raft.role),
            serving=self.serving,
            term=raft.term,
            leader=self.leader,
            voters=tuple(name_of(member) for member in raft.configuration.voters),
            last_index=raft.last_index,
            commit_index=raft.commit_index,
            applied_index=self.applied_index,
            members=raft.configuration.voters,
            stage=str(raft.stage),
            base_index=raft.base_index,
        )

    @property
    def leader(self) -> str | None:
        """The node that leads, where it is known."""
        return None if self.raft.leader is None else name_of(self.raft.leader)

    def apply(self, committed: Iterable[Entry]) -> None:
        """Apply and answer whoever waits."""
        for entry in committed:
            result = self.machine.apply(entry) if entry.data and not entry.config else None
            self.fresh_bytes += len(entry.data) + ENTRY_OVERHEAD_BYTES
            self.applied_index, self.applied_term = entry.index, entry.term
            self.answer(entry, result)

    def answer(self, entry: Entry, result: object) -> None:
        """Tell who waits for ``entry``, if anyone still does."""
        waiter = self.waiters.get(entry.index)
        if waiter is not None and waiter.term == entry.term:
            del self.waiters[entry.index]
            waiter.done(result)

    def answer_early(self, entries: Iterable[Entry]) -> None:
        """Only for the planted bug ``ack-before-quorum``: take the outcome for granted."""
        for entry in entries:
            result = self.machine.foresee(entry)
            if result is not None:
                self.answer(entry, result)

    def expire(self, now_s: float) -> None:
        """Answer those whose limit is over: their entries may still be committed."""
        text = f"{self.name}: no quorum in time"
        self.fail_waiters(codes.COMMIT_TIMEOUT, text, lambda waiter: waiter.deadline_s < now_s)

    def fail_waiters(self, code: str, text: str, chosen: Callable[[Waiter], bool]) -> None:
        """Answer the chosen waiters with an error."""
        for index in [i for i, waiter in self.waiters.items() if chosen(waiter)]:
            self.waiters.pop(index).done(Failed(code, text, self.leader))


class Host:
    """All groups of a node."""

    def __init__(
        self,
        *,
        member: str,
        log: SharedLog,
        event_log: events.EventLog,
        rng: random.Random,
        tick_s: float,
        election_ticks: int,
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self.member, self._node = member, name_of(member)
        self.log, self._events, self._bugs = log, event_log, bugs
        self._rng, self._tick_s, self._election_ticks = rng, tick_s, election_ticks
        self.groups: dict[str, Group] = {}
        self._dirty: dict[str, Group] = {}  # insertion order, so that a flush is reproducible
        self._flush_due = False
        self._unwritten: list[Write] = []
        self._write_wanted = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_send: Send = lambda peer, messages: None
        self.on_leading: Callable[[], None] = lambda: None
        self.on_chunks: Callable[[Group, Ready], None] = lambda group, ready: None
        self.on_tick: Callable[[], None] = lambda: None

    def open(
        self,
        name: str,
        *,
        partition: int | None,
        founders: tuple[str, ...],
        machine: Machine,
        chunks: Iterable[bytes] = (),
    ) -> Group:
        """Start this node's member of group ``name`` from what the log holds of it; ``chunks`` are
        those of the snapshot that it names. Where it holds nothing the group begins with
        ``founders``, without any this node waits to be told by the leader of one.
        """
        state = self.log.groups.get(name)
        durable = state or GroupState()
        base = durable.base if state else Mark(0, 0, Configuration(founders))
        saved = durable.saved
        if saved is not None:
            machine.restore(chunks)
        raft = Raft(
            config=RaftConfig(
                node=self.member,
                election_ticks=self._election_ticks,
                max_append_bytes=MAX_APPEND_BYTES,
                max_inflight=MAX_INFLIGHT,
                bugs=self._bugs,
            ),
            hard_state=durable.hard_state,
            entries=tuple(durable.entries),
            random=random.Random(self._rng.getrandbits(64)),
            base=base,
            snapshot=None if saved is None else saved.mark,
        )
        group = Group(name=name, partition=partition, raft=raft, machine=machine)
        self.groups[name] = group
        if state is None and founders:
            # A restart must find the founders of this moment, not who is assigned by then.
            self.write(group, Update(name, None, (), Cut(base)), lambda outgoing: None)
        self.touch(group)
        return group

    def close(self, name: str) -> None:
        """Leave group ``name``, and forget all of it durably."""
        group = self.groups.pop(name, None)
        if group is not None:
            self._dirty.pop(name, None)
            text = f"{self._node} is no member of {name} any more"
            group.fail_waiters(codes.NOT_LEADER, text, lambda _: True)
            update = Update(name, None, (), None, dropped=True)
            self.write(group, update, lambda outgoing: None)

    def installed(self, group: Group, saved: Saved) -> None:
        """The group's state machine was restored from ``saved``, which its raft has installed."""
        group.incoming, group.fresh_bytes = saved, 0
        group.applied_index, group.applied_term = saved.mark.index, saved.mark.term
        group.written_index = saved.mark.index
        self.touch(group)
        self._flush()

    def step(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Give messages to their groups; those of a group that is not open here are dropped, the
        sender repeats itself.
        """
        for name, message in messages:
            group = self.groups.get(name)
            if group is not None:
                try:
                    group.raft.step(message)
                except InvariantBroken as error:
                    self.fail(error)
                    return
                self.touch(group)

    def propose(self, group: Group, data: bytes, limit_s: float, done: Done) -> int | None:
        """Append ``data`` to the group's log; ``done`` gets what ``apply`` returned, or ``Failed``.

        Returns the entry's index, or ``None`` where it was refused (``done`` was called).
        """
        if len(group.waiters) >= MAX_PROPOSALS:
            done(Failed(codes.OVERLOADED, f"{group.name}: {MAX_PROPOSALS} commits wait already"))
            return None
        try:
            term, index = group.raft.propose(data)
        except NotLeader as error:
            text = f"{self._node} does not lead {group.name}"
            leader = None if error.leader is None else name_of(error.leader)
            done(Failed(codes.NOT_LEADER, text, leader))
            return None
        deadline_s = asyncio.get_running_loop().time() + limit_s
        group.waiters[index] = Waiter(term, deadline_s, done)
        self.touch(group)
        return index

    async def ask(self, group: Group, data: bytes, limit_s: float) -> object:
        """``propose``, and wait for what comes of it. Who stops waiting undoes nothing."""
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(answer: object) -> None:
            if not result.done():
                result.set_result(answer)

        self.propose(group, data, limit_s, done)
        return await result

    async def run(self) -> None:
        """Tick and write until cancelled. What it raises must stop the node: ``DiskError``,
        ``InvariantBroken``, or what a state machine could not take.
        """
        await together(self._tick_forever(), self._write_forever(), self._failure)

    async def made_durable(self, group: Group, update: Update | None) -> None:
        """Return once ``update``, and all that was asked for before it, is durable."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: object) -> None:
            if not durable.done():  # who waits may be cancelled by now
                durable.set_result(None)

        self.write(group, update, done)
        await durable

    def fail(self, error: BaseException) -> None:
        """End ``run`` with ``error``; nothing more is flushed."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def stop(self) -> None:
        """Answer everyone who still waits: what they asked for may happen or not."""
        for group in self.groups.values():
            group.fail_waiters(codes.LEADER_LOST, f"{self._node} stops", lambda _: True)

    async def _tick_forever(self) -> None:
        # One tick a wake-up: a process that was frozen must not tick a whole election timeout away
        # before it has read what its peers sent meanwhile.
        while True:
            await asyncio.sleep(self._tick_s)
            for group in list(self.groups.values()):
                group.raft.tick()
                self.touch(group)
                if group.waiters:
                    group.expire(asyncio.get_running_loop().time())
            self.on_tick()

    def touch(self, group: Group) -> None:
        """The group's raft was stepped: drain it with this turn of the loop."""
        self._dirty[group.name] = group
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Drain every dirty group; one frame a peer leaves."""
        outgoing: dict[str, list[tuple[str, Message]]] = {}
        try:
            while self._dirty and not self._failure.done():
                name = next(iter(self._dirty))
                self._drain(self._dirty.pop(name), outgoing)
            self._flush_due = False
            for peer, messages in outgoing.items():
                self.on_send(peer, tuple(messages))
        except Exception as error:
            # A callback of the loop: whatever is wrong here must stop the node, not be logged.
            self.fail(error)

    def _drain(self, group: Group, outgoing: dict[str, list[tuple[str, Message]]]) -> None:
        while group.raft.has_ready():
            ready = group.raft.ready()
            _gather(group, ready.send_now, outgoing)
            if ready.send_chunks or ready.chunks:
                self.on_chunks(group, ready)
            if ready.must_write:
                self._write_later(group, ready)
            elif group.unwritten and ready.send_durable:
                # It may speak of entries that an earlier Ready is still writing.
                self._write_later(group, ready)
            else:
                _gather(group, ready.send_durable, outgoing)
            self._notice_role(group)
            group.apply(ready.committed)
        self._notice_role(group)

    def _write_later(self, group: Group, ready: Ready) -> None:
        if ready.entries:
            first, last = ready.entries[0], ready.entries[-1]
            if first.index <= group.written_index:
                self._events.add(
                    events.LOG_TRUNCATED,
                    f"{group.name}: entries {first.index} to {group.written_index} replaced by "
                    f"those of term {first.term}",
                    partition=group.partition,
                    term=group.raft.term,
                )
            group.written_index = last.index
        cut = None
        if ready.installed is not None:
            cut = Cut(ready.installed, group.incoming, whole=True)
        update = Update(group.name, ready.hard_state, ready.entries, cut)
        group.unwritten += 1
        self.write(
            group,
            update if ready.must_write else None,
            lambda outgoing: self._written(group, ready, outgoing),
        )

    def write(
        self,
        group: Group,
        update: Update | None,
        done: Callable[[dict[str, list[tuple[str, Message]]]], None],
    ) -> None:
        """Make ``update`` durable behind everything that was asked for before, then call ``done``
        with where messages to send are gathered.
        """
        self._unwritten.append(Write(group, update, done))
        self._write_wanted.set()

    async def _write_forever(self) -> None:
        while True:
            await self._write_wanted.wait()
            self._write_wanted.clear()
            batch, self._unwritten = self._unwritten, []
            updates = [write.update for write in batch if write.update is not None]
            if updates:
                await self.log.append(updates)
            outgoing: dict[str, list[tuple[str, Message]]] = {}
            for write in batch:
                write.done(outgoing)
            for peer, messages in outgoing.items():
                self.on_send(peer, tuple(messages))

    def _written(
        self, group: Group, ready: Ready, outgoing: dict[str, list[tuple[str, Message]]]
    ) -> None:
        group.unwritten -= 1
        _gather(group, ready.send_durable, outgoing)
        if ready.entries:
            if "ack-before-quorum" in self._bugs:
                group.answer_early(ready.entries)
            last = ready.entries[-1]
            group.raft.persisted(last.index, last.term)
            self.touch(group)

    def _notice_role(self, group: Group) -> None:
        """Tell about leadership won or lost, and fail those who waited for a lost one."""
        raft = group.raft
        led, leads = group.led_term, raft.term if raft.role is Role.LEADER else None
        if led == leads:
            return
        group.led_term = leads
        if led is not None:
            group.machine.lead_lost()
            text = f"{self._node} leads {group.name} no more"
            group.fail_waiters(codes.LEADER_LOST, text, lambda waiter: waiter.term != leads)
            self._events.add(events.LEADER_LOST, text, partition=group.partition, term=led)
        if leads is not None:
            text = f"{self._node} leads {group.name}"
            self._events.add(events.LEADER_ELECTED, text, partition=group.partition, term=leads)
        self.on_leading()


def _gather(
    group: Group,
    messages: tuple[tuple[str, Message], ...],
    outgoing: dict[str, list[tuple[str, Message]]],
) -> None:
    for peer, message in messages:
        outgoing.setdefault(peer, []).append((group.name, message))
