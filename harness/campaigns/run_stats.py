"""Reads the figures of a sealed run: its load, and the targets of its faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.campaigns.cell import CalmCounts, RunStats
from harness.campaigns.marker_counts import read_markers
from harness.clock import NS_PER_S
from harness.history.load import History, load
from harness.history.records import EventKind, OpType
from harness.history.run_directory import RunDirectory
from harness.protocols.changes import LINKS_APART, AssignmentKind, TopologyKind
from harness.protocols.conflicts import conflicts
from harness.protocols.fault_kinds import FULL_RESTART
from harness.protocols.fault_spans import fault_spans, in_calm
from harness.protocols.roles import classes, parsed
from harness.run.change_recorder import read_changes

NO_ROLE = "no role"  # of a target that held none
CHANGES_OF_TOPOLOGY = (TopologyKind.LOGICAL, TopologyKind.ZONE, TopologyKind.ELIGIBLE)


def run_stats(run: RunDirectory) -> RunStats:
    """Read the tables of the sealed ``run``."""
    history = load(run)
    transactions = history.transactions()
    types = Counter(transactions["type"].to_pylist())
    gave_way = pc.sum(conflicts(history.manifest.declaration, transactions)).as_py() or 0
    faults, events = history.faults().to_pylist(), history.events()
    changes, under_load = _changes(history, transactions, events)
    restarts = _full_restarts(run, history, faults)
    end_ns = max((at_ns for _, at_ns in history.manifest.phases), default=0)
    return RunStats(
        ok=types["ok"],
        conflicts=gave_way,
        fail=types["fail"] - gave_way,
        info=types["info"],
        changes=changes,
        open_changes=under_load,
        tried=tuple(sorted({row["kind"] for row in faults})),
        hits=_hits(faults),
        markers=read_markers(run),
        topology_changes=_topology_changes(run, history),
        full_restarts=len(restarts),
        chained_restarts=sum(restarts),
        start_decisions=_start_decisions(events),
        calm=_calm(history, transactions, faults),
        simulated_s=round(end_ns / NS_PER_S, 3),
    )


def _calm(history: History, transactions: pa.Table, faults: list[dict[str, Any]]) -> CalmCounts:
    """Count the operations of the drive that no fault can have touched."""
    begun, ended = (transactions[name].to_numpy() for name in ("invoke_ns", "complete_ns"))
    calm = in_calm(begun, ended, fault_spans(faults), dict(history.manifest.phases))
    some = transactions.filter(pa.array(calm))
    ok = pc.equal(some["type"].cast(pa.string()), OpType.OK.value)
    gave_way = conflicts(history.manifest.declaration, some)
    counts = [pc.sum(column).as_py() or 0 for column in (ok, gave_way)]
    return CalmCounts(ok=counts[0], conflicts=counts[1], failures=some.num_rows - sum(counts))


def _hits(faults: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the faults that were proven effective, by kind and role of their target."""
    hits: dict[str, dict[str, int]] = {}
    for row in faults:
        if row["effective_ns"] is not None:
            of_kind = hits.setdefault(row["kind"], {})
            for role in classes(parsed(row["roles"])) or (NO_ROLE,):
                of_kind[role] = of_kind.get(role, 0) + 1
    return hits


def _full_restarts(run: RunDirectory, history: History, faults: list[dict[str, Any]]) -> list[bool]:
    """Tell of each full restart that was proven effective whether the chain of assignments of any
    partition had several links as it began.
    """
    begun = [
        row["injecting_ns"]
        for row in faults
        if row["kind"] == FULL_RESTART.name and row["effective_ns"] is not None
    ]
    if not begun:
        return []
    table = read_changes(run.root, history.manifest.checksums)["assignments"]
    chains = table.filter(pc.equal(table["kind"], AssignmentKind.CHAIN.value))
    rows = chains.select(["revision", "at_ns", "partition", "text"]).sort_by("revision").to_pylist()
    found = list[bool]()
    for at_ns in begun:
        last = {row["partition"]: row["text"] for row in rows if row["at_ns"] <= at_ns}
        found.append(any(LINKS_APART in text for text in last.values()))
    return found


def _topology_changes(run: RunDirectory, history: History) -> int:
    """Count the revisions of the drive by which nodes joined, left, or came to pass a filter or
    not, or a zone was altered.
    """
    marks = dict(history.manifest.phases)
    table = read_changes(run.root, history.manifest.checksums)["topology"]
    inside = pc.and_(
        pc.greater_equal(table["at_ns"], marks.get("drive", 0)),
        pc.less(table["at_ns"], marks.get("heal", 0)),
    )
    kinds = pa.array([kind.value for kind in CHANGES_OF_TOPOLOGY])
    changed = pc.and_(inside, pc.is_in(table["kind"], value_set=kinds))
    return int(pc.count_distinct(table.filter(changed)["revision"]).as_py())


def _start_decisions(events: pa.Table) -> dict[str, int]:
    """Count what nodes told that they did with their copies, by outcome."""
    texts = events.filter(pc.equal(events["kind"], EventKind.START_DECISION.value))["text"]
    outcomes = Counter(text.partition(",")[0] for text in texts.to_pylist())
    return dict(sorted(outcomes.items()))


def _changes(history: History, transactions: pa.Table, events: pa.Table) -> tuple[int, int]:
    """Count the primaries that moved to another node between drive and heal; and those of them that
    moved while a transaction on their partition was open.
    """
    marks = dict(history.manifest.phases)
    begin_ns, end_ns = marks.get("drive", 0), marks.get("heal", 0)
    moved = [(p, at) for p, at in _moves(events) if begin_ns <= at <= end_ns]
    if not moved:
        return 0, 0
    touched = history.micro_ops().select(["txn", "partition"])
    invoked = transactions["invoke_ns"].to_numpy()
    completed = transactions["complete_ns"].to_numpy()
    under_load = 0
    for partition, at_ns in moved:
        txns = touched.filter(pc.equal(touched["partition"], partition))["txn"].to_numpy()
        under_load += bool(np.any((invoked[txns] < at_ns) & (completed[txns] > at_ns)))
    return len(moved), under_load


def _moves(events: pa.Table) -> list[tuple[int, int]]:
    """Return (partition, time) of every primary that is not on the node of the one before it."""
    holder: dict[int, str] = {}
    moves = []
    granted = events.filter(pc.equal(events["kind"], EventKind.LEASE_GRANTED.value))
    for row in granted.select(["partition", "node", "at_ns"]).to_pylist():
        partition = row["partition"]
        if partition is None:  # the lease of a node
            continue
        # The first grant is no move: there is no holder before it to compare with.
        if holder.get(partition, row["node"]) != row["node"]:
            moves.append((partition, row["at_ns"]))
        holder[partition] = row["node"]
    return moves
