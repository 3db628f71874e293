"""The simulated network and disk keep what real ones keep, and lose what real ones lose."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from clusters.providers.sim import network as sim_network
from clusters.providers.sim import simulated_links
from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import WALL_EPOCH_NS, Machine, track_tasks
from clusters.providers.sim.network import Fabric, HostNetwork, SimConnection
from clusters.providers.sim.simulated_links import Weather
from clusters.reference.node.runtime import Connection, ConnectionLost, DiskError, Runtime
from clusters.reference.node.wire.frames import MAX_PAYLOAD_BYTES, FrameError
from harness.clock import NS_PER_S
from harness.protocols.cluster import Program

PORT = 7000
PROGRAM = Program(argv=("program",))


async def echo(connection: Connection) -> None:
    while True:
        connection.send(await connection.recv())


class Pair:
    """``a`` dials ``b``, which echoes."""

    def __init__(self, seed: int = 1) -> None:
        self.fabric = Fabric(seed)
        self.a, self.b = HostNetwork(self.fabric, "a"), HostNetwork(self.fabric, "b")

    async def connected(self) -> Connection:
        self.listener = await self.b.listen("b", PORT, echo)
        return await self.a.dial("b", PORT, 1.0)


async def answer(connection: Connection, limit_s: float = 1.0) -> bytes | None:
    """The next frame, or ``None`` where there is none in time."""
    try:
        async with asyncio.timeout(limit_s):
            return await connection.recv()
    except TimeoutError:
        return None


# -- network


def test_frames_arrive_in_order_and_take_time() -> None:
    async def main() -> tuple[list[bytes], float]:
        connection = await Pair().connected()
        for number in range(50):
            connection.send(b"%d" % number)
        return [await connection.recv() for _ in range(50)], asyncio.get_running_loop().time()

    frames, took_s = simulate(main())

    assert frames == [b"%d" % number for number in range(50)]
    assert took_s > 4 * (simulated_links.BASE_S[0] + simulated_links.JITTER_S[0])


def copying(pair: Pair) -> list[bytes]:
    """Let every message that begins with ``!`` come twice; what ``b`` gets from now on."""
    pair.fabric.links.weather = Weather(duplicate=1.0)
    pair.fabric.repeatable = lambda payload: payload.startswith(b"!")
    return []


async def keep(got: list[bytes], connection: Connection) -> None:
    while True:
        got.append(await connection.recv())


def test_a_message_that_nobody_answers_may_come_twice_and_behind_newer_ones() -> None:
    async def main() -> list[bytes]:
        pair = Pair()
        got = copying(pair)
        await pair.b.listen("b", PORT, lambda connection: keep(got, connection))
        connection = await pair.a.dial("b", PORT, 1.0)
        sent = [b"hello", b"!1", b"question", b"!2"]
        for payload in sent:
            connection.send(payload)
        await asyncio.sleep(2.0)
        assert got[:4] == sent
        return got[4:]

    assert sorted(simulate(main())) == [b"!1", b"!2"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_copy_finds_the_next_connection_of_its_processes_and_no_other_process(
    restarted: bool,
) -> None:
    async def main() -> list[bytes]:
        pair = Pair(seed=2)
        got = copying(pair)
        await pair.b.listen("b", PORT, lambda connection: keep(got, connection))
        first = await pair.a.dial("b", PORT, 1.0)
        first.send(b"hello")
        first.send(b"!1")
        await asyncio.sleep(0.01)
        first.close()
        if restarted:
            pair.b.die()
            after = HostNetwork(pair.fabric, "b")
            await after.listen("b", PORT, lambda connection: keep(got, connection))
        second = await pair.a.dial("b", PORT, 1.0)
        second.send(b"hello again")
        await asyncio.sleep(2.0)
        return got

    once = [b"hello", b"!1", b"hello again"]
    assert simulate(main()) == (once if restarted else [*once, b"!1"])


@pytest.mark.parametrize("link", [("a", "b"), ("b", "a")])
def test_a_cut_holds_frames_and_mending_lets_them_go(link: tuple[str, str]) -> None:
    async def main() -> tuple[bytes | None, bytes | None]:
        pair = Pair()
        connection = await pair.connected()
        pair.fabric.links.cut((link,))
        connection.send(b"x")
        during = await answer(connection)
        pair.fabric.links.cut(())
        return during, await answer(connection)

    assert simulate(main()) == (None, b"x")


@pytest.mark.parametrize("link", [("a", "b"), ("b", "a")])
def test_nobody_connects_over_a_cut(link: tuple[str, str]) -> None:
    async def main() -> None:
        pair = Pair()
        await pair.b.listen("b", PORT, echo)
        pair.fabric.links.cut((link,))
        with pytest.raises(ConnectionLost, match=r"no answer within 0\.5 s"):
            await pair.a.dial("b", PORT, 0.5)
        pair.fabric.links.cut(())
        assert await pair.a.dial("b", PORT, 0.5)

    simulate(main())


def test_a_port_that_nobody_opened_refuses() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost, match="b:7000: refused"):
            await Pair().a.dial("b", PORT, 1.0)

    simulate(main())


def test_a_port_is_opened_once_until_it_is_closed() -> None:
    async def main() -> None:
        pair = Pair()
        await pair.connected()
        with pytest.raises(OSError, match="can't be had"):
            await pair.b.listen("b", PORT, echo)
        pair.listener.close()
        await pair.b.listen("b", PORT, echo)

    simulate(main())


def test_what_was_sent_before_a_close_arrives_before_the_end() -> None:
    async def main() -> list[bytes]:
        pair = Pair()
        seen: list[bytes] = []

        async def keep(connection: Connection) -> None:
            while True:
                seen.append(await connection.recv())

        await pair.b.listen("b", PORT, keep)
        connection = await pair.a.dial("b", PORT, 1.0)
        connection.send(b"1")
        connection.send(b"2")
        connection.close()
        with pytest.raises(ConnectionLost, match="closed on this side"):
            connection.send(b"3")
        await asyncio.sleep(1.0)
        return seen

    assert simulate(main()) == [b"1", b"2"]


def test_the_death_of_a_process_is_seen_as_a_reset_unless_a_cut_hides_it() -> None:
    async def main() -> None:
        for cut in ((), (("b", "a"),)):
            pair = Pair()
            connection = await pair.connected()
            pair.fabric.links.cut(cut)
            pair.b.die()
            if cut:
                assert await answer(connection) is None
                pair.fabric.links.cut(())
            with pytest.raises(ConnectionLost, match="closed by the other side"):
                await connection.recv()
            with pytest.raises(ConnectionLost, match="killed"):
                await pair.b.dial("a", PORT, 1.0)

    simulate(main())


def test_a_sender_that_is_too_far_ahead_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_network, "PIPE_BYTES", 100)

    async def main() -> None:
        pair = Pair()
        connection = await pair.connected()
        pair.fabric.links.cut((("a", "b"),))
        connection.send(b"x" * 100)
        with pytest.raises(ConnectionLost, match="send queue over 100 bytes"):
            connection.send(b"x")

    simulate(main())


# -- disk


def test_a_frame_larger_than_a_real_one_is_refused() -> None:
    async def main() -> None:
        connection = await Pair().connected()
        with pytest.raises(FrameError, match="at most"):
            connection.send(bytes(MAX_PAYLOAD_BYTES + 1))
        connection.send(b"x")
        assert await connection.recv() == b"x"

    simulate(main())


def test_a_crash_keeps_what_was_synced_and_at_most_a_prefix_of_the_rest() -> None:
    async def main(seed: int) -> bytes:
        platter = Platter(random.Random(seed))
        disk = SimDisk(platter)
        await disk.append("log", b"synced.", sync=True)
        await disk.append("log", b"tail", sync=False)
        await disk.append("new", b"gone", sync=False)
        platter.crash()
        assert set(await SimDisk(platter).names()) <= {"log", "new"}
        return await SimDisk(platter).read("log")

    found = {simulate(main(seed)) for seed in range(60)}

    assert found == {b"synced.", b"synced.t", b"synced.ta", b"synced.tai", b"synced.tail"}


def test_replacing_is_all_or_nothing() -> None:
    async def main(delay_s: float) -> bytes:
        platter = Platter(random.Random(1))
        await SimDisk(platter).replace("name", b"old")
        task = asyncio.ensure_future(SimDisk(platter).replace("name", b"new"))
        await asyncio.sleep(delay_s)
        task.cancel()
        platter.crash()
        return await SimDisk(platter).read("name")

    assert {simulate(main(i / 10_000)) for i in range(0, 40)} == {b"old", b"new"}


def test_truncating_and_deleting_last() -> None:
    async def main() -> tuple[bytes, tuple[str, ...]]:
        platter = Platter(random.Random(1))
        disk = SimDisk(platter)
        await disk.append("a", b"abc", sync=True)
        await disk.append("b", b"abc", sync=True)
        await disk.truncate("a", 1)
        await disk.delete("b")
        platter.crash()
        with pytest.raises(DiskError, match="no such file"):
            await disk.truncate("b", 0)
        return await disk.read("a"), await disk.names()

    assert simulate(main()) == (b"a", ("a",))


# -- machine


def on_machine(use: Any) -> Any:
    """Run ``use(machine)`` on the loop."""

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(track_tasks)
        return await use(Machine("m", Fabric(1), 1))

    return simulate(main())


def test_a_kill_ends_every_task_of_the_process_before_it_has_an_effect() -> None:
    effects: list[str] = []

    async def body(_: Program, runtime: Runtime) -> None:
        async def stubborn() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                try:
                    await runtime.disk.append("f", b"after death", sync=True)
                    effects.append("written")
                except DiskError:
                    effects.append("refused")

        await runtime.disk.append("f", b"before", sync=True)
        child = asyncio.ensure_future(stubborn())
        await child

    async def use(machine: Machine) -> tuple[bool, str, bytes]:
        machine.start(PROGRAM, body)
        await asyncio.sleep(1.0)
        assert machine.status().running
        await machine.kill()
        status = machine.status()
        return status.running, status.exit_text, await SimDisk(machine.platter).read("f")

    assert on_machine(use) == (False, "killed", b"before")
    assert effects
    assert "written" not in effects


def test_a_restart_finds_its_disk_and_is_another_boot() -> None:
    seen: list[tuple[str, bytes]] = []

    async def body(_: Program, runtime: Runtime) -> None:
        seen.append((runtime.boot, await runtime.disk.read("f")))
        await runtime.disk.append("f", b"x", sync=True)
        await asyncio.sleep(1000)

    async def use(machine: Machine) -> None:
        for _ in range(3):
            machine.start(PROGRAM, body)
            machine.start(PROGRAM, body)  # it runs already
            await asyncio.sleep(1.0)
            await machine.kill()

    on_machine(use)

    assert seen == [("m-1", b""), ("m-2", b"x"), ("m-3", b"xx")]


@pytest.mark.parametrize("ends", ["raises", "returns"])
def test_a_process_that_ends_by_itself_says_why_and_frees_its_ports(ends: str) -> None:
    async def body(_: Program, runtime: Runtime) -> None:
        await runtime.network.listen("m", PORT, echo)
        await asyncio.sleep(1.0)
        if ends == "raises":
            raise ValueError("no more")

    async def use(machine: Machine) -> str:
        machine.start(PROGRAM, body)
        await asyncio.sleep(2.0)
        assert not machine.status().running
        machine.start(PROGRAM, body)
        await asyncio.sleep(0.5)
        assert machine.status().running
        await machine.stop()
        machine.start(PROGRAM, body)
        await asyncio.sleep(2.0)
        return machine.status().exit_text

    assert on_machine(use) == ("ValueError: no more" if ends == "raises" else "")


def test_a_task_that_serves_a_connection_belongs_to_the_listening_process() -> None:
    ended: list[str] = []

    async def body(_: Program, runtime: Runtime) -> None:
        async def serve(connection: Connection) -> None:
            try:
                await connection.recv()
            finally:
                ended.append("served")

        await runtime.network.listen("m", PORT, serve)
        await asyncio.sleep(1000)

    async def main() -> bool:
        asyncio.get_running_loop().set_task_factory(track_tasks)
        fabric = Fabric(1)
        machine = Machine("m", fabric, 1)
        machine.start(PROGRAM, body)
        await asyncio.sleep(0.1)
        await HostNetwork(fabric, "controller").dial("m", PORT, 1.0)
        await machine.kill()
        return bool(ended)

    assert simulate(main())


def test_wall_clocks_are_wrong_by_what_the_seed_says_and_no_two_by_more_than_was_asked() -> None:
    def clocks(skew_s: float) -> list[float]:
        async def main() -> list[float]:
            fabric = Fabric(3)
            machines = [Machine(f"n{n}", fabric, 3, skew_s=skew_s) for n in range(20)]
            return [machine.clocks.wall_ns() / NS_PER_S for machine in machines]

        return simulate(main())

    assert max(clocks(0.0)) == min(clocks(0.0)) == WALL_EPOCH_NS / NS_PER_S
    assert clocks(2.0) == clocks(2.0)
    assert 1.0 < max(clocks(2.0)) - min(clocks(2.0)) <= 2.0


def test_one_seed_is_one_course_of_events_and_another_seed_another() -> None:
    async def main(seed: int) -> float:
        connection = await Pair(seed).connected()
        for _ in range(100):
            connection.send(b"x")
            await connection.recv()
        return asyncio.get_running_loop().time()

    assert simulate(main(1)) == simulate(main(1))
    assert simulate(main(1)) != simulate(main(2))


def test_the_network_forgets_connections_that_are_over() -> None:
    async def main() -> int:
        pair = Pair()
        (await pair.connected()).close()
        for _ in range(50):
            (await pair.a.dial("b", PORT, 1.0)).close()
        await asyncio.sleep(5)
        return len(pair.fabric.open)

    assert simulate(main()) == 0


@pytest.mark.parametrize("how", ["cut", "one way", "lost", "whole"])
def test_a_reset_of_the_weather_is_a_packet_that_no_cut_lets_through(how: str) -> None:
    async def main() -> bool:
        pair = Pair()
        pair.fabric.links.weather = Weather(resets_per_s=10.0)
        connection = cast(SimConnection, await pair.connected())
        if how == "lost":
            pair.fabric.links.silence("b")
        links = {"cut": (("a", "b"), ("b", "a")), "one way": (("b", "a"),)}
        pair.fabric.links.cut(links.get(how, ()))
        breaking = asyncio.ensure_future(pair.fabric.break_connections())
        await asyncio.sleep(5)
        breaking.cancel()
        return connection.alive

    assert simulate(main()) is (how != "whole")
