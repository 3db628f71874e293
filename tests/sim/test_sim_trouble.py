"""What goes wrong around a run on the virtual loop stands in its manifest: it never passes for a
whole one.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sim_lab
from sim_lab import drill

from clusters.providers.sim import provider as sim_provider
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.client import ReferenceClient
from clusters.reference.system import ReferenceSystem
from harness.clock import NS_PER_S, RunClock
from harness.errors import HarnessError
from harness.history.manifest import read_manifest
from harness.history.records import StoreEvent
from harness.history.run_directory import Manifest, RunDirectory
from harness.plan.plan import loads
from harness.protocols.client import StoreError
from harness.protocols.cluster import Cluster, NodeStatus
from harness.protocols.faults import Scene
from harness.protocols.replica_states import ReplicaState
from harness.run.node_usage import NodeUsage, read_usage
from harness.run.state_log import read_states
from nemesis.runner import Nemesis

PLAN = loads("""
seed = 5
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 1
[drive]
duration_s = 4
concurrency = 2
rate_per_s = 20
[nemesis]
mix = []
""")


def test_a_quiet_run_has_no_trouble(tmp_path: Path) -> None:
    _, manifest = drill(PLAN, tmp_path / "run")
    assert (manifest.state, manifest.trouble) == ("sealed", ())


def test_a_lease_of_faults_that_ran_out_meanwhile_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ("n2: its lease ran out",)

    async def lapsed(_: SimProvider) -> tuple[str, ...]:
        return told

    monkeypatch.setattr(SimProvider, "lapsed", lapsed, raising=False)

    _, manifest = drill(PLAN, tmp_path / "run")

    assert (manifest.state, manifest.trouble) == ("sealed", told)


def test_keys_that_are_not_read_in_the_end_are_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise StoreError("NO-LEADER", "not today")

    async def recovered_for_nothing(system: ReferenceSystem, *_: object) -> None:
        monkeypatch.setattr(ReferenceClient, "begin", refused)

    monkeypatch.setattr(ReferenceSystem, "recover", recovered_for_nothing)
    _, manifest = drill(PLAN, tmp_path / "run")
    (trouble,) = manifest.trouble
    assert trouble.startswith("final reads: not every key was read within 30 s (")
    assert trouble.endswith(" x NO-LEADER)")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("zone"), "KeyError: 'zone'"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_a_bug_of_an_adapter_is_trouble_and_all_else_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    async def broken(*_: object) -> list[StoreEvent]:
        raise error

    monkeypatch.setattr(ReferenceSystem, "events", broken)
    _, manifest = drill(PLAN, tmp_path / "run")

    assert manifest.state == "sealed"
    told = [text for text in manifest.trouble if said in text]
    assert [text.split(":")[0] for text in told] == ["fetching events", "collect events"]
    assert all("(test_sim_trouble.py:" in text for text in told)
    assert manifest.logs
    assert "states.parquet" in manifest.checksums


@pytest.mark.parametrize("error", [SystemExit(3), KeyError("states")])
def test_a_bug_of_an_adapter_that_tells_states_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ReferenceSystem, "states", broken)
    _, manifest = drill(PLAN, tmp_path / "run")

    assert manifest.state == "sealed"
    assert [text.split(":")[0] for text in manifest.trouble] == [
        "sampling states",
        "collect states",
    ]
    assert all("(test_sim_trouble.py:" in text for text in manifest.trouble)
    assert manifest.logs


def test_states_that_fit_no_table_cost_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ReferenceSystem.states

    async def garbled(
        system: ReferenceSystem, cluster: Cluster, node: str, *, whole: bool
    ) -> tuple[ReplicaState, ...] | None:
        states = await told(system, cluster, node, whole=whole)
        if node != "n2" or states is None:
            return states
        return tuple(msgspec.structs.replace(state, term="one") for state in states)

    monkeypatch.setattr(ReferenceSystem, "states", garbled)
    run, manifest = drill(PLAN, tmp_path / "run")

    assert manifest.state == "sealed"
    assert any("n2: its states fit no table: Arrow" in text for text in manifest.trouble)
    nodes = read_states(run.root, manifest.checksums)["states"].column("node").to_pylist()
    assert set(nodes) == {"n1", "n3"}


def test_what_a_provider_tells_wrongly_keeps_no_run_from_being_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(SimProvider):
        asked = 0

        async def usage(self, node: str) -> NodeUsage:
            Told.asked += 1
            memory = 4096 if Told.asked < 6 else "4 KiB"
            return NodeUsage(cpu_s=1.0, memory_bytes=memory)  # type: ignore[arg-type]

        def claims(self) -> None:
            sys.exit("no claims today")

    monkeypatch.setattr(sim_lab, "SimProvider", Told)
    run, manifest = drill(PLAN, tmp_path / "run")

    assert manifest.state == "sealed"
    measuring, claims = manifest.trouble
    assert measuring.startswith("measuring the nodes broke off: n")
    assert "what it used fits no table: Arrow" in measuring
    assert "ending the history: it raised SystemExit: no claims today" in claims
    assert read_usage(run, manifest).num_rows >= 3


def test_an_adapter_that_lets_a_timeout_out_is_not_said_to_have_taken_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise TimeoutError("n1 said nothing")

    monkeypatch.setattr(ReferenceSystem, "recover", refused)
    _, manifest = drill(PLAN, tmp_path / "run")
    assert manifest.trouble == ("quiesce: it raised TimeoutError: n1 said nothing",)


def test_logs_that_the_disk_refuses_are_trouble_and_lose_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sim_provider, "_write", refused)
    _, manifest = drill(PLAN, tmp_path / "run")

    assert manifest.state == "sealed"
    assert manifest.trouble == tuple(
        f"collect logs of {node}: it raised OSError: [Errno 5] Input/output error"
        for node in ("n1", "n2", "n3")
    )


def test_lines_of_a_log_that_were_not_kept_are_counted_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = drill(PLAN, tmp_path / "whole")
    assert whole.logs_left_out is msgspec.UNSET
    monkeypatch.setattr(sim_provider, "LOG_LINES", 2)

    short, manifest = drill(PLAN, tmp_path / "short")

    assert isinstance(manifest.logs_left_out, dict)
    assert sorted(manifest.logs_left_out) == [f"nodes/n{n}/node.log" for n in (1, 2, 3)]
    for name, left_out in manifest.logs_left_out.items():
        content = (run.root / name).read_bytes()
        assert (short.root / name).read_bytes() == content[left_out:]


def test_a_run_that_is_cancelled_half_way_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(main: Coroutine[Any, Any, Manifest]) -> Manifest:
        async with asyncio.timeout(3):
            return await main

    monkeypatch.setattr(sim_lab, "simulate", lambda main: simulate(cancelled(main)))
    with pytest.raises(TimeoutError):
        drill(PLAN, tmp_path / "run")
    assert read_manifest(RunDirectory(tmp_path / "run")).trouble == (
        "the run broke off: CancelledError",
    )


def test_a_mark_of_a_kept_cluster_that_can_not_be_removed_keeps_no_cluster_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    teardown = SimProvider.teardown

    async def counted(provider: SimProvider) -> None:
        ended.append("the cluster")
        await teardown(provider)

    async def not_kept(broke_off: bool) -> bool:
        return False

    monkeypatch.setattr(SimProvider, "teardown", counted)
    monkeypatch.setattr(sim_lab, "Parts", partial(sim_lab.Parts, keep=not_kept))
    refusing = property(lambda run: run.root / "plan.toml" / "kept")
    monkeypatch.setattr(RunDirectory, "kept", refusing)

    _, manifest = drill(PLAN, tmp_path / "run")

    assert (manifest.state, ended) == ("sealed", ["the cluster"])


def test_a_nemesis_that_does_not_end_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(self: Nemesis, scene: Scene, started_ns: int) -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr(Nemesis, "run", deaf)
    _, manifest = drill(PLAN, tmp_path / "run")
    assert manifest.trouble == (
        "the fault schedule was not over when the drive phase ended",
        "the nemesis: went on 5 s after it was told to end",
    )
    assert "final-reads" in dict(manifest.phases)


def test_clients_go_on_until_the_schedule_is_over_within_the_overtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = msgspec.structs.replace(PLAN.drive, duration_s=6.0, overtime_s=4.0)
    plan = msgspec.structs.replace(PLAN, drive=drive)

    def drive_s(manifest: Manifest) -> float:
        phases = dict(manifest.phases)
        return (phases["heal"] - phases["drive"]) / NS_PER_S

    def lasting(over_s: float) -> None:
        async def run(self: Nemesis, scene: Scene, started_ns: int) -> None:
            await asyncio.sleep(over_s)

        monkeypatch.setattr(Nemesis, "run", run)

    lasting(1.0)
    _, punctual = drill(plan, tmp_path / "punctual")
    lasting(8.0)
    _, late = drill(plan, tmp_path / "late")
    lasting(60.0)
    _, endless = drill(plan, tmp_path / "endless")

    assert 6.0 <= drive_s(punctual) <= 8.0
    assert 8.0 <= drive_s(late) <= 10.5
    assert 10.0 <= drive_s(endless) <= 12.0
    assert (punctual.trouble, late.trouble) == ((), ())
    assert endless.trouble == ("the fault schedule was not over when the drive phase ended",)


def test_a_watch_over_the_store_that_fails_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def events(self: ReferenceSystem, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise HarnessError("no such kind of event")
        return []

    monkeypatch.setattr(ReferenceSystem, "events", events)
    _, manifest = drill(PLAN, tmp_path / "run")
    assert manifest.trouble == ("fetching events: no such kind of event",)
    assert asked > 5, "once that it can't be asked is no reason to ask no more"


def test_a_store_that_hangs_when_it_is_asked_for_events_does_not_hold_the_watch_over_the_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def events(self: ReferenceSystem, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        await asyncio.sleep(10_000)
        return []

    monkeypatch.setattr(ReferenceSystem, "events", events)
    monkeypatch.setattr(
        "harness.run.lifecycle.over_cap", lambda plan, root: "the run outgrew its room"
    )
    monkeypatch.setattr("harness.run.lifecycle.ROOM_POLL_S", 1.0)
    _, manifest = drill(PLAN, tmp_path / "run")
    assert "the run outgrew its room" in manifest.trouble


def test_a_node_that_does_not_start_leaves_none_behind_that_still_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    torn_down: list[tuple[str, ...]] = []
    teardown, really_start = SimProvider.teardown, SimProvider.start

    async def start(self: SimProvider, node: str) -> NodeStatus:
        if node == "n1":
            raise HarnessError("n1: its port is taken")
        await asyncio.sleep(1)
        begun.append(node)
        return await really_start(self, node)

    async def noted(self: SimProvider) -> None:
        torn_down.append(tuple(begun))
        await teardown(self)

    monkeypatch.setattr(SimProvider, "start", start)
    monkeypatch.setattr(SimProvider, "teardown", noted)
    with pytest.raises(HarnessError, match="its port is taken"):
        drill(PLAN, tmp_path / "run")
    assert torn_down == [("n2", "n3")]


def test_a_cluster_that_never_serves_leaves_its_nodes_logs_behind(tmp_path: Path) -> None:
    hasty = msgspec.structs.replace(PLAN, limits=msgspec.structs.replace(PLAN.limits, ready_s=0.1))
    with pytest.raises(HarnessError, match="not whole"):
        drill(hasty, tmp_path / "run")
    for node in ("n1", "n2", "n3"):
        assert (tmp_path / "run" / "nodes" / node / "node.log").stat().st_size > 0
