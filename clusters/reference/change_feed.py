"""Changes of assignments and topology that nodes report, on the run's axis."""

from __future__ import annotations

import math

from clusters.reference.event_feed import Flat
from clusters.reference.node.change_log import NEVER
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS
from clusters.reference.node.wire.reports import AskChanges, ChangeReport, ChangeRow
from harness.protocols.changes import (
    AssignmentChange,
    AssignmentKind,
    ReportedChanges,
    TopologyChange,
    TopologyKind,
)

NS_PER_MS = 1_000_000
_ASSIGNMENTS = frozenset(AssignmentKind)


class ChangeFeed:
    """The changes already reported of each node, so that it reports every change once a start."""

    def __init__(self, flat: Flat = lambda number: number) -> None:
        """``flat``: from the store's number of a partition to the run's."""
        self._flat = flat
        self._cursors: dict[str, tuple[str, int]] = {}

    def question(self, node: str) -> AskChanges:
        """The question for the changes of ``node`` after the last that it reported."""
        return AskChanges(*self._cursors.get(node, ("", 0)))

    def take(self, node: str, report: ChangeReport, at_ns: int) -> ReportedChanges:
        """The changes of an answer to ``question`` that had arrived at ``at_ns``; they count as
        reported from now on.
        """
        boot, cursor = self._cursors.get(node, ("", 0))
        # Two answers may cross: an older one must not take the cursor back.
        if boot != report.boot or cursor < report.cursor:
            self._cursors[node] = (report.boot, report.cursor)
        flat = [(row, self._flat(row.partition)) for row in report.rows]
        return ReportedChanges(
            begins=report.begins,
            revision=report.revision,
            # Of a table that the run does not drive nothing is told.
            assignments=tuple(
                _assignment(node, row, partition, at_ns)
                for row, partition in flat
                if row.kind in _ASSIGNMENTS and partition is not None
            ),
            topology=tuple(
                _topology(node, row, at_ns) for row in report.rows if row.kind not in _ASSIGNMENTS
            ),
        )


def _assignment(node: str, row: ChangeRow, partition: int, at_ns: int) -> AssignmentChange:
    return AssignmentChange(
        revision=row.revision,
        at_ns=at_ns - row.age_us * 1000,
        node=node,
        partition=partition,
        table=row.name,
        zone=row.zone,
        kind=AssignmentKind(row.kind),
        nodes=row.nodes,
        term=row.term,
        number=row.number,
        text=row.text,
    )


def _topology(node: str, row: ChangeRow, at_ns: int) -> TopologyChange:
    up_s, down_s, joint_s = (None if wait is None else _seconds(wait) for wait in row.waits)
    return TopologyChange(
        revision=row.revision,
        at_ns=at_ns - row.age_us * 1000,
        node=node,
        kind=TopologyKind(row.kind),
        zone=row.name or None,
        nodes=row.nodes,
        ts_ns=None if row.ts is None else (row.ts >> COUNTER_BITS) * NS_PER_MS,
        up_s=up_s,
        down_s=down_s,
        joint_s=joint_s,
        replicas=row.number,
        text=row.text,
        reset_s=None if row.reset_s is None else float(row.reset_s),
    )


def _seconds(wait: int) -> float:
    return math.inf if wait == NEVER else float(wait)
