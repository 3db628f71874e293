"""What the clients of a run got, as the limits of the service are judged by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import INFO, OK, TYPES, Bools, Ints, codes, ints
from checkers.promises.liveness import STEP_NS, TRIES
from harness.clock import NS_PER_S
from harness.protocols.checker import Tables
from harness.protocols.conflicts import conflicts
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.recovery import Acknowledgements, Arrivals
from harness.protocols.setting import Setting

Interval = tuple[int, int]
"""From when to when, in nanoseconds on the run's axis."""


@attrs.frozen(kw_only=True)
class Scope:
    """A part of the drive in which a limit holds; ``fault`` is the one in force, if it is one's."""

    start_ns: int
    end_ns: int
    fault: FaultSpan | None = None


@attrs.frozen(kw_only=True)
class Breach:
    """One breach: from when to when it showed, its figure in the unit of its limit, and the
    transactions that show it. ``counted`` are the periods in which its evidence was counted, where
    these are not the time in which it showed. ``spare_ns`` is for how long the controller's loop
    may have stood still in them, and it is a breach all the same.
    """

    name: str
    text: str
    start_ns: int
    end_ns: int
    measured: float
    txns: tuple[int, ...] = ()
    partition: int | None = None
    counted: tuple[Interval, ...] = ()
    spare_ns: int = 0

    @property
    def rests_on(self) -> tuple[Interval, ...]:
        """The periods in which its evidence was counted."""
        return self.counted or ((self.start_ns, self.end_ns),)


@attrs.frozen(kw_only=True)
class Span:
    """A time that a limit counts, from ``start_ns`` to ``end_ns``: of ``length_ns`` for certain."""

    length_ns: int
    start_ns: int
    end_ns: int
    partition: int | None = None


@attrs.frozen(kw_only=True)
class Figure:
    """What was measured for one limit, in its unit, from when to when that showed (and on which
    ``partition``, where it is one's), and its breaches, beside ``untold`` more that are only
    counted. ``basis`` says what the figure rests on, ``doubts`` what leaves it open where nothing
    is broken, ``remarks`` what of it could not be tested.
    """

    measured: float
    start_ns: int
    end_ns: int
    partition: int | None = None
    broken: tuple[Breach, ...] = ()
    untold: int = 0
    basis: str = ""
    doubts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @classmethod
    def of_longest(
        cls,
        spans: Sequence[Span],
        broken: Sequence[Breach],
        scopes: Sequence[Scope],
        remarks: tuple[str, ...] = (),
    ) -> Figure:
        """The longest of ``spans`` in seconds; zero, over all of ``scopes``, without any."""
        nothing = Span(
            length_ns=0,
            start_ns=min(scope.start_ns for scope in scopes),
            end_ns=max(scope.end_ns for scope in scopes),
        )
        longest = max(spans, key=lambda span: span.length_ns, default=nothing)
        return cls(
            measured=longest.length_ns / NS_PER_S,
            start_ns=longest.start_ns,
            end_ns=longest.end_ns,
            partition=longest.partition,
            broken=tuple(broken),
            remarks=remarks,
        )


class Untested(Exception):
    """A limit that this run could not test; the text says what was missing."""


@attrs.frozen(kw_only=True, eq=False)
class Tries:
    """The tries of one partition, or of the store as a whole, in the order of their begin: when
    each began and ended. ``acks`` are the ends of those that were acknowledged, ascending. Tries
    that took the same steps of time count as one, since they look like the operations of a single
    transaction.
    """

    begun: Ints
    ended: Ints
    acks: Ints

    @classmethod
    def of(cls, begun: Ints, ended: Ints, acks: Ints) -> Tries:
        """Those that began and ended so, in any order."""
        order = np.argsort(begun, kind="stable")
        return cls(begun=begun[order], ended=ended[order], acks=np.sort(acks))

    @cached_property
    def _latest(self) -> Ints:
        """Of each try and all before it, the last end."""
        return np.maximum.accumulate(self.ended)

    @cached_property
    def _over(self) -> Ints:
        """When each has begun and ended, ascending: counted in steps, a try may end first."""
        return np.sort(np.maximum(self.begun, self.ended))

    def latest_end(self, counts: Ints) -> Ints:
        """Return by when the last of the first so many ended; before all time of none."""
        found = np.full(len(counts), np.iinfo(np.int64).min)
        found[counts > 0] = self._latest[counts[counts > 0] - 1]
        return found

    def open_at(self, moments: Ints) -> Ints:
        """Count those that were begun by each moment and ended after it."""
        begun = np.searchsorted(self.begun, moments, side="right")
        return np.asarray(begun - np.searchsorted(self._over, moments, side="right"), np.int64)


