"""The host of a node's raft groups: one tick loop, one flush, one group commit for all of them.

Steps only mark a group dirty. Once a turn of the loop every dirty group is drained: messages leave
as one frame a peer, and its updates go to the one log together with those of other groups, so that
they share a sync. One heartbeat a pair of nodes stands for the heartbeats of all their groups
(``rpc.coalesced_heartbeats``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from clusters.reference.node import declarations, events, moments
from clusters.reference.node.bugs import planted
from clusters.reference.node.config import DEFAULT_APPEND_ENTRIES, DEFAULT_APPENDS_AHEAD
from clusters.reference.node.groups.group import (
    Callback,
    ChunkQueue,
    Group,
    Outgoing,
    Send,
    SnapshotRestore,
    StateMachine,
    Waiter,
)
from clusters.reference.node.groups.group_commit import GroupCommit, Write
from clusters.reference.node.markers import reached
from clusters.reference.node.raft import (
    ChangeRefused,
    Configuration,
    Generation,
    HardState,
    InvariantBroken,
    Mark,
    Message,
    NotLeader,
    Raft,
    RaftConfig,
    Ready,
    Role,
    Stage,
)
from clusters.reference.node.runtime import Rare, never
from clusters.reference.node.runtime.concurrency import Failure, together
from clusters.reference.node.storage.identity import FIRST_LIFE, name_of, names_of, replica_of
from clusters.reference.node.storage.log_records import Compaction, SnapshotFile, Update
from clusters.reference.node.storage.shared_log import GroupState, SharedLog
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed

MAX_APPEND_BYTES = 128 * 1024  # in one message; see config.DEFAULT_APPENDS_AHEAD
# An entry that fits into no frame could never be replicated, and would hold its group up for ever.
MAX_ENTRY_BYTES = 8 * 1024 * 1024
MAX_PROPOSALS = 1024  # waiting in one group; beyond it a leader says so instead of queueing
# Writes that wait for the disk: a second's worth of one that is busy. Beyond it nothing more is
# taken in: proposals are refused, messages dropped, as by a network, until they are repeated.
MAX_UNWRITTEN = 4096
LATE_TICKS = 3  # where a simulation lets a tick come late: less than an election's patience
READ_POLL_S = 0.01  # of a read index: a quorum answers within a tick and its way there
HAND_OVER_POLL_S = 0.005  # all that a hand-over takes are a few round trips

log = logging.getLogger("node.groups")


class RaftHost:
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
        append_entries: int = DEFAULT_APPEND_ENTRIES,
        appends_ahead: int = DEFAULT_APPENDS_AHEAD,
        max_proposals: int | None = None,
        send: Send,
        batch: AbstractContextManager[None],
        chunks: ChunkQueue,
        failure: Failure,
        bugs: frozenset[str] = frozenset(),
        rare: Rare = never,
    ) -> None:
        """Messages sent with ``send`` inside ``batch`` leave together. Chunks of snapshots go to
        ``chunks``; an error that the node can't go on with goes to ``failure``.
        """
        self.member, self._node = member, name_of(member)
        self.log, self._events, self._bugs = log, event_log, bugs
        self._rng, self._tick_s, self._election_ticks = rng, tick_s, election_ticks
        self._append_entries, self._appends_ahead = append_entries, appends_ahead
        self._max_proposals = max_proposals or MAX_PROPOSALS
        self._rare = rare
        self.groups: dict[str, Group] = {}
        self.ticks = 0
        self._dirty: dict[str, Group] = {}  # insertion order, so that a flush is reproducible
        self._flush_due = False
        self.commits = GroupCommit(log, rare=rare, slow_sync_s=tick_s * election_ticks)
        self._send_to, self._batch = send, batch
        self._serves: Callable[[Group], None] = lambda group: None
        self._chunks, self._failure = chunks, failure

    def open(
        self,
        name: str,
        *,
        partition: int | None,
        founders: tuple[str, ...],
        machine: StateMachine,
        restoring: SnapshotRestore | None,
        announce_commits: bool = False,
    ) -> Group:
        """Start this node's member of group ``name`` from its state in the log; ``restoring`` was
        fed the snapshot that the log names. Where the log holds nothing the group begins with
        ``founders``; without any, this member waits until a leader sends it the configuration.
        ``announce_commits``: see ``RaftConfig``.
        """
        state = self.log.groups.get(name)
        durable = state or GroupState()
        # A vote may have been written already by a member that waited for a configuration; one that
        # was erased waits for it in any life.
        founds = state is None or (state.is_unfounded and state.life == FIRST_LIFE)
        base = Mark(0, 0, Configuration(founders)) if founds else durable.base
        saved = durable.saved
        if restoring is not None:
            # Before raft begins: its first entries to apply follow on the snapshot.
            restoring.done()
        raft = Raft(
            config=RaftConfig(
                node=replica_of(self.member, durable.life),
                election_ticks=self._election_ticks,
                max_append_entries=self._append_entries,
                max_append_bytes=MAX_APPEND_BYTES,
                max_inflight=self._appends_ahead,
                announce_commits=announce_commits,
                bugs=self._bugs,
            ),
            hard_state=durable.hard_state,
            entries=tuple(durable.entries)[: -1 if planted("last-entry-dropped") else None],
            # A stream a group: election timeouts of one group must not follow from another's.
            random=random.Random(self._rng.getrandbits(64)),
            base=base,
            snapshot=None if saved is None else saved.mark,
        )
        group = Group(
            name=name,
            partition=partition,
            raft=raft,
            machine=machine,
            opened_tick=self.ticks,
            life=durable.life,
        )
        self.groups[name] = group
        declarations.recovered(
            lambda: declarations.Recovery(
                group=name,
                generation=raft.generation,
                term=raft.term,
                vote=raft.hard_state.vote,
                last_term=raft.last_term,
                last_index=raft.last_index,
            )
        )
        if founds and founders:
            # A restart must find the founders of this moment, not the members that are assigned by
            # then.
            self.commits.write((Update(name, None, (), Compaction(base)),), lambda outgoing: None)
        self.mark_ready(group)
        return group

    def close(self, group: Group) -> None:
        """Stop this node's member of ``group``: its waiters are answered, nothing more is applied,
        sent or asked to be written for it. Its state in the log stays, see ``erase``.
        """
        if self.groups.get(group.name) is not group:
            return
        # First of all: what follows may call back, and must not find it open.
        del self.groups[group.name]
        self._dirty.pop(group.name, None)
        text = f"{self._node} stops {group.name}"
        group.fail_waiters(codes.LEADER_LOST, text, lambda _: True)
        if group.led_term is not None:
            reached("group closed while led")
            group.machine.leadership_lost()
            self._events.add(
                events.LEADER_LOST, text, partition=group.partition, term=group.led_term
            )

    async def erase(self, name: str) -> None:
        """Remove the closed group ``name`` from the log, durably.

        All that its member has promised is forgotten: it comes back as another member, without a
        configuration even where it was a founder, and waits to be taken in.
        """
        if name in self.groups:
            raise InvariantBroken(f"{name} is open, and can't be erased")
        await self.commits.made_durable()  # writes that were asked for before the group was closed
        state = self.log.groups.get(name)
        if state is None:
            return
        life = 0 if planted("destroyed-replica-votes") else 1
        # The next number stays in the log: what starts here later must be another member.
        await self.commits.made_durable(Update(name, None, (), dropped=state.life + life))

    def member_of(self, name: str) -> str:
        """The member of group ``name`` that a replica here is, or would be."""
        state = self.log.groups.get(name)
        return replica_of(self.member, FIRST_LIFE if state is None else state.life)

    def change_peers(
        self,
        group: Group,
        voters: tuple[str, ...],
        *,
        term: int,
        revision: int,
        adjust: bool = False,
        confirm: bool = False,
    ) -> None:
        """Begin to make ``voters`` the members of ``group``: see ``Raft.change_peers``, of which
        the errors are.
        """
        config = group.raft.configuration
        group.raft.change_peers(
            voters, term=term, revision=revision, adjust=adjust, confirm=confirm
        )
        log.info("%s: from %s to %s", group.name, config, " ".join(voters))
        self.mark_ready(group)

    def begin_generation(self, group: Group, number: int) -> Generation:
        """Go on alone in ``group``: see ``Raft.begin_generation``, of which the errors are."""
        begun = group.raft.begin_generation(number)
        reached("generation of a group begun")
        log.info("%s: generation %d begins behind %d", group.name, number, begun.base_index)
        self.mark_ready(group)
        return begun

    def confirm_change(self, group: Group, revision: int) -> None:
        """Let a change that waits become joint: see ``Raft.confirm_change``."""
        group.raft.confirm_change(revision)
        self.mark_ready(group)

    def step_towards(self, group: Group, members: tuple[str, ...]) -> None:
        """Take one step of ``group``, which is led here, towards ``members`` as its voters."""
        raft = group.raft
        if raft.stage is Stage.CATCHING_UP and raft.changing_to not in (None, members):
            raft.cancel_change()  # the member that was to come is gone again
            reached("change of members cancelled")
        config = raft.configuration
        # A cancelled change leaves its learners behind, and they have to go, too.
        if frozenset(config.voters) == frozenset(members) and not config.learners:
            return
        # One change at a time; the next call takes up what is left of the way.
        if raft.stage is not Stage.STABLE:
            return
        try:
            raft.change_peers(members)
        except (ChangeRefused, NotLeader) as error:
            log.debug("%s: not now: %s", group.name, error)
            return
        log.info("%s: from %s to %s", group.name, config, " ".join(members))
        self.mark_ready(group)

    def installed(self, group: Group, saved: SnapshotFile) -> None:
        """The group's state machine was restored from ``saved``, which its raft has installed."""
        group.incoming, group.fresh_bytes = saved, 0
        group.applied_index, group.applied_term = saved.mark.index, saved.mark.term
        # The log begins behind it now: what comes next replaces nothing.
        group.written_index = saved.mark.index
        self.mark_ready(group)
        # In this turn of the loop: state machine and log must change together.
        self._flush()

    def step(self, messages: Iterable[tuple[str, Message]]) -> None:
        """Give messages to their groups. Those of a group that is not open here are dropped, since
        the sender repeats itself. So are all messages while the disk is too far behind.
        """
        if self.overloaded:
            return
        for name, message in messages:
            group = self.groups.get(name)
            if group is not None:
                try:
                    group.raft.step(message)
                except InvariantBroken as error:
                    self._failure.report(error)
                    return
                self.mark_ready(group)

    def propose(self, group: Group, data: bytes, limit_s: float, done: Callback) -> int | None:
        """Append ``data`` to the group's log; ``done`` gets the result of ``apply``, or ``Failed``.

        Returns the entry's index, or ``None`` where it was refused (``done`` was called).
        """
        if self.overloaded:
            done(
                Failed(codes.OVERLOADED, f"{self._node}: {MAX_UNWRITTEN} writes wait for the disk")
            )
            return None
        if len(data) > MAX_ENTRY_BYTES:
            text = f"{group.name}: at most {MAX_ENTRY_BYTES} bytes an entry (got {len(data)})"
            reached("proposal too large")
            done(Failed(codes.TOO_LARGE, text))
            return None
        # Refused while it is certainly not in the log: a refusal later would be in doubt.
        if len(group.waiters) >= self._max_proposals:
            reached("too many proposals in a group")
            text = f"{group.name}: {self._max_proposals} commits wait already"
            done(Failed(codes.OVERLOADED, text))
            return None
        try:
            term, index = group.raft.propose(data)
        except NotLeader as error:
            text = f"{self._node} does not lead {group.name}"
            reached("proposal at a follower")
            leader = None if error.leader is None else name_of(error.leader)
            done(Failed(codes.NOT_LEADER, text, leader))
            return None
        deadline_s = asyncio.get_running_loop().time() + limit_s
        # By index and term: another leader's entry at that index answers it, with a failure.
        group.waiters[index] = Waiter(term, deadline_s, done)
        self.mark_ready(group)
        return index

    @property
    def overloaded(self) -> bool:
        return self.commits.waiting >= MAX_UNWRITTEN

    async def ask(self, group: Group, data: bytes, limit_s: float) -> object:
        """``propose``, and wait for the result. A caller that stops waiting undoes nothing."""
        result: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(answer: object) -> None:
            # The caller may have been cancelled by now.
            if not result.done():
                result.set_result(answer)

        self.propose(group, data, limit_s, done)
        return await result

    async def run(
        self, ticked: Callable[[], None], serves: Callable[[Group], None] = lambda group: None
    ) -> None:
        """Tick and write until cancelled; ``ticked`` is called after each tick, ``serves`` once a
        group that this node leads has applied everything of earlier terms. An error that they raise
        must stop the node: ``DiskError``, ``InvariantBroken``, or one of a state machine.
        """
        self._serves = serves
        await together(
            self._tick_forever(ticked), self.commits.run(self._after_batch), self._failure.future
        )

    async def hand_over(self, groups: Iterable[Group]) -> None:
        """Hand the leadership of those of ``groups`` over that this node leads, each to the voter
        with most of the log that answers; return once none is led here, or would be given to
        anybody.
        """
        asked = []
        for group in groups:
            raft = group.raft
            there = [n for n in raft.configuration.voters if n != raft.node and raft.is_there(n)]
            if group.leading and there:
                raft.hand_over(*there)
                self.mark_ready(group)
                asked.append(group)
        while any(group.leading for group in asked):  # noqa: ASYNC110 (a few round trips)
            await asyncio.sleep(HAND_OVER_POLL_S)

    def step_down(self) -> None:
        """Lead nothing, until the next tick at least."""
        for group in self.groups.values():
            group.raft.step_down()
            self.mark_ready(group)

    def stop(self) -> None:
        """Answer every waiter: its proposal may still be committed or not."""
        for group in self.groups.values():
            group.fail_waiters(codes.LEADER_LOST, f"{self._node} stops", lambda _: True)

    async def _tick_forever(self, ticked: Callable[[], None]) -> None:
        # One tick a wake-up: a process that was frozen must not tick a whole election timeout away
        # before it has read what its peers sent meanwhile.
        while True:
            late = LATE_TICKS if self._rare("late-tick") else 1
            await asyncio.sleep(self._tick_s * late)
            self.ticks += 1
            for group in list(self.groups.values()):
                role = group.raft.role
                group.raft.tick()
                # A role may change without a Ready, and waiters and events depend on it.
                if group.raft.role is not role or group.raft.has_ready():
                    self.mark_ready(group)
                if group.waiters:
                    group.expire(asyncio.get_running_loop().time())
            ticked()

    def mark_ready(self, group: Group) -> None:
        """Drain ``group``, whose raft was stepped, with this turn of the loop, unless closed."""
        if self.groups.get(group.name) is not group:
            return
        self._dirty[group.name] = group
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self, gathered: Outgoing | None = None) -> None:
        """Drain every dirty group; one frame a peer leaves, behind the messages in ``gathered``."""
        outgoing: Outgoing = {} if gathered is None else gathered
        try:
            while self._dirty and not self._failure.reported:
                # Taken anew each time: to drain one group may step another.
                name = next(iter(self._dirty))
                self._drain(self._dirty.pop(name), outgoing)
            # Only now: groups that are marked during the drain are taken by this loop.
            self._flush_due = False
            self._send(outgoing)
        except Exception as error:
            # A callback of the loop: any error here must stop the node, not be logged.
            self._failure.report(error)

    def _send(self, outgoing: Outgoing) -> None:
        with self._batch:
            for peer, messages in outgoing.items():
                self._send_to(peer, tuple(messages))

    def _drain(self, group: Group, outgoing: Outgoing) -> None:
        # One Ready hands out a bounded part of what is committed.
        while group.raft.has_ready():
            ready = group.raft.ready()
            _gather(group, ready.send_now, outgoing)
            if ready.send_chunks or ready.chunks:
                self._chunks.put(group, ready)
            if ready.must_write:
                self._write_later(group, ready)
            # Writes end in order, so an empty one waits for those before it.
            elif group.unwritten and ready.send_durable:
                reached("answer waits behind a write")
                # It may speak of entries that an earlier Ready is still writing.
                self._write_later(group, ready)
            else:
                _gather(group, ready.send_durable, outgoing)
            self._notice_role(group)
            group.apply(ready.committed)
            group.add_events(ready.events)
        # Once more, since a role may have changed without a Ready (``step_down``).
        self._notice_role(group)
        if group.leading:
            _notice_stage(group)
        if group.serving and group.served_term != group.raft.term:
            group.served_term = group.raft.term
            self._serves(group)

    def _write_later(self, group: Group, ready: Ready) -> None:
        if ready.entries:
            first, last = ready.entries[0], ready.entries[-1]
            # A follower may drop what no quorum had; the event lets a lost write be explained by
            # it.
            if first.index <= group.written_index:
                reached("written entries replaced")
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
            reached("log begins behind an installed snapshot")
            cut = Compaction(ready.installed, group.incoming, whole=True)
        hard_state = ready.hard_state
        if hard_state is not None and planted("vote-not-persisted"):
            hard_state = HardState(hard_state.term, None, hard_state.generation)
        if planted("term-not-persisted") and not ready.entries:
            hard_state = None
        update = Update(group.name, hard_state, ready.entries, cut)
        # Reports leave out a group that is being written: see ``node_report``.
        group.unwritten += 1
        self.commits.write(
            (update,) if ready.must_write else (),
            lambda outgoing: self._written(group, ready, outgoing),
        )

    def _after_batch(self, batch: list[Write]) -> None:
        # What became durable is drained here, where it would wait for a turn of its own: a commit
        # passes this way four times, and what it says leaves in one frame.
        self._flush_due = True
        outgoing: Outgoing = {}
        for write in batch:
            write.done(outgoing)
        self._flush(outgoing)

    def _written(self, group: Group, ready: Ready, outgoing: Outgoing) -> None:
        group.unwritten -= 1
        _gather(group, ready.send_durable, outgoing)
        if ready.hard_state is not None:
            group.raft.vote_persisted(ready.hard_state)
            self.mark_ready(group)
        if ready.entries:
            if "ack-before-quorum" in self._bugs:
                group.answer_early(ready.entries)
            last = ready.entries[-1]
            group.raft.persisted(last.index, last.term)
            self.mark_ready(group)

    def _notice_role(self, group: Group) -> None:
        """Report leadership won or lost, and fail the waiters of a lost one."""
        raft = group.raft
        led, leads = group.led_term, raft.term if raft.role is Role.LEADER else None
        if led == leads:
            return
        group.led_term, before = leads, group.led_generation
        group.led_generation = raft.generation
        if led is not None:
            reached("leadership lost")
            group.machine.leadership_lost()
            # The next leader decides what becomes of these entries: their outcome is in doubt.
            text = f"{self._node} leads {group.name} no more"
            group.fail_waiters(codes.LEADER_LOST, text, lambda waiter: waiter.term != leads)
            self._events.add(
                events.LEADER_LOST,
                text,
                partition=group.partition,
                term=led,
                generation=before,
            )
        if leads is not None:
            text = f"{self._node} leads {group.name}"
            self._events.add(
                events.LEADER_ELECTED,
                text,
                partition=group.partition,
                term=leads,
                generation=raft.generation,
            )
            moments.tell(moments.LEADER_ELECTED, group.partition)


