"""A drill on the virtual loop: the plan, driver, workload, nemesis, client and node of any other
run, with the same course of events every time.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sim_lab import digest, drill

from cli.environment import simulated_history
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider, build
from clusters.reference.system import build as build_system
from harness.errors import HarnessBug, PlanError
from harness.history import chunks
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, loads
from harness.protocols.cluster import Link

PLAN = """
seed = 3
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 2
[drive]
duration_s = 12
concurrency = 4
rate_per_s = 60
[[nemesis.schedule]]
kind = "kill"
target = "leader of partition 0"
at_s = 2.0
hold_s = 2.0
[[nemesis.schedule]]
kind = "partition"
target = "leader of partition 1"
at_s = 7.0
hold_s = 3.0
"""


def plan(text: str = PLAN, **overrides: object) -> Plan:
    return loads(text, {key.replace("__", "."): value for key, value in overrides.items()})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of one run of the plan."""
    return drill(plan(), tmp_path_factory.mktemp("sim") / "run")[0].root


def test_three_nodes_the_real_driver_and_a_nemesis_run_in_virtual_time(tmp_path: Path) -> None:
    run, manifest = drill(plan(), tmp_path / "run")
    types = pq.read_table(run.history / "transactions.parquet")["type"].to_pylist()
    faults = pq.read_table(run.faults).to_pylist()
    events = set(pq.read_table(run.events)["kind"].to_pylist())

    assert (manifest.state, manifest.trouble) == ("sealed", ())
    assert types.count("ok") > 100
    assert [(fault["kind"], fault["state"]) for fault in faults] == [
        ("kill", "healed"),
        ("partition", "healed"),
    ]
    assert {"node-started", "leader-elected", "leader-lost"} <= events
    assert "leader-elected" in (run.node("n1") / "node.log").read_text()


def test_the_same_seed_is_the_same_history_byte_for_byte(root: Path, tmp_path: Path) -> None:
    again, _ = drill(plan(), tmp_path / "again")
    other, _ = drill(plan(seed=4), tmp_path / "other")
    first = digest(RunDirectory(root))

    assert digest(again) == first
    assert digest(other) != first


def test_a_history_of_many_chunks_is_the_same_history(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(chunks, "sync_directory", synced.append)
    small = partial(simulated_history, chunk_bytes=1 << 14)
    many, manifest = drill(plan(), tmp_path / "many", open_history=small)

    assert len(synced) > 5  # once a chunk
    assert manifest.state == "sealed"
    assert digest(many) == digest(RunDirectory(root))


def test_it_does_not_depend_on_the_hash_seed_of_the_interpreter(root: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sim_lab import digest, drill; "
        "from harness.plan.plan import loads; "
        "print(digest(drill(loads(sys.argv[1]), Path(sys.argv[2]))[0]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, PLAN, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=True,
    )
    assert done.stdout.strip() == digest(RunDirectory(root))


def test_a_leader_that_speaks_but_hears_nobody_gives_way() -> None:
    names = ("n1", "n2", "n3")

    async def main() -> tuple[str, str, dict[Link, bool]]:
        loop = asyncio.get_running_loop()
        provider = SimProvider(seed=1)
        system = build_system({"partitions": 1}, names, 1, network=provider.client_network)
        cluster = await provider.provision(names, system.ports)
        for name in names:
            await provider.install(name, system.program(name, cluster))
        await system.set_up(cluster, provider, loop.time() + 30.0)
        first = (await system.roles(cluster)).leaders[0]
        deaf = tuple(sorted((name, first) for name in names if name != first))
        await provider.cut(deaf)
        links = await provider.probe_links((deaf[0], deaf[0][::-1]))
        await asyncio.sleep(5.0)
        second = (await system.roles(cluster)).leaders[0]
        await provider.cut(())
        await system.recover(cluster, provider, loop.time() + 30.0)
        await provider.teardown()
        return first, second, links

    first, second, links = simulate(main(), horizon_s=120.0)

    assert first != second
    assert sorted(links.values()) == [False, True]


def test_the_provider_needs_a_virtual_loop() -> None:
    async def main() -> None:
        provider = SimProvider(seed=1)
        with pytest.raises(HarnessBug, match="needs a SimLoop"):
            await provider.provision(("n1",), ())

    asyncio.run(main())


def test_an_option_that_the_provider_does_not_know_is_refused(tmp_path: Path) -> None:
    assert build("run", {"seed": 7}, tmp_path).name == "sim"
    with pytest.raises(PlanError, match=r"cluster\.options"):
        build("run", {"sead": 7}, tmp_path)
