"""Faults of disks and clocks on the reference store: proven, healed, and never too many at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sim_lab import drill

from harness.errors import PlanError
from harness.plan.plan import Plan, loads
from nemesis.clock_faults import clock_fast
from nemesis.disk_faults import bit_flip, disk_slow, wipe

NODES = ("n1", "n2", "n3")


def plan(*faults: tuple[str, str, float, float]) -> Plan:
    rows = "".join(
        f'[[nemesis.schedule]]\nkind = "{kind}"\ntarget = "{target}"\n'
        f"at_s = {at}\nhold_s = {hold}\n"
        for kind, target, at, hold in faults
    )
    head = 'seed = 5\n[cluster]\nprovider = "sim"\nnodes = 3\n[system]\npartitions = 2\n'
    drive = "[drive]\nduration_s = 11\nconcurrency = 4\nrate_per_s = 20\n"
    return loads(head + drive + rows)


def faults_of(root: Path, *faults: tuple[str, str, float, float]) -> list[dict[str, Any]]:
    run, manifest = drill(plan(*faults), root)
    assert manifest.trouble == ()
    rows: list[dict[str, Any]] = pq.read_table(run.faults).to_pylist()
    return rows


def test_each_kind_is_proven_on_a_disk_or_a_clock_and_healed(tmp_path: Path) -> None:
    rows = faults_of(
        tmp_path / "run",
        ("disk-slow", "n1 at 80 ms", 0.5, 1.0),
        ("clock-jump", "n2 at 3000 ms", 0.5, 1.0),
        ("clock-slow", "n3 at 1.5 %", 0.5, 1.0),
        ("disk-full", "leader of partition 0", 3.0, 1.0),
        ("bit-flip", "leader of partition 1", 5.5, 1.0),
    )

    assert {row["kind"]: row["state"] for row in rows} == dict.fromkeys(
        ("disk-slow", "clock-jump", "clock-slow", "disk-full", "bit-flip"), "healed"
    )
    proofs = {row["kind"]: row["proof"] for row in rows}
    assert "no space left" in proofs["disk-full"]
    assert "gains -1.50 %" in proofs["clock-slow"]
    assert "n2 is 3.0" in proofs["clock-jump"]
    assert "1 bits on" in proofs["bit-flip"]


def test_a_disk_a_clock_a_link_and_a_program_of_one_node_fail_together(tmp_path: Path) -> None:
    rows = faults_of(
        tmp_path / "run",
        ("clock-jump", "n1 at 3000 ms", 0.5, 4.0),
        ("disk-slow", "n1 at 80 ms", 0.8, 2.0),
        ("partition", "n1", 1.0, 4.0),
        ("kill", "n1", 1.5, 2.5),
    )

    assert [row["state"] for row in rows] == ["healed"] * 4
    begun = max(row["effective_ns"] for row in rows)
    assert begun < min(row["healing_ns"] for row in rows)
    clock, disk, links, program = rows
    # Each is healed by itself, while others still hold the node.
    assert disk["healed_ns"] < program["healing_ns"]
    assert "n1 is under another fault" in disk["heal_proof"]
    assert program["healed_ns"] < clock["healing_ns"] < links["healing_ns"]


def test_a_disk_is_not_destroyed_while_it_would_take_the_majority_along(tmp_path: Path) -> None:
    down, wiped = faults_of(tmp_path / "run", ("kill", "n1", 1.0, 2.0), ("wipe", "n2", 1.5, 0.5))

    assert wiped["nodes"] == ["n2"]
    assert down["healed_ns"] < wiped["injected_ns"]
    assert wiped["state"] == "healed"
    assert "0 bytes are on the disk of n2" in wiped["proof"]


def test_two_that_destroy_at_the_same_moment_never_take_a_majority_together(
    tmp_path: Path,
) -> None:
    rows = faults_of(tmp_path / "run", ("wipe", "n1", 1.0, 0.5), ("wipe", "n2", 1.0, 0.5))

    first, second = sorted(rows, key=lambda row: int(row["injected_ns"]))
    assert [row["state"] for row in rows] == ["healed", "healed"]
    assert first["healed_ns"] < second["injected_ns"]


@pytest.mark.parametrize("target", ["half", "first half", "minority", "metastorage leader", "n1"])
def test_what_destroys_may_strike_who_is_no_majority(target: str) -> None:
    wipe().check(target, ("n1", "n2", "n3", "n4", "n5"), 2, "here")
    disk_slow().check("majority", NODES, 2, "here")


@pytest.mark.parametrize(
    ("fault", "target", "said"),
    [
        (disk_slow(), "n1 at 30 %", "a strength in ms"),
        (clock_fast(), "n1 at 30 ms", "a strength in %"),
        (wipe(), "n1 at 30 ms", "no strength"),
        (bit_flip(), "n9", "nodes of this cluster"),
        (wipe(), "majority", "target of wipe must leave a majority whole"),
        (wipe(), "all", "no store survives the loss of one"),
        (bit_flip(), "majority of partition 0", "must leave a majority whole"),
        (bit_flip(), "its majority", "must leave a majority whole"),
        (wipe(), "n1,n2", "must leave a majority whole"),
    ],
)
def test_a_target_that_a_kind_can_not_have_is_refused(fault: Any, target: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        fault.check(target, NODES, 2, "here")
