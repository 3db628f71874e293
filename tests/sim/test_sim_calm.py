"""Which operations of a drill count as calm: those that no fault can have touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_lab import drill

from clusters.reference.node.tx.locks import Answer, LockTable
from clusters.reference.node.wire.messages import TxnId
from harness.campaigns.run_stats import run_stats
from harness.history.load import load
from harness.plan.plan import loads as plan_of
from harness.protocols.fault_spans import SETTLED_NS, fault_spans

PLAN = """
seed = 5
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 2
[drive]
duration_s = 14
concurrency = 8
rate_per_s = 60
[[nemesis.schedule]]
kind = "kill"
target = "leader of partition 0"
at_s = 3.0
hold_s = 1.0
"""


def test_an_operation_is_calm_that_met_no_fault_nor_what_one_left(tmp_path: Path) -> None:
    run, manifest = drill(plan_of(PLAN, {}), tmp_path / "run")
    marks, history = dict(manifest.phases), load(run)
    (kill,) = fault_spans(history.faults().to_pylist())
    assert kill.healed_ns is not None
    after_ns = kill.healed_ns + SETTLED_NS
    rows = [
        row
        for row in history.transactions().to_pylist()
        if marks["drive"] <= row["invoke_ns"] and row["complete_ns"] < marks["heal"]
        if row["complete_ns"] < kill.begin_ns or row["invoke_ns"] >= after_ns
    ]

    calm = run_stats(run).calm

    assert calm.operations == len(rows) > 200
    assert calm.ok == sum(row["type"] == "ok" for row in rows)
    conflicts = [row for row in rows if (row["error"] or "").startswith("TX-CONFLICT")]
    assert 0 < calm.conflicts >= len(conflicts)
    assert calm.failures == calm.operations - calm.ok - calm.conflicts


def test_a_store_that_refuses_one_lock_in_seven_serves_less_in_calm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = run_stats(drill(plan_of(PLAN, {}), tmp_path / "usual")[0]).calm
    acquire, asked = LockTable.acquire, [0]

    def mistaken(self: LockTable, txn: TxnId, key: bytes, *, exclusive: bool) -> Answer:
        asked[0] += 1
        return acquire(self, txn, key, exclusive=exclusive) if asked[0] % 7 else Answer.DIED

    monkeypatch.setattr(LockTable, "acquire", mistaken)
    refused = run_stats(drill(plan_of(PLAN, {}), tmp_path / "refused")[0]).calm

    assert refused.ok / refused.operations < usual.ok / usual.operations - 0.1
