"""Changes of assignments and topology are written down while a run lives, one row a change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from sim_lab import drill

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import wall_ns
from clusters.reference.node.wire.reports import ChangeReport, ChangeRow
from clusters.reference.system import ReferenceSystem, build
from harness.clock import NS_PER_S, RunClock
from harness.errors import MalformedHistory
from harness.history.load import load as load_run
from harness.history.run_directory import RunDirectory
from harness.plan.plan import loads
from harness.protocols.changes import (
    AssignmentChange,
    AssignmentKind,
    ReportedChanges,
    TellsChanges,
    TopologyChange,
    TopologyKind,
)
from harness.protocols.cluster import Cluster
from harness.protocols.faults import PlannedFault
from harness.run import change_recorder
from harness.run.change_recorder import ChangeLog, read_changes

CLUSTER = Cluster(nodes=("n1", "n2"), bind={}, peer={}, client={}, work_dir={})
STABLE = AssignmentChange(
    revision=3,
    at_ns=9,
    node="n1",
    partition=0,
    table="T",
    zone="Z",
    kind=AssignmentKind.STABLE,
    nodes=("n1",),
)
LOGICAL = TopologyChange(
    revision=2, at_ns=5, node="n2", kind=TopologyKind.LOGICAL, nodes=("n1", "n2")
)
ZONED = """
seed = 5
[cluster]
provider = "sim"
nodes = 4
[system]
partitions = 2
system_nodes = 3
[drive]
duration_s = 5
concurrency = 2
rate_per_s = 20
"""


class Store:
    """``TellsChanges``: each node's answers, in their order."""

    def __init__(self, **answers: list[ReportedChanges]) -> None:
        self._answers = answers

    async def changes(self, cluster: Cluster, node: str, clock: RunClock) -> ReportedChanges | None:
        waiting = self._answers.get(node)
        return waiting.pop(0) if waiting else None


def recorded(root: Path, store: Store, fetches: int = 2) -> dict[str, list[dict[str, object]]]:
    """The rows of both tables after so many questions to all nodes."""
    root.mkdir(exist_ok=True)

    async def main() -> dict[str, str]:
        clock = RunClock(asyncio.get_running_loop(), wall_ns)
        log = ChangeLog(RunDirectory(root), store, clock)
        for _ in range(fetches):
            await log.fetch(CLUSTER)
        return log.close()

    tables = read_changes(root, simulate(main()))
    return {name: table.to_pylist() for name, table in tables.items()}


def test_a_store_that_tells_changes_is_known_by_what_it_can() -> None:
    assert isinstance(Store(), TellsChanges)
    assert not isinstance(object(), TellsChanges)


def test_what_nodes_report_alike_is_one_row_at_the_earliest_time(tmp_path: Path) -> None:
    later = replace(STABLE, node="n2", at_ns=7)
    store = Store(
        n1=[ReportedChanges(begins=0, revision=3, assignments=(STABLE,), topology=(LOGICAL,))],
        n2=[ReportedChanges(begins=0, revision=3, assignments=(later,))],
    )
    found = recorded(tmp_path, store)

    assert [(row["revision"], row["node"], row["at_ns"]) for row in found["assignments"]] == [
        (3, "n2", 7)
    ]
    assert [row["kind"] for row in found["topology"]] == ["logical"]


