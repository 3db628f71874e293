"""Records the changes of assignments and topology that a system reports while a run lives.

``assignments.parquet`` and ``topology.parquet`` have one row a change, by revision. Every node is
asked, since each knows best when it applied what it was there for; a change that several nodes
report alike is one row, at the earliest of their times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from harness.clock import RunClock
from harness.history.parquet import read_summed, write_side_table
from harness.history.run_directory import RunDirectory
from harness.protocols.changes import (
    OF_LEADERS,
    AssignmentChange,
    ReportedChanges,
    TellsChanges,
    TopologyChange,
    TopologyKind,
)
from harness.protocols.cluster import Cluster
from harness.run.rebalance_wait import Left, left_open
from harness.tasks import together

ASSIGNMENTS_FILE = "assignments.parquet"
TOPOLOGY_FILE = "topology.parquet"
# Of one run; some 100 MB. What comes after it is left out, and a gap says so.
MAX_ROWS = 500_000
_NODES = pa.list_(pa.string())
ASSIGNMENTS = pa.schema(
    [
        ("revision", pa.int64()),
        ("at_ns", pa.int64()),
        ("node", pa.string()),
        ("partition", pa.int32()),
        ("table", pa.string()),
        ("zone", pa.string()),
        ("kind", pa.string()),
        ("nodes", _NODES),
        ("term", pa.int64()),
        ("number", pa.int64()),
        ("text", pa.string()),
    ]
)
TOPOLOGY = pa.schema(
    [
        ("revision", pa.int64()),
        ("at_ns", pa.int64()),
        ("node", pa.string()),
        ("kind", pa.string()),
        ("zone", pa.string()),
        ("nodes", _NODES),
        ("ts_ns", pa.int64()),
        ("up_s", pa.float64()),
        ("down_s", pa.float64()),
        ("joint_s", pa.float64()),
        ("replicas", pa.int32()),
        ("text", pa.string()),
        ("reset_s", pa.float64()),
    ]
)
Change = AssignmentChange | TopologyChange


class ChangeLog:
    """The changes reported in a run that lives. ``close`` is called once, on every path."""

    def __init__(self, run: RunDirectory, system: TellsChanges, clock: RunClock) -> None:
        self._run, self._system, self._clock = run, system, clock
        self._found: dict[Change, Change] = {}
        self._complete = 0  # every change up to this revision was reported
        self._full = False
        self._gap: TopologyChange | None = None

    async def fetch(self, cluster: Cluster) -> None:
        """Ask every node for what it has not reported yet. Raises ``HarnessError``."""

        async def one(node: str) -> None:
            reported = await self._system.changes(cluster, node, self._clock)
            if reported is not None:
                self._keep(node, reported)

        await together(one(node) for node in cluster.nodes)

    @property
    def places_data(self) -> bool:
        """Whether the store has told where any data is."""
        return any(isinstance(row, AssignmentChange) for row in self._found)

    def left_open(self) -> list[Left]:
        """What is left of the moves of data, as far as it was told."""
        return left_open(self._found.values())

    def close(self) -> dict[str, str]:
        """Write the tables; returns the checksums of the files. Raises ``HarnessError``."""
        found = list(self._found.values())
        topology = [row for row in found if isinstance(row, TopologyChange)]
        if self._gap is not None:
            topology.append(self._gap)
        assignments = [row for row in found if isinstance(row, AssignmentChange)]
        return {
            **self._write(ASSIGNMENTS_FILE, assignments, ASSIGNMENTS),
            **self._write(TOPOLOGY_FILE, topology, TOPOLOGY),
        }

    def _keep(self, node: str, reported: ReportedChanges) -> None:
        rows: tuple[Change, ...] = (*reported.assignments, *reported.topology)
        for row in rows:
            alike = _alike(row)
            before = self._found.get(alike)
            if before is None and len(self._found) >= MAX_ROWS:
                # What follows is missing for good, whatever other nodes report.
                self._full = True
                reported = msgspec.structs.replace(reported, begins=row.revision)
                break
            if before is None or row.at_ns < before.at_ns:
                self._found[alike] = row
        if reported.begins <= self._complete and not self._full:
            self._complete = max(self._complete, reported.revision)
            # Another node may have what the first one lacked.
            if self._gap is not None and self._gap.revision <= self._complete:
                self._gap = None
        elif self._gap is None:
            self._gap = TopologyChange(
                revision=reported.begins,
                at_ns=self._clock.now_ns(),
                node=node,
                kind=TopologyKind.GAP,
            )

    def _write(self, name: str, rows: list[Any], schema: pa.Schema) -> dict[str, str]:
        if not rows:
            return {}
        rows.sort(key=lambda row: (row.revision, row.at_ns))
        table = pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows], schema=schema)
        return write_side_table(self._run.root, name, table, "rebalances were not judged")


def read_changes(root: Path, checksums: dict[str, str]) -> dict[str, pa.Table]:
    """``assignments`` and ``topology`` of the run in ``root``; empty where its manifest names none.

    Raises ``MalformedHistory`` for a file that the manifest names and that is missing or differs.
    """
    return read_summed(root, checksums, {ASSIGNMENTS_FILE: ASSIGNMENTS, TOPOLOGY_FILE: TOPOLOGY})


def _alike(row: Change) -> Change:
    """``row`` without what differs between two nodes that report the same."""
    if isinstance(row, AssignmentChange) and row.kind in OF_LEADERS:
        return row  # each is one of its own, and its node alone reports it
    return msgspec.structs.replace(row, at_ns=0, node="")
