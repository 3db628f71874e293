"""The data of a page about a run: everything in its directory, read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.errors import PlanError
from harness.history.due_faults import schedule_rows
from harness.history.load import History, load
from harness.history.records import OpType
from harness.history.regular_files import is_regular
from harness.history.run_directory import Manifest, Origin, RunDirectory
from harness.history.schema import split_of
from harness.plan import planfile
from harness.protocols.conflicts import conflicts
from harness.protocols.fault_spans import fault_spans
from harness.protocols.verdict import Verdict, read_verdict
from harness.run.node_usage import read_usage
from results.drawing import series
from results.drawing.axis import PLACES, SECONDS, Scale, scale_of
from results.drawing.lanes import Window
from results.drawing.operation_texts import key_names
from results.drawing.partitions import Touches
from results.drawing.series import Outcomes
from results.report.missed import MissedWrite, first_missed

FILES_MAX = 12  # of one node's directory, listed
NODES_MAX = 256


@attrs.frozen(kw_only=True)
class NodeFiles:
    """A node and the files that were collected from it, relative to the run directory."""

    name: str
    files: tuple[tuple[str, int], ...]
    more: int = 0


@attrs.frozen(kw_only=True, eq=False)
class RunData:
    """A run as read from its directory. ``verdict`` is ``None`` before the first analysis;
    ``diagram`` is the file's name, empty where no trace was drawn.
    """

    run: RunDirectory
    history: History
    verdict: Verdict | None
    plan_text: str
    plan: dict[str, Any]
    transactions: pa.Table
    faults: list[dict[str, Any]]
    events: pa.Table
    nodes: tuple[NodeFiles, ...]
    key_names: dict[int, str]
    scale: Scale
    usage: pa.Table
    diagram: str

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        return self.history.manifest

    @property
    def planned_faults(self) -> list[Any]:
        """The faults of the plan that drove the run, as the plan has them."""
        return schedule_rows(self.plan) if self.history.planned else []

    @property
    def origin(self) -> Origin | None:
        """The file that the history was imported from; ``None`` for a run of ours."""
        found = self.manifest.origin
        return None if isinstance(found, msgspec.UnsetType) else found

    def windows(self) -> list[Window]:
        """Return every fault that was injected, as ``fault_spans`` gives it; to the end of the run
        where it was never healed. In the order of their start.
        """
        last_ns = self.last_ns
        return [
            Window(
                number=span.fault,
                label=f"{span.kind} {' '.join(span.nodes or (span.target,))}",
                start=span.begin_ns,
                end=span.end_ns(last_ns),
                unsure=span.unsure(last_ns),
            )
            for span in fault_spans(self.faults)
        ]

    @cached_property
    def gave_way(self) -> pa.ChunkedArray:
        """Which transactions were refused since they met another, a mask of them all."""
        return conflicts(self.manifest.declaration, self.transactions)

    @cached_property
    def outcomes(self) -> Mapping[OpType, Outcomes]:
        """The transactions by type, without those that gave way."""
        return series.by_type(self.transactions, without=self.gave_way)

    @cached_property
    def conflicts(self) -> Outcomes:
        """The transactions that gave way."""
        return series.chosen(self.transactions, self.gave_way)

    @property
    def last_ns(self) -> int:
        """The end of the run: its last phase, or its last operation."""
        ends = [at_ns for _, at_ns in self.manifest.phases]
        # The maximum of an empty table is null.
        return max([*ends, pc.max(self.transactions["complete_ns"]).as_py() or 0])

    def operations(self, txns: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Return the transactions ``txns`` as rows, each with ``ops``: its micro-operations in
        order. Reads every split once, so a caller should ask for all transactions together.
        """
        wanted = pa.array(sorted(set(txns)), pa.int64())
        chosen = pc.is_in(self.transactions["txn"], value_set=wanted)
        found = {
            row["txn"]: row | {"ops": []} for row in self.transactions.filter(chosen).to_pylist()
        }
        for split in range(self.manifest.splits if found else 0):
            table = self.history.micro_ops(split)
            for step in table.filter(pc.is_in(table["txn"], value_set=wanted)).to_pylist():
                found[step["txn"]]["ops"].append(step)
        for row in found.values():
            row["ops"].sort(key=lambda step: step["pos"])
        return found

    def on_key(self, key: int) -> list[dict[str, Any]]:
        """Return the transactions that touched ``key``, in the order of invocation, each with
        ``ops``: its micro-operations on that key. Reads the key's split.
        """
        table = self.history.micro_ops(split_of(key, self.manifest.splits))
        steps = table.filter(pc.equal(table["key"], key)).to_pylist()
        ops: dict[int, list[dict[str, Any]]] = {}
        for step in sorted(steps, key=lambda step: (step["txn"], step["pos"])):
            ops.setdefault(step["txn"], []).append(step)
        chosen = pc.is_in(self.transactions["txn"], value_set=pa.array(ops, pa.int64()))
        rows = self.transactions.filter(chosen).to_pylist()
        return [row | {"ops": ops[row["txn"]]} for row in rows]

    def touches(self) -> Touches:
        """Return which transactions touched which partitions, without those that gave way to
        another; nothing where partitions are unknown.
        """
        found: list[tuple[Any, Any]] = []
        for split in range(self.manifest.splits):
            table = self.history.micro_ops(split).select(["txn", "partition"])
            table = table.filter(pc.is_valid(table["partition"]))
            found.append((table["txn"].to_numpy(), table["partition"].to_numpy()))
        txn, partition = (np.concatenate(columns) for columns in zip(*found, strict=True))
        pairs = np.unique(np.stack([txn.astype(np.int64), partition.astype(np.int64)]), axis=1)
        pairs = pairs[:, ~self.gave_way.to_numpy()[pairs[0]]]
        rows = self.transactions.take(pa.array(pairs[0]))
        return Touches(
            partition=pairs[1],
            begun_s=rows["invoke_ns"].to_numpy() / NS_PER_S,
            ended_s=rows["complete_ns"].to_numpy() / NS_PER_S,
            ok=np.asarray(pc.equal(rows["type"].cast(pa.string()), OpType.OK.value)),
        )

    def missed(self, key: int, reader: int | None = None) -> MissedWrite | None:
        """Return the first transaction (or ``reader`` alone) that missed an acknowledged write of
        the register ``key``. Reads the key's split.
        """
        table = self.history.micro_ops(split_of(key, self.manifest.splits))
        steps = table.filter(pc.equal(table["key"], key))
        chosen = pc.is_in(self.transactions["txn"], value_set=steps["txn"].combine_chunks())
        columns = ["txn", "type", "invoke_index", "complete_index"]
        rows = self.transactions.filter(chosen).select(columns).to_pylist()
        return first_missed(key, steps.to_pylist(), {row["txn"]: row for row in rows}, reader)


