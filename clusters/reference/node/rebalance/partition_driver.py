"""A node's part in rebalances: it runs the raft nodes that stable and pending assignments ask for,
and where one of them leads its group it does what ``decisions.next_act`` says ("Start new raft
nodes and initiate change peers (2)", "Cleanup redundant raft nodes (3)", "Failover").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

from clusters.reference.node import events
from clusters.reference.node.availability.majority import Standing, standing
from clusters.reference.node.availability.start_decisions import StartDecisions
from clusters.reference.node.bugs import planted
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Condition,
    Derived,
    Invoke,
    InvokeResult,
    Metastorage,
    Operation,
    View,
    unchanged,
)
from clusters.reference.node.placement.lease_expiry import PRIMARY, Grant
from clusters.reference.node.placement.lease_expiry import encode as encode_grant
from clusters.reference.node.placement.rendezvous import Assignment
from clusters.reference.node.raft import (
    ChangeBusy,
    ChangeFailed,
    ChangeRefused,
    Diverged,
    LeaderElected,
    NotLeader,
    StaleRevision,
    StaleTerm,
)
from clusters.reference.node.raft import Stage as RaftStage
from clusters.reference.node.rebalance import decisions, failover, keys, transitions
from clusters.reference.node.rebalance.decisions import CancelChange, ChangePeers, Do, Stage
from clusters.reference.node.rebalance.driver import Numbers
from clusters.reference.node.rebalance.failover import Next, ReconfigurationError, Retries
from clusters.reference.node.rebalance.keys import (
    CHAIN,
    FOUNDERS,
    PENDING,
    STABLE,
    PartitionId,
    PartitionState,
    Position,
)
from clusters.reference.node.rebalance.replica_restarts import ReplicaRestarts
from clusters.reference.node.rebalance.transitions import Outcome, Transition, Variant
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.runtime.concurrency import Tasks, all_of
from clusters.reference.node.storage.identity import name_of, names_of
from clusters.reference.node.topology.logical import LOGICAL, lives, logical
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire.messages import (
    AskMember,
    Failed,
    InvokeReply,
    MemberReply,
    PeerAnswer,
    RestartReplica,
)

WATCHED = (STABLE, PENDING, FOUNDERS, CHAIN)
MAX_ACTS = 64  # of this node at once; the other partitions wait for their turn
# Each asks the leader of metastorage, which a dropped table must not keep from renewing leases. A
# read takes a tick there: all replicas of 1024 partitions are gone in some 2 s.
MAX_REMOVALS = 64
TIDY_EVERY_S = 0.5  # at most, in one partition
MEMBER_TIMEOUT_S = 0.5  # for a node to name its member; then the change is tried again
_STAGES = {
    RaftStage.CATCHING_UP: Stage.CATCHING_UP,
    RaftStage.JOINT: Stage.JOINT,
    RaftStage.STABLE: Stage.NONE,
}

log = logging.getLogger("node.rebalance")


class Leader(Protocol):
    """The way to the leader of metastorage."""

    async def invoke(self, invoke: Invoke) -> InvokeReply | Failed:
        """Invoke at the leader; a failure leaves open whether it was done."""


class Changes(Protocol):
    """The record of what leaders do about changes of peers."""

    def accepted(
        self, partition: int, nodes: tuple[str, ...], *, asked: int, term: int, revision: int
    ) -> None:
        """The leader of ``term`` here has accepted a change that was for the term ``asked``."""

    def failed(self, partition: int, error: str, *, term: int, revision: int) -> None:
        """A change of peers has failed."""

    def cancelled(self, partition: int, done: bool, *, term: int, revision: int) -> None:
        """The leader of ``term`` here was asked to cancel the change that goes on."""


class Led:
    """What a leader of one term knows of its partition's rebalance. ``revision``: of metastorage,
    which must be applied here before the next act is decided.
    """

    def __init__(self, term: int, retries: Retries) -> None:
        self.term, self.retries = term, failover.resumed(retries)
        self.revision: int | None = None
        self.wait_until_s = 0.0
        self.tidy_at_s = 0.0
        self.cancelled: tuple[int, Transition | None] | None = None
        self.refused = 0  # see ``decisions.Group``

    def may_try(self, revision: int) -> bool:
        """Whether the change that the pending set of ``revision`` asks for may begin now. Another
        set does not wait for the retries of the one before.
        """
        waits = asyncio.get_running_loop().time() < self.wait_until_s
        return self.retries.revision != revision or not waits


class PartitionDriver:
    """Runs and steers this node's replicas as the keys of their partitions say."""

    def __init__(
        self,
        *,
        node: str,
        variant: Variant,
        phase2: bool = False,
        view: Metastorage,
        leader: Leader,
        lives: Callable[[], Mapping[str, str]],
        numbers: Callable[[], Numbers],
        grants: Callable[[int], Grant | None],
        host: RaftHost,
        replicas: ReplicaManager,
        assignments: dict[int, Assignment],
        ask: Ask,
        event_log: events.EventLog,
        change_log: Changes,
        tasks: Tasks,
    ) -> None:
        """``view`` is what this node has applied, as are ``lives`` and ``numbers``; ``grants``: of
        this node, by partition. ``assignments`` is kept as stable ones are, by flat numbers.
        """
        self._numbers, self._grants = numbers, grants
        self._node, self._variant, self._view, self._leader = node, variant, view, leader
        self._lives, self._host, self._replicas = lives, host, replicas
        self._topology = Derived(view, LOGICAL, _topology)
        self._assignments, self._events, self._ask = assignments, event_log, ask
        self._changes, self._tasks = change_log, tasks
        self._acting: dict[int, None] = {}
        self._removing: dict[int, None] = {}  # of those that act
        self._led: dict[int, Led] = {}
        self._wanted: dict[int, Assignment] = {}  # that this node is to run
        self._held: dict[PartitionId, None] = {}  # that were assigned, until ``_is_current``
        self._newest: int | None = None  # revision of metastorage after this node's start
        self._asking_newest = False
        self._start_decisions = StartDecisions(
            node=node,
            phase2=phase2,
            view=view,
            lives=lives,
            host=host,
            replicas=replicas,
            ask=ask,
            event_log=event_log,
            begin=self._begin_unless_busy,
            place=self._place,
        )
        self._restarts = ReplicaRestarts(
            node=node,
            view=view,
            invoke=lambda invoke: leader.invoke(invoke),
            numbers=numbers,
            assigned=self._wanted.get,
            host=host,
            replicas=replicas,
            ask=ask,
            event_log=event_log,
            begin=self._begin_unless_busy,
        )
        self._left: dict[int, None] | None = None  # on the disk since before this node's start

    # -- which replicas run

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied: start replicas; others are stopped in time."""
        touched: dict[PartitionId, None] = {}
        for key in change.entries:
            if key.startswith(WATCHED):
                table, _, number = key.partition("/")[2].partition("/")
                touched[PartitionId(int(table), int(number))] = None
        # A node that has come back may be the one for which retries were given up.
        if LOGICAL in change.entries:
            for led in self._led.values():
                led.retries, led.wait_until_s = failover.resumed(led.retries), 0.0
        self._held.update(touched)
        if self._is_current():
            self._place_held()

    def _is_current(self) -> bool:
        """Whether this node has applied what was there when it started. Until then it reads
        assignments of the past, and would start replicas only to erase them.
        """
        return self._newest is not None and self._view.revision >= self._newest

    def _place_held(self) -> None:
        held, self._held = self._held, {}
        given = self._numbers()
        changed = 0
        for partition in held:
            number_of = given.of(partition)
            if number_of is not None:
                changed += self._place(number_of, partition)
        if changed:
            text = f"assignments of {changed} partitions at revision {self._view.revision}"
            self._events.add(events.ASSIGNMENTS_CHANGED, text)

    async def _ask_newest(self) -> None:
        try:
            done = await self._leader.invoke(Invoke((), ()))
            if isinstance(done, InvokeReply):
                self._newest = done.revision
        finally:
            self._asking_newest = False

    def _place(self, number: int, partition: PartitionId) -> bool:
        """Start the replica if it is to run; whether stable assignments have changed."""
        state, lives = keys.read(self._view, partition), self._lives()
        founders = keys.founders(self._view, partition)
        stable = () if state.stable is None else state.stable.nodes
        assignment = Assignment(
            members=tuple(lives.get(node, node) for node in stable), founders=founders
        )
        before = self._assignments.get(number)
        if stable:
            self._assignments[number] = assignment
        else:
            self._assignments.pop(number, None)
        if self._start_decisions.undecided(number, partition, state):
            self._wanted.pop(number, None)
        elif self._node in decisions.wanted(state):
            self._wanted[number] = assignment
            self._replicas.assigned(number, assignment)
            self._found(number, assignment)
        else:
            self._wanted.pop(number, None)
        self._start_decisions.placed(number, partition, state)
        return before is None or before.members != assignment.members

    def _found(self, number: int, assignment: Assignment) -> None:
        """Let a replica that waits to be taken in begin with the founders that it has been made one
        of meanwhile: see ``RebalanceDriver``.
        """
        replica = self._replicas.replicas.get(number)
        waits = replica is not None and not replica.group.raft.configuration.voters
        if waits and self._replicas.member in assignment.founders and number not in self._acting:
            self._begin(number, self._start_again(number, assignment))

    async def restart(self, body: RestartReplica) -> PeerAnswer:
        """Stop a replica here, which an operator asks for, and start it again: see
        ``ReplicaRestarts``.
        """
        return await self._restarts.restart(body)

    async def _start_again(self, number: int, assignment: Assignment) -> None:
        reached("replica started again as a founder")
        await self._replicas.stop(number)
        self._replicas.assigned(number, assignment)

    def _reconcile(self) -> None:
        """Start what could not be started, and stop what is redundant."""
        running = self._replicas.replicas
        for number, assignment in self._wanted.items():
            if number not in running and number not in self._acting:
                self._replicas.assigned(number, assignment)
        if self._left is None and self._is_current():
            # What became redundant while this node was down was never started.
            self._left = dict.fromkeys(self._replicas.left_behind())
        given, kept = self._numbers(), {**running, **(self._left or {})}
        for number in [number for number in kept if number not in self._wanted]:
            partition = given.partition(number)
            if len(self._removing) >= MAX_REMOVALS:
                reached("redundant replicas wait to be erased")
                break
            if partition is None or number in self._acting:
                continue
            if self._start_decisions.waits(number):
                continue
            state = keys.read(self._view, partition)
            if self._node in decisions.kept(state):
                # Outside a forced set it must not go on, but its data is still asked for.
                if number in running:
                    reached("replica outside a forced set stopped")
                    self._begin(number, self._replicas.stop(number))
            # Where no reset can have been, what is redundant is no partition's last copy.
            elif not (state.chain or state.generation) or self._serves(state):
                self._removing[number] = None
                self._begin(number, self._remove(number, partition))

    def _serves(self, state: PartitionState) -> bool:
        """Whether the partition goes on without the copies that stable does not have: where it does
        not, one of them may be the last.
        """
        alive = [member.name for member in logical(self._view)]
        return standing(state, alive, lives(self._view)) is Standing.MAJORITY

    async def _remove(self, number: int, partition: PartitionId) -> None:
        """Stop and erase a replica, if metastorage itself says that it is redundant: this node may
        be far behind, as after a restart, and the replica one that has a vote by now.
        """
        state = keys.read(self._view, partition)
        read = [partition.key(prefix) for prefix in (STABLE, PENDING)]
        newest = tuple(unchanged(key, self._view.get(key)) for key in read)
        done = await self._leader.invoke(Invoke(newest, ()))
        redundant = isinstance(done, InvokeReply) and done.success
        # It may have been assigned again while the leader was asked.
        stays = planted("removed-node-answers")
        if redundant and number not in self._wanted and not stays:
            reached("replica that is no longer assigned is erased")
            await self._replicas.erase(number)
            if self._left is not None:
                self._left.pop(number, None)
            nodes = " ".join(sorted(decisions.wanted(state))) or "no node"
            text = f"replica erased: {nodes} hold the partition"
            self._events.add(events.REBALANCE_STAGE, text, partition=number)

    # -- what the leaders of groups do

    def tick(self) -> None:
        """Take the next act of each partition that is led here, at most one at a time."""
        if self._newest is None and not self._asking_newest:
            self._asking_newest = True
            self._tasks.spawn(self._ask_newest())
        if self._held and self._is_current():
            reached("assignments of a start are up to date")
            self._place_held()
        self._reconcile()
        self._start_decisions.tick()
        given = self._numbers()
        for number, replica in list(self._replicas.replicas.items()):
            partition = given.partition(number)
            if partition is None:
                continue
            self._note_events(number, partition, replica.group)
            busy = number in self._acting or len(self._acting) >= MAX_ACTS
            if replica.group.serving and not busy and number not in self._acting:
                if replica.primary.drained:
                    self._begin(number, self._withdraw(number, partition))
                else:
                    self._lead(number, partition, replica.group)

    async def _withdraw(self, number: int, partition: PartitionId) -> None:
        """Remove the keys of a dropped partition that no transaction needs any more: then its
        replicas are redundant.
        """
        grant = self._grants(number)
        if grant is None:
            return
        key = f"{PRIMARY}{number}"
        # Another primary may have taken in transactions before it knew that the table was dropped;
        # one that is granted the partition later finds no key of it.
        ours = Condition(key, "value", value=encode_grant(grant))
        operations = (*transitions.removed(partition), Operation(key, None))
        await self._leader.invoke(Invoke((ours,), operations))
        reached("dropped partition drained")

    def _note_events(self, number: int, partition: PartitionId, group: Group) -> None:
        for event in group.take_events():
            led = self._led.get(number)
            if isinstance(event, Diverged):
                self._start_decisions.diverged(number, event)
            elif isinstance(event, LeaderElected):
                self._retry_as_new_leader(
                    number, self._elected(number, event.term), partition, group
                )
            elif isinstance(event, ChangeFailed) and led is not None and led.term == event.term:
                error = ReconfigurationError(event.error.value)
                self._failed(number, led, error, event.revision, event.member)

    def _failed(
        self,
        number: int,
        led: Led,
        error: ReconfigurationError,
        revision: int,
        member: str | None = None,
    ) -> None:
        """onReconfigurationError: try again in a while, unless others do it."""
        decision = failover.failed(led.retries, error, revision)
        led.retries = decision.retries
        led.wait_until_s = asyncio.get_running_loop().time() + decision.delay_s
        self._changes.failed(number, error.value, term=led.term, revision=revision)
        text = f"change of peers failed: {error}" + (f", {name_of(member)}" if member else "")
        if decision.act is not Next.STOP:
            reached("change of peers to be tried again")
            self._events.add(events.REBALANCE_STAGE, text, partition=number, term=led.term)
        if decision.act is Next.FAILURE_HANDLER:
            log.error("partition %d: %s, %d times", number, text, led.retries.failures)

    def _elected(self, number: int, term: int) -> Led:
        """What this node knows as the leader of ``term``: of an earlier one only the retries."""
        before = self._led.get(number)
        if before is not None and planted("stale-term-accepted"):
            return before
        led = self._led[number] = Led(term, before.retries if before else Retries())
        return led

    def _lead(self, number: int, partition: PartitionId, group: Group) -> None:
        led = self._led.get(number)
        if led is None or led.term != group.raft.term:
            led = self._elected(number, group.raft.term)
        if led.revision is None:
            # What this node has applied may be older than what the last leader acted on.
            self._begin(number, self._read_newest(led))
        elif self._view.revision >= led.revision and not self._confirming(number, led, group):
            self._act(number, led, group, keys.read(self._view, partition))

    def _act(self, number: int, led: Led, group: Group, state: PartitionState) -> None:
        raft, waiting = group.raft, group.raft.waiting_revision
        if waiting is not None and waiting == state.pending_revision:
            self._begin(number, self._lock(number, led, group, state))
            return
        act = decisions.next_act(self._variant, state, _as_led(group, led), self._topology())
        if isinstance(act, Do):
            self._begin(number, self._do(number, led, act.transition))
        elif isinstance(act, ChangePeers):
            if not led.may_try(act.revision):
                return
            if raft.stage is RaftStage.JOINT:
                self._refuse(number, led, act.revision)
            else:
                locks = self._variant is Variant.LOCK
                self._begin(number, self._change(number, led, group, act, confirm=locks))
        elif isinstance(act, CancelChange):
            self._cancel(number, led, group, act, state)
        elif raft.stage is RaftStage.STABLE and state.pending is None:
            self._tidy(number, state.partition, led, group)

    def _retry_as_new_leader(
        self, number: int, led: Led, partition: PartitionId, group: Group
    ) -> None:
        """onLeaderElected: what is pending is asked for at once, where the group is busy with it
        in vain; all else waits until this node knows what is pending now.
        """
        state = keys.read(self._view, partition)
        if group.raft.stage is RaftStage.JOINT and state.pending is not None:
            self._refuse(number, led, state.pending_revision)

    def _refuse(self, number: int, led: Led, revision: int) -> None:
        """Answer the change that the pending set of ``revision`` asks for as ``Raft.change_peers``
        does in a joint group; no node need be asked for its member before.
        """
        reached("change of peers asked of a group that is joint")
        led.refused = revision
        self._failed(number, led, ReconfigurationError.BUSY, revision)

    def _cancel(
        self, number: int, led: Led, group: Group, act: CancelChange, state: PartitionState
    ) -> None:
        """cancelChangePeers(): where the answer is false nothing is done."""
        raft = group.raft
        # Where nothing goes on, there is nothing to cancel, and the answer is the same.
        done = raft.cancel_change() or raft.stage is RaftStage.STABLE
        self._changes.cancelled(number, done, term=act.term, revision=state.pending_revision)
        if done:
            led.cancelled = raft.now, act.then
        else:
            reached("change of peers that can't be cancelled any more")
            led.refused = state.planned_revision

    def _confirming(self, number: int, led: Led, group: Group) -> bool:
        """Whether a cancelled change waits for its confirmation; does what follows on it."""
        if led.cancelled is None:
            return False
        asked, then = led.cancelled
        if not group.raft.leads_since(asked):
            return True
        reached("cancelled change of peers confirmed")
        led.cancelled = None
        if then is not None:
            self._begin(number, self._do(number, led, then))
        return then is not None

    async def _change(
        self, number: int, led: Led, group: Group, act: ChangePeers, *, confirm: bool
    ) -> None:
        """changePeersAsync(term, peers), once the raft nodes of all new peers run."""
        members = await self._members(number, group, act)
        if isinstance(members, ReconfigurationError):
            self._failed(number, led, members, act.revision)
            return
        config = group.raft.configuration
        reached_already = frozenset(members) == frozenset(config.voters) and not config.learners
        if reached_already and group.raft.stage is RaftStage.STABLE:
            return
        try:
            self._host.change_peers(
                group,
                members,
                term=led.term,
                revision=act.revision,
                adjust=self._variant is Variant.LOCK,
                confirm=confirm,
            )
        except StaleTerm:
            self._failed(number, led, ReconfigurationError.STALE_TERM, act.revision)
        except StaleRevision:
            self._failed(number, led, ReconfigurationError.STALE_REVISION, act.revision)
        except (ChangeBusy, ChangeRefused):
            self._failed(number, led, ReconfigurationError.BUSY, act.revision)
        except NotLeader:
            self._failed(number, led, ReconfigurationError.STEPPED_DOWN, act.revision)
        else:
            self._changes.accepted(
                number, act.nodes, asked=led.term, term=group.raft.term, revision=act.revision
            )

    async def _members(
        self, number: int, group: Group, act: ChangePeers
    ) -> tuple[str, ...] | ReconfigurationError:
        """The members that the replicas of the nodes are. A voter that does not answer stays what
        it is: the group may go on without it.
        """
        lineage = group.raft.configuration.lineage
        asked, lives = AskMember(number, act.revision, lineage), self._lives()

        async def one(node: str) -> str | ReconfigurationError:
            answer: object = None
            if node in lives:
                answer = await self._ask(node, asked, MEMBER_TIMEOUT_S)
            if isinstance(answer, MemberReply) and answer.member is not None:
                return answer.member
            known = [m for m in group.raft.configuration.voters if name_of(m) == node]
            if known:
                return known[0]
            missing = isinstance(answer, MemberReply)
            error = ReconfigurationError
            return error.NOT_STARTED if missing else error.UNREACHABLE

        found = await all_of(one(node) for node in act.nodes)
        failed = [member for member in found if isinstance(member, ReconfigurationError)]
        return failed[0] if failed else tuple(map(str, found))

    def _tidy(self, number: int, partition: PartitionId, led: Led, group: Group) -> None:
        """Take in the replicas that nodes run in place of voters that are gone, with their
        directory or alone, and let learners go that a cancelled change has left behind. It needs
        no lock: its nodes are the stable ones, which no pending set changes.
        """
        lives, raft = self._lives(), group.raft
        config, now_s = raft.configuration, asyncio.get_running_loop().time()
        others = [member for member in config.voters if member != raft.node]
        # Which replica a node runs only the node knows; one that follows need not be asked.
        silent = any(name_of(m) in lives and not raft.is_there(m) for m in others)
        # Later than every pending set's, of which this switched stable; not the newest revision of
        # all, which the other nodes have yet to apply.
        stable = self._view.get(partition.key(STABLE))
        revision = 0 if stable is None else stable.revision
        act = ChangePeers(names_of(config.voters), led.term, revision)
        if (silent or config.learners) and now_s >= led.tidy_at_s and led.may_try(act.revision):
            led.tidy_at_s = now_s + TIDY_EVERY_S
            self._begin(number, self._change(number, led, group, act, confirm=False))

    def _begin_unless_busy(
        self, number: int, act: Callable[[], Coroutine[None, None, object]]
    ) -> bool:
        """Whether ``act`` has begun."""
        if number in self._acting:
            return False
        self._begin(number, act())
        return True

    def _begin(self, number: int, act: Coroutine[None, None, object]) -> None:
        self._acting[number] = None
        self._tasks.spawn(self._finish(number, act))

    async def _finish(self, number: int, act: Coroutine[None, None, object]) -> None:
        try:
            await act
        finally:
            del self._acting[number]
            self._removing.pop(number, None)

    async def _read_newest(self, led: Led) -> None:
        done = await self._leader.invoke(Invoke((), ()))
        if isinstance(done, InvokeReply):
            led.revision = done.revision

    async def _do(self, number: int, led: Led, transition: Transition) -> Outcome | None:
        done = await self._leader.invoke(transition.invoke)
        if not isinstance(done, InvokeReply):
            return None
        # The next act is decided by what this one wrote, or found in its way.
        led.revision = done.revision
        result = InvokeResult(success=done.success, revision=done.revision, branch=done.branch)
        outcome = transition.outcome(result)
        if outcome is not Outcome.CHANGED:
            self._events.add(events.REBALANCE_STAGE, f"{outcome}", partition=number, term=led.term)
        return outcome

    async def _lock(self, number: int, led: Led, group: Group, state: PartitionState) -> None:
        """tryCatchUpFinish(peers): new peers have caught up, and pending must not change any more.
        Where it has changed, the next act adjusts the change.
        """
        revision, target = group.raft.waiting_revision, group.raft.changing_to
        if revision != state.pending_revision or target is None:
            return
        nodes = keys.assignments(names_of(target))
        lock = transitions.catch_up_finished(state, nodes, led.term)
        outcome = await self._do(number, led, lock)
        # The lock is in the name of this term's leader: in a later term another one must ask.
        if outcome is Outcome.LOCKED and group.raft.term == led.term:
            self._host.confirm_change(group, revision)


def _topology(view: View) -> decisions.Topology:
    nodes = frozenset(member.name for member in logical(view))
    return decisions.Topology(nodes, unchanged(LOGICAL, view.get(LOGICAL)))


def _as_led(group: Group, led: Led) -> decisions.Group:
    raft = group.raft
    # The configuration that is committed, which stands at this place in the log or before: a later
    # one stands behind it.
    _, committed = raft.committed_configuration
    return decisions.Group(
        term=raft.term,
        voters=tuple(sorted(names_of(committed.voters))),
        position=Position(raft.generation, raft.commit_index),
        stage=_STAGES[raft.stage],
        target=tuple(sorted(names_of(raft.changing_to or ()))),
        revision=raft.change_revision or 0,
        refused=led.refused,
    )
