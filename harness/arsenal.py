"""What kinds of faults a run could have used: what coverage is measured against."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from harness.capability import Capability
from harness.faults import Fault

EVERY_NODE = ("all",)  # the aims of a kind that only ever takes the cluster as a whole


class FaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault that was possible here.

    ``of_nodes``: its target is a node that has a role, so that every role is worth trying.
    ``may_end``: while it is in force a node may end by itself without breaking a promise (a disk
    that fails), though nobody ended it.
    """

    kind: str
    of_nodes: bool = True
    may_end: bool = False


def arsenal(
    faults: Mapping[str, Fault], capabilities: Collection[Capability]
) -> tuple[FaultKind, ...]:
    """The kinds among ``faults`` that ``capabilities`` allow, by name.

    A fault that nodes may not survive says so by an attribute ``may_end`` of its own.
    """
    return tuple(
        FaultKind(
            kind=kind,
            of_nodes=fault.aims != EVERY_NODE,
            may_end=bool(getattr(fault, "may_end", False)),
        )
        for kind, fault in sorted(faults.items())
        if fault.needs <= frozenset(capabilities)
    )
