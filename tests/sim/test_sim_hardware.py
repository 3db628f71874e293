"""Simulated disks, clocks and machines fail as real ones do, and only as far as they were told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

import clusters.reference.node as node_package
from clusters.providers.sim.disk import SECTOR_BYTES, Platter, SimDisk
from clusters.providers.sim.loop import SimLoop, simulate
from clusters.providers.sim.machine import Chance, Machine, track_tasks
from clusters.providers.sim.network import Fabric, HostNetwork
from clusters.providers.sim.provider import SimProvider
from clusters.providers.sim.simulated_links import Weather
from clusters.reference.node.runtime import (
    POINTS,
    Connection,
    ConnectionLost,
    DiskError,
    Runtime,
    never,
)
from harness.errors import UsageError
from harness.protocols.cluster import LinkShape, PortSpec, Program
from harness.protocols.hardware import ClockTrouble, DiskTrouble, Hardware

PROGRAM = Program(argv=("program",))
PORT = 7000


def platter(seed: int = 1) -> Platter:
    return Platter(random.Random(seed))


# -- disks


@pytest.mark.parametrize(
    ("trouble", "error"),
    [(DiskTrouble(full=True), "ENOSPC"), (DiskTrouble(failing=True), "EIO")],
)
def test_a_disk_in_trouble_refuses_and_then_works_again(trouble: DiskTrouble, error: str) -> None:
    async def main() -> bytes:
        plate = platter()
        disk = SimDisk(plate)
        await disk.append("log", b"before.", sync=True)
        plate.trouble = trouble
        with pytest.raises(DiskError, match=error):
            await disk.append("log", b"x" * 100, sync=True)
        with pytest.raises(DiskError, match=error):
            await disk.replace("other", b"x")
        assert error in (await disk.look()).error
        plate.crash()
        plate.trouble = DiskTrouble()
        assert not (await SimDisk(plate).look()).error
        return await SimDisk(plate).read("log")

    found = simulate(main())

    assert found.startswith(b"before.")
    assert len(found) < len(b"before.") + 100 or error == "EIO"


def test_a_full_disk_can_still_be_read_and_a_failing_one_can_not() -> None:
    async def main() -> bytes:
        plate = platter()
        disk = SimDisk(plate)
        await disk.append("log", b"kept", sync=True)
        plate.trouble = DiskTrouble(full=True)
        found = await disk.read("log")
        plate.trouble = DiskTrouble(failing=True)
        with pytest.raises(DiskError, match="EIO"):
            await disk.read("log")
        return found

    assert simulate(main()) == b"kept"


def test_a_slow_disk_takes_its_time_and_no_longer_once_it_is_mended() -> None:
    async def main() -> tuple[float, float]:
        plate = platter()
        plate.trouble = DiskTrouble(slow_s=0.5)
        slow = await SimDisk(plate).look()
        plate.trouble = DiskTrouble()
        return slow.took_s, (await SimDisk(plate).look()).took_s

    slow_s, usual_s = simulate(main())

    assert slow_s >= 0.5 > 0.1 > usual_s


def test_a_crash_tears_what_was_not_synced_at_sectors_and_nothing_else() -> None:
    async def main(seed: int) -> bytes:
        plate = platter(seed)
        disk = SimDisk(plate)
        await disk.append("log", b"s" * SECTOR_BYTES, sync=True)
        await disk.append("log", b"t" * 4 * SECTOR_BYTES, sync=False)
        plate.crash()
        return await SimDisk(plate).read("log")

    found = [simulate(main(seed)) for seed in range(40)]

    for data in found:
        assert data[:SECTOR_BYTES] == b"s" * SECTOR_BYTES
        tail = data[SECTOR_BYTES:]
        sectors = [tail[at : at + SECTOR_BYTES] for at in range(0, len(tail), SECTOR_BYTES)]
        assert all(set(sector) in ({ord("t")}, {0}) for sector in sectors)
    assert any(b"\0" in data for data in found)
    assert any(data.endswith(b"t") for data in found)


def test_a_flip_hits_old_data_one_bit_of_it_and_never_the_last_write() -> None:
    async def main(draw: int) -> tuple[str, int, int]:
        plate = platter()
        disk = SimDisk(plate)
        assert plate.flip(draw) == ""
        await disk.append("log", b"\0" * 100, sync=True)
        await disk.append("log", b"\0" * 100, sync=True)
        said = plate.flip(draw)
        data = await disk.read("log")
        assert (await disk.look()).flipped_bits == 1
        plate.wipe()
        assert (await disk.look()).flipped_bits == 0
        changed = [at for at, byte in enumerate(data) if byte]
        return said, len(changed), changed[0]

    for draw in range(20):
        said, count, at = simulate(main(draw))
        assert count == 1
        assert at < 100
        assert f"byte {at} of log" in said


# -- machines


async def ticking(_: Program, runtime: Runtime) -> None:
    """Writes a byte every 0.1 s of its own clock, and echoes."""

    async def echo(connection: Connection) -> None:
        while True:
            connection.send(await connection.recv())

    await runtime.network.listen("m", PORT, echo)
    while True:
        await asyncio.sleep(0.1)
        await runtime.disk.append("ticks", b".", sync=True)


def on_machine(use: Any) -> Any:
    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(track_tasks)
        fabric = Fabric(1)
        machine = Machine("m", fabric, 1)
        machine.start(PROGRAM, ticking)
        await asyncio.sleep(1.05)
        return await use(machine, HostNetwork(fabric, "controller"))

    return simulate(main())


def ticks(machine: Machine) -> int:
    return len(machine.platter.files["ticks"].data)


async def reply(connection: Connection, limit_s: float = 1.0) -> bytes | None:
    connection.send(b"hello")
    try:
        async with asyncio.timeout(limit_s):
            return await connection.recv()
    except TimeoutError:
        return None


def test_a_paused_program_does_nothing_and_takes_connections_all_the_same() -> None:
    async def use(machine: Machine, network: HostNetwork) -> tuple[int, int, bytes | None]:
        before = ticks(machine)
        machine.pause()
        assert machine.status().paused
        late = await network.dial("m", PORT, 1.0)  # the machine's kernel answers
        assert await reply(late) is None
        during = ticks(machine) - before
        machine.resume()
        async with asyncio.timeout(1.0):
            answered = await late.recv()
        assert not machine.status().paused
        return before, during, answered

    before, during, answered = on_machine(use)

    assert before >= 9
    assert during <= 1  # what was under way on the disk
    assert answered == b"hello"


def test_a_frozen_machine_answers_nobody_and_goes_on_where_it_was() -> None:
    async def use(machine: Machine, network: HostNetwork) -> bytes | None:
        open_before = await network.dial("m", PORT, 1.0)
        machine.freeze()
        assert machine.status().frozen
        with pytest.raises(ConnectionLost, match="no answer"):
            await network.dial("m", PORT, 0.5)
        assert await reply(open_before) is None
        machine.thaw()
        machine.thaw()
        async with asyncio.timeout(1.0):
            return await open_before.recv()

    assert on_machine(use) == b"hello"


def test_a_lost_machine_is_silent_and_its_old_connections_are_reset_when_it_is_back() -> None:
    async def use(machine: Machine, network: HostNetwork) -> int:
        connection = await network.dial("m", PORT, 1.0)
        await machine.lose()
        assert await reply(connection) is None  # nobody was told
        with pytest.raises(UsageError, match="starts nothing"):
            machine.start(PROGRAM, ticking)
        machine.restore()
        with pytest.raises(ConnectionLost, match="reset"):
            await reply(connection)
        before = ticks(machine)
        machine.start(PROGRAM, ticking)
        await asyncio.sleep(1.0)
        return ticks(machine) - before

    assert on_machine(use) >= 8


def test_what_is_paused_can_be_killed() -> None:
    async def use(machine: Machine, network: HostNetwork) -> tuple[bool, bool]:
        machine.pause()
        await machine.kill()
        dead = machine.status()
        machine.start(PROGRAM, ticking)
        await asyncio.sleep(0.5)
        return dead.running, machine.status().paused

    assert on_machine(use) == (False, False)


# -- clocks


def test_a_clock_that_gains_makes_its_program_hurry_and_its_wall_clock_run_ahead() -> None:
    async def use(machine: Machine, network: HostNetwork) -> tuple[int, float]:
        machine.clocks.spoil(ClockTrouble(rate=1.5))
        before, began_ns = ticks(machine), machine.clocks.wall_ns()
        await asyncio.sleep(10.0)
        return ticks(machine) - before, (machine.clocks.wall_ns() - began_ns) / 1e9

    hurried, wall_s = on_machine(use)

    assert 130 <= hurried <= 150
    assert wall_s == pytest.approx(15.0)


def test_a_jump_moves_the_wall_clock_alone() -> None:
    async def use(machine: Machine, network: HostNetwork) -> tuple[float, float, int]:
        wall_ns, monotonic_s = machine.clocks.wall_ns(), machine.clocks.monotonic_s()
        before = ticks(machine)
        machine.clocks.spoil(ClockTrouble(jump_s=-3600.0))
        jumped_s = (machine.clocks.wall_ns() - wall_ns) / 1e9
        await asyncio.sleep(1.0)
        return jumped_s, machine.clocks.monotonic_s() - monotonic_s, ticks(machine) - before

    jumped_s, passed_s, ticked = on_machine(use)

    assert jumped_s == pytest.approx(-3600.0)
    assert passed_s == pytest.approx(1.0)
    assert 8 <= ticked <= 10


def test_machines_do_not_share_a_monotonic_clock() -> None:
    async def main() -> tuple[float, float]:
        fabric = Fabric(1)
        return tuple(Machine(name, fabric, 1).clocks.monotonic_s() for name in ("a", "b"))  # type: ignore[return-value]

    first_s, second_s = simulate(main())

    assert first_s != second_s


def test_a_drifting_clock_never_stops_time() -> None:
    """Rounding between two clocks must not eat up a timer: then time would stand still."""

    async def body(_: Program, runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        for step in range(2000):
            until_s = loop.time() + 1e-7 * (step % 7 + 1)
            while (left_s := until_s - loop.time()) > 0:  # noqa: ASYNC110 (it is what is tested)
                await asyncio.sleep(left_s)
        await runtime.disk.append("done", b".", sync=True)

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.set_task_factory(track_tasks)
        machine = Machine("m", Fabric(3), 3)
        machine.clocks.spoil(ClockTrouble(rate=1.0173))
        machine.start(PROGRAM, body)
        await asyncio.sleep(5.0)
        return "done" in machine.platter.files

    assert simulate(main())


# -- links


async def round_trips(fabric: Fabric, count: int = 200) -> list[float]:
    async def echo(connection: Connection) -> None:
        while True:
            connection.send(await connection.recv())

    loop = asyncio.get_running_loop()
    await HostNetwork(fabric, "b").listen("b", PORT, echo)
    connection = await HostNetwork(fabric, "a").dial("b", PORT, 5.0)
    took = []
    for _ in range(count):
        began_s = loop.time()
        connection.send(b"x")
        await connection.recv()
        took.append(loop.time() - began_s)
    return took


def test_loss_and_delay_of_a_link_show_in_streams_and_in_measurements() -> None:
    async def main() -> None:
        fabric = Fabric(1)
        usual = await round_trips(fabric)
        fabric.listeners.clear()
        fabric.links.shape((LinkShape(link=("a", "b"), loss=0.3, delay_s=0.05),))
        spoiled = await round_trips(fabric)
        seen, other = await fabric.links.measure(("a", "b")), await fabric.links.measure(("c", "b"))
        assert max(usual) < 0.01
        assert min(spoiled) >= 0.05
        assert 40 <= sum(took > 0.2 for took in spoiled) <= 90  # what was lost was sent again
        assert 0.2 < seen.loss < 0.4
        assert seen.round_trip_s is not None
        assert seen.round_trip_s >= 0.05
        assert other.loss == 0.0

    simulate(main())


def test_resets_break_open_connections_at_about_the_rate_that_was_asked_for() -> None:
    async def main() -> int:
        fabric = Fabric(1, Weather(resets_per_s=1.0))
        breaking = asyncio.ensure_future(fabric.break_connections())
        await HostNetwork(fabric, "b").listen("b", PORT, lambda far: far.recv())
        broken = 0
        try:
            async with asyncio.timeout(100.0):
                while True:
                    connection = await HostNetwork(fabric, "a").dial("b", PORT, 5.0)
                    with contextlib.suppress(ConnectionLost):
                        await connection.recv()
                    broken += 1
        except TimeoutError:
            breaking.cancel()
            return broken

    assert 60 <= simulate(main()) <= 140


def test_the_provider_is_hardware_and_its_looks_see_what_its_verbs_did() -> None:
    async def main() -> None:
        provider = SimProvider(seed=1, body=ticking)
        assert isinstance(provider, Hardware)
        await provider.provision(("m",), (PortSpec(name="p", between_nodes=True),))
        await provider.install("m", PROGRAM)
        await provider.start("m")
        await asyncio.sleep(1.0)
        with pytest.raises(UsageError, match="in use"):
            await provider.wipe("m")
        await provider.set_clock("m", ClockTrouble(jump_s=5.0, rate=0.98))
        look = await provider.look_at_clock("m")
        assert look.rate == pytest.approx(0.98)
        assert look.ahead_s == pytest.approx(5.0, abs=0.01)
        assert (await provider.try_disk("m")).size_bytes >= 8
        assert "ticks" in await provider.flip("m", 7)
        await provider.kill("m")
        await provider.wipe("m")
        assert (await provider.try_disk("m")).size_bytes == 0
        await provider.teardown()

    simulate(main())


# -- rare legal paths


def test_points_that_are_open_are_taken_now_and_then_however_often_they_are_passed() -> None:
    async def main(points: frozenset[str]) -> int:
        chance = Chance(points, random.Random(1))
        taken = 0
        for _ in range(40_000):
            taken += chance("slow-sync")
            await asyncio.sleep(0.01)
        return taken

    assert 60 <= simulate(main(frozenset({"slow-sync"}))) <= 140
    assert simulate(main(frozenset({"late-tick"}))) == 0


def test_every_point_that_the_node_passes_has_a_name_and_no_real_machine_takes_one() -> None:
    node = Path(node_package.__file__ or "").parent
    passed = {
        name
        for path in node.rglob("*.py")
        for name in re.findall(r"_rare\(\"([a-z-]+)\"\)", path.read_text())
    }

    assert passed == POINTS.keys()
    assert not any(never(point) for point in POINTS)
