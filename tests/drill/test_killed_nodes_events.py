"""Nodes are killed faster than anybody asks them for their events: their logs tell the rest."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clusters.reference.node.events import parse_line

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUN_LIMIT_S = 150
KILLS_S = tuple(1.0 + 1.5 * number for number in range(5))


@pytest.mark.slow
def test_every_event_in_the_logs_of_killed_processes_is_in_the_history_once(tmp_path: Path) -> None:
    kills = [f"--schedule={at_s}:kill:n1:0.1" for at_s in KILLS_S]
    command = (
        *(FIREDRILL, "run", "--provider", "process", "--nodes", "3", "--executor", "local"),
        *("--duration", "10", "--seed", "5", "--no-report", "--runs-dir", tmp_path, *kills),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    assert done.returncode in (0, 2), done.stderr

    rows = pq.read_table(tmp_path / "latest" / "events.parquet").to_pylist()
    recorded = Counter(
        (r["node"], r["boot"], r["wall_ns"], r["kind"], r["partition"]) for r in rows
    )
    logged = [
        (node, event.boot, event.wall_ns, event.kind, event.partition)
        for node in ("n1", "n2", "n3")
        for line in (tmp_path / "latest" / "nodes" / node / "node.log").read_text().splitlines()
        if (event := parse_line(line)) is not None
    ]
    assert len({boot for node, boot, *_ in logged if node == "n1"}) > 3
    assert [recorded[event] for event in logged] == [1] * len(logged)
    # One clock on one machine: whoever told of an event, its place differs by what is admitted.
    best = min(rows, key=lambda row: row["uncertainty_ns"])
    for row in rows:
        if row["boot"]:
            apart_ns = (row["at_ns"] - best["at_ns"]) - (row["wall_ns"] - best["wall_ns"])
            assert abs(apart_ns) <= row["uncertainty_ns"] + best["uncertainty_ns"]
