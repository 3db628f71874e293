"""The atomic transitions of a partition's assignments, each one multi-invoke ("Rebalance
algorithm" and "Adjustable changePeers" of the seed).

An invoke is a chain of if and else-if over what metastorage holds when it is done, so that it is
right under any change since the caller read; only where a *value* moves from one key to another
does it depend on what was read, and is not done if that has changed. ``Transition.outcome`` says
which branch it was.

Three variants: ``BASE`` queues one planned set behind the pending one, which gives way to it only
where it asks for a node that has left; ``LOCK`` (approach 1) changes the pending set itself until
the leader locks it; ``CANCEL`` (approach 2) queues like the base and moves planned to pending once
the leader has cancelled the change that goes on.

Where the seed's pseudocode leaves planned behind, or does not advance the trigger's revision, these
do not: a set that was overtaken is never gone back to.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.metastorage.metastorage import (
    Condition,
    Invoke,
    InvokeResult,
    Operation,
)
from clusters.reference.node.rebalance.keys import (
    APPLIED,
    CHAIN,
    GENERATION,
    LOCK,
    PENDING,
    PLANNED,
    PREFIXES,
    STABLE,
    TRIGGER,
    Assignments,
    Chain,
    Link,
    Lock,
    PartitionId,
    PartitionState,
    Position,
    encode,
    encode_number,
)


class Variant(enum.StrEnum):
    """How a rebalance that goes on is adjusted."""

    BASE = "base"
    LOCK = "lock"
    CANCEL = "cancel"


class Outcome(enum.StrEnum):
    """What a transition did."""

    CREATED = "created"
    PENDING_UPDATED = "pending-updated"
    PLANNED_UPDATED = "planned-updated"
    EQUALS_PENDING = "equals-pending"
    EQUALS_STABLE = "equals-stable"
    OUTDATED = "outdated"
    COMPLETED = "completed"
    CONTINUED = "continued"
    SUPERSEDED = "superseded"
    LOCKED = "locked"
    REFUSED = "refused"
    UNLOCKED = "unlocked"
    MOVED = "moved"
    CHANGED = "changed"
    RESET = "reset"


class Transition(msgspec.Struct, frozen=True):
    """An invoke, and what it means that one of its branches was done: ``outcomes`` in their order,
    and last what it means that none was.
    """

    invoke: Invoke
    outcomes: tuple[Outcome, ...]

    def outcome(self, result: InvokeResult) -> Outcome:
        """What the invoke with that result did."""
        return self.outcomes[result.branch] if result.success else self.outcomes[-1]


Conditions = tuple[Condition, ...]
Operations = tuple[Operation, ...]
Branch = tuple[Conditions, Operations, Outcome]


def _chain(branches: Sequence[Branch], otherwise: Outcome) -> Transition:
    invoke: Invoke | None = None
    # From the end, since each invoke holds those that come after it.
    for conditions, operations, _ in reversed(branches):
        invoke = Invoke(conditions, operations, (), invoke)
    if invoke is None:
        raise ValueError("a transition without branches")
    return Transition(invoke, (*(outcome for *_, outcome in branches), otherwise))


def _either(alternatives: Sequence[Condition], branches: Sequence[Branch]) -> list[Branch]:
    """``branches``, each under one of ``alternatives``: conditions know no "or"."""
    return [((one, *c), o, outcome) for one in alternatives for c, o, outcome in branches]


class _Keys:
    """Conditions and operations on the keys of one partition."""

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition

    def absent(self, prefix: str) -> Condition:
        return Condition(self._partition.key(prefix), "absent")

    def present(self, prefix: str) -> Condition:
        return Condition(self._partition.key(prefix), "present")

    def equal(self, prefix: str, value: Assignments | Lock | Chain) -> Condition:
        return Condition(self._partition.key(prefix), "value", value=encode(value))

    def unchanged(self, prefix: str, revision: int) -> Condition:
        """It is as it was read: of that revision, or absent (0)."""
        key = self._partition.key(prefix)
        absent = Condition(key, "absent")
        return Condition(key, "revision", revision=revision) if revision else absent

    def below(self, prefix: str, value: bytes) -> tuple[Condition, Condition]:
        """It is absent, or less than ``value``."""
        key = self._partition.key(prefix)
        return Condition(key, "absent"), Condition(key, "value<", value=value)

    def put(self, prefix: str, value: Assignments | Lock | Chain) -> Operation:
        return Operation(self._partition.key(prefix), encode(value))

    def number(self, prefix: str, value: bytes) -> Operation:
        return Operation(self._partition.key(prefix), value)

    def remove(self, prefix: str) -> Operation:
        return Operation(self._partition.key(prefix), None)


def created(
    partition: PartitionId, target: Assignments, revision: int, *, chained: bool = False
) -> Transition:
    """Write the first assignments of a partition that has none. ``chained``: in a zone that is
    highly available.
    """
    keys = _Keys(partition)
    chain = (keys.put(CHAIN, Chain((Link(target.nodes),))),) if chained else ()
    operations = (keys.put(STABLE, target), keys.number(TRIGGER, encode_number(revision)), *chain)
    return _chain(
        [((keys.absent(STABLE), keys.absent(PENDING)), operations, Outcome.CREATED)],
        Outcome.OUTDATED,
    )


def removed(partition: PartitionId) -> tuple[Operation, ...]:
    """The operations that remove all of a partition's keys, for a table that is dropped."""
    return tuple(Operation(partition.key(prefix), None) for prefix in PREFIXES)


