"""Selection of the store's events beside an anomaly: those near it, and those that caused it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.records import EventKind
from harness.protocols.finding import Explanation
from results.report.run_data import RunData

AROUND_NS = 1_000_000_000  # a leader change shows about a second before it hurts
INT64 = np.iinfo(np.int64)
LEADING = (
    EventKind.RESET.value,
    EventKind.PARTITION_RESET.value,
    EventKind.NODE_STARTED.value,
)


def rarest(events: pa.Table, limit: int, causes_ns: Collection[int] = ()) -> pa.Table:
    """Return ``events`` in their order: all of the causes, at ``causes_ns``, and of others as many
    as make ``limit`` of both: all of the rarest kinds, since a reader looks for these, and of the
    first kind that has too many the earliest ones.
    """
    led = _leading(events, causes_ns)
    kinds = counts(events.filter(pc.invert(led)))
    room, whole, part = limit - (pc.sum(led).as_py() or 0), list[str](), ""
    for kind, count in sorted(kinds.items(), key=lambda item: (item[1], item[0])):
        if count > room:
            part = kind
            break
        whole.append(kind)
        room -= count
    kind = events["kind"].cast(pa.string())
    kept = pc.or_(led, pc.is_in(kind, value_set=pa.array(whole, pa.string()))).to_numpy().copy()
    kept[np.flatnonzero(~kept & pc.equal(kind, part).to_numpy())[: max(0, room)]] = True
    return events.filter(pa.array(kept))


def counts(events: pa.Table) -> Counter[str]:
    """Return how many events there are of each kind."""
    counted = events["kind"].value_counts().to_pylist()
    return Counter({each["values"]: each["counts"] for each in counted})


def events(
    run_data: RunData,
    operations: Sequence[Mapping[str, Any]],
    at_ns: int | None = None,
    causes_ns: Collection[int] = (),
) -> pa.Table:
    """Return the store's events from just before the first operation to just after the last, in the
    partitions that they touch or in none in particular; around ``at_ns`` where there are none. Of
    ``causes_ns`` also the resets, and the starts that led to them, however long before.
    """
    told = run_data.events
    if not operations and at_ns is None:
        return told.slice(0, 0)
    moments = [row["invoke_ns"] for row in operations] + [row["complete_ns"] for row in operations]
    moments += [at_ns] if not operations and at_ns is not None else []
    # A stranger's times may be as large as a column can hold.
    start, end = (
        max(int(INT64.min), min(moments) - AROUND_NS),
        min(int(INT64.max), max(moments) + AROUND_NS),
    )
    touched = sorted(
        {s["partition"] for row in operations for s in row["ops"] if s["partition"] is not None}
    )
    near = pc.and_(pc.greater_equal(told["at_ns"], start), pc.less_equal(told["at_ns"], end))
    here = pc.is_in(told["partition"], value_set=pa.array(touched, pa.int32()))
    nowhere = pc.is_null(told["partition"])
    led = _leading(told, causes_ns)
    return told.filter(pc.and_(pc.or_(near, led), pc.or_(here, nowhere)))


def _leading(events: pa.Table, causes_ns: Collection[int]) -> pa.ChunkedArray:
    """Tell of each event whether it is a reset, or the start that led to one, at ``causes_ns``."""
    return pc.and_(
        pc.is_in(events["kind"].cast(pa.string()), value_set=pa.array(LEADING, pa.string())),
        pc.is_in(events["at_ns"], value_set=pa.array(sorted(causes_ns), pa.int64())),
    )


def moments_of_resets(explained: Explanation | None) -> set[int]:
    """Return the times of the resets that explain a finding, and of the starts of the nodes that
    forced them.
    """
    resets = explained.resets if explained else ()
    moments = (at_ns for reset in resets for at_ns in (reset.at_ns, reset.started_ns))
    return {at_ns for at_ns in moments if at_ns is not None}
