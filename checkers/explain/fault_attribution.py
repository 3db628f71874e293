"""Attribution of anomalies to faults: by time, and by the roles of the faults' targets.

A fault counts as in force from the moment when its injection begins until it is proven healed
(``fault_spans``). Of the faults that were in force at some moment from ``since_ns`` (the begin of
the write) to ``shown_ns`` (the end of the first read that shows it) one that hit the leader or the
primary of the very partition within ``NEAR_NS`` of ``ack_ns`` explains a loss, then the nearest to
``ack_ns``; between equals the one of the least number. They are found by order in time instead of
pair by pair.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Bools, Ints, ints
from checkers.engine.spans import FOREVER_NS, NONE, FirstInForce
from harness.history.records import FaultState
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.roles import Role, RoleKind

# A leader's fault this near explains better than another fault that happens to be in force.
NEAR_NS = 5_000_000_000
_LEADING = (RoleKind.PRIMARY, RoleKind.LEADER)
LATEST_NS = FOREVER_NS - 1  # the distance of two such moments fits 64 bits
_CELLS = 1_000_000  # pairs that are looked at together
BEFORE, INJECT, HOLD, HEAL, AFTER = PHASES = ("before", "inject", "hold", "heal", "after")
"""The phases of a fault, between the steps of its life (``harness.protocols.fault_spans``)."""
_BOUNDARIES = ("injection", "effect", "healing", "heal")
OF_FAULTS = ("fault_nodes", "fault_roles")
"""Columns that tell of each row what ``KnownFaults`` tells once of its fault."""
_FAULT = pa.schema(
    [
        ("fault", pa.int64()),
        ("fault_kind", pa.string()),
        ("fault_target", pa.string()),
        ("fault_nodes", pa.list_(pa.string())),
        ("fault_roles", pa.list_(pa.string())),
        ("fault_start_ns", pa.int64()),
        ("fault_end_ns", pa.int64()),
    ]
)
_MOMENT = pa.schema(
    [("phase", pa.string()), ("boundary", pa.string()), ("distance_ns", pa.int64())]
)


@attrs.frozen(kw_only=True, eq=False)
class Moments:
    """The times of losses: since when each can have happened, its acknowledgement, and the end of
    the first read that shows it.
    """

    since_ns: Ints
    ack_ns: Ints
    shown_ns: Ints

    @classmethod
    def of(cls, since_ns: Ints, ack_ns: Ints, shown_ns: Ints) -> Moments:
        """Those of these losses."""
        columns = (np.clip(each, -LATEST_NS, LATEST_NS) for each in (since_ns, ack_ns, shown_ns))
        return cls(**dict(zip(("since_ns", "ack_ns", "shown_ns"), columns, strict=True)))

    def __len__(self) -> int:
        return len(self.ack_ns)

    def __getitem__(self, rows: Ints | Bools) -> Moments:
        """Return those of some of the losses."""
        return Moments(
            since_ns=self.since_ns[rows], ack_ns=self.ack_ns[rows], shown_ns=self.shown_ns[rows]
        )

    @property
    def ordered(self) -> Bools:
        """Which of them were acknowledged between their begin and that read."""
        return (self.since_ns <= self.ack_ns) & (self.ack_ns <= self.shown_ns)


@attrs.frozen(kw_only=True, eq=False)
class Faults:
    """When each of some faults began and ended, in the order in which equals are preferred."""

    begin_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int | None]]) -> Faults:
        """Those of ``spans``; an end of ``None`` never comes."""
        begins = [max(-LATEST_NS, min(begin, LATEST_NS)) for begin, _ in spans]
        ends = [
            LATEST_NS if end is None else max(-LATEST_NS, min(end, LATEST_NS)) for _, end in spans
        ]
        return cls(begin_ns=np.array(begins, np.int64), end_ns=np.array(ends, np.int64))

    def __getitem__(self, places: Ints | Bools) -> Faults:
        """Return some of the faults."""
        return Faults(begin_ns=self.begin_ns[places], end_ns=self.end_ns[places])

    def away_ns(self, place: Ints, at_ns: Ints) -> Ints:
        """Return how far each moment is from the fault at ``place``, which must be one."""
        begin_ns, end_ns = self.begin_ns[place], self.end_ns[place]
        found: Ints = np.maximum(np.maximum(begin_ns - at_ns, at_ns - end_ns), 0)
        return found

    def nearest(self, losses: Moments) -> Ints:
        """Return the place of the nearest fault that was in force while each of ``losses`` may have
        happened, or ``NONE``.
        """
        # What ended before it began, or was missed before it was acknowledged, no run of ours
        # tells: the order in time says nothing there, and pairs are looked at.
        places, sound = self._sound
        ordered, best = losses.ordered, np.full(len(losses), NONE, np.int64)
        rows, rest = np.flatnonzero(ordered), np.flatnonzero(~ordered)
        if len(places):
            best[rows] = np.append(places, NONE)[sound._nearest_in_order(losses[rows])]
        every = np.arange(len(self.begin_ns))
        others = np.setdiff1d(every, places)
        best[rows] = self._nearer(best[rows], others, losses[rows])
        best[rest] = self._nearer(best[rest], every, losses[rest])
        return best

    @functools.cached_property
    def _sound(self) -> tuple[Ints, Faults]:
        """The places of those that ended after they began, and these faults."""
        places = np.flatnonzero(self.begin_ns <= self.end_ns)
        return places, self if len(places) == len(self.begin_ns) else self[places]

    @functools.cached_property
    def _in_force(self) -> FirstInForce:
        return FirstInForce.of(self.begin_ns.tolist(), self.end_ns.tolist())

    @functools.cached_property
    def _by_end(self) -> Ints:
        """The places by their ends, of equal ones the first place last."""
        return np.lexsort((-np.arange(len(self.end_ns)), self.end_ns))

    @functools.cached_property
    def _by_begin(self) -> Ints:
        return np.argsort(self.begin_ns, kind="stable")

    def _nearest_in_order(self, losses: Moments) -> Ints:
        at_ns, none = losses.ack_ns, np.array([NONE])
        # Of those that were over the last; of those that had not begun the first.
        place = np.searchsorted(self.end_ns[self._by_end], at_ns, side="left")
        before = np.concatenate([none, self._by_end])[place]
        before[self.end_ns[before] < losses.since_ns] = NONE
        place = np.searchsorted(self.begin_ns[self._by_begin], at_ns, side="right")
        after = np.concatenate([self._by_begin, none])[place]
        after[self.begin_ns[after] > losses.shown_ns] = NONE
        best = self._in_force.at(at_ns)
        for other in (before, after):
            best = self._better(best, other, at_ns)
        return best

    def _better(self, best: Ints, other: Ints, at_ns: Ints) -> Ints:
        """Return of two places for each moment the nearer one, and of equals the first."""
        near, far = self.away_ns(best, at_ns), self.away_ns(other, at_ns)
        wins = (other != NONE) & ((best == NONE) | (far < near) | ((far == near) & (other < best)))
        return np.where(wins, other, best)

    def _nearer(self, best: Ints, places: Ints, losses: Moments) -> Ints:
        """Return ``best``, or one at ``places`` where that is better: each is looked at."""
        if not len(places) or not len(losses):
            return best
        size = max(1, _CELLS // len(places))
        found = [
            self._nearest_of(places, losses[np.arange(low, min(low + size, len(losses)))])
            for low in range(0, len(losses), size)
        ]
        return self._better(best, np.concatenate(found), losses.ack_ns)

    def _nearest_of(self, places: Ints, losses: Moments) -> Ints:
        begin_ns, end_ns = self.begin_ns[places], self.end_ns[places]
        met = (begin_ns <= losses.shown_ns[:, None]) & (end_ns >= losses.since_ns[:, None])
        away = self.away_ns(places, losses.ack_ns[:, None])
        # The places ascend: of equals this is the first.
        first = np.where(met, away, np.iinfo(np.int64).max).argmin(axis=1)
        return np.where(met.any(axis=1), places[first], NONE)


@attrs.frozen(kw_only=True, eq=False)
class KnownFaults:
    """The faults of a run (``spans``), by number and then by begin, asked of many losses."""

    spans: tuple[FaultSpan, ...]

    @classmethod
    def of(cls, faults: pa.Table) -> KnownFaults:
        """Those that were injected, of a table ``schema.FAULTS``."""
        spans = fault_spans(faults.to_pylist())
        return cls(spans=tuple(sorted(spans, key=lambda span: span.fault)))

    @functools.cached_property
    def by_number(self) -> dict[int, FaultSpan]:
        """Each by its number."""
        return {span.fault: span for span in reversed(self.spans)}

    def explaining(self, losses: Moments, partitions: Sequence[int | None]) -> Ints:
        """Return the place in ``spans`` of the fault that explains each of ``losses``, each in its
        partition, or ``NONE``.
        """
        best = self._faults.nearest(losses)
        rows: dict[int | None, list[int]] = {}
        for row, partition in enumerate(partitions):
            rows.setdefault(partition, []).append(row)
        for partition, its in rows.items():
            led = self._led(partition)
            if not len(led):
                continue
            here, own = np.array(its), self._faults[led]
            found = own.nearest(losses[here])
            near = own.away_ns(found, losses.ack_ns[here]) <= NEAR_NS
            chosen = np.flatnonzero((found != NONE) & near)
            best[here[chosen]] = led[found[chosen]]
        return best

    def last_healed(self, before_ns: int) -> tuple[int, FaultSpan] | None:
        """Return the fault that had been healed last before ``before_ns``, and when it was; of
        those that this harness recorded.
        """
        times, spans = self._healed
        place = bisect.bisect_left(times, before_ns)
        return (times[place - 1], spans[place - 1]) if place else None

    @functools.cached_property
    def any_of_ours(self) -> bool:
        """Whether this harness recorded one."""
        return any(span.state != FaultState.RECORDED for span in self.spans)

    @functools.cached_property
    def _healed(self) -> tuple[list[int], list[FaultSpan]]:
        healed = [
            (span.healed_ns, span)
            for span in self.spans
            if span.healed_ns is not None and span.state != FaultState.RECORDED
        ]
        healed.sort(key=lambda each: each[0])  # of equal times the greatest number last
        return [at_ns for at_ns, _ in healed], [span for _, span in healed]

    @functools.cached_property
    def _faults(self) -> Faults:
        return Faults.of([(span.begin_ns, span.healed_ns) for span in self.spans])

    def _led(self, partition: int | None) -> Ints:
        """The places of the faults that hit the primary or the leader of ``partition``."""
        texts = [str(Role(kind, partition)) for kind in _LEADING]
        places = {place for text in texts for place in self._by_leading.get(text, ())}
        return np.array(sorted(places), np.int64)

    @functools.cached_property
    def _by_leading(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, span in enumerate(self.spans):
            for text in span.roles:
                if text.startswith(_LEADING):
                    found.setdefault(text, []).append(place)
        return found


def attribute(lost: pa.Table, known: KnownFaults) -> pa.Table:
    """Return ``lost`` (``since_ns``, ``ack_ns``, ``shown_ns``, ``partition``) with the fault that
    explains each row.

    ``phase`` is the acknowledgement's (``PHASES``), ``boundary`` the step of the fault that it is
    nearest to, and ``distance_ns`` how long after that it came, negative before it. All columns are
    null where no fault was in force from ``since_ns`` to ``shown_ns``.
    """
    losses = Moments.of(*(ints(lost, name) for name in ("since_ns", "ack_ns", "shown_ns")))
    place = known.explaining(losses, lost["partition"].to_pylist())
    # Only those that explain something: a run may have thousands.
    which, row = np.unique(place[place != NONE], return_inverse=True)
    spans = [known.spans[each] for each in which.tolist()]
    its = np.full(len(place), NONE)
    its[place != NONE] = row
    told = pa.Table.from_pylist([_told(span) for span in spans], schema=_FAULT)
    explained = told.take(pa.array(its, mask=its == NONE))
    at_ns = losses.ack_ns
    return pa.Table.from_arrays(
        [*lost.columns, *explained.columns, *_moments(at_ns, spans, its)],
        schema=pa.schema([*lost.schema, *_FAULT, *_MOMENT]),
    )


def _told(span: FaultSpan) -> dict[str, Any]:
    return {
        "fault": span.fault,
        "fault_kind": span.kind,
        "fault_target": span.target,
        "fault_nodes": span.nodes,
        "fault_roles": span.roles,
        "fault_start_ns": span.begin_ns,
        "fault_end_ns": span.healed_ns,
    }


def _moments(at_ns: Ints, spans: Sequence[FaultSpan], its: Ints) -> list[pa.Array]:
    """Return the columns ``_MOMENT``: each moment in the life of its fault, the one at ``its`` of
    ``spans``. A step that was never seen bounds nothing.
    """
    rows = [
        (span.begin_ns, span.effective_ns, span.healing_ns, span.healed_ns)
        for span in (*spans, None)
        if span is not None
    ]
    known = np.array([[step is not None for step in row] for row in (*rows, [None] * 4)])
    times = np.array([[step or 0 for step in row] for row in (*rows, [None] * 4)], np.int64)
    known, away_ns = known[its], at_ns[:, None] - np.clip(times, -LATEST_NS, LATEST_NS)[its]
    begun = known & (away_ns >= 0)
    begun[:, -1] &= away_ns[:, -1] > 0  # at the very moment of the heal it is not over
    # The last step that it came after; before all of them, the first phase.
    phase = np.where(begun.any(axis=1), len(_BOUNDARIES) - begun[:, ::-1].argmax(axis=1), 0)
    boundary = np.where(known, np.abs(away_ns), np.iinfo(np.int64).max).argmin(axis=1)
    none = its == NONE
    distance_ns = np.take_along_axis(away_ns, boundary[:, None], axis=1)[:, 0]
    return [
        pa.array(PHASES).take(pa.array(phase, mask=none)),
        pa.array(_BOUNDARIES).take(pa.array(boundary, mask=none)),
        pa.array(distance_ns, mask=none),
    ]
