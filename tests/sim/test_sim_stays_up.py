"""A whole run in which a node ends by itself, and one in which only faults end nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sim_lab import drill

from checkers.engine.analyze import analyze
from clusters.providers.sim.provider import reference_node
from clusters.reference.node.config import loads
from clusters.reference.node.runtime import Runtime
from harness.errors import HarnessError
from harness.plan.plan import loads as plan_of
from harness.protocols.cluster import Program

PLAN = """
seed = 3
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 2
[drive]
duration_s = 10
concurrency = 4
rate_per_s = 60
[[nemesis.schedule]]
kind = "kill"
target = "n1"
at_s = 1.0
hold_s = 1.0
[[nemesis.schedule]]
kind = "restart"
target = "n3"
at_s = 7.0
hold_s = 1.0
"""


class Frail:
    """The reference node, but the first life of ``n2`` ends 6 s after it began."""

    def __init__(self) -> None:
        self.lives = 0

    async def __call__(self, program: Program, runtime: Runtime) -> None:
        (config,) = (loads(content) for content in program.files.values())
        self.lives += config.node == "n2"
        if config.node != "n2" or self.lives > 1:
            await reference_node(program, runtime)
            return
        life = asyncio.ensure_future(reference_node(program, runtime))
        await asyncio.sleep(6)
        life.cancel()
        raise RuntimeError("index 7 out of range")


def test_a_node_that_ends_by_itself_breaks_a_promise_and_is_started_again_for_the_rest(
    tmp_path: Path,
) -> None:
    run, _ = drill(plan_of(PLAN, {}), tmp_path / "run", Frail())

    found = analyze(run, executor="local")

    assert found.outcome == "violation"
    assert list(found.anomalies) == ["node-exit"]
    (example,) = found.anomalies["node-exit"].examples
    assert "n2 ended without being told to: RuntimeError: index 7 out of range" in example.text


class Stillborn:
    """The reference node, but ``n2`` ends whenever it has begun."""

    async def __call__(self, program: Program, runtime: Runtime) -> None:
        (config,) = (loads(content) for content in program.files.values())
        if config.node == "n2":
            await asyncio.sleep(0.2)
            raise RuntimeError("index 7 out of range")
        await reference_node(program, runtime)


def test_a_node_that_ends_during_set_up_breaks_a_promise_and_leaves_its_last_words(
    tmp_path: Path,
) -> None:
    run, manifest = drill(plan_of(PLAN, {}), tmp_path / "run", Stillborn())

    found = analyze(run, executor="local")

    assert found.outcome == "violation"
    assert list(found.anomalies) == ["node-exit"]
    (example,) = found.anomalies["node-exit"].examples
    assert "n2 ended without being told to: RuntimeError: index 7 out of range" in example.text
    assert [text for text in manifest.trouble if text.startswith("set-up: ") and "n2" in text]
    assert (run.node("n2")).is_dir()


def test_a_cluster_that_never_serves_though_all_nodes_live_is_no_verdict_on_the_store(
    tmp_path: Path,
) -> None:
    async def idle(_program: Program, _runtime: Runtime) -> None:
        await asyncio.Event().wait()

    with pytest.raises(HarnessError, match="not whole"):
        drill(plan_of(PLAN, {}), tmp_path / "run", idle)


def test_ends_by_faults_restarts_and_teardown_break_none(tmp_path: Path) -> None:
    run, _ = drill(plan_of(PLAN, {}), tmp_path / "run")

    found = analyze(run, executor="local")

    assert found.anomalies == {}
    assert found.outcome == "valid", found.reasons
