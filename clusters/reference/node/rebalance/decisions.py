"""What a node does next for a partition's rebalance: a function of metastorage's keys and the state
of its raft group ("Start new raft nodes ... (2)", "Cleanup redundant raft nodes (3)", "Failover
helpers", "Adjustable changePeers").

The leader's loop calls ``next_act`` after each of the seed's events (a pending or planned key that
changed, onLeaderElected, onNewPeersConfigurationApplied, onReconfigurationError) and after each of
its acts, until there is none. So a leader that is lost between any two acts needs no recovery of
its own: the next one asks the same question. Of onLeaderElected the seed asks whether a lease is
needed: it is not, since changes of peers are fenced by term, and configurations by their position
in the log.

The view must be metastorage's own after the leader was elected, not an older one of this node: an
old pending set would lead the group back. A change of peers carries the revision of its pending
set, and a leader refuses one that is older than what it has seen.
"""

from __future__ import annotations

import enum

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.metastorage.metastorage import Condition
from clusters.reference.node.rebalance import transitions
from clusters.reference.node.rebalance.keys import (
    Assignments,
    PartitionState,
    Position,
    assignments,
)
from clusters.reference.node.rebalance.transitions import Transition, Variant


class Stage(enum.StrEnum):
    """The stage of the change of peers at a leader (``raft.configuration.Stage``, and none)."""

    NONE = "none"
    CATCHING_UP = "catching-up"
    JOINT = "joint"
    STABLE = "stable"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A raft group as its leader has it: ``voters`` of the newest committed configuration and its
    ``position``, the ``stage`` of the change that goes on, the nodes that it leads to and the
    ``revision`` of the pending set that asked for it; of one that an earlier leader began neither
    is known. ``refused``: the revision of the set for which it was asked to go another way in vain.
    """

    term: int
    voters: tuple[str, ...]
    position: Position
    stage: Stage = Stage.NONE
    target: tuple[str, ...] = ()
    revision: int = 0
    refused: int = 0


class Topology(msgspec.Struct, frozen=True):
    """The nodes of the logical topology as they were read, and the condition that they are these
    still.
    """

    nodes: frozenset[str]
    unchanged: Condition


class ChangePeers(msgspec.Struct, frozen=True):
    """changePeersAsync(term, peers). ``revision``: of the pending set that asks for it."""

    nodes: tuple[str, ...]
    term: int
    revision: int


class CancelChange(msgspec.Struct, frozen=True):
    """cancelChangePeers(); where the answer is true ``then`` is to be done, if there is any.

    The leader must confirm with a majority of the group that it leads *after* it has read the keys:
    one that was deposed has no change to cancel, and would move planned under the change of the
    next leader.
    """

    term: int
    then: Transition | None = None


class Do(msgspec.Struct, frozen=True):
    """An invoke on metastorage; then read and ask again."""

    transition: Transition


Act = ChangePeers | CancelChange | Do


def next_act(
    variant: Variant, state: PartitionState, group: Group, topology: Topology
) -> Act | None:
    """The next act of the leader of ``group``; ``None`` while there is nothing to do but wait."""
    if group.stage in (Stage.JOINT, Stage.STABLE):
        return _held_lock(variant, state, group) or _too_late(variant, state, group)
    if group.stage is Stage.CATCHING_UP:
        return _adjusted(variant, state, group, topology)
    if state.stable is None:
        return None  # the table was dropped
    if state.generation > group.position.generation:
        return None  # a forced reset has taken the group from this leader
    voters = assignments(group.voters)
    # Before all else: as long as stable does not say who the voters are, they may be stopped.
    if _nodes(state.stable) != voters.nodes or _nodes(state.pending) == voters.nodes:
        return Do(transitions.stable_switched(variant, state, voters, group.position, group.term))
    return (
        _unlock(variant, state, group)
        or _cancel(variant, state, group, topology)
        or _change(state, group)
    )


def _nodes(held: Assignments | None) -> tuple[str, ...] | None:
    return None if held is None else held.nodes


def _change(state: PartitionState, group: Group) -> Act | None:
    if state.pending is None:
        return None
    return ChangePeers(state.pending.nodes, group.term, state.pending_revision)


def _unlock(variant: Variant, state: PartitionState, group: Group) -> Act | None:
    """Nothing goes on that the lock could be for, or only for an earlier leader."""
    unlock = transitions.unlocked(state, group.term)
    return Do(unlock) if variant is Variant.LOCK and unlock is not None else None


def _cancel(
    variant: Variant, state: PartitionState, group: Group, topology: Topology
) -> Act | None:
    conditions: tuple[Condition, ...] = ()
    if variant is Variant.BASE:
        # What is pending comes first, unless it waits for a node that may never come back.
        new = frozenset(_nodes(state.pending) or ()) - frozenset(_nodes(state.stable) or ())
        if new <= topology.nodes:
            return None
        conditions = (topology.unchanged,)
    moved = transitions.planned_moved(state, conditions=conditions)
    if variant is Variant.LOCK or moved is None:
        return None
    return CancelChange(group.term, moved)


def _held_lock(variant: Variant, state: PartitionState, group: Group) -> Act | None:
    """The next leader completes a joint configuration. The lock of a leader that was lost stays
    until then, in the name of the next: pending must not change under it.
    """
    if variant is not Variant.LOCK or state.lock is None or state.lock.term >= group.term:
        return None
    return Do(transitions.catch_up_finished(state, Assignments(state.lock.nodes), group.term))


def _too_late(variant: Variant, state: PartitionState, group: Group) -> Act | None:
    """What is asked of a group whose change can neither be cancelled nor replaced: a cancel for
    planned, and by a leader elected since it began (onLeaderElected) the change itself. The
    answers, false and busy, leave everything as it is: once is enough.
    """
    if variant is Variant.CANCEL and state.planned is not None:
        moved = transitions.planned_moved(state)
        asked = moved is None or state.planned_revision == group.refused
        return None if asked else CancelChange(group.term, moved)
    known = group.target or state.pending_revision == group.refused
    return None if known else _change(state, group)


def _adjusted(
    variant: Variant, state: PartitionState, group: Group, topology: Topology
) -> Act | None:
    """What to do about a change that is still catching up, and may lead to the wrong nodes."""
    if variant is Variant.BASE:
        return _cancel(variant, state, group, topology)
    if state.pending is None:
        # A change to what is stable takes in a voter's later life, or lets learners go.
        tidies = _nodes(state.stable) == assignments(group.target).nodes
        return None if tidies else CancelChange(group.term)
    if state.lock is not None and state.lock.term < group.term:
        return _unlock(variant, state, group)
    # Not the nodes alone: where pending has left them and come back, they may have erased the
    # replicas that this change leads to, and run others now.
    if variant is Variant.LOCK and state.pending_revision != group.revision:
        return _change(state, group)
    return _cancel(variant, state, group, topology)


# -- which raft nodes run


def wanted(state: PartitionState) -> frozenset[str]:
    """The nodes on which a raft node of the partition runs: of stable and pending, or where pending
    is forced of pending alone.
    """
    pending = frozenset(_nodes(state.pending) or ())
    forced = state.pending is not None and state.pending.force
    if forced and not planted("forced-pending-ignored"):
        return pending
    stable = frozenset(_nodes(state.stable) or ())
    return stable if planted("pending-member-stopped") else pending | stable


def kept(state: PartitionState) -> frozenset[str]:
    """The nodes that keep what they have of the partition, whether it runs there or not."""
    sets = (state.stable, state.pending, state.planned)
    return frozenset(node for held in sets for node in _nodes(held) or ())
