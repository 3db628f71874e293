"""Virtual time: it passes only when nothing else can, and reaching outside is an error."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from clusters.providers.sim import loop as sim_loop
from clusters.providers.sim.loop import (
    Deadlock,
    HorizonReached,
    Livelock,
    OutsideWorld,
    SimLoop,
    simulate,
)

HOUR_S = 3600.0


def test_an_hour_passes_at_once_and_timers_fire_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            seen.append((name, loop.time()))

        await asyncio.gather(sleeper("late", HOUR_S), sleeper("early", 1.5), sleeper("now", 0))
        return seen

    assert simulate(main()) == [("now", 0.0), ("early", 1.5), ("late", HOUR_S)]


def test_time_stands_while_anything_is_ready() -> None:
    async def main() -> float:
        asyncio.get_running_loop().call_later(1.0, lambda: None)
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert simulate(main()) == 0.0


def test_deadlines_are_met_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert simulate(main()) == 30.0


def test_waiting_for_what_never_comes_is_a_named_error() -> None:
    async def main() -> None:
        await asyncio.sleep(2.0)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match=r"at 2\.000000 s .* no timer is set"):
        simulate(main())


def test_a_run_without_an_end_is_a_named_error() -> None:
    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(1.0)

    with pytest.raises(HorizonReached, match="within 60 s"):
        simulate(main(), horizon_s=60.0)


def test_time_that_cannot_pass_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_loop, "MAX_TURNS_AT_ONE_INSTANT", 1000)

    async def main() -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="did not let time pass"):
        simulate(main())


async def _thread() -> None:
    await asyncio.to_thread(int)


async def _dial() -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def _listen() -> None:
    await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


async def _resolve() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 1)


async def _child() -> None:
    await asyncio.create_subprocess_exec("true")


async def _socket() -> None:
    with socket.socket() as end:
        await asyncio.get_running_loop().sock_recv(end, 1)


@pytest.mark.parametrize("reach", [_thread, _dial, _listen, _resolve, _child, _socket])
def test_reaching_outside_is_a_named_error(reach: object) -> None:
    with pytest.raises(OutsideWorld, match="reaches outside the simulation"):
        simulate(reach())  # type: ignore[operator]


def test_another_thread_cannot_call_into_the_simulation() -> None:
    caught: list[BaseException] = []
    loops: list[asyncio.AbstractEventLoop] = []
    made, tried = threading.Event(), threading.Event()

    def intrude() -> None:
        made.wait(10.0)
        try:
            loops[0].call_soon_threadsafe(print)
        except OutsideWorld as error:
            caught.append(error)
        tried.set()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        made.set()
        assert tried.wait(10.0)
        loops[0].call_soon_threadsafe(lambda: None)  # from inside it is what call_soon is

    thread = threading.Thread(target=intrude)
    thread.start()
    simulate(main())
    thread.join(10.0)

    assert len(caught) == 1


def test_the_loop_is_a_loop_of_its_own_each_time() -> None:
    async def main() -> tuple[float, str]:
        await asyncio.sleep(1.0)
        loop = asyncio.get_running_loop()
        return loop.time(), type(loop).__name__

    assert simulate(main()) == simulate(main()) == (1.0, SimLoop.__name__)
