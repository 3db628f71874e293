"""One member of one raft group on a node: its core, its state machine, and its waiters."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Protocol

import msgspec

from clusters.reference.node import declarations
from clusters.reference.node.markers import reached
from clusters.reference.node.raft import (
    Chunk,
    Configuration,
    Entry,
    Message,
    Raft,
    RaftEvent,
    Ready,
    Role,
    Stage,
)
from clusters.reference.node.storage.identity import FIRST_LIFE, directory_of, life_of, name_of
from clusters.reference.node.storage.log_records import SnapshotFile
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed
from clusters.reference.node.wire.reports import GroupStatus, Recovered

MAX_EVENTS = 64  # of a group that are kept until they are asked for
MAX_CHUNKS = 256  # that wait to be read or written
ENTRY_OVERHEAD_BYTES = 200  # of an entry in memory beside its data

Callback = Callable[[object], None]
# Messages to send: member to (group, message).
Outgoing = dict[str, list[tuple[str, Message]]]
Send = Callable[[str, tuple[tuple[str, Message], ...]], None]


class SnapshotRestore(Protocol):
    """A snapshot that is read beside the state machine, in short steps."""

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk; the state machine does not change."""

    def done(self) -> None:
        """All chunks were fed: the state machine becomes the snapshot's state in one step."""


class Restorable(Protocol):
    """A state machine that a snapshot can be read into."""

    def restoring(self) -> SnapshotRestore:
        """A restore to the state that ``snapshot`` captured, however the state changes
        meanwhile.
        """


class StateMachine(Restorable, Protocol):
    """A group's state machine: deterministic, in memory, fed committed entries in order."""

    def apply(self, entry: Entry) -> object:
        """Take one committed entry; the result goes to its waiter here."""

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment in chunks, which are taken while later entries are applied."""

    def predict(self, entry: Entry) -> object:
        """The likely result of ``apply``: only for the planted bug ``ack-before-quorum``."""

    def content(self) -> Iterable[object]:
        """The state of this moment as rows that are equal on every member that has applied the
        same, which are taken while later entries are applied.
        """

    def leadership_lost(self) -> None:
        """This member leads no more: forget state that only a leader keeps."""


class ChunkQueue:
    """Chunks of snapshots to send and to store. A chunk beyond ``MAX_CHUNKS`` is dropped, and the
    peer asks for it again.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Group, str | None, Chunk]] = asyncio.Queue(MAX_CHUNKS)

    def put(self, group: Group, ready: Ready) -> None:
        """Take in the chunks of ``ready``."""
        wanted = [(group, to, chunk) for to, chunk in ready.send_chunks]
        for move in (*wanted, *((group, None, chunk) for chunk in ready.chunks)):
            if not self._queue.full():
                self._queue.put_nowait(move)

    async def get(self) -> tuple[Group, str | None, Chunk]:
        """The next one, with the member to send it to; ``None``: it is to be stored here."""
        return await self._queue.get()


class Waiter(msgspec.Struct, frozen=True):
    """A caller waits for the entry of ``term``; ``done`` is called exactly once."""

    term: int
    deadline_s: float
    done: Callback


