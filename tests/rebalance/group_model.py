"""A raft group and the loops of its leaders, as a model: what ``next_act`` says is done, late or
not at all, also by leaders that don't know that they are deposed.
"""

from __future__ import annotations

import attrs

from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    InvokeResult,
    Metastorage,
    Operation,
    encode_invoke,
    unchanged,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import transitions
from clusters.reference.node.rebalance.decisions import (
    Act,
    CancelChange,
    ChangePeers,
    Do,
    Group,
    Stage,
    Topology,
    next_act,
    wanted,
)
from clusters.reference.node.rebalance.keys import (
    PartitionId,
    PartitionState,
    Position,
    assignments,
    read,
)
from clusters.reference.node.rebalance.transitions import Outcome, Transition, Variant
from clusters.reference.node.topology.logical import LOGICAL

PARTITION = PartitionId(1, 0)
replace = attrs.evolve


def done(store: Metastorage, transition: Transition) -> Outcome:
    """Do ``transition``, and say what it did."""
    result = store.apply(Entry(1, 1, encode_invoke(transition.invoke)))
    assert isinstance(result, InvokeResult)
    return transition.outcome(result)


@attrs.define
class Leader:
    """A node that leads, or thinks so: what it has read, and the change that it has under way, for
    the pending set of ``revision``, to replicas that were in these ``lives`` when it began.
    """

    term: int
    seen: PartitionState
    topology: Topology
    stage: Stage = Stage.NONE
    target: tuple[str, ...] = ()
    newest_revision: int = 0
    revision: int = 0
    inherited: bool = False
    refused: int = 0
    lives: dict[str, int] = attrs.field(factory=dict)


