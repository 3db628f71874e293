"""Faults that aim: a row of a schedule that waits for a moment of the store, and not for an offset.

Once its moment has come a row is materialised: an offset, a target without reference to the moment,
and in ``aimed`` the moment that it met. A materialised row is injected at once, as the aimed one
was, so that a simulated run and its replay are the same run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Sequence

import attrs
import msgspec

from harness.clock import NS_PER_S, RunClock
from harness.errors import MissingCapability, PlanError
from harness.protocols import targets
from harness.protocols.cluster import Roles
from harness.protocols.faults import ITS_NODE, PlannedFault
from harness.protocols.moments import Happening, Moment
from harness.protocols.targets import Form, Target

ITS_PARTITION = "its partition"
_BY = (Form.NAMED, Form.LEADER, Form.PRIMARY, Form.FOLLOWER, Form.METASTORAGE_LEADER)
_BY_WORDS = "a node, leader, primary or follower of a partition, metastorage leader"
# Offsets are whole microseconds: a float of seconds that a plan holds means the same instant again.
# No message and no disk is so fast that something came between a moment and its next microsecond.
_OFFSET_NS = 1_000
_US_PER_S = NS_PER_S // _OFFSET_NS
# Left of the drive behind a hold: a fault that is not proven healed by then makes the run unknown,
# and where an aimed one ends nobody planned.
HEAL_S = 2.0


def concrete(target: str, happening: Happening) -> str:
    """``target`` with the node and partition of ``happening`` in place of ``its node`` and ``its
    partition``.
    """
    known = happening.partition
    partition = "any partition" if known is None else f"partition {known}"
    return target.replace(ITS_NODE, happening.node).replace(ITS_PARTITION, partition)


def check_aim(
    fault: PlannedFault,
    nodes: tuple[str, ...],
    partitions: int | None,
    duration_s: float,
    path: str,
) -> str:
    """Refuse an aim that can never be met, and a part of one without ``on``; return the target as
    some moment would make it, for the check of the fault itself. Raises ``PlanError``.
    """
    if fault.on is None:
        parts = {"by": fault.by, "after_s": fault.after_s, "nth": fault.nth}
        for name, value in parts.items():
            if value is not None:
                raise PlanError(f"{path}.{name}", f"expected 'on' beside it (got {value!r} alone)")
        for words in (ITS_NODE, ITS_PARTITION):
            if words in fault.target:
                problem = f"{words!r} is that of a moment: expected 'on' beside it"
                raise PlanError(f"{path}.target", f"{problem} (got {fault.target!r} alone)")
        return fault.target
    if fault.aimed is not None:
        raise PlanError(f"{path}.on", f"expected no moment: it has come, {fault.aimed}")
    after_s = fault.after_s or 0.0
    if not (math.isfinite(after_s) and 0 <= after_s < duration_s):
        limits = f"from 0 to below {duration_s:g} s"
        raise PlanError(f"{path}.after_s", f"must be {limits} (got {after_s:g})")
    if fault.by is not None:
        by = targets.checked(fault.by, None, nodes, partitions, f"{path}.by")
        if by.form not in _BY:
            raise PlanError(f"{path}.by", f"must be one of: {_BY_WORDS} (got {fault.by!r})")
    # Any node and partition will do: only the form of the target is checked with them.
    return concrete(fault.target, Happening(moment=fault.on, node=nodes[0], partition=0))


def refuse_untold(schedule: Sequence[PlannedFault], told: Collection[Moment], where: str) -> None:
    """Raise ``MissingCapability`` for the first fault of ``schedule`` that waits for a moment that
    is not among those ``told``, of which ``where`` says by what.
    """
    for fault in schedule:
        if fault.on is not None and fault.on not in told:
            known = ", ".join(sorted(told)) or "of none"
            remedy = f"{where} tell {known}"
            raise MissingCapability(f"fault {fault.kind!r}", f"on {fault.on.value}", remedy)


def matches(by: Target, happening: Happening, roles: Roles) -> bool:
    """Whether ``happening`` is of a node in the role ``by``, and of the same partition where both
    are of one.
    """
    node, partition = happening.node, happening.partition
    if by.form is Form.NAMED:
        return node in by.nodes
    if by.form is Form.METASTORAGE_LEADER:
        return node == roles.metastorage_leader
    if None not in (by.partition, partition) and by.partition != partition:
        return False
    asked = partition if by.partition is None else by.partition
    if by.form is Form.FOLLOWER:
        # Only of a partition that the moment is of: else any node that leads nothing would be one.
        # Without a known leader no voter counts as a follower, as in ``targets``.
        return partition is not None and roles.leaders.get(partition, node) != node
    holders = roles.leaders if by.form is Form.LEADER else roles.primaries or {}
    return node in holders.values() if asked is None else holders.get(asked) == node


# Equal by identity: of two rows that wait for the same each has to remove its own entry.
@attrs.define(eq=False)
class _Aim:
    """A row that waits for ``left`` more of its moments."""

    on: Moment
    by: Target | None
    left: int
    came: asyncio.Future[Happening]


class Aims:
    """The rows that wait now."""

    def __init__(self) -> None:
        self._waiting: list[_Aim] = []

    async def wait(self, fault: PlannedFault) -> Happening:
        """Return the moment that ``fault`` waits for, the ``nth`` from now on."""
        on = fault.on
        if on is None:
            raise ValueError(f"{fault.kind} waits for no moment")
        by = None if fault.by is None else targets.parse(fault.by)
        came: asyncio.Future[Happening] = asyncio.get_running_loop().create_future()
        aim = _Aim(on=on, by=by, left=fault.nth or 1, came=came)
        self._waiting.append(aim)
        try:
            return await came
        finally:
            self._waiting.remove(aim)

    def happened(self, happening: Happening, roles: Callable[[], Roles]) -> None:
        """Wake the rows that waited for ``happening``; ``roles`` are those in force at it.

        A simulated node calls this in the middle of a step: nothing here reads a clock, whose time
        would be that of the node.
        """
        # Waiters wake in a later turn of the loop, so no row leaves the list during this walk.
        for aim in self._waiting:
            if aim.on is not happening.moment or aim.came.done():
                continue
            if aim.by is None or matches(aim.by, happening, roles()):
                aim.left -= 1
                if not aim.left:
                    aim.came.set_result(happening)


def materialised(fault: PlannedFault, happening: Happening, since_ns: int) -> PlannedFault:
    """``fault``, whose moment came ``since_ns`` after the begin of the drive phase, as a row with
    an offset: the next whole microsecond.
    """
    delay_ns = int((fault.after_s or 0.0) * NS_PER_S)
    at_us = (since_ns + delay_ns) // _OFFSET_NS + 1
    return msgspec.structs.replace(
        fault,
        at_s=at_us / _US_PER_S,
        target=concrete(fault.target, happening),
        aimed=str(happening),
        on=None,
        by=None,
        after_s=None,
        nth=None,
    )


def give_up_s(fault: PlannedFault, duration_s: float) -> float:
    """The offset after which a moment comes too late for ``fault`` to end within the drive."""
    return max(fault.at_s, duration_s - fault.hold_s - (fault.after_s or 0.0) - HEAL_S)


def last_s(
    clock: RunClock, fault: PlannedFault, duration_s: float | None, started_ns: int
) -> float | None:
    """The loop's time after which ``fault`` could not end any more within the drive, which began at
    ``started_ns``; ``None`` for a drive without an end.
    """
    if duration_s is None:
        return None
    return clock.loop_time(started_ns + int(give_up_s(fault, duration_s) * NS_PER_S))
