"""What each revision made of the assignments of each partition, from the rows that tell of its keys
(``harness.protocols.changes``).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

import attrs

from checkers.promises.legal_transitions import Assigned, Nodes
from harness.protocols.changes import OF_LEADERS, AssignmentKind, TopologyKind

Row = dict[str, Any]

_SETS = (AssignmentKind.STABLE, AssignmentKind.PENDING, AssignmentKind.PLANNED, AssignmentKind.LOCK)


@attrs.frozen(kw_only=True)
class Step:
    """What one revision made of one partition. ``triggers`` are those that it wrote."""

    revision: int
    at_ns: int
    table: str
    zone: str
    before: Assigned
    after: Assigned
    event: bool
    triggers: tuple[int, ...]
    dropped: bool
    lock_term: int | None


def steps_of(rows: Iterable[Row]) -> dict[int, list[Step]]:
    """Return the steps of each partition in the order of their revisions."""
    apart = OF_LEADERS | {AssignmentKind.CHAIN}
    keyed = (row for row in rows if row["kind"] not in apart)
    ordered = sorted(keyed, key=itemgetter("partition", "revision"))
    found: dict[int, list[Step]] = {}
    for partition, of_partition in groupby(ordered, key=itemgetter("partition")):
        held, steps = Assigned(), []
        for revision, group in groupby(of_partition, key=itemgetter("revision")):
            written = list(group)
            after = _after(held, written)
            triggers = [row for row in written if row["kind"] == AssignmentKind.TRIGGER]
            numbers = tuple(row["number"] for row in triggers if row["number"] is not None)
            terms = [row["term"] for row in written if row["kind"] == AssignmentKind.LOCK]
            steps.append(
                Step(
                    revision=revision,
                    at_ns=min(row["at_ns"] for row in written),
                    table=written[0]["table"],
                    zone=written[0]["zone"],
                    before=held,
                    after=after,
                    event=bool(numbers),
                    triggers=numbers,
                    dropped=bool(triggers) and not numbers,
                    lock_term=terms[-1] if terms else None,
                )
            )
            held = after
        found[partition] = steps
    return found


def logical_topologies(topology: Iterable[Row]) -> list[tuple[int, Nodes]]:
    """Return the nodes that have joined, as each revision that changed them left them."""
    written = {
        row["revision"]: frozenset(row["nodes"] or ())
        for row in topology
        if row["kind"] == TopologyKind.LOGICAL
    }
    return sorted(written.items(), key=itemgetter(0))


def _after(held: Assigned, written: Iterable[Row]) -> Assigned:
    sets = {
        row["kind"]: None if row["nodes"] is None else frozenset(row["nodes"])
        for row in written
        if row["kind"] in _SETS
    }
    return held._replace(**sets)