@attrs.define
class Model:
    """``voters`` at ``index`` are committed; ``leaders[-1]`` can commit, the others can't."""

    variant: Variant
    voters: tuple[str, ...]
    store: Metastorage = attrs.field(factory=Metastorage)
    index: int = 1
    revision: int = 1
    asked: tuple[str, ...] = ()
    leaders: list[Leader] = attrs.field(factory=list)
    late: list[Transition] = attrs.field(factory=list)
    there: frozenset[str] = frozenset("abcdef")  # the logical topology
    outcomes: list[Outcome] = attrs.field(factory=list)
    erased: dict[str, int] = attrs.field(factory=dict)  # how often, by node

    def __attrs_post_init__(self) -> None:
        self.asked = tuple(sorted(self.voters))
        self._do(transitions.created(PARTITION, assignments(self.voters), self.revision))
        self._write_topology()
        self.leaders.append(Leader(1, self.read(), self.topology()))

    @property
    def leader(self) -> Leader:
        return self.leaders[-1]

    def read(self) -> PartitionState:
        return read(self.store, PARTITION)

    def topology(self) -> Topology:
        return Topology(self.there, unchanged(LOGICAL, self.store.get(LOGICAL)))

    def group(self, leader: Leader) -> Group:
        return Group(
            term=leader.term,
            voters=self.voters,
            position=Position(0, self.index),
            stage=leader.stage,
            target=() if leader.inherited else leader.target,
            revision=leader.revision,
            refused=leader.refused,
        )

    # -- what happens

    def trigger(self, target: tuple[str, ...]) -> None:
        """Something asks for ``target``; asked twice, it is one event."""
        self.revision += 1
        self.asked = tuple(sorted(target))
        aim = transitions.triggered(
            self.variant, PARTITION, target=assignments(target), revision=self.revision
        )
        self._do(aim)
        assert done(self.store, aim) is Outcome.OUTDATED

    def leave(self, node: str) -> None:
        """A node leaves the logical topology."""
        self.there -= {node}
        self._write_topology()

    def join(self, node: str) -> None:
        """A node comes back to the logical topology."""
        self.there |= {node}
        self._write_topology()

    def refresh(self, which: int) -> None:
        """A leader reads metastorage."""
        leader = self._leader(which)
        leader.seen, leader.topology = self.read(), self.topology()

    def act(self, which: int, *, lose: bool = False) -> Act | None:
        """A leader does its next act by what it has read; with ``lose`` it hears no answer, and
        what it asked of metastorage may be done at any time later.
        """
        leader = self._leader(which)
        act = next_act(self.variant, leader.seen, self.group(leader), leader.topology)
        if isinstance(act, Do):
            self._send(act.transition, leader, lose)
        elif isinstance(act, ChangePeers):
            self._change(leader, act)
        elif isinstance(act, CancelChange) and leader is self.leader and _may_cancel(leader):
            # A deposed leader can't confirm with a majority that it leads.
            leader.stage, leader.target = Stage.NONE, ()
            if act.then is not None:
                self._send(act.then, leader, lose)
        elif isinstance(act, CancelChange) and leader.stage is Stage.JOINT:
            leader.refused = leader.seen.planned_revision
        return act

    def caught_up(self, which: int, *, lose: bool = False) -> None:
        """The new peers of a leader's change have caught up: it goes on to the joint configuration,
        in the variant ``LOCK`` once pending is locked.
        """
        leader = self._leader(which)
        if leader.stage is not Stage.CATCHING_UP or not self._can_follow(leader):
            return
        if self.variant is Variant.LOCK:
            if leader.revision != leader.seen.pending_revision:
                return
            lock = transitions.catch_up_finished(
                leader.seen, assignments(leader.target), leader.term
            )
            if lose:
                self.late.append(lock)
                return
            if self._do(lock) is not Outcome.LOCKED:
                leader.seen, leader.topology = self.read(), self.topology()
                return
        if leader is self.leader:
            now = {node: self.erased.get(node, 0) for node in leader.lives}
            assert leader.lives == now, (leader, now)
        leader.stage = Stage.JOINT  # what a deposed leader appends is never committed

    def committed(self) -> None:
        """The joint configuration is left: the change is done."""
        leader = self.leader
        if leader.stage is Stage.JOINT:
            self.voters, self.index = leader.target, self.index + 2
            leader.stage, leader.target, leader.inherited = Stage.NONE, (), False

    def failed(self, which: int) -> None:
        """The catch-up of a leader's change fails."""
        leader = self._leader(which)
        if leader.stage is Stage.CATCHING_UP:
            leader.stage, leader.target = Stage.NONE, ()

    def elect(self) -> None:
        """Another leader: a joint configuration goes on, a catch-up does not."""
        joint = self.leader.stage is Stage.JOINT
        target = self.leader.target if joint else ()
        stage = Stage.JOINT if joint else Stage.NONE
        self.leaders = self.leaders[-2:]
        term = self.leader.term + 1
        self.leaders.append(
            Leader(term, self.read(), self.topology(), stage, target, inherited=joint)
        )

    def deliver(self, which: int) -> None:
        """One of the invokes whose answer was lost is done now."""
        if self.late:
            self._do(self.late.pop(which % len(self.late)))

    def check(self) -> None:
        """Whoever votes has a raft node that runs."""
        voting = {*self.voters, *(self.leader.target if self.leader.stage is Stage.JOINT else ())}
        assert voting <= wanted(self.read()), (voting, self.read())

    def settle(self) -> None:
        """Nothing fails any more: do all there is to do."""
        while self.late:
            self.deliver(0)
            self.check()
        for _ in range(50):
            self.refresh(-1)
            act = self.act(-1)
            self.check()
            if act is None and self.leader.stage is Stage.NONE:
                return
            if act is None and not self._can_follow(self.leader):
                return  # it waits for a node
            if act is None:
                self.caught_up(-1)
                self.committed()
                self.check()
        raise AssertionError(f"it never settles: {self.read()}")

    # -- how

    def _write_topology(self) -> None:
        names = "".join(sorted(self.there)).encode()
        invoke = Invoke((), (Operation(LOGICAL, names),))
        self.store.apply(Entry(1, 1, encode_invoke(invoke)))

    def _can_follow(self, leader: Leader) -> bool:
        """Whether the new peers of a change are there to catch up."""
        return leader.stage is Stage.JOINT or {*leader.target} - {*self.voters} <= self.there

    def _leader(self, which: int) -> Leader:
        return self.leaders[-1 - abs(which + 1) % len(self.leaders)]

    def _send(self, transition: Transition, leader: Leader, lose: bool) -> None:
        if lose:
            self.late.append(transition)
            return
        self._do(transition)
        leader.seen, leader.topology = self.read(), self.topology()

    def _change(self, leader: Leader, request: ChangePeers) -> None:
        if not self._takes(leader, request):
            if leader.stage is Stage.JOINT:
                leader.refused = request.revision
            return
        leader.newest_revision = leader.revision = request.revision
        if sorted(request.nodes) == sorted(self.voters):
            leader.stage, leader.target = Stage.NONE, ()
        else:
            leader.stage, leader.target = Stage.CATCHING_UP, request.nodes
            leader.lives = {node: self.erased.get(node, 0) for node in request.nodes}

    def _takes(self, leader: Leader, request: ChangePeers) -> bool:
        """As ``raft.membership`` answers changePeersAsync."""
        if request.term != leader.term or request.revision < leader.newest_revision:
            return False
        adjustable = self.variant is Variant.LOCK and leader.stage is Stage.CATCHING_UP
        running = leader.stage is not Stage.NONE and not leader.inherited
        same = running and leader.target == request.nodes
        return leader.stage is Stage.NONE or adjustable or same

    def _do(self, transition: Transition) -> Outcome:
        before = wanted(self.read())
        outcome = done(self.store, transition)
        for node in before - wanted(self.read()):
            self.erased[node] = self.erased.get(node, 0) + 1
        self.outcomes.append(outcome)
        return outcome


def _may_cancel(leader: Leader) -> bool:
    """As ``raft.membership`` answers cancelChangePeers."""
    return leader.stage in (Stage.NONE, Stage.CATCHING_UP)
