"""Kinds of faults as values: what each does to a node, what it aims at and what it needs.

Everything that depends on a kind reads its ``FaultKind``: the nemesis, the judgement of exits and
permitted losses, coverage and the report. A plug-in declares its own kinds the same way; the facts
that a judgement needs are recorded with each run.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping

import msgspec

from harness.protocols.cluster import Capability

EVERY_NODE = ("all",)  # the aims of a kind that only ever takes the cluster as a whole
OF_SPARES = ("spare",)  # of one that only ever takes nodes which are no members


class Mechanism(enum.StrEnum):
    """A part of a node through which faults act: two that share one take turns on that node."""

    PROGRAM = "program"
    LINKS = "links"
    DISK = "disk"
    CLOCK = "clock"
    PLACEMENT = "placement"  # of data on nodes


class Effect(enum.StrEnum):
    """An effect on a target while a fault is in force. The texts stand in manifests."""

    ENDS_PROGRAM = "ends-program"  # no program runs
    RESTARTS_PROGRAM = "restarts-program"  # one target after the other, and it runs again
    STOPS_PROGRAM = "stops-program"  # it exists, and takes no step
    MAY_END_PROGRAM = "may-end-program"  # it may exit by itself, and breaks no promise by that
    SILENCES_MACHINE = "silences-machine"  # not even a probe from the node is answered
    CUTS_LINKS = "cuts-links"
    DEGRADES_LINKS = "degrades-links"
    IMPAIRS_DISK = "impairs-disk"
    LOSES_DATA = "loses-data"  # that the node had acknowledged
    CHANGES_CLOCK = "changes-clock"
    CHANGES_PLACEMENT = "changes-placement"  # which nodes hold which data
    CHANGES_MEMBERS = "changes-members"  # of the cluster, or what they announce
    UNKNOWN = "unknown"  # a person's own command, which may do anything


EVERY_MECHANISM = frozenset(Mechanism)
# Data may be on its way to other nodes while a machine is gone.
_OF_MACHINES = EVERY_MECHANISM - {Mechanism.PLACEMENT}
_THROUGH: Mapping[Effect, frozenset[Mechanism]] = {
    Effect.ENDS_PROGRAM: frozenset({Mechanism.PROGRAM}),
    Effect.RESTARTS_PROGRAM: frozenset({Mechanism.PROGRAM}),
    # A program that takes no step reads no clock, and a simulation stops its timeline.
    Effect.STOPS_PROGRAM: frozenset({Mechanism.PROGRAM, Mechanism.CLOCK}),
    # The heal starts it again, which would undo another fault that has ended it.
    Effect.MAY_END_PROGRAM: frozenset({Mechanism.PROGRAM}),
    # No verb and no probe reaches anything on the node.
    Effect.SILENCES_MACHINE: _OF_MACHINES,
    Effect.CUTS_LINKS: frozenset({Mechanism.LINKS}),
    # A link that is cut shows no loss and no delay.
    Effect.DEGRADES_LINKS: frozenset({Mechanism.LINKS}),
    Effect.IMPAIRS_DISK: frozenset({Mechanism.DISK}),
    # It is healed once the node has caught up, for which it needs all the rest.
    Effect.LOSES_DATA: EVERY_MECHANISM,
    Effect.CHANGES_CLOCK: frozenset({Mechanism.CLOCK}),
    Effect.CHANGES_PLACEMENT: frozenset({Mechanism.PLACEMENT}),
    # By starts and stops of programs. Data that moves for it may also move for a statement.
    Effect.CHANGES_MEMBERS: frozenset({Mechanism.PROGRAM}),
    Effect.UNKNOWN: EVERY_MECHANISM,
}

# These leave a target answering; under any other the rest may take it for gone.
_LEFT_IN_REACH = frozenset({Effect.IMPAIRS_DISK, Effect.CHANGES_CLOCK, Effect.CHANGES_PLACEMENT})
_SEPARATING = frozenset({Effect.CUTS_LINKS, Effect.DEGRADES_LINKS, Effect.UNKNOWN})
_SILENCING = frozenset({Effect.STOPS_PROGRAM, Effect.SILENCES_MACHINE})
_DOWN = _SILENCING | {Effect.ENDS_PROGRAM}
_PLACING = frozenset({Effect.CHANGES_PLACEMENT})
_MOVING = _PLACING | {Effect.CHANGES_MEMBERS}
_LOSING = frozenset({Effect.LOSES_DATA, Effect.CHANGES_MEMBERS, Effect.UNKNOWN})


class Strength(msgspec.Struct, frozen=True, kw_only=True):
    """The option of a kind that has degrees: ``n1 at 30 %``. Without one in the target it is
    ``usual``; below ``least`` neither effect nor heal can be told from noise.
    """

    unit: str
    usual: float
    least: float = 0.0


_STRENGTH = re.compile(r"(?P<nodes>.+) at (?P<value>-?\d{1,9}(?:\.\d{1,6})?) ?(?P<unit>%|ms)")


def with_strength(nodes: str, value: float, unit: str) -> str:
    """The target ``nodes`` of a fault with a strength: ``n1 at 30 %``."""
    return f"{nodes} at {value:g} {unit}"


def split_strength(target: str) -> tuple[str, float | None, str]:
    """The nodes of ``target``, and the strength with its unit; ``None`` and no unit without one."""
    match = _STRENGTH.fullmatch(target)
    return (match["nodes"], float(match["value"]), match["unit"]) if match else (target, None, "")


class FaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault. ``aims`` are the targets of a random mix, empty for the usual ones."""

    name: str
    effects: frozenset[Effect]
    needs: frozenset[Capability] = frozenset()
    aims: tuple[str, ...] = ()
    strength: Strength | None = None

    @property
    def mechanisms(self) -> frozenset[Mechanism]:
        """What it acts through; everything, where no effect is known."""
        found = frozenset[Mechanism]().union(*(_THROUGH[effect] for effect in self.effects))
        return found or EVERY_MECHANISM

    @property
    def of_nodes(self) -> bool:
        """Whether its target is a node that has a role, so that every role is worth trying."""
        return self.aims not in (EVERY_NODE, OF_SPARES)

    @property
    def of_spares(self) -> bool:
        """Whether its target is a node that is no member yet."""
        return self.aims == OF_SPARES

    @property
    def ends_program(self) -> bool:
        """Whether no program runs on a target; the kind has no effect where none ran."""
        return Effect.ENDS_PROGRAM in self.effects

    @property
    def silences_program(self) -> bool:
        """Whether a target that still has its program answers no client and no node."""
        return not self.effects.isdisjoint(_SILENCING)

    @property
    def silences_machine(self) -> bool:
        """Whether links of a target can't be probed."""
        return Effect.SILENCES_MACHINE in self.effects

    @property
    def takes_down(self) -> bool:
        """Whether no program of its targets answers while it is in force, of all of them together:
        those of a procedure go one after the other.
        """
        return self.name not in PROCEDURES and not self.effects.isdisjoint(_DOWN)

    @property
    def strikes_one(self) -> bool:
        """Whether of its targets only the first is struck that comes to a point of its work."""
        return self.name == CRASH.name

    @property
    def may_end(self) -> bool:
        """Whether a target may exit by itself without breaking a promise."""
        return Effect.MAY_END_PROGRAM in self.effects

    @property
    def destroys(self) -> bool:
        """Whether a target loses data that it had acknowledged."""
        return Effect.LOSES_DATA in self.effects

    @property
    def may_destroy(self) -> bool:
        """Whether a target may lose data that it had acknowledged; a kind of which no effect is
        known may do anything, and so may a person's own command.
        """
        return self.destroys or not self.effects or Effect.UNKNOWN in self.effects

    @property
    def may_take_copies(self) -> bool:
        """Whether a target may lose its copies of data, or go with them; a kind of which no effect
        is known may do anything.
        """
        return not self.effects or not self.effects.isdisjoint(_LOSING)

    @property
    def moves_data(self) -> bool:
        """Whether the store moves data for it."""
        return not self.effects.isdisjoint(_MOVING)

    @property
    def may_move_data(self) -> bool:
        """Whether the store may move data, or change its members, for it."""
        return self.moves_data or Effect.UNKNOWN in self.effects

    @property
    def only_moves_data(self) -> bool:
        """Whether it asks the store to move data, and does nothing else."""
        return self.effects == _PLACING

    @property
    def changes_clock(self) -> bool:
        """Whether a target's clock is not that of the others."""
        return Effect.CHANGES_CLOCK in self.effects

    @property
    def leaves_others(self) -> bool:
        """Whether what is not a target goes on as before: a target is gone, and delays none."""
        return bool(self.effects) and self.effects <= _DOWN

    @property
    def all_or_nothing(self) -> bool:
        """Whether a target is there as a whole, or not at all."""
        return bool(self.effects) and self.effects <= _DOWN | _PLACING

    @property
    def takes_replicas(self) -> bool:
        """Whether a target loses its data or goes with it: one that does finds out by observation
        whom it may take, and none else may do so at that moment.
        """
        return self.destroys or Effect.CHANGES_MEMBERS in self.effects

    @property
    def may_be_missed(self) -> bool:
        """Whether the other nodes may go on without a target; a kind of which no effect is known
        may do anything.
        """
        return not self.effects or not self.effects <= _LEFT_IN_REACH

    @property
    def separates(self) -> bool:
        """Whether targets may miss the other nodes, as these may miss them; a kind of which no
        effect is known may do anything.
        """
        return not self.effects or not self.effects.isdisjoint(_SEPARATING)


class RecordedFaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind that was possible in a run, as its manifest records it. ``effects`` is unset in runs
    of versions that did not record them.
    """

    kind: str
    of_nodes: bool = True
    may_end: bool = False
    effects: tuple[Effect, ...] | msgspec.UnsetType = msgspec.UNSET

    def restored(self) -> FaultKind:
        """Return the kind as far as judgements need it."""
        if isinstance(self.effects, msgspec.UnsetType):
            known = BUILT_IN.get(self.kind)
            effects = (known.effects if known else frozenset()) - {Effect.MAY_END_PROGRAM}
            # The run's own word counts more than what this version holds of the kind.
            effects |= {Effect.MAY_END_PROGRAM} if self.may_end else frozenset()
        else:
            effects = frozenset(self.effects)
        aims = () if self.of_nodes else EVERY_NODE
        return FaultKind(name=self.kind, effects=effects, aims=aims)


def recorded(
    kinds: Iterable[FaultKind], capabilities: Collection[Capability]
) -> tuple[RecordedFaultKind, ...]:
    """Return those of ``kinds`` that ``capabilities`` allow, by name, for the manifest."""
    return tuple(
        RecordedFaultKind(
            kind=kind.name,
            of_nodes=kind.of_nodes,
            may_end=kind.may_end,
            effects=tuple(sorted(kind.effects)),
        )
        for kind in sorted(kinds, key=lambda kind: kind.name)
        if kind.needs <= frozenset(capabilities)
    )


def possible(
    recorded: tuple[RecordedFaultKind, ...] | msgspec.UnsetType,
) -> tuple[FaultKind, ...]:
    """Return the kinds that were possible in a run; none where its manifest records none."""
    if isinstance(recorded, msgspec.UnsetType):
        return ()
    return tuple(row.restored() for row in recorded)


def by_name(possible: Iterable[FaultKind]) -> Mapping[str, FaultKind]:
    """Return every kind that is known: those of the run before the built-in ones."""
    return {**BUILT_IN, **{kind.name: kind for kind in possible}}


def _of(*effects: Effect) -> frozenset[Effect]:
    return frozenset(effects)


def _needs(*capabilities: Capability) -> frozenset[Capability]:
    return frozenset(capabilities)


KILL = FaultKind(name="kill", effects=_of(Effect.ENDS_PROGRAM), needs=_needs(Capability.KILL))
RESTART = FaultKind(name="restart", effects=_of(Effect.ENDS_PROGRAM), needs=_needs(Capability.KILL))
PAUSE = FaultKind(name="pause", effects=_of(Effect.STOPS_PROGRAM), needs=_needs(Capability.PAUSE))
FREEZE = FaultKind(
    name="freeze",
    effects=_of(Effect.STOPS_PROGRAM, Effect.SILENCES_MACHINE),
    needs=_needs(Capability.FREEZE),
)
HOST_LOSS = FaultKind(
    name="host-loss",
    effects=_of(Effect.ENDS_PROGRAM, Effect.SILENCES_MACHINE),
    needs=_needs(Capability.HOST_LOSS),
)

CRASH = FaultKind(
    name="crash",
    effects=_of(Effect.ENDS_PROGRAM),
    needs=_needs(Capability.CRASH_POINTS, Capability.KILL),
)

# Their targets take turns, in steps (``harness.protocols.procedures``).
ROLLING_RESTART = FaultKind(
    name="rolling-restart",
    effects=_of(Effect.RESTARTS_PROGRAM),
    needs=_needs(Capability.KILL),
    aims=EVERY_NODE,
)
FULL_RESTART, SUCCESSIVE_LOSS = (
    FaultKind(name=name, effects=_of(Effect.ENDS_PROGRAM), needs=_needs(Capability.KILL), aims=aims)
    for name, aims in (
        ("full-restart", EVERY_NODE),
        ("successive-loss", ("all but one of any partition",)),
    )
)

PROCEDURES = frozenset({ROLLING_RESTART.name, FULL_RESTART.name, SUCCESSIVE_LOSS.name})

_CUTS = _of(Effect.CUTS_LINKS)
_PARTITION, _ONE_WAY = _needs(Capability.PARTITION), _needs(Capability.ONE_WAY_PARTITION)
PARTITION = FaultKind(name="partition", effects=_CUTS, needs=_PARTITION)
BRIDGE = FaultKind(name="bridge", effects=_CUTS, needs=_PARTITION)
# Each node loses some of its links, so no single one is the target.
MAJORITIES_RING = FaultKind(
    name="majorities-ring", effects=_CUTS, needs=_PARTITION, aims=EVERY_NODE
)
ONE_WAY = FaultKind(name="one-way", effects=_CUTS, needs=_ONE_WAY)
ONE_WAY_IN = FaultKind(name="one-way-in", effects=_CUTS, needs=_ONE_WAY)
LOSS = FaultKind(
    name="loss",
    effects=_of(Effect.DEGRADES_LINKS),
    needs=_needs(Capability.PACKET_LOSS),
    strength=Strength(unit="%", usual=30.0, least=2.0),
)
DELAY = FaultKind(
    name="delay",
    effects=_of(Effect.DEGRADES_LINKS),
    needs=_needs(Capability.DELAY),
    strength=Strength(unit="ms", usual=100.0, least=5.0),
)

DROP_MESSAGES, HOLD_MESSAGES, DOUBLE_MESSAGES, REORDER_MESSAGES = (
    FaultKind(
        name=name,
        effects=_of(Effect.DEGRADES_LINKS),
        needs=_needs(Capability.MESSAGES),
    )
    for name in ("drop-messages", "hold-messages", "double-messages", "reorder-messages")
)

# One machine at a time: two that lose their disks may be a majority of some partition.
_ONE_AT_A_TIME = ("leader of any partition", "metastorage leader", "one")
_DISK, _DISK_AND_KILL = _needs(Capability.DISK), _needs(Capability.DISK, Capability.KILL)
DISK_SLOW = FaultKind(
    name="disk-slow",
    effects=_of(Effect.IMPAIRS_DISK),
    needs=_DISK,
    aims=_ONE_AT_A_TIME,
    strength=Strength(unit="ms", usual=100.0),
)
# A program that exits because it can't write keeps its promises.
DISK_FULL, DISK_ERROR = (
    FaultKind(
        name=name,
        effects=_of(Effect.IMPAIRS_DISK, Effect.MAY_END_PROGRAM),
        needs=_DISK,
        aims=_ONE_AT_A_TIME,
    )
    for name in ("disk-full", "disk-error")
)
BIT_FLIP = FaultKind(
    name="bit-flip",
    # Its kill is part of the injection alone: the program runs again, on the damaged disk.
    effects=_of(Effect.IMPAIRS_DISK, Effect.LOSES_DATA, Effect.MAY_END_PROGRAM),
    needs=_DISK_AND_KILL,
    aims=_ONE_AT_A_TIME,
)
WIPE = FaultKind(
    name="wipe",
    effects=_of(Effect.ENDS_PROGRAM, Effect.LOSES_DATA),
    needs=_needs(Capability.WIPE, Capability.KILL),
    aims=_ONE_AT_A_TIME,
)

_CLOCK_AIMS = ("leader of any partition", "one", "metastorage leader", "minority")
# No log, lease or lock may care about a jump, however far. Two nodes may drift apart by 5 % within
# a lease; one that gains and one that loses stay below.
_JUMP, _DRIFT = Strength(unit="ms", usual=20_000.0), Strength(unit="%", usual=2.0)
CLOCK_JUMP, CLOCK_FAST, CLOCK_SLOW = (
    FaultKind(
        name=name,
        effects=_of(Effect.CHANGES_CLOCK),
        needs=_needs(Capability.CLOCK),
        aims=_CLOCK_AIMS,
        strength=strength,
    )
    for name, strength in (("clock-jump", _JUMP), ("clock-fast", _DRIFT), ("clock-slow", _DRIFT))
)

DDL = FaultKind(
    name="ddl",
    effects=_of(Effect.CHANGES_PLACEMENT),
    needs=_needs(Capability.STATEMENTS),
    aims=EVERY_NODE,
)

_CHANGES_MEMBERS, _MEMBERS = _of(Effect.CHANGES_MEMBERS), _needs(Capability.MEMBERS)
JOIN = FaultKind(name="join", effects=_CHANGES_MEMBERS, needs=_MEMBERS, aims=OF_SPARES)
LEAVE = FaultKind(
    name="leave",
    effects=_of(Effect.ENDS_PROGRAM, Effect.CHANGES_MEMBERS),
    needs=_MEMBERS,
    aims=_ONE_AT_A_TIME,
)
# Programs end and start within their injections and heals alone.
REPLACE, ATTRIBUTES = (
    FaultKind(name=name, effects=_CHANGES_MEMBERS, needs=_MEMBERS, aims=_ONE_AT_A_TIME)
    for name in ("replace", "attributes")
)
CUT = FaultKind(
    name="cut",
    effects=_CUTS,
    needs=_ONE_WAY,
    aims=("leader of any partition>follower of any partition",),
)
# One target at a time: what its command does is not known.
COMMAND = FaultKind(
    name="command",
    effects=_of(Effect.UNKNOWN, Effect.MAY_END_PROGRAM),
    needs=_needs(Capability.COMMANDS),
    aims=("one",),
)

BUILT_IN: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        *(KILL, RESTART, PAUSE, FREEZE, HOST_LOSS, CRASH),
        *(ROLLING_RESTART, FULL_RESTART, SUCCESSIVE_LOSS),
        *(PARTITION, BRIDGE, MAJORITIES_RING, ONE_WAY, ONE_WAY_IN, LOSS, DELAY),
        *(DROP_MESSAGES, HOLD_MESSAGES, DOUBLE_MESSAGES, REORDER_MESSAGES),
        *(DISK_SLOW, DISK_FULL, DISK_ERROR, BIT_FLIP, WIPE),
        *(CLOCK_JUMP, CLOCK_FAST, CLOCK_SLOW),
        *(DDL, JOIN, LEAVE, REPLACE, ATTRIBUTES, CUT, COMMAND),
    )
}
