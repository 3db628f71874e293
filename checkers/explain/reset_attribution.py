"""Attribution of a loss to forced resets of its partition: the reset between a write and the read
that misses it, and the reset before the write, under which it was acknowledged.

A reset lets one replica continue alone, without regard to what the others had acknowledged: where a
store reports one, it explains a loss better than any fault. The explanation includes the start of
the node that forced the reset, and the fault that this start healed. The reset before the write
tells which replicas were left to acknowledge it; where no reset followed the write, it explains
nothing. Times of the store's events are mapped: their error bound is granted, and they explain, no
more.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints
from harness.clock import NS_PER_S
from harness.history.records import EventKind
from harness.history.store_events import rows_of
from harness.protocols.fault_spans import FaultSpan, fault_spans
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

Row = Mapping[str, Any]
_KINDS = (EventKind.RESET, EventKind.PARTITION_RESET, EventKind.NODE_STARTED)
Found = TypeVar("Found")


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
            after_s = (at_ns - self.start["at_ns"]) / NS_PER_S
            text += f", {after_s:.1f} s after its start"
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
    """The reset that discarded a write, and the last one before its acknowledgement, if any."""

    taken: ForcedReset
    under: ForcedReset | None

    def told(self, by_fault: Explanation | None, ack_ns: int) -> Explanation:
        """Return the explanation ``by_fault`` with the chain of resets."""
        taken, under = self.taken.told(), self.under.told() if self.under else None
        if by_fault is not None and by_fault.no_fault:
            by_fault = None  # the resets explain it
        told = by_fault or Explanation(text=f"acknowledged at {seconds(ack_ns)}")
        text = told.text
        if under is not None:
            after_s = (ack_ns - under.at_ns) / NS_PER_S
            text += f"{'; acknowledged' if by_fault else ','} {after_s:.1f} s after {under.text}"
        text += f"; then {taken.text}"
        return msgspec.structs.replace(told, text=text, reset=taken, under_reset=under)


def causes(lost: pa.Table, faults: pa.Table, events: pa.Table) -> list[Cause | None]:
    """Return the cause of each row of ``lost`` (``ack_ns``, ``read_ns``, ``partition``): the first
    reset of its partition that may lie between acknowledgement and read, ``None`` where there is
    none, and the last one that lies before.
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
    starts = [row for row in told if row["kind"] == EventKind.NODE_STARTED]
    known = fault_spans(faults.to_pylist())
    forced = functools.cache(lambda place: _forced(resets[place], starts, known))
    by_partition = functools.cache(lambda partition: _Resets.of(resets, partition))
    found: list[Cause | None] = []
    for row in lost.select(["ack_ns", "read_ns", "partition"]).to_pylist():
        here = by_partition(row["partition"])
        # The first reset after the acknowledgement discarded the write; later ones found it gone.
        taken, under = here.first_between(row), here.last_before(row)
        cause = None
        if taken is not None:
            cause = Cause(taken=forced(taken), under=None if under is None else forced(under))
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


@attrs.frozen(kw_only=True)
class _Resets:
    """The resets that may be of one partition, in their order, by arrays: their ``places`` among
    all, and the moments between which each took place.
    """

    places: Ints
    earliest_ns: Ints
    latest_ns: Ints

    @classmethod
    def of(cls, resets: Sequence[Row], partition: int | None) -> _Resets:
        """Those of ``partition``, and of none in particular; all, where it is ``None``."""
        its = [
            (place, row["at_ns"], row["uncertainty_ns"])
            for place, row in enumerate(resets)
            if None in (row["partition"], partition) or row["partition"] == partition
        ]
        places, at_ns, off_ns = np.array(its, np.int64).reshape(-1, 3).T
        return cls(places=places, earliest_ns=at_ns - off_ns, latest_ns=at_ns + off_ns)

    # Before only for certain, between where it is possible: an open order may hide the cause.

    def first_between(self, row: Row) -> int | None:
        """The place of the first reset that may lie between acknowledgement and read."""
        possible = (self.latest_ns >= row["ack_ns"]) & (self.earliest_ns <= row["read_ns"])
        found = np.flatnonzero(possible)
        return int(self.places[found[0]]) if len(found) else None

    def last_before(self, row: Row) -> int | None:
        """The place of the last reset that lies before the acknowledgement."""
        found = np.flatnonzero(self.latest_ns < row["ack_ns"])
        return int(self.places[found[-1]]) if len(found) else None


def _forced(reset: Row, starts: Iterable[Row], known: Sequence[FaultSpan]) -> ForcedReset:
    """``starts`` and ``known`` ascend."""
    start = _last(
        row for row in starts if row["node"] == reset["node"] and row["at_ns"] <= reset["at_ns"]
    )
    fault = None
    if start is not None:
        fault = _last(
            span
            for span in known
            if reset["node"] in span.nodes and span.touches(start["at_ns"], start["at_ns"])
        )
    return ForcedReset(reset=reset, start=start, fault=fault)


def _last(rows: Iterable[Found]) -> Found | None:
    found = None
    for row in rows:
        found = row
    return found
