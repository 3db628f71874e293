"""The faults in force: the links that they cut and shape together, and the effects of one fault
that are observable beside the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import attrs

from harness.protocols.cluster import Grudge, LinkShape
from harness.protocols.fault_kinds import Mechanism
from harness.protocols.faults import Fault, PlannedFault, Scene, Victims
from nemesis import grudges

_NAMED_NODES = 3  # a display has one line for all active faults


@runtime_checkable
class MayStay(Protocol):
    """A ``Fault`` whose change may be for good: a step of a procedure, which rests on the steps
    before it.
    """

    @property
    def stays(self) -> bool:
        """Whether the change is for good."""

    async def came_about(self, scene: Scene, victims: Victims) -> bool:
        """Whether the change is made. Raises ``HarnessError``."""


@attrs.define(kw_only=True)
class Active:
    """A fault that may be in force: from before its injection until its heal is proven.

    ``mending``: its heal has begun, so its links are no longer to be cut or shaped. ``struck``: its
    injection has begun. ``cut_off``: that had not ended at its deadline, and may still act behind
    any heal. ``gone_ns``: since when probes have shown that nothing is left of it, although its
    victims do not serve.
    """

    number: int
    planned: PlannedFault
    fault: Fault
    victims: Victims
    mending: bool = False
    struck: bool = False
    cut_off: bool = False
    gone_ns: int | None = None


def short(active: Active) -> str:
    """Kind and nodes of a fault, in a few words."""
    nodes = active.victims.nodes
    more = f"+{len(nodes) - _NAMED_NODES}" if len(nodes) > _NAMED_NODES else ""
    return f"{active.planned.kind} {','.join(nodes[:_NAMED_NODES])}{more}"


def for_good(fault: Fault) -> MayStay | None:
    """``fault`` where its change is for good."""
    return fault if isinstance(fault, MayStay) and fault.stays else None


def damaged(one: Active, active: Iterable[Active]) -> tuple[str, ...]:
    """Nodes whose data faults other than ``one`` destroy, from their injections to their proven
    heals.
    """
    others = [
        other for other in active if other is not one and other.struck and other.fault.kind.destroys
    ]
    return tuple(sorted({node for other in others for node in other.victims.nodes}))


def burdens(one: Active, active: Iterable[Active], node: str) -> frozenset[Mechanism]:
    """The mechanisms through which faults other than ``one`` act on ``node``."""
    others = (other for other in active if other is not one and node in other.victims.nodes)
    found = frozenset[Mechanism]().union(*(other.fault.kind.mechanisms for other in others))
    return found - {Mechanism.PLACEMENT}  # a node answers as before while data moves


def grudge(active: Iterable[Active]) -> Grudge:
    """Every link that is to be cut now."""
    # A fault that is healing gives up its own links, not those that another still cuts.
    return grudges.union(one.victims.grudge for one in active if not one.mending)


def shapes(active: Iterable[Active]) -> tuple[LinkShape, ...]:
    """Every shape that is to be in force now, at most one a link."""
    return grudges.strongest(s for one in active if not one.mending for s in one.victims.shapes)


def observable(one: Active, active: Iterable[Active]) -> Victims:
    """The victims of ``one`` without the links that can't be probed: links of machines that another
    fault silences, and shaped links that another fault cuts.
    """
    others = [other for other in active if other is not one]
    silenced = [
        node
        for other in others
        if other.fault.kind.silences_machine
        for node in other.victims.nodes
    ]
    # Loss and delay are measured by round trips, which a cut either way silences.
    cut = _both_ways(grudge(others))
    return attrs.evolve(
        one.victims,
        grudge=tuple(
            link for link in one.victims.grudge if not any(node in silenced for node in link)
        ),
        shapes=tuple(
            shape
            for shape in one.victims.shapes
            if shape.link not in cut and not any(node in silenced for node in shape.link)
        ),
    )


def healable(one: Active, active: Iterable[Active]) -> Victims:
    """The victims of ``one`` with only the links whose heal can be observed: observable, and held
    by no other fault.
    """
    every = tuple(active)
    others = [other for other in every if other is not one]
    # A lossy link looks cut now and then: no probe of it proves a heal.
    shaped = _both_ways(shape.link for shape in shapes(others))
    seen = observable(one, every)
    return attrs.evolve(
        seen,
        grudge=grudges.difference(seen.grudge, (*grudge(others), *shaped)),
        shapes=tuple(shape for shape in seen.shapes if shape.link not in shaped),
    )


def _both_ways(links: Iterable[tuple[str, str]]) -> Grudge:
    """``links`` and their reverses: a round trip needs both directions."""
    given = tuple(links)
    return grudges.union((given, tuple((b, a) for a, b in given)))
