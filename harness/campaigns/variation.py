"""Varies plans: their schedules of faults, their seeds, and by crossing also all else.

A plan that differs little runs the same up to the first difference, so a variation explores what is
near to something that was reached. Settings are never changed one by one, since only the system
knows which go together: they are taken from another plan, a whole table at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import attrs
from msgspec.structs import replace

from harness.plan.plan import MAX_SEED, Plan
from harness.protocols.crash_points import DATAGRAMS, MessageClass, Operation, Way, When
from harness.protocols.fault_kinds import (
    CRASH,
    DOUBLE_MESSAGES,
    DROP_MESSAGES,
    HOLD_MESSAGES,
    REORDER_MESSAGES,
    Effect,
    FaultKind,
    with_strength,
)
from harness.protocols.faults import ITS_NODE, PlannedFault
from harness.protocols.moments import Moment

MOST_FAULTS = 14  # of one plan: more hide each other
STEPS = (1, 2, 4, 8)  # from a plan to its child: near ones, and some that are far
TRIES = 12  # for a child that can be run
FIRST_S = 0.1
CALM_S = 2.0  # of the drive, after the last fault: each is to be healed by then
HOLD_S = (0.4, 3.0)
MOVED_S = 1.5
# So long after a moment: at once, while a message is under way, while a commit is, while a client
# hears of it.
AFTER_S = (None, None, 0.001, 0.006, 0.03, 0.2)
NTH = (None, None, 2, 4, 9, 20)
STRENGTHS = (0.3, 1.0, 1.0, 3.0)  # of the usual one
_APART = {kind.name for kind in (DOUBLE_MESSAGES, REORDER_MESSAGES)}
_MESSAGES = {kind.name for kind in (DROP_MESSAGES, HOLD_MESSAGES)} | _APART
_COUNTS = (None, 1, 3, 10)
_CRASH_NTH = (1, 1, 2, 5, 20, 100)
_MOST = {"%": 90.0, "ms": 2000.0}

# The chance of a moment, beside the others.
Weight = Callable[[Moment], float]


@attrs.frozen(kw_only=True)
class Repertoire:
    """What may be put into a schedule: ``kinds`` by name, at ``targets`` where a kind has no aims
    of its own, waiting for ``moments``.
    """

    kinds: Mapping[str, FaultKind]
    targets: Sequence[str]
    moments: Sequence[Moment]

    @property
    def added(self) -> tuple[str, ...]:
        """The kinds that may be added to any plan: those that destroy data need a cluster that
        survives them, so they come with their plans only.
        """
        return tuple(name for name, kind in sorted(self.kinds.items()) if not kind.destroys)


@attrs.frozen(kw_only=True)
class Variation:
    """Makes children of plans. ``acceptable`` says whether a plan can be run, and stays within what
    the system is designed for.
    """

    repertoire: Repertoire
    acceptable: Callable[[Plan], bool]

    def child(
        self, draw: Random, parent: Plan, other: Callable[[], Plan], weight: Weight
    ) -> Plan | None:
        """Return a child of ``parent``, with parts of ``other`` plans in some cases; ``None`` where
        none can be run.
        """
        for _ in range(TRIES):
            plan = parent
            for _ in range(draw.choice(STEPS)):
                plan = self._step(draw, plan, other, weight)
            rows = fitted(plan.nemesis.schedule, plan.drive.duration_s)
            if not rows:
                continue
            if all(row.on is not None for row in rows):
                # Moments may never come, and a run without any fault shows nothing.
                rows = (self._unaimed(draw, rows[0]), *rows[1:])
            plan = with_rows(plan, rows)
            if plan != parent and self.acceptable(plan):
                return plan
        return None

    def _step(self, draw: Random, plan: Plan, other: Callable[[], Plan], weight: Weight) -> Plan:
        step = draw.choices(_STEPS, weights=_WEIGHTS)[0]
        if step in _OF_PLANS:
            return _OF_PLANS[step](draw, plan, other)
        rows = list(plan.nemesis.schedule)
        if step == "add" or not rows:
            at_s = draw.uniform(FIRST_S, plan.drive.duration_s)
            added = self._aimed(draw, self._drawn(draw, at_s), weight, share=0.5)
            return with_rows(plan, (*_fewer(draw, rows, MOST_FAULTS - 1), added))
        place = draw.randrange(len(rows))
        row = rows[place]
        match step:
            case "move":
                rows[place] = replace(row, at_s=row.at_s + draw.uniform(-MOVED_S, MOVED_S))
            case "hold":
                rows[place] = replace(row, hold_s=draw.uniform(*HOLD_S))
            case "drop":
                del rows[place]
            case "again":
                at_s = draw.uniform(FIRST_S, plan.drive.duration_s)
                rows = [*_fewer(draw, rows, MOST_FAULTS - 1), replace(row, at_s=at_s)]
            case "target":
                rows[place] = replace(row, target=self._target(draw, row.kind, row.on is not None))
            case "kind":
                new = self._drawn(draw, row.at_s)
                rows[place] = replace(
                    new, hold_s=row.hold_s, on=row.on, after_s=row.after_s, nth=row.nth
                )
            case "aim":
                rows[place] = self._aimed(draw, row, weight, share=1.0)
            case "unaim":
                rows[place] = self._unaimed(draw, row)
        return with_rows(plan, rows)

    def _drawn(self, draw: Random, at_s: float) -> PlannedFault:
        kind = draw.choice(self.repertoire.added)
        return PlannedFault(
            at_s=at_s,
            kind=kind,
            target=self._target(draw, kind, aimed=False),
            hold_s=draw.uniform(*HOLD_S),
            options=_options(draw, kind),
        )

    def _target(self, draw: Random, kind: str, aimed: bool) -> str:
        known = self.repertoire.kinds.get(kind)
        if aimed and draw.random() < 0.6:
            text = ITS_NODE
        else:
            text = draw.choice((known.aims if known else ()) or tuple(self.repertoire.targets))
        strength = known.strength if known else None
        # How far clocks may be apart is the design's: they keep the usual strength.
        if known is None or strength is None or Effect.CHANGES_CLOCK in known.effects:
            return text
        value = strength.usual * draw.choice(STRENGTHS)
        value = min(max(value, strength.least), _MOST.get(strength.unit, value))
        return with_strength(text, value, strength.unit)

    def _aimed(self, draw: Random, row: PlannedFault, weight: Weight, share: float) -> PlannedFault:
        moments = self.repertoire.moments
        if not moments or draw.random() >= share:
            return row
        moment = draw.choices(moments, weights=[weight(moment) for moment in moments])[0]
        waiting = replace(row, on=moment, after_s=draw.choice(AFTER_S), nth=draw.choice(NTH))
        known = self.repertoire.kinds.get(row.kind)
        if known is None or known.aims or draw.random() < 0.25:
            return waiting
        return replace(waiting, target=self._target(draw, row.kind, aimed=True))

    def _unaimed(self, draw: Random, row: PlannedFault) -> PlannedFault:
        if row.on is None:
            return row
        # ``its node`` means that of the moment, so without one the target is drawn anew.
        there = replace(row, on=None, by=None, after_s=None, nth=None)
        return replace(there, target=self._target(draw, row.kind, aimed=False))


def with_rows(plan: Plan, rows: Sequence[PlannedFault]) -> Plan:
    """Return ``plan`` with the schedule ``rows`` alone."""
    return replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=tuple(rows)))


def fitted(rows: Sequence[PlannedFault], duration_s: float) -> tuple[PlannedFault, ...]:
    """Return ``rows`` in the order of their offsets, moved and shortened so far that each is over
    before the end of the drive; those that are too many are left out.
    """
    found = []
    for row in rows[:MOST_FAULTS]:
        last_s = duration_s - CALM_S - (row.after_s or 0.0)
        hold_s = round(min(row.hold_s, last_s - FIRST_S), 3)
        if hold_s < HOLD_S[0]:
            continue
        at_s = round(min(max(row.at_s, FIRST_S), last_s - hold_s), 3)
        found.append(replace(row, at_s=at_s, hold_s=hold_s))
    return tuple(sorted(found, key=lambda row: row.at_s))


def _fewer(draw: Random, rows: Sequence[PlannedFault], most: int) -> list[PlannedFault]:
    """At most so many of ``rows``: any of them goes, since the last ones would never change."""
    found = list(rows)
    while len(found) > most:
        del found[draw.randrange(len(found))]
    return found


def _options(draw: Random, kind: str) -> dict[str, object] | None:
    if kind == CRASH.name:
        at = draw.choice(tuple(Operation))
        chosen: dict[str, object] = {
            "at": at.value,
            "when": draw.choice(tuple(When)).value,
            "nth": draw.choice(_CRASH_NTH),
        }
        if at in (Operation.SEND, Operation.RECEIVE):
            chosen["messages"] = draw.choice(tuple(MessageClass)).value
        return chosen
    if kind not in _MESSAGES:
        return None
    # Sorted, since a set of texts has another order in each process. Only datagrams
    # may be doubled and overtaken: all others are frames of a stream.
    classes = sorted(DATAGRAMS) if kind in _APART else tuple(MessageClass)
    chosen = {"messages": draw.choice(classes).value, "way": draw.choice(tuple(Way)).value}
    count = draw.choice(_COUNTS)
    return chosen if count is None else chosen | {"count": count}


def _reseeded(draw: Random, plan: Plan, _other: Callable[[], Plan]) -> Plan:
    return replace(plan, seed=draw.randrange(MAX_SEED))


def _spliced(draw: Random, plan: Plan, other: Callable[[], Plan]) -> Plan:
    """Some of the rows of both."""
    mine, theirs = plan.nemesis.schedule, other().nemesis.schedule
    rows = [row for row in (*mine, *theirs) if draw.random() < 0.6]
    rows = _fewer(draw, rows, MOST_FAULTS)
    return with_rows(plan, sorted(rows, key=lambda row: row.at_s))


def _settings(draw: Random, plan: Plan, other: Callable[[], Plan]) -> Plan:
    """A whole table of another: the clients with their load, the system with the number of its
    nodes, or the options of the cluster.
    """
    taken = other()
    match draw.choice(("load", "system", "cluster")):
        case "load":
            changed = replace(plan, workload=taken.workload, drive=taken.drive, check=taken.check)
        case "system":
            cluster = replace(plan.cluster, nodes=taken.cluster.nodes)
            changed = replace(plan, system=taken.system, cluster=cluster)
        case _:
            cluster = replace(plan.cluster, options=taken.cluster.options)
            changed = replace(plan, cluster=cluster)
    # The drive that was taken over may be too short for the faults.
    return with_rows(changed, fitted(plan.nemesis.schedule, changed.drive.duration_s))


_OF_PLANS: Mapping[str, Callable[[Random, Plan, Callable[[], Plan]], Plan]] = {
    "seed": _reseeded,
    "splice": _spliced,
    "settings": _settings,
}
_SHARES = {
    **{"move": 3, "hold": 2, "drop": 1, "add": 5, "again": 4, "target": 2, "kind": 1},
    **{"aim": 3, "unaim": 1, "seed": 2, "splice": 2, "settings": 2},
}
_STEPS, _WEIGHTS = tuple(_SHARES), tuple(_SHARES.values())
