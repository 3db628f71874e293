"""Nothing that a node wrote into its log before it was killed is missing in the history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from sim_lab import drill

from clusters.reference.event_feed import EventFeed
from clusters.reference.node.events import parse_line
from harness.history.load import load
from harness.plan.plan import loads as plan_of

PLAN = """
seed = 5
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 2
[drive]
duration_s = 4
concurrency = 4
rate_per_s = 40
[[nemesis.schedule]]
kind = "kill"
target = "n1"
at_s = 1.0
hold_s = 0.1
[[nemesis.schedule]]
kind = "kill"
target = "n1"
at_s = 1.4
hold_s = 0.1
[[nemesis.schedule]]
kind = "kill"
target = "n1"
at_s = 1.8
hold_s = 0.1
[[nemesis.schedule]]
kind = "kill"
target = "n1"
at_s = 2.2
hold_s = 0.1
[[nemesis.schedule]]
kind = "kill"
target = "n1"
at_s = 2.6
hold_s = 0.1
"""


def missing_events(root: Path) -> list[str]:
    """Lines of events in the nodes' logs that are not in the history exactly once."""
    run, manifest = drill(plan_of(PLAN), root)
    assert not manifest.trouble
    recorded = Counter(
        (row["node"], row["boot"], row["wall_ns"], row["kind"], row["partition"])
        for row in load(run).events().to_pylist()
    )
    found, missing = 0, []
    for node in ("n1", "n2", "n3"):
        for line in (run.node(node) / "node.log").read_text().splitlines():
            event = parse_line(line)
            if event is None:
                continue
            found += 1
            if recorded[(node, event.boot, event.wall_ns, event.kind, event.partition)] != 1:
                missing.append(line)
    assert found > 20
    return missing


def test_every_event_in_the_logs_of_killed_nodes_is_in_the_history_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_events(tmp_path / "with the logs") == []

    monkeypatch.setattr(EventFeed, "read", lambda *_: [])
    missing = missing_events(tmp_path / "without the logs")
    assert any("node-started" in line for line in missing), missing


def test_a_killed_node_does_not_say_that_it_stops(tmp_path: Path) -> None:
    run, _ = drill(plan_of(PLAN), tmp_path / "run")

    kinds = Counter(row["kind"] for row in load(run).events().to_pylist() if row["node"] == "n1")
    assert kinds["node-started"] == 6
    assert kinds["node-stopped"] == 0
