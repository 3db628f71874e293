"""The legal transitions of a partition's assignments, as one table a variant.

A state is four sets of nodes or none: stable, pending, planned, and what the lock is for. What a
revision makes of it must be a row of its variant's table. In a row's ``before`` and ``after``, for
each of the four:

=====  ==================================================================
``-``  none
``+``  a set, whichever
``*``  a set or none
``.``  as before (in ``after``)
A, B   a set; equal letters are equal sets, other letters are other sets
=====  ==================================================================

Sources: "Write new pending assignments (1)" and "Adjustable changePeers" of the rebalance design of
Apache Ignite 3; Ignite's table test of the base variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attrs

Nodes = frozenset[str]


class Assigned(NamedTuple):
    """What is written about a partition at one revision."""

    stable: Nodes | None = None
    pending: Nodes | None = None
    planned: Nodes | None = None
    lock: Nodes | None = None


@attrs.frozen
class Transition:
    """A row of a table. ``event``: it is the answer to a change of zone or topology, whose revision
    becomes that of the trigger; any other leaves the trigger alone.
    """

    name: str
    before: str
    after: str
    event: bool = False


_FIRST = Transition("created", "- - - -", "A - - -", event=True)
_EQUALS_STABLE = Transition("equals-stable", "A - * -", "A - - -", event=True)
_STARTED = Transition("started", "A - * -", "A B - -", event=True)
_SETTLED = Transition("settled", "* - * *", "A - . -")
BASE = (
    _FIRST,
    _EQUALS_STABLE,
    _STARTED,
    Transition("equals-pending", "* A * -", ". A - -", event=True),
    Transition("planned", "* A * -", ". A B -", event=True),
    Transition("completed", "* A - -", "A - - -"),
    Transition("completed", "* A A -", "A - - -"),
    Transition("continued", "* A B -", "A B - -"),
    Transition("applied-another", "* A * -", "B A . -"),
    _SETTLED,
)
CANCEL = (*BASE, Transition("moved", "* A B -", ". B - -"))
LOCK = (
    _FIRST,
    _EQUALS_STABLE,
    _STARTED,
    Transition("equals-pending", "* A * *", ". A - .", event=True),
    Transition("retargeted", "* A * -", ". B - -", event=True),
    Transition("planned", "* A * +", ". A B .", event=True),
    Transition("locked", "* A * *", ". A . A"),
    Transition("unlocked", "* * - +", ". . - -"),
    Transition("moved", "* A B +", ". B - -"),
    Transition("completed", "* A - *", "A - - -"),
    Transition("completed", "* A A *", "A - - -"),
    Transition("continued", "* A B *", "A B - -"),
    Transition("applied-another", "* A * *", "B A . ."),
    _SETTLED,
)
VARIANTS: Mapping[str, tuple[Transition, ...]] = {"base": BASE, "lock": LOCK, "cancel": CANCEL}
SUPERSEDING = frozenset({"equals-pending", "planned", "retargeted", "moved", "continued"})
"""Transitions after which a rebalance leads elsewhere than it did, or goes back on it."""


def transition(variant: str, before: Assigned, after: Assigned, *, event: bool) -> str | None:
    """The name of the transition from ``before`` to ``after`` in the table of ``variant``; ``None``
    where it is none of them.
    """
    return next(
        (
            row.name
            for row in VARIANTS[variant]
            if row.event == event and _matches(row, before, after)
        ),
        None,
    )


def _matches(row: Transition, before: Assigned, after: Assigned) -> bool:
    bound: dict[str, Nodes] = {}
    pairs = zip(row.before.split(), before, strict=True)
    if not all(_fits(sign, held, None, bound) for sign, held in pairs):
        return False
    three = zip(row.after.split(), after, before, strict=True)
    return all(_fits(sign, now, then, bound) for sign, now, then in three)


def _fits(sign: str, held: Nodes | None, then: Nodes | None, bound: dict[str, Nodes]) -> bool:
    match sign:
        case "*":
            return True
        case ".":
            return held == then
        case "-":
            return held is None
    if held is None:
        return False
    if sign == "+":
        return True
    if sign in bound:
        return bound[sign] == held
    if held in bound.values():
        return False
    bound[sign] = held
    return True