def gather(run: RunDirectory) -> RunData:
    """Read ``run``. Raises ``MalformedHistory`` for a directory without a sealed or recovered
    history, and ``PlanError`` where its plan is no text.
    """
    history = load(run)
    plan_text = planfile.read_text(run.plan) if history.planned else ""
    transactions = history.transactions()
    return RunData(
        run=run,
        history=history,
        verdict=read_verdict(run),
        plan_text=plan_text,
        plan=_plan(plan_text),
        transactions=transactions,
        faults=history.faults().to_pylist(),
        events=history.events(),
        nodes=_nodes(run),
        key_names=key_names(run, history.manifest),
        scale=_scale(history.manifest, transactions),
        usage=read_usage(run, history.manifest),
        diagram=run.diagram.name if is_regular(run.diagram) else "",
    )


def _scale(manifest: Manifest, transactions: pa.Table) -> Scale:
    """Return the unit of this history's times: seconds where a run of ours made them."""
    origin = manifest.origin
    if isinstance(origin, msgspec.UnsetType) or not transactions.num_rows:
        return SECONDS
    if not origin.real_time:
        return PLACES
    first, last = pc.min(transactions["invoke_ns"]), pc.max(transactions["complete_ns"])
    return scale_of(last.as_py() - first.as_py())


def _plan(text: str) -> dict[str, Any]:
    try:
        return planfile.parse(text, "plan")
    except PlanError:
        return {}


def _nodes(run: RunDirectory) -> tuple[NodeFiles, ...]:
    parent = run.node("any").parent
    if not parent.is_dir():
        return ()
    found = []
    for directory in sorted(path for path in parent.iterdir() if path.is_dir())[:NODES_MAX]:
        # Deeper files are not logs: code, data.
        files = sorted(path for path in directory.iterdir() if is_regular(path))
        listed = tuple(
            (path.relative_to(run.root).as_posix(), path.lstat().st_size)
            for path in files[:FILES_MAX]
        )
        found.append(
            NodeFiles(name=directory.name, files=listed, more=max(0, len(files) - FILES_MAX))
        )
    return tuple(found)