_STAGE_MOMENTS = {
    Stage.CATCHING_UP: moments.MEMBERS_CATCHING_UP,
    Stage.JOINT: moments.MEMBERS_JOINT,
    Stage.STABLE: moments.MEMBERS_STABLE,
}


def _notice_stage(group: Group) -> None:
    """Tell each stage of a change of members, as its leader comes to it."""
    stage = group.raft.stage
    if stage is not group.noticed_stage:
        group.noticed_stage = stage
        moments.tell(_STAGE_MOMENTS[stage], group.partition)


def _gather(
    group: Group,
    messages: tuple[tuple[str, Message], ...],
    outgoing: Outgoing,
) -> None:
    for peer, message in messages:
        outgoing.setdefault(peer, []).append((group.name, message))


class GroupHandle:
    """One group of a host by name, whether it is open or not: for the parts that are made before it
    is.
    """

    def __init__(self, host: RaftHost, name: str) -> None:
        self._host, self._name = host, name

    @property
    def serving(self) -> bool:
        """Whether this node leads it, and has applied everything of earlier terms."""
        group = self._host.groups.get(self._name)
        return group is not None and group.serving

    @property
    def generation(self) -> int:
        """The generation of the group that this member is in."""
        group = self._host.groups.get(self._name)
        return 0 if group is None else group.generation

    @property
    def leader(self) -> str | None:
        """The node that leads, where it is known."""
        group = self._host.groups.get(self._name)
        return None if group is None else group.leader

    @property
    def voters(self) -> tuple[str, ...]:
        """The nodes that vote in it, as far as this one knows."""
        group = self._host.groups.get(self._name)
        return () if group is None else names_of(group.raft.configuration.voters)

    async def propose(self, data: bytes, limit_s: float) -> object:
        """The state machine's result for ``data``, or ``Failed``."""
        group = self._host.groups.get(self._name)
        if group is None:
            return Failed(codes.NOT_LEADER, f"{self._name} is not open here")
        return await self._host.ask(group, data, limit_s)

    async def leads_now(self, limit_s: float) -> bool:
        """Whether this node led it at a moment after the call, and has applied all that was
        committed before the call: what it reads then is not stale (Raft thesis 6.4, read index).
        No lease is relied on, which a pause of the process could outlast. False after ``limit_s``.
        """
        group = self._host.groups.get(self._name)
        if group is None or not group.serving:
            return False
        loop = asyncio.get_running_loop()
        term, asked, index = group.raft.term, group.raft.now, group.raft.commit_index
        give_up_s = loop.time() + limit_s
        while group.serving and group.raft.term == term and loop.time() < give_up_s:
            if group.raft.leads_since(asked) and group.applied_index >= index:
                return True
            await asyncio.sleep(READ_POLL_S)
        return False
