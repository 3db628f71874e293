"""Which forced reset of a partition lies between a write and the read that misses it.

A reset lets one replica go on alone, whatever the others had acknowledged: where a store tells of
one, it explains a loss better than any fault. With it comes the start of the node that forced it,
and the fault whose healing that start was. Times of the store's events are mapped: what they may be
off by is granted, and they explain, no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from checkers.attribution import windows
from checkers.words import NANOSECONDS, seconds
from harness.records import EventKind

RESETS = pa.schema([("reset_ns", pa.int64()), ("reset_node", pa.string())])

Row = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Cause:
    """A reset, the start of its node before it, if any was seen, and the fault before that."""

    reset: Row
    start: Row | None
    fault: Row | None

    def told(self) -> dict[str, Any]:
        """As an example carries it."""
        who, at_ns = self.reset["node"], self.reset["at_ns"]
        text = f"{self.reset['text']} by {who} at {seconds(at_ns)}"
        if self.start is not None:
            after_s = (at_ns - self.start["at_ns"]) / NANOSECONDS
            text += f", {after_s:.1f} s after its start"
        if self.fault is not None:
            text += f" to heal fault {self.fault['fault']} ({self.fault['kind']})"
        return {
            "node": who,
            "at_ns": at_ns,
            "started_ns": self.start["at_ns"] if self.start else None,
            "fault": self.fault["fault"] if self.fault else None,
            "text": text,
        }


def causes(lost: pa.Table, faults: pa.Table, events: pa.Table) -> list[Cause | None]:
    """The cause of each row of ``lost`` (``ack_ns``, ``read_ns``, ``partition``): the first reset
    of its partition that may lie between acknowledgement and read, ``None`` where there is none.
    """
    rows = events.select(["kind", "node", "at_ns", "uncertainty_ns", "partition", "text"])
    told = sorted(rows.to_pylist(), key=lambda row: row["at_ns"])
    resets = [row for row in told if row["kind"] == EventKind.RESET]
    if not resets:
        return [None] * lost.num_rows
    starts = [row for row in told if row["kind"] == EventKind.NODE_STARTED]
    known = windows(faults)
    whole = {id(reset): _cause(reset, starts, known) for reset in resets}
    found = []
    for row in lost.select(["ack_ns", "read_ns", "partition"]).to_pylist():
        reset = next((r for r in resets if _between(r, row)), None)
        found.append(whole[id(reset)] if reset else None)
    return found


def columns(found: Sequence[Cause | None]) -> pa.Table:
    """``RESETS`` of each row."""
    rows = [
        {"reset_ns": cause.reset["at_ns"], "reset_node": cause.reset["node"]} if cause else {}
        for cause in found
    ]
    return pa.Table.from_pylist(rows, schema=RESETS)


def _between(reset: Row, row: Row) -> bool:
    if None not in (reset["partition"], row["partition"]) and (
        reset["partition"] != row["partition"]
    ):
        return False
    off_ns = reset["uncertainty_ns"]
    return bool(
        reset["at_ns"] + off_ns >= row["ack_ns"] and reset["at_ns"] - off_ns <= row["read_ns"]
    )


def _cause(reset: Row, starts: Iterable[Row], known: Sequence[Row]) -> Cause:
    """``starts`` and ``known`` ascend."""
    start = _last(
        row for row in starts if row["node"] == reset["node"] and row["at_ns"] <= reset["at_ns"]
    )
    fault = None
    if start is not None:
        fault = _last(
            window
            for window in known
            if reset["node"] in (window["nodes"] or ())
            and window["start_ns"] <= start["at_ns"]
            and (window["end_ns"] is None or start["at_ns"] <= window["end_ns"])
        )
    return Cause(reset=reset, start=start, fault=fault)


def _last(rows: Iterable[Row]) -> Row | None:
    found = None
    for row in rows:
        found = row
    return found