def triggered(
    variant: Variant,
    partition: PartitionId,
    *,
    target: Assignments,
    revision: int,
    before: Assignments | None = None,
) -> Transition:
    """Aim at ``target``, which the event of ``revision`` asks for; once an event ("Write new
    pending assignments (1)"). ``before``: what was asked for last, which stands for stable as long
    as that is not written.
    """
    keys = _Keys(partition)
    done = keys.number(TRIGGER, encode_number(revision))
    # The newest event decides: what was planned before it is overtaken.
    to_pending = (keys.put(PENDING, target), keys.remove(PLANNED), done)
    forget = (keys.remove(PLANNED), done)
    behind_reset = msgspec.structs.replace(target, from_reset=True)
    branches: list[Branch] = [
        ((keys.absent(PENDING), keys.equal(STABLE, target)), forget, Outcome.EQUALS_STABLE)
    ]
    if target == before:
        branches.append(
            ((keys.absent(PENDING), keys.absent(STABLE)), forget, Outcome.EQUALS_STABLE)
        )
    branches += [
        ((keys.absent(PENDING),), to_pending, Outcome.PENDING_UPDATED),
        ((keys.equal(PENDING, target),), forget, Outcome.EQUALS_PENDING),
        # The second phase of a reset leads there already: planned again it would be taken for a
        # graceful change, at which the chain forgets what came before the reset.
        ((keys.equal(PENDING, behind_reset),), forget, Outcome.EQUALS_PENDING),
    ]
    if variant is Variant.LOCK:
        branches.append(((keys.absent(LOCK),), to_pending, Outcome.PENDING_UPDATED))
    branches.append(((), (keys.put(PLANNED, target), done), Outcome.PLANNED_UPDATED))
    if planted("trigger-not-compared"):
        return _chain(branches, Outcome.OUTDATED)
    newer = keys.below(TRIGGER, encode_number(revision))
    return _chain(_either(newer, branches), Outcome.OUTDATED)


def chained(state: PartitionState) -> Transition:
    """Begin the chain of a partition whose zone was altered to be highly available."""
    keys = _Keys(state.partition)
    nodes = () if state.stable is None else state.stable.nodes
    as_read = (keys.absent(CHAIN), keys.unchanged(STABLE, state.stable_revision))
    first = Chain((Link(nodes, state.generation),))
    return _chain([(as_read, (keys.put(CHAIN, first),), Outcome.CREATED)], Outcome.CHANGED)


def reset(
    variant: Variant,
    state: PartitionState,
    *,
    chosen: str,
    survivors: Sequence[str],
    members: Sequence[str],
    member: str = "",
    manual: bool = False,
    conditions: Conditions = (),
    operations: Operations = (),
) -> Transition:
    """Begin the next generation at ``chosen`` alone, without a majority, of the copies on
    ``survivors``; then, as planned, at all ``members`` (IEP-131, resetPartition). It overwrites
    what was pending, planned and locked. ``member`` is the chosen copy; ``manual``: an operator has
    asked for it. ``CHANGED``: ``state`` is not what there is, or one of ``conditions`` does not
    hold.
    """
    keys = _Keys(state.partition)
    generation = encode_number(state.generation)
    same = (
        Condition(state.partition.key(GENERATION), "value", value=generation)
        if state.generation
        else keys.absent(GENERATION)
    )
    as_read = (
        same,
        keys.unchanged(STABLE, state.stable_revision),
        keys.unchanged(PENDING, state.pending_revision),
        *conditions,
    )
    alone = tuple(members) == (chosen,)
    copies = tuple(sorted(survivors))
    forced = Assignments((chosen,), force=True, survivors=copies, manual=manual, member=member)
    planned = Assignments(tuple(sorted(members)), from_reset=True)
    # Under the lock no other target takes the place of a forced one before it is stable.
    held = keys.put(LOCK, Lock((chosen,), 0)) if variant is Variant.LOCK else keys.remove(LOCK)
    written = (
        keys.put(PENDING, forced),
        keys.remove(PLANNED) if alone else keys.put(PLANNED, planned),
        keys.number(GENERATION, encode_number(state.generation + 1)),
        held,
        *operations,
    )
    return _chain([(as_read, written, Outcome.RESET)], Outcome.CHANGED)


