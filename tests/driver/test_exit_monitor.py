"""Which ends count as the nodes' own: not what a fault, a heal or a teardown did."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from clusters.providers.sim.loop import simulate
from harness.clock import RunClock
from harness.errors import HarnessError
from harness.history.records import Record, StoreEvent
from harness.history.run_directory import RunDirectory
from harness.protocols.cluster import NodeStatus, Provider
from harness.run.controller_health import ControllerHealth, read_controller_health
from harness.run.exit_monitor import ExitMonitor, monitored


class Machines:
    """Programs that a test ends; ``slow_s`` is how long every call takes."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.boots: dict[str, int] = {}
        self.dead: dict[str, str] = {}
        self.looks = 0
        self.slow_s = slow_s
        self.silent = False
        self.late = False  # a start comes up and does not return in time

    def crash(self, node: str, text: str) -> None:
        self.dead[node] = text

    async def start(self, node: str) -> NodeStatus:
        await asyncio.sleep(self.slow_s)
        self.boots[node] = self.boots.get(node, 0) + 1
        self.dead.pop(node, None)
        if self.late:
            raise HarnessError(f"{node}: no answer in time")
        return self.status(node)

    async def kill(self, node: str) -> NodeStatus:
        self.dead[node] = "killed by SIGKILL"
        await asyncio.sleep(self.slow_s)
        return self.status(node)

    stop = lose = kill

    async def probe(self, node: str) -> NodeStatus:
        self.looks += 1
        seen = self.status(node)
        await asyncio.sleep(self.slow_s)
        if self.silent:
            raise HarnessError(f"{node}: nobody answers")
        return seen

    def status(self, node: str) -> NodeStatus:
        text = self.dead.get(node, "")
        return NodeStatus(
            node=node, running=not text, boot=f"b{self.boots.get(node)}", exit_text=text
        )


def exits(
    story: Callable[[Provider, Machines], Awaitable[None]], machines: Machines | None = None
) -> list[StoreEvent]:
    """What is recorded of two nodes that were started, while ``story`` goes on."""
    found: list[Record] = []
    parts = machines or Machines()

    async def main() -> None:
        clock = RunClock(asyncio.get_running_loop(), lambda: 0)
        monitor = ExitMonitor(cast(Provider, parts), clock, found.append)
        provider = monitored(cast(Provider, parts), monitor)
        for node in ("n1", "n2"):
            await provider.start(node)
        watch = asyncio.ensure_future(monitor.run(("n1", "n2")))
        await asyncio.sleep(5)
        await story(provider, parts)
        await asyncio.sleep(60)
        watch.cancel()

    simulate(main())
    return [cast(StoreEvent, record) for record in found]


def test_a_node_that_ends_by_itself_is_told_once_with_how_and_when() -> None:
    async def story(_: Provider, machines: Machines) -> None:
        machines.crash("n2", "exited with 3")

    (event,) = exits(story)

    assert (event.node, event.boot) == ("n2", "b1")
    assert event.text == "ended without being told to: exited with 3"
    assert 3e9 < event.at_ns - event.uncertainty_ns <= 5e9 <= event.at_ns < 7e9


def test_a_node_that_was_told_to_end_is_not_told_of() -> None:
    async def story(provider: Provider, _: Machines) -> None:
        await provider.kill("n1")
        await asyncio.sleep(20)
        await provider.start("n1")
        await provider.stop("n2")
        await asyncio.sleep(20)
        await provider.lose("n1")

    assert exits(story) == []


def test_looks_that_a_verb_crosses_show_nothing() -> None:
    async def story(provider: Provider, _: Machines) -> None:
        for _round in range(20):
            await provider.kill("n1")
            await provider.start("n1")
            await asyncio.sleep(0.77)

    assert exits(story, Machines(slow_s=0.3)) == []


def test_an_end_just_before_somebody_starts_the_node_again_is_seen_all_the_same() -> None:
    async def story(provider: Provider, machines: Machines) -> None:
        machines.crash("n1", "exited with 1")
        await provider.start("n1")

    assert [event.node for event in exits(story)] == ["n1"]


@pytest.mark.parametrize("verb", ["kill", "stop", "lose"])
def test_an_end_just_before_a_fault_ends_the_node_is_seen_all_the_same(verb: str) -> None:
    async def story(provider: Provider, machines: Machines) -> None:
        await asyncio.sleep(50)
        machines.crash("n1", "panic: log corrupt")
        await getattr(provider, verb)("n1")
        await provider.start("n1")

    (event,) = exits(story, Machines(slow_s=0.5))

    assert (event.node, event.boot) == ("n1", "b1")
    assert event.text.endswith("panic: log corrupt")