@attrs.frozen(kw_only=True, eq=False)
class ClientOutcomes:
    """The transactions without those that gave way to another, by column. ``by_partition`` is
    empty where partitions are not known; ``faults`` are all that were injected, in the order of
    their begin. ``arrivals`` are those of an open loop, with what gave way.
    """

    txn: Ints
    intended: Ints
    begun: Ints
    ended: Ints
    type_: Ints
    by_partition: Mapping[int, Tries]
    drive: Scope
    faults: Sequence[FaultSpan]
    arrivals: Arrivals | None

    @cached_property
    def whole(self) -> Tries:
        """All transactions."""
        return Tries.of(self.begun, self.ended, self.ended[self.ok])

    @cached_property
    def acknowledged(self) -> Acknowledgements:
        """Those that were acknowledged."""
        return Acknowledgements.of(self.ended[self.ok], self.intended[self.ok], self.arrivals)

    @property
    def ok(self) -> Any:  # noqa: ANN401 (a mask)
        """Which transactions were acknowledged."""
        return self.type_ == OK

    @property
    def unknown(self) -> Any:  # noqa: ANN401 (a mask)
        """Of which transactions the outcome is not known."""
        return self.type_ == INFO

    def without(self, periods: Sequence[tuple[int, int]]) -> ClientOutcomes:
        """Leave out the transactions that were open at some time of ``periods``; ``by_partition``
        stays whole.
        """
        return self.at(np.flatnonzero(~open_in(self.begun, self.ended, periods)))

    def at(self, rows: Ints) -> ClientOutcomes:
        """Keep some of the transactions, by their rows; ``by_partition`` stays whole."""
        columns = ("txn", "intended", "begun", "ended", "type_")
        return attrs.evolve(self, **{name: getattr(self, name)[rows] for name in columns})


def open_in(begun: Ints, ended: Ints, periods: Sequence[Interval]) -> Bools:
    """Tell what began by the end of one of ``periods`` and ended from its start on."""
    if not periods:
        return np.zeros(len(begun), dtype=np.bool_)
    rows = np.asarray(sorted(periods), dtype=np.int64)
    starts, latest = rows[:, 0], np.maximum.accumulate(rows[:, 1])
    # Of all that start by its end the one that ends last decides.
    before = np.searchsorted(starts, ended, side="right")
    return np.asarray((before > 0) & (latest[np.maximum(before - 1, 0)] >= begun), dtype=np.bool_)


def client_outcomes(tables: Tables, setting: Setting, marks: Mapping[str, int]) -> ClientOutcomes:
    """Return what clients got while the run drove, which begins at the mark ``drive``."""
    table = tables["transactions"]
    all_intended = ints(table, "intended_ns")
    yielded = np.asarray(conflicts(setting.declaration, table))
    table = table.filter(pa.array(~yielded))
    ended, type_ = ints(table, "complete_ns"), codes(table, "type", TYPES).astype(np.int64)
    last_ns = int(ended.max(initial=marks["drive"]))
    # A prefix has no mark of its end.
    over_ns = marks.get("heal", last_ns)
    return ClientOutcomes(
        txn=ints(table, "txn"),
        intended=ints(table, "intended_ns"),
        begun=ints(table, "invoke_ns"),
        ended=ended,
        type_=type_,
        by_partition=_by_partition(tables.get(TRIES)),
        drive=Scope(start_ns=marks["drive"], end_ns=over_ns),
        faults=fault_spans(tables["faults"].to_pylist()),
        arrivals=Arrivals.of(all_intended, setting.rate_per_s, over_ns),
    )


def _by_partition(tries: pa.Table | None) -> dict[int, Tries]:
    """Bounds that hold for certain: what a step shows began by its end, and ended from its begin
    on.
    """
    if tries is None:
        return {}
    partition, ok = ints(tries, "partition"), np.asarray(tries.column("ok"))
    begun, ended = (ints(tries, "begun") + 1) * STEP_NS, ints(tries, "ended") * STEP_NS
    found = {}
    for number in np.unique(partition).tolist():
        here = partition == number
        # A transaction that reads and writes is in the table twice.
        once = np.unique(np.stack([begun[here], ended[here]]), axis=1)
        found[number] = Tries(begun=once[0], ended=once[1], acks=np.unique(ended[here & ok]))
    return found


def named(fault: FaultSpan) -> str:
    """Name ``fault``: its kind, and what it hit."""
    return f"{fault.kind} of {', '.join(fault.nodes) or fault.target}"
