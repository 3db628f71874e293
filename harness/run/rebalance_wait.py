"""What is left of the moves of data at the end of a run, by the changes that the store has told.

A run waits for it before its final reads: what is not over by then would have to stay open in the
verdict. It waits for as long as checkers grant a store once nothing is done to it any more, and for
timers of zones that run out soon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from harness.clock import NS_PER_S
from harness.protocols.changes import AssignmentChange, AssignmentKind, TopologyChange, TopologyKind

# A little more than ``checkers.promises.assignments.QUIET_S``: what is left then is judged.
GRANTED_S = 32.0
LIMIT_S = 120.0  # of the whole wait, with the timers that run out meanwhile
POLL_S = 0.5
_ON_ITS_WAY = (AssignmentKind.PENDING, AssignmentKind.PLANNED, AssignmentKind.LOCK)

Change = AssignmentChange | TopologyChange


@attrs.frozen(kw_only=True)
class Left:
    """A piece of work that is left: of the store since ``since_ns``, which for a timer is when it
    runs out.
    """

    text: str
    since_ns: int


def left_open(changes: Iterable[Change]) -> list[Left]:
    """What is left after ``changes``: timers that run, events that are not handled, and assignments
    that are on their way. A timer that never runs out is none.
    """
    ordered = sorted(changes, key=lambda each: (each.revision, each.at_ns))
    topology = [each for each in ordered if isinstance(each, TopologyChange)]
    assignments = [each for each in ordered if isinstance(each, AssignmentChange)]
    zones = {each.zone: _Zone() for each in topology if each.zone}
    for each in topology:
        if each.zone:
            zones[each.zone].take(each)
    found = [left for name, zone in sorted(zones.items()) for left in zone.left(name)]
    partitions: dict[int, _Partition] = {}
    for change in assignments:
        partitions.setdefault(change.partition, _Partition()).take(change)
    for number, partition in sorted(partitions.items()):
        found += partition.left(number, zones.get(partition.zone, _Zone()))
    return found


def wait_until_ns(left: Sequence[Left], healed_ns: int) -> int:
    """Until when a run that was healed at ``healed_ns`` waits for ``left``: no longer than
    ``LIMIT_S``, and not for timers that run out later.
    """
    last_ns = healed_ns + int(LIMIT_S * NS_PER_S)
    granted_ns = int(GRANTED_S * NS_PER_S)
    soon = [max(each.since_ns, healed_ns) for each in left if each.since_ns <= last_ns]
    return min(max(soon) + granted_ns, last_ns) if soon else healed_ns


class _Zone:
    """The newest that is known of a zone."""

    def __init__(self) -> None:
        self.waits: tuple[float | None, float | None] = (None, None)
        self.eligible, self.nodes = frozenset[str](), frozenset[str]()
        self.moved_ns = self.event_ns = self.event = 0

    def take(self, change: TopologyChange) -> None:
        named = frozenset(change.nodes or ())
        if change.kind == TopologyKind.ELIGIBLE:
            self.eligible, self.moved_ns = named, change.at_ns
        elif change.kind in (TopologyKind.ZONE, TopologyKind.DATA_NODES):
            self.event, self.event_ns = change.revision, change.at_ns
            if change.kind == TopologyKind.DATA_NODES:
                self.nodes = named
            elif change.joint_s is not None:
                self.waits = change.joint_s, change.joint_s
            else:
                self.waits = change.up_s, change.down_s

    def left(self, name: str) -> list[Left]:
        up_s, down_s = self.waits
        both = (
            (self.eligible - self.nodes, up_s, "wait to be among"),
            (self.nodes - self.eligible, down_s, "wait to be out of"),
        )
        return [
            Left(
                text=f"{' '.join(sorted(nodes))} {what} the data nodes of {name}",
                since_ns=self.moved_ns + int(wait_s * NS_PER_S),
            )
            for nodes, wait_s, what in both
            if nodes and wait_s is not None and not math.isinf(wait_s)
        ]


class _Partition:
    """The newest that is known of a partition."""

    def __init__(self) -> None:
        self.zone, self.trigger, self.stable = "", 0, False
        self.held: dict[AssignmentKind, AssignmentChange] = {}

    def take(self, change: AssignmentChange) -> None:
        self.zone = change.zone or self.zone
        if change.kind == AssignmentKind.TRIGGER:
            self.trigger = change.number or 0
        elif change.kind == AssignmentKind.STABLE:
            self.stable = change.nodes is not None
        elif change.kind in _ON_ITS_WAY:
            self.held[change.kind] = change

    def left(self, number: int, zone: _Zone) -> list[Left]:
        if not self.stable:
            return []  # its table was dropped
        found = [
            Left(
                text=f"partition {number}: {kind.value} is {' '.join(change.nodes)}",
                since_ns=change.at_ns,
            )
            for kind, change in self.held.items()
            if change.nodes is not None
        ]
        # Without data nodes there is nowhere to go.
        if zone.nodes and self.trigger < zone.event:
            text = f"partition {number}: the event of revision {zone.event} is not handled"
            found.append(Left(text=text, since_ns=zone.event_ns))
        return found