def unwound(
    variant: Variant,
    state: PartitionState,
    *,
    chosen: str,
    nodes: Sequence[str],
    survivors: Sequence[str],
    members: Sequence[str],
    member: str,
    conditions: Conditions,
    operations: Operations,
) -> Transition:
    """Start from the copies of ``nodes``, which become stable and the chain's only link, at
    ``chosen`` of the ``survivors``, those of them that are there; then at all ``members`` (IEP-131,
    "Chain unwind").
    """
    keys = _Keys(state.partition)
    stable = Assignments(tuple(sorted(nodes)))
    chain = Chain((Link(stable.nodes, state.generation),))
    same = keys.unchanged(CHAIN, state.chain_revision)
    return reset(
        variant,
        state,
        chosen=chosen,
        survivors=survivors,
        members=members,
        member=member,
        conditions=(same, *conditions),
        operations=(keys.put(STABLE, stable), keys.put(CHAIN, chain), *operations),
    )


def unwound_to_stable(state: PartitionState, *, conditions: Conditions) -> Transition:
    """Start from the copies of the chain's last link, in the generation that they are in: it
    becomes the only link, and nothing else changes.
    """
    keys = _Keys(state.partition)
    as_read = (
        keys.unchanged(CHAIN, state.chain_revision),
        keys.unchanged(STABLE, state.stable_revision),
        keys.unchanged(PENDING, state.pending_revision),
        *conditions,
    )
    links = () if state.chain is None else state.chain.links[-1:]
    return _chain([(as_read, (keys.put(CHAIN, Chain(links)),), Outcome.CREATED)], Outcome.CHANGED)


def linked(
    state: PartitionState, pending: Assignments | None, applied: Assignments, at: Link
) -> Chain | None:
    """The chain once ``applied`` is stable, which ``pending`` had asked for (``None``: it asks for
    other nodes by now); ``None`` where the zone keeps no chain.
    """
    if state.chain is None:
        return None
    if pending is not None and pending.force:
        return state.chain if planted("chain-not-appended") else state.chain.add_last(at)
    # A reset that another overtook, or whose set is not pending any more for another reason: the
    # chain does not have its generation yet.
    if pending is None and at.generation > state.chain.links[-1].generation:
        return state.chain.add_last(at)
    # Of a set that was overtaken nobody knows whether it followed a reset: what came before the
    # reset must not be forgotten.
    if pending is None or pending.from_reset:
        return state.chain.replace_last(at)
    return Chain((at,))


def stable_switched(
    variant: Variant,
    state: PartitionState,
    applied: Assignments,
    position: Position,
    term: int = 0,
) -> Transition:
    """Make ``applied`` stable, the configuration that the raft group has applied at ``position``,
    and begin what was planned ("When RaftGroupService#changePeersAsync done ...").

    ``COMPLETED``: nothing is left to do; ``CONTINUED``: planned has become pending; ``SUPERSEDED``:
    pending asks for other nodes than these, and stays; ``CHANGED``: planned is not what ``state``
    says, a later configuration is stable, or the table was dropped: read again.
    """
    keys = _Keys(state.partition)
    locks = variant is Variant.LOCK and not planted("lock-leaked")
    unlock = (keys.remove(LOCK),) if locks else ()
    now: Operations = (keys.put(STABLE, applied), keys.number(APPLIED, position.encode()))
    at = Link(applied.nodes, position.generation, position.index, term)
    asked = state.pending if state.pending and state.pending.nodes == applied.nodes else None
    ours = keys.equal(PENDING, applied if asked is None else asked)
    there = [keys.present(STABLE)]
    overtaken = now
    if state.chain is None:
        # One that was begun meanwhile has to get its link for these nodes.
        there.append(keys.absent(CHAIN))
    else:
        there.append(keys.unchanged(CHAIN, state.chain_revision))
        known = linked(state, None, applied, at)
        if known is not None and state.chain.links[-1].nodes != applied.nodes:
            overtaken = (*now, keys.put(CHAIN, known))
        chain = linked(state, asked or applied, applied, at)
        if chain is not None:
            now = (*now, keys.put(CHAIN, chain))
    complete = (*now, *unlock, keys.remove(PENDING), keys.remove(PLANNED))
    finished: list[Branch] = [((ours, keys.absent(PLANNED)), complete, Outcome.COMPLETED)]
    if state.planned is not None:
        planned = keys.unchanged(PLANNED, state.planned_revision)
        if state.planned.nodes == applied.nodes:
            finished.append(((ours, planned), complete, Outcome.COMPLETED))
        else:
            lost = planted("planned-lost")
            goes_on = keys.remove(PENDING) if lost else keys.put(PENDING, state.planned)
            begin = (*now, *unlock, goes_on, keys.remove(PLANNED))
            finished.append(((ours, planned), begin, Outcome.CONTINUED))
    # The very configuration that is stable may complete a pending set that asks for it again.
    not_later = keys.below(APPLIED, Position(position.generation, position.index + 1).encode())
    other: list[Branch] = [
        ((keys.absent(PENDING),), (*overtaken, *unlock), Outcome.COMPLETED),
        ((ours,), (), Outcome.CHANGED),
        ((), overtaken, Outcome.SUPERSEDED),  # a lock is for what pending asks for, and stays, too
    ]
    newer = keys.below(APPLIED, position.encode())
    branches = [*_either(not_later, finished), *_either(newer, other)]
    # A report that comes after the table was dropped must not bring its keys back.
    return _chain([((*there, *c), o, outcome) for c, o, outcome in branches], Outcome.CHANGED)


