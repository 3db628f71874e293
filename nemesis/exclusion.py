"""Which faults may not be in force together: those that act through one mechanism on one node.

What a fault acts through stands with its kind (``harness.protocols.fault_kinds``). The proof of one
fault could not tell its own effect from that of another through the same mechanism.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.protocols.fault_kinds import EVERY_NODE, FaultKind
from harness.protocols.faults import Victims
from nemesis.active_faults import Active, short


def in_the_way(kind: FaultKind, victims: Victims, active: Iterable[Active]) -> str:
    """Which of ``active`` holds a mechanism of a fault of ``kind`` on one of its ``victims``; empty
    where none does.
    """
    for other in active:
        shared = [node for node in victims.nodes if node in other.victims.nodes]
        if shared and share_mechanism(kind, other.fault.kind):
            return f"{', '.join(shared)} is under {short(other)}"
    return ""


def on_any_targets(one: FaultKind | None, other: FaultKind | None) -> bool:
    """Whether two kinds can't be in force together on any targets; not for a kind that is not known
    yet.
    """
    if one is None or other is None or EVERY_NODE not in (one.aims, other.aims):
        return False
    return share_mechanism(one, other)


def share_mechanism(one: FaultKind, other: FaultKind) -> bool:
    """Whether the two can't be in force together on one node."""
    return bool(one.mechanisms & other.mechanisms)