def test_a_node_whose_start_came_up_too_late_for_who_asked_is_attended_again() -> None:
    async def story(provider: Provider, machines: Machines) -> None:
        await provider.kill("n1")
        machines.late = True
        with contextlib.suppress(HarnessError):
            await provider.start("n1")
        assert (await provider.probe("n1")).running, "so the next heal starts nothing"
        machines.crash("n1", "exited with 1")

    (event,) = exits(story)

    assert (event.node, event.boot) == ("n1", "b2")


def test_a_start_that_fails_leaves_what_a_late_kill_ends_to_the_kill() -> None:
    async def story(provider: Provider, machines: Machines) -> None:
        machines.slow_s = 100.0
        for verb in (provider.stop, provider.start):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await verb("n2")
        machines.slow_s = 0.0
        machines.dead.pop("n2")  # nothing has landed yet
        await asyncio.sleep(5)
        machines.crash("n2", "killed by SIGKILL")

    assert exits(story) == []


def test_the_pause_after_a_round_of_slow_looks_has_a_limit() -> None:
    machines = Machines(slow_s=9.0)

    async def story(_: Provider, machines: Machines) -> None:
        await asyncio.sleep(12)
        machines.looks = 0

    exits(story, machines)

    assert machines.looks >= 2 * 2, "every 24 s, not every three minutes"


def test_every_end_of_a_node_is_told() -> None:
    async def story(provider: Provider, machines: Machines) -> None:
        for _round in range(3):
            machines.crash("n1", "exited with 1")
            await asyncio.sleep(5)
            await provider.start("n1")

    assert [event.boot for event in exits(story)] == ["b1", "b2", "b3"]


def test_a_machine_that_can_not_be_asked_shows_nothing() -> None:
    async def story(_: Provider, machines: Machines) -> None:
        machines.silent = True
        machines.crash("n1", "exited with 1")

    assert exits(story) == []


def test_what_only_some_providers_have_is_found_on_an_attended_one_as_well() -> None:
    monitor = ExitMonitor(cast(Provider, Machines()), cast(RunClock, None), lambda _: None)

    provider = monitored(cast(Provider, Machines(slow_s=3.0)), monitor)

    assert inspect.getattr_static(provider, "crash")
    assert not hasattr(provider, "no_such_verb")
    assert provider.slow_s == 3.0  # type: ignore[attr-defined]


def test_looking_costs_a_small_part_of_the_time() -> None:
    machines = Machines(slow_s=1.0)

    async def story(_: Provider, machines: Machines) -> None:
        machines.looks = 0

    exits(story, machines)

    assert 0 < machines.looks <= 2 * 4, "a look of a second at two nodes, in a minute"


def test_the_health_of_a_controller_is_a_row_a_second_that_the_manifest_vouches_for(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path)
    used = iter(range(1000))

    async def main() -> dict[str, str]:
        clock = RunClock(asyncio.get_running_loop(), lambda: 0)
        health = ControllerHealth(clock, lambda: next(used) / 2)
        beat = asyncio.ensure_future(health.run())
        await asyncio.sleep(10.5)
        beat.cancel()
        return health.close(run)

    checksums: dict[str, Any] = simulate(main())

    rows = read_controller_health(run, checksums).to_pylist()
    assert len(rows) == 10
    assert all(row["late_ns"] < 1e6 for row in rows)
    assert all(0.4 < row["cpu_share"] <= 1 for row in rows)
    assert all(1 << 20 < row["resident_bytes"] < 1 << 40 for row in rows), (
        "this process has some memory"
    )
    assert read_controller_health(run, {}).num_rows == 0
    assert pq.read_table(run.controller).num_rows == 10


def test_a_loop_that_is_held_up_shows_how_long(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)

    async def main() -> dict[str, str]:
        loop = asyncio.get_running_loop()
        behind = [0.0]
        clock = RunClock(loop, lambda: 0)
        real = clock.now_ns
        clock.now_ns = lambda: real() + int(behind[0] * 1e9)  # type: ignore[method-assign]
        health = ControllerHealth(clock, None)
        beat = asyncio.ensure_future(health.run())
        await asyncio.sleep(3.01)
        behind[0] = 4.0
        await asyncio.sleep(3)
        beat.cancel()
        return health.close(run)

    rows = read_controller_health(run, simulate(main())).to_pylist()

    assert 3.9e9 < max(row["late_ns"] for row in rows) < 4.1e9
    assert all(row["cpu_share"] is None and row["resident_bytes"] is None for row in rows)
