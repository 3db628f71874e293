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
``P``  as a letter, and a set that pending has asked for since stable was switched last: what a
       group may still have come to
F      the node that a forced reset chose
H      a set of copies that the reset goes on with: the chosen one and others
C      a set of copies, the chosen one among them
=====  ==================================================================

In a partition that is highly available a forced reset takes two more kinds of steps (``RESETS``),
and only where it was told. What follows on them is again of the variant's table.

Sources: "Write new pending assignments (1)" and "Adjustable changePeers" of the rebalance design of
Apache Ignite 3; Ignite's table test of the base variant; "resetPartition" and "Chain unwind" of
IEP-131.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    becomes that of the trigger; any other leaves the trigger alone. ``left``: it is legal only
    where a node that is to become one of the partition's has left the cluster.
    """

    name: str
    before: str
    after: str
    event: bool = False
    left: bool = False


_FIRST = Transition("created", "- - - -", "A - - -", event=True)
_EQUALS_STABLE = Transition("equals-stable", "A - * -", "A - - -", event=True)
_STARTED = Transition("started", "A - * -", "A B - -", event=True)
_SETTLED = Transition("settled", "* - * *", "P - . -")
# A group that comes to the same configuration again, for a replica's next life, reports it again.
_RESTATED = (
    Transition("restated", "A - * *", "A - . -"),
    Transition("restated", "A B * *", "A B . ."),
)
BASE = (
    _FIRST,
    _EQUALS_STABLE,
    _STARTED,
    Transition("equals-pending", "* A * -", ". A - -", event=True),
    Transition("planned", "* A * -", ". A B -", event=True),
    Transition("completed", "* A - -", "A - - -"),
    Transition("completed", "* A A -", "A - - -"),
    Transition("continued", "* A B -", "A B - -"),
    Transition("applied-another", "* A * -", "P A . -"),
    # What is pending comes first, unless it may wait for ever.
    Transition("overtaken", "* A B -", ". B - -", left=True),
    _SETTLED,
    *_RESTATED,
)
CANCEL = (*(row for row in BASE if not row.left), Transition("moved", "* A B -", ". B - -"))
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
    # Nothing is led to without its lock, so no group comes to what pending asked for before, but
    # for ``BEHIND_RESETS``.
    Transition("completed", "* A - A", "A - - -"),
    Transition("completed", "* A A A", "A - - -"),
    Transition("continued", "* A B A", "A B - -"),
    # Pending asks for what is stable again: nothing is to be led to.
    Transition("completed", "A A - *", "A - - -"),
    Transition("completed", "A A A *", "A - - -"),
    Transition("continued", "A A B *", "A B - -"),
    _SETTLED,
    *_RESTATED,
)
VARIANTS: Mapping[str, tuple[Transition, ...]] = {"base": BASE, "lock": LOCK, "cancel": CANCEL}
_RESET = (Transition("reset", "+ * * *", ". F - -"), Transition("reset", "+ * * *", ". F H -"))
_RESTORED = (
    Transition("restored", "+ * * *", "C F - -"),
    Transition("restored", "+ * * *", "C F H -"),
)
RESETS: Mapping[str, tuple[Transition, ...]] = {
    "base": (*_RESET, *_RESTORED),
    # Under the lock no other target takes the place of the chosen node before it is stable.
    "lock": tuple(attrs.evolve(row, after=f"{row.after[:-1]}F") for row in (*_RESET, *_RESTORED)),
    "cancel": (*_RESET, *_RESTORED),
}
"""What a forced reset writes, whatever was pending, planned or locked: see ``Forced``."""
BEHIND_RESETS: Mapping[str, tuple[Transition, ...]] = {
    # Nothing but a reset takes the place of what is locked: the group may have come to that, and
    # tell it behind the reset.
    "lock": (Transition("applied-another", "* A * A", "P A . A"),),
}
"""What else a revision may do while what a forced reset has written is pending."""
SUPERSEDING = frozenset(
    {"equals-pending", "planned", "retargeted", "moved", "continued", "overtaken"}
)
"""Transitions after which a rebalance leads elsewhere than it did, or goes back on it."""


@attrs.frozen(kw_only=True)
class Forced:
    """A reset that was told: at ``node`` (``None`` where that was not told), of those ``copies``
    that it may go on with. ``restores``: it takes up what an earlier one had cut off. ``asked``, by
    an operator: then other nodes take the place of those that are lost, and where none is left one
    of them begins anew.
    """

    node: str | None
    copies: Nodes
    restores: bool = False
    asked: bool = False


def forced_transition(
    variant: str, before: Assigned, after: Assigned, forced: Forced
) -> str | None:
    """The name of the step that ``forced`` took from ``before`` to ``after``; ``None`` where such
    a reset does not take it.
    """
    chosen = after.pending
    if (
        chosen is None
        or len(chosen) != 1
        or (forced.node is not None and forced.node not in chosen)
    ):
        return None
    name = "restored" if forced.restores else "reset"
    held = {"F": {chosen}, "H": _copies(after.planned, chosen), "C": _copies(after.stable, chosen)}
    named = {node for each in (after.planned, after.pending) for node in each or ()}
    if forced.restores:
        named |= after.stable or frozenset()
    if not (named <= forced.copies or forced.asked) or after.planned == chosen:
        return None
    return next(
        (
            name
            for row in RESETS[variant]
            if row.name == name and _matches(row, before, after, (), held)
        ),
        None,
    )


def _copies(held: Nodes | None, chosen: Nodes) -> set[Nodes]:
    return {held} if held is not None and chosen <= held else set()


def transition(
    variant: str,
    before: Assigned,
    after: Assigned,
    *,
    event: bool,
    asked: Collection[Nodes] = (),
    there: Nodes | None = None,
    forced: bool = False,
) -> str | None:
    """The name of the transition from ``before`` to ``after`` in the table of ``variant``; ``None``
    where it is none of them. ``asked``: see ``still_asked``; ``there``: the nodes of the cluster
    (``None``: all); ``forced``: what is pending before it is a reset's.
    """
    new = (before.pending or frozenset()) - (before.stable or frozenset())
    left = there is not None and not new <= there
    rows = (*VARIANTS[variant], *(BEHIND_RESETS.get(variant, ()) if forced else ()))
    return next(
        (
            row.name
            for row in rows
            if row.event == event and (left or not row.left) and _matches(row, before, after, asked)
        ),
        None,
    )


def still_asked(asked: tuple[Nodes, ...], before: Assigned, after: Assigned) -> tuple[Nodes, ...]:
    """The sets that pending has asked for and that stable has not passed, in their order, after the
    step from ``before`` to ``after``: a group comes to one after the other, and never back.
    """
    if after.stable is not None and after.stable != before.stable and after.stable in asked:
        asked = asked[asked.index(after.stable) + 1 :]
    if after.pending is not None and after.pending != before.pending:
        asked = (*asked, after.pending)
    return asked


def _matches(
    row: Transition,
    before: Assigned,
    after: Assigned,
    asked: Collection[Nodes],
    named: Mapping[str, Collection[Nodes]] = {},
) -> bool:
    bound: dict[str, Nodes] = {}
    pairs = zip(row.before.split(), before, strict=True)
    if not all(_fits(sign, held, None, bound, asked, named) for sign, held in pairs):
        return False
    # Letters first: ``P`` is another set than theirs.
    three = sorted(
        zip(row.after.split(), after, before, strict=True), key=lambda each: each[0] == "P"
    )
    return all(_fits(sign, now, then, bound, asked, named) for sign, now, then in three)


def _fits(
    sign: str,
    held: Nodes | None,
    then: Nodes | None,
    bound: dict[str, Nodes],
    asked: Collection[Nodes],
    named: Mapping[str, Collection[Nodes]],
) -> bool:
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
    if sign in named:
        return held in named[sign]
    if sign == "P" and held not in asked:
        return False
    if sign in bound:
        return bound[sign] == held
    if held in bound.values():
        return False
    bound[sign] = held
    return True