# -- approach 1: the lock


def catch_up_finished(state: PartitionState, nodes: Assignments, term: int) -> Transition:
    """Lock pending for the leader of ``term``, whose new peers have caught up: the seed's
    tryCatchUpFinish(peers). ``LOCKED``: go on to the joint configuration; asked again it is locked
    as before. ``REFUSED``: pending asks for other nodes or was written again since ``state``, or a
    later leader has the lock.
    """
    keys = _Keys(state.partition)
    own = Lock(nodes.nodes, term)
    # As it stands there: a set that follows a reset is marked as that.
    if state.pending is not None and state.pending.nodes == nodes.nodes:
        nodes = state.pending
    # A set that came back is another one: its nodes may have erased their replicas meanwhile.
    ours = (keys.equal(PENDING, nodes), keys.unchanged(PENDING, state.pending_revision))
    take = (keys.put(LOCK, own),)
    branches: list[Branch] = [
        # Written again, though it is the same: an unlock whose answer was lost may come yet, and
        # must not find the revision that it knows.
        ((keys.equal(LOCK, own), *ours), take, Outcome.LOCKED),
        ((keys.absent(LOCK), *ours), take, Outcome.LOCKED),
    ]
    if (held := state.lock) is not None and held.nodes == nodes.nodes and held.term < term:
        same = keys.unchanged(LOCK, state.lock_revision)
        branches.append(((same, *ours), take, Outcome.LOCKED))
    return _chain(branches, Outcome.REFUSED)


def unlocked(state: PartitionState, term: int) -> Transition | None:
    """Remove the lock, whose change of peers has failed or whose leader was lost before the joint
    configuration; what was planned behind it is pending now. ``None`` where there is no lock, or it
    is that of a later leader than the one of ``term``, which asks.
    """
    if state.lock is None or state.lock.term > term:
        return None
    keys = _Keys(state.partition)
    held, remove = keys.unchanged(LOCK, state.lock_revision), keys.remove(LOCK)
    branches: list[Branch] = [((held, keys.absent(PLANNED)), (remove,), Outcome.UNLOCKED)]
    if state.planned is not None:
        moved = (remove, keys.put(PENDING, state.planned), keys.remove(PLANNED))
        branches.append(
            ((held, keys.unchanged(PLANNED, state.planned_revision)), moved, Outcome.MOVED)
        )
    return _chain(branches, Outcome.CHANGED)


# -- approach 2: cancel


def planned_moved(state: PartitionState, *, conditions: Conditions = ()) -> Transition | None:
    """Move planned to pending, after the leader has cancelled the change that went on, if all of
    ``conditions`` hold. ``None`` if nothing is planned.
    """
    if state.planned is None:
        return None
    keys = _Keys(state.partition)
    # Not over a pending set that has changed since: another leader may have begun with it.
    as_read = (
        keys.unchanged(PLANNED, state.planned_revision),
        keys.unchanged(PENDING, state.pending_revision),
        *conditions,
    )
    operations = (keys.put(PENDING, state.planned), keys.remove(PLANNED))
    return _chain([(as_read, operations, Outcome.MOVED)], Outcome.CHANGED)
