"""The events of a store as rows, chosen before they become objects of Python.

A table of events may have a million rows: nearly all are leases and leaders, of which most readers
ask nothing. As a table these take some 150 bytes each, as dictionaries ten times that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.history.records import EventKind, StartDecision
from harness.protocols.generations import OF_RESETS, Reset, resets_of


def of_kinds(events: pa.Table, kinds: Iterable[EventKind]) -> pa.Table:
    """The rows of ``events`` that are of ``kinds``, in their order."""
    wanted = pa.array([kind.value for kind in kinds], pa.string())
    return events.filter(pc.is_in(events["kind"].cast(pa.string()), value_set=wanted))


def rows_of(
    events: pa.Table, kinds: Iterable[EventKind], columns: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The rows of ``of_kinds``, with ``columns`` alone where any are given."""
    chosen = events.select(list(dict.fromkeys(("kind", *columns)))) if columns else events
    rows: list[dict[str, Any]] = of_kinds(chosen, kinds).to_pylist()
    return rows


def erasures_in(events: pa.Table) -> list[dict[str, Any]]:
    """The rows by which nodes tell that they erase their copies. Runs of versions that recorded no
    decision have it as the first word of the text.
    """
    return [
        row
        for row in rows_of(events, (EventKind.START_DECISION,))
        if (row["decision"] or row["text"].partition(" ")[0]) == StartDecision.ERASES
    ]


def resets_in(events: pa.Table) -> tuple[Reset, ...]:
    """``generations.resets_of`` a table of events."""
    return resets_of(rows_of(events, OF_RESETS))
