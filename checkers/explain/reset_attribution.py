"""Attribution of a loss to forced resets of its partition: the reset between a write and the read
that misses it, and the reset before the write, under which it was acknowledged.

A reset lets one replica continue alone, without regard to what the others had acknowledged: where a
store reports one, it explains a loss better than any fault. The explanation includes the start of
the node that forced the reset, and the fault that this start healed. The reset before the write
tells which replicas were left to acknowledge it. Where no reset followed the write, it explains
nothing, unless no reset was permitted at all: a partition that went on without its majority is
outvoted, with all that it has acknowledged, as soon as the others are back. Times of the store's
events are mapped: their error bound is granted, and they explain, no more.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints
from checkers.engine.spans import FOREVER_NS, NONE, FirstInForce
from checkers.explain.fault_attribution import KnownFaults
from harness.history.records import EventKind
from harness.history.store_events import rows_of
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.finding import Explanation, ResetCause
from harness.text import seconds

RESETS = pa.schema(
    [
        ("reset_ns", pa.int64()),
        ("reset_node", pa.string()),
        ("under_reset_ns", pa.int64()),
        ("under_reset_node", pa.string()),
    ]
)

ANY = -(2**63)
"""Stands for no partition in particular."""

Row = Mapping[str, Any]
_KINDS = (EventKind.RESET, EventKind.PARTITION_RESET, EventKind.NODE_STARTED)


@attrs.frozen(kw_only=True)
class ForcedReset:
    """A reset, the start of its node before it, if any was seen, and the fault before that."""

    reset: Row
    start: Row | None
    fault: FaultSpan | None

    def told(self) -> ResetCause:
        """Return the reset as a finding carries it."""
        who, at_ns = self.reset["node"], self.reset["at_ns"]
        text = f"{self.reset['text']} by {who} at {seconds(at_ns)}"
        if self.start is not None:
            text += f", {seconds(at_ns - self.start['at_ns'])} after its start"
        if self.fault is not None:
            text += f" to heal fault {self.fault.fault} ({self.fault.kind})"
        return ResetCause(
            node=who,
            at_ns=at_ns,
            started_ns=self.start["at_ns"] if self.start else None,
            fault=self.fault.fault if self.fault else None,
            text=text,
        )


@attrs.frozen(kw_only=True)
class Cause:
    """The reset that discarded a write, and the last one before its acknowledgement: one of them
    there is.
    """

    taken: ForcedReset | None
    under: ForcedReset | None

    def told(self, by_fault: Explanation | None, ack_ns: int) -> Explanation:
        """Return the explanation ``by_fault`` with the chain of resets."""
        taken = None if self.taken is None else self.taken.told()
        under = None if self.under is None else self.under.told()
        if by_fault is not None and by_fault.no_fault:
            by_fault = None  # the resets explain it
        told = by_fault or Explanation(text=f"acknowledged at {seconds(ack_ns)}")
        text = told.text
        if under is not None:
            after = seconds(ack_ns - under.at_ns)
            text += f"{'; acknowledged' if by_fault else ','} {after} after {under.text}"
        if taken is not None:
            text += f"; then {taken.text}"
        return msgspec.structs.replace(told, text=text, reset=taken, under_reset=under)


def causes(
    lost: pa.Table, faults: KnownFaults, events: pa.Table, *, permitted: bool
) -> list[Cause | None]:
    """Return the cause of each row of ``lost`` (``ack_ns``, ``shown_ns``, ``partition``): the first
    reset of its partition that may lie between acknowledgement and read, and the last one that lies
    before. Where resets are ``permitted``, the one before alone is no cause.
    """
    if not lost.num_rows:
        return []
    wanted = ("kind", "node", "at_ns", "uncertainty_ns", "partition", "generation", "text")
    # Runs of before have no generations.
    columns = [name for name in wanted if name in events.column_names]
    told = sorted(rows_of(events, _KINDS, columns), key=lambda row: row["at_ns"])
    resets = list(_told_first(told))
    if not resets:
        return [None] * lost.num_rows
    starts = _Starts.of(row for row in told if row["kind"] == EventKind.NODE_STARTED)
    hits = _hits(faults.spans)
    forced = functools.cache(lambda place: _forced(resets[place], starts, hits))
    every = _Resets.of(resets)
    by_partition = functools.cache(every.of_partition)
    found: list[Cause | None] = []
    for row in lost.select(["ack_ns", "shown_ns", "partition"]).to_pylist():
        here = by_partition(row["partition"])
        # The first reset after the acknowledgement discarded the write; later ones found it gone.
        taken, under = here.first_between(row), here.last_before(row)
        cause = None
        if taken is not None or (under is not None and not permitted):
            cause = Cause(
                taken=None if taken is None else forced(taken),
                under=None if under is None else forced(under),
            )
        found.append(cause)
    return found


def _told_first(told: Iterable[Row]) -> Iterator[Row]:
    """Yield each reset as it was told first: of a numbered one every survivor tells."""
    seen: set[tuple[int | None, int | None]] = set()
    for row in told:
        if row["kind"] == EventKind.RESET:
            yield row
        elif row["kind"] == EventKind.PARTITION_RESET:
            which = (row["partition"], row.get("generation"))
            if which not in seen:
                seen.add(which)
                yield row


def columns(found: Sequence[Cause | None]) -> pa.Table:
    """Return the columns ``RESETS`` of each row."""
    return pa.Table.from_pylist([_columns(cause) for cause in found], schema=RESETS)


def _columns(cause: Cause | None) -> dict[str, Any]:
    told = {"reset": cause.taken, "under_reset": cause.under} if cause else {}
    return {
        f"{name}_{what}": forced.reset[column]
        for name, forced in told.items()
        if forced is not None
        for what, column in (("ns", "at_ns"), ("node", "node"))
    }


@attrs.frozen(kw_only=True, eq=False)
class _Resets:
    """Resets in the order in which they were told, by arrays: their ``places`` among all, their
    partitions (``ANY`` where none in particular), and the moments between which each took place.
    """

    places: Ints
    partition: Ints
    earliest_ns: Ints
    latest_ns: Ints

    @classmethod
    def of(cls, resets: Sequence[Row]) -> _Resets:
        """All of them."""
        told = [
            (place, row["partition"], row["at_ns"], row["uncertainty_ns"])
            for place, row in enumerate(resets)
        ]
        rows = [(place, ANY if here is None else here, at, off) for place, here, at, off in told]
        places, partition, at_ns, off_ns = np.array(rows, np.int64).reshape(-1, 4).T
        return cls(
            places=places,
            partition=partition,
            earliest_ns=at_ns - off_ns,
            latest_ns=at_ns + off_ns,
        )

    def of_partition(self, partition: int | None) -> _Resets:
        """Those of ``partition``, and of none in particular; all, where it is ``None``."""
        if partition is None:
            return self
        rows = (self.partition == partition) | (self.partition == ANY)
        columns = {name: column[rows] for name, column in attrs.asdict(self, recurse=False).items()}
        return _Resets(**columns)

    # Before only for certain, between where it is possible: an open order may hide the cause.

    def first_between(self, row: Row) -> int | None:
        """The place of the first reset that may lie between acknowledgement and read."""
        # Of the resets so far the latest moment ascends, and of those to come the earliest.
        first = bisect.bisect_left(self._latest_so_far, row["ack_ns"])
        while first < len(self.places) and self._earliest_to_come[first] <= row["shown_ns"]:
            if (
                self.earliest_ns[first] <= row["shown_ns"]
                and self.latest_ns[first] >= row["ack_ns"]
            ):
                return int(self.places[first])
            first += 1
        return None

    def last_before(self, row: Row) -> int | None:
        """The place of the last reset that lies before the acknowledgement."""
        after = bisect.bisect_left(self._latest_to_come, row["ack_ns"])
        return int(self.places[after - 1]) if after else None

    @functools.cached_property
    def _latest_so_far(self) -> list[int]:
        return _list(np.maximum.accumulate(self.latest_ns))

    @functools.cached_property
    def _latest_to_come(self) -> list[int]:
        """The least latest moment of each and all that follow: it ascends."""
        return _list(np.minimum.accumulate(self.latest_ns[::-1])[::-1])

    @functools.cached_property
    def _earliest_to_come(self) -> list[int]:
        return _list(np.minimum.accumulate(self.earliest_ns[::-1])[::-1])


def _list(column: Ints) -> list[int]:
    found: list[int] = column.tolist()
    return found


@attrs.frozen(kw_only=True)
class _Starts:
    """The starts of nodes, by node, ascending."""

    at_ns: Mapping[str, Sequence[int]]
    rows: Mapping[str, Sequence[Row]]

    @classmethod
    def of(cls, told: Iterable[Row]) -> _Starts:
        """Those of ``told``, which ascend."""
        rows: dict[str, list[Row]] = {}
        for row in told:
            rows.setdefault(row["node"], []).append(row)
        return cls(rows=rows, at_ns={n: [row["at_ns"] for row in its] for n, its in rows.items()})

    def last(self, node: str, by_ns: int) -> Row | None:
        """The last start of ``node`` at ``by_ns`` or before."""
        place = bisect.bisect_right(self.at_ns.get(node, ()), by_ns)
        return self.rows[node][place - 1] if place else None


@attrs.frozen(kw_only=True)
class _Hits:
    """The faults that hit one node, the last begun first."""

    spans: Sequence[FaultSpan]

    def last(self, at_ns: int) -> FaultSpan | None:
        """The one that had begun last of those in force at ``at_ns``."""
        place = int(self._in_force.at(np.array([at_ns]))[0])
        return None if place == NONE else self.spans[place]

    @functools.cached_property
    def _in_force(self) -> FirstInForce:
        ends = (FOREVER_NS if span.healed_ns is None else span.healed_ns for span in self.spans)
        return FirstInForce.of((span.begin_ns for span in self.spans), ends)


def _hits(known: Iterable[FaultSpan]) -> dict[str, _Hits]:
    """Return by node the faults that hit it."""
    spans: dict[str, list[FaultSpan]] = {}
    for span in sorted(known, key=lambda span: (span.begin_ns, span.fault), reverse=True):
        for node in dict.fromkeys(span.nodes):
            spans.setdefault(node, []).append(span)
    return {node: _Hits(spans=its) for node, its in spans.items()}


def _forced(reset: Row, starts: _Starts, hits: Mapping[str, _Hits]) -> ForcedReset:
    node = reset["node"]
    start = starts.last(node, reset["at_ns"])
    fault = hits[node].last(start["at_ns"]) if start is not None and node in hits else None
    return ForcedReset(reset=reset, start=start, fault=fault)