class Group:
    """One member of one raft group on this node."""

    def __init__(
        self,
        *,
        name: str,
        partition: int | None,
        raft: Raft,
        machine: StateMachine,
        opened_tick: int,
        life: int = FIRST_LIFE,
    ) -> None:
        """``opened_tick``: of the host, when ``raft`` began to count its own. ``life``: the number
        of this replica of the group in this directory.
        """
        self.name, self.partition, self.raft, self.machine = name, partition, raft, machine
        self.opened_tick, self.life = opened_tick, life
        self._events: deque[RaftEvent] = deque(maxlen=MAX_EVENTS)
        self._members: tuple[Configuration, dict[str, str]] = (Configuration(), {})
        self.applied_index, self.applied_term = raft.applied_index, 0
        self.fresh_bytes = 0  # applied since the last snapshot
        self.incoming: SnapshotFile | None = None  # installed, and not yet in the log
        self.waiters: dict[int, Waiter] = {}
        self.unwritten = 0
        self.written_index = raft.last_index
        self.led_term: int | None = None
        self.led_generation = 0
        self.served_term: int | None = None  # the last one that it has served in
        self.noticed_stage = Stage.STABLE
        self.recovered = Recovered(raft.term, raft.hard_state.vote, raft.last_index)

    @property
    def serving(self) -> bool:
        """Leader, and everything of earlier terms is applied here."""
        return self.raft.role is Role.LEADER and self.applied_term == self.raft.term

    @property
    def leading(self) -> bool:
        """Leader, though it may have entries of earlier terms to apply."""
        return self.raft.role is Role.LEADER

    @property
    def generation(self) -> int:
        """The generation of the group that this member is in."""
        return self.raft.generation

    def member_in(self, directory: str) -> str | None:
        """The member of the group that is a replica in ``directory``, the latest one there."""
        configuration, members = self._members
        # By identity, which is cheap: this is asked for every led group with every heartbeat.
        if configuration is not self.raft.configuration:
            configuration = self.raft.configuration
            # Ascending, so that the latest life of a directory is the one that stays.
            members = {directory_of(m): m for m in sorted(configuration.members, key=life_of)}
            self._members = configuration, members
        return members.get(directory)

    def add_events(self, events: Iterable[RaftEvent]) -> None:
        """Keep what ``raft`` tells, the last ``MAX_EVENTS``, for ``take_events``."""
        self._events.extend(events)

    def take_events(self) -> tuple[RaftEvent, ...]:
        """What ``raft`` has told of leadership and members since the last call, in order."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    def content(self) -> Iterable[object]:
        """All that is equal on every member that has applied the same: the members at that place,
        and the content of the state machine (``StateMachine.content``).
        """
        members = str(self.raft.configuration_at(self.applied_index))
        return chain((members,), self.machine.content())

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
            learners=tuple(name_of(member) for member in raft.configuration.learners),
        )

    @property
    def leader(self) -> str | None:
        """The node that leads, where it is known."""
        return None if self.raft.leader is None else name_of(self.raft.leader)

    def apply(self, committed: Iterable[Entry]) -> None:
        """Apply, and answer the waiters."""
        for entry in committed:
            # First entries of leaders and configurations are raft's
            # own: no machine can decode them.
            result = self.machine.apply(entry) if entry.data and not entry.config else None
            self.fresh_bytes += len(entry.data) + ENTRY_OVERHEAD_BYTES
            self.applied_index, self.applied_term = entry.index, entry.term
            if not entry.index % declarations.CONTENT_EVERY:
                declarations.applied(self._declared_content)
            self.answer(entry, result)

    def _declared_content(self) -> declarations.Content:
        # In any order: a restored replica may have its keys in another one.
        digest = hash(frozenset(self.machine.content()))
        # Committed in an earlier generation, it may be applied after the node has entered a later.
        generation = self.raft.log_generation
        return declarations.Content(self.name, generation, self.applied_index, digest)

    def answer(self, entry: Entry, result: object) -> None:
        """Answer the waiter of ``entry``, if there is one."""
        waiter = self.waiters.get(entry.index)
        # Another term at this index is another leader's entry, not the one that is waited for.
        if waiter is not None and waiter.term == entry.term:
            del self.waiters[entry.index]
            waiter.done(result)

    def answer_early(self, entries: Iterable[Entry]) -> None:
        """Only for the planted bug ``ack-before-quorum``: take the outcome for granted."""
        for entry in entries:
            result = self.machine.predict(entry)
            if result is not None:
                self.answer(entry, result)

    def expire(self, now_s: float) -> None:
        """Answer the waiters whose limit is over: their entries may still be committed."""
        text = f"{self.name}: no quorum in time"
        self.fail_waiters(codes.COMMIT_TIMEOUT, text, lambda waiter: waiter.deadline_s < now_s)

    def fail_waiters(self, code: str, text: str, chosen: Callable[[Waiter], bool]) -> None:
        """Answer the chosen waiters with an error."""
        for index in [i for i, waiter in self.waiters.items() if chosen(waiter)]:
            if code == codes.COMMIT_TIMEOUT:
                reached("no quorum in time")
            else:
                reached("proposal in doubt, its leader is gone")
            self.waiters.pop(index).done(Failed(code, text, self.leader))
