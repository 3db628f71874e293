"""Members of a cluster change on real containers: join, wipe, replace, leave, other attributes."""

from __future__ import annotations

from pathlib import Path

import docker
import pyarrow.parquet as pq
import pytest

from checkers.engine.analyze import analyze
from cli.wiring import run_plan
from harness.exit_codes import Outcome
from harness.history.load import load as load_run
from harness.plan.plan import load
from harness.run.progress import Silent
from harness.run.stop import Stop

pytestmark = [pytest.mark.docker, pytest.mark.slow]
SCENARIO = Path(__file__).parents[2] / "scenarios" / "reference" / "members.toml"


def test_members_of_a_cluster_of_containers_change_and_lose_nothing(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    plan = load(SCENARIO, {"cluster.provider": "docker"})
    run = run_plan(plan, tmp_path, Silent(), Stop())
    result = analyze(run, executor="local")

    assert result.outcome is Outcome.VALID, result
    recorded = load_run(run)
    joined, wiped, replaced, left, announced = recorded.faults().to_pylist()
    for row in (joined, wiped, replaced, left, announced):
        assert row["state"] == "healed", row
    assert joined["proof"] == "n5 joined; members are n1, n2, n3, n4, n5"
    assert wiped["proof"] == f"0 bytes are on the disk of {wiped['nodes'][0]}, which does not run"
    assert "metastorage leader" in wiped["roles"]
    assert replaced["nodes"] == ["n4", "n6"]
    assert "leader of partition 0" in left["roles"]
    assert announced["proof"] == "announced by n5 (away)"
    # Whole replicas at the end, on members alone.
    states = pq.read_table(run.root / "states.parquet").to_pylist()
    final = {row["node"] for row in states if row["final"]}
    assert final == {"n1", "n2", "n3", "n5", "n6"}