def test_a_change_is_never_put_before_it_happened_by_an_answer_that_was_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node applies it, and answers at once, 1 s after the question; that takes 1 s as well."""
    row = ChangeRow(seq=1, revision=2, age_us=0, kind="logical", nodes=("n1",))
    report = ChangeReport(boot="b", begins=0, revision=2, cursor=1, rows=(row,))

    async def held_up(*_: object) -> ChangeReport:
        await asyncio.sleep(2.0)
        return report

    monkeypatch.setattr(ReferenceSystem, "_ask", held_up)

    async def main() -> tuple[int, int]:
        clock = RunClock(asyncio.get_running_loop(), wall_ns)
        applied_ns = clock.now_ns() + NS_PER_S
        found = await build({}, ("n1", "n2"), 1).changes(CLUSTER, "n1", clock)
        assert found is not None
        return applied_ns, found.topology[0].at_ns

    applied_ns, told_ns = simulate(main())
    assert applied_ns < told_ns <= applied_ns + NS_PER_S


def test_two_nodes_that_disagree_about_a_revision_are_both_written_down(tmp_path: Path) -> None:
    other = replace(STABLE, node="n2", nodes=("n2",))
    store = Store(
        n1=[ReportedChanges(begins=0, revision=3, assignments=(STABLE,))],
        n2=[ReportedChanges(begins=0, revision=3, assignments=(other,))],
    )

    found = recorded(tmp_path, store)["assignments"]
    assert [row["nodes"] for row in found] == [["n1"], ["n2"]]


@pytest.mark.parametrize(("fills", "kinds"), [(False, ["gap"]), (True, [])])
def test_revisions_that_no_node_reported_are_a_gap(
    fills: bool, kinds: list[str], tmp_path: Path
) -> None:
    whole = ReportedChanges(begins=0, revision=8)
    store = Store(
        n1=[ReportedChanges(begins=0, revision=3), ReportedChanges(begins=7, revision=9)],
        n2=[whole] if fills else [],
    )

    assert [row["kind"] for row in recorded(tmp_path, store)["topology"]] == kinds


def test_a_drill_writes_every_change_down_and_its_manifest_vouches_for_it(tmp_path: Path) -> None:
    plan = loads(ZONED)
    statements = {"statements": ["ALTER ZONE drill SET REPLICAS = 1"]}
    fault = PlannedFault(at_s=1.0, kind="ddl", target="all", hold_s=0.5, options=statements)
    run, manifest = drill(
        replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=(fault,))), tmp_path / "run"
    )
    tables = read_changes(run.root, manifest.checksums)

    rows = [row for row in tables["assignments"].to_pylist() if row["partition"] == 0]
    written = [(row["kind"], len(row["nodes"] or ())) for row in rows]
    # The first assignments; then the trigger, its change of peers, and what became of it.
    assert written[:2] == [("stable", 3), ("trigger", 0)]
    asked = {("pending", 1), ("planned", 0), ("trigger", 0), ("change-peers", 1)}
    assert set(written[2:6]) == asked
    assert set(written[6:]) == {("stable", 1), ("pending", 0), ("planned", 0)}
    assert {row["table"] for row in rows} == {"ITEMS"}
    topology = {row["kind"]: row for row in tables["topology"].to_pylist()}
    assert topology.keys() == {"physical", "logical", "zone", "eligible", "data-nodes"}
    assert topology["data-nodes"]["nodes"] == ["n1", "n2", "n3", "n4"]
    assert topology["zone"]["replicas"] == 1
    assert (topology["zone"]["up_s"], topology["zone"]["down_s"]) == (0.0, float("inf"))
    for name in ("assignments.parquet", "topology.parquet"):
        path = run.root / name
        assert pq.read_metadata(path).num_rows
        sealed = path.read_bytes()
        path.write_bytes(sealed[:-1] + b"x")
        with pytest.raises(MalformedHistory, match=name):
            read_changes(run.root, manifest.checksums)
        path.write_bytes(sealed)
    load_run(run)  # the history itself needs neither


def test_rows_beyond_the_limit_are_a_gap_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_recorder, "MAX_ROWS", 2)
    # What was dropped is older than what another node has reported up to.
    of_leader = replace(STABLE, node="n2", kind=AssignmentKind.CANCEL, revision=1)
    store = Store(
        n1=[
            ReportedChanges(begins=0, revision=9, assignments=(STABLE,), topology=(LOGICAL,)),
            ReportedChanges(begins=9, revision=10),
        ],
        n2=[ReportedChanges(begins=0, revision=9, assignments=(of_leader,))],
    )

    found = recorded(tmp_path, store)

    assert [row["kind"] for row in found["topology"]].count(TopologyKind.GAP) == 1
    assert len(found["assignments"]) + len(found["topology"]) == 3
